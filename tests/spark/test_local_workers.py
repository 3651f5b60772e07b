"""Which Python processes below a JVM are Spark's: a tree of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spark_ext.spark.watching.local_workers import started_by
from tests.support.waiting import until

DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


@pytest.mark.process
def test_workers_and_planners_and_nothing_that_they_have_started(tmp_path: Path) -> None:
    (tmp_path / "some_daemon.py").write_text(DAEMON)
    (tmp_path / "streaming_source_runner.py").write_text("import time; time.sleep(600)")
    modules = " ".join(f"{sys.executable} -m {name} &" for name in ("some_daemon", "streaming_source_runner"))
    others = f"{sys.executable} -c 'import time; time.sleep(600)' & sleep 600 &"
    # A shell has the part of the JVM.
    jvm = subprocess.Popen(["sh", "-c", f"{modules} {others} wait"], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    tree = psutil.Process(jvm.pid)
    try:
        until(lambda: len(tree.children(recursive=True)) == 6, "all processes are there", 30)
        found = {role: process for process, role in started_by(jvm.pid)}
        assert sorted(found) == ["planner", "task"] and len(list(started_by(jvm.pid))) == 2
        assert found["planner"].ppid() == jvm.pid
        assert psutil.Process(found["task"].ppid()).ppid() == jvm.pid and found["task"].children()
    finally:
        for process in [*tree.children(recursive=True), tree]:
            process.kill()
        jvm.wait()
    assert list(started_by(jvm.pid)) == []
