"""Which Python processes below a JVM are Spark's, and their stacks: real processes, one of them held by C."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from spark_ext.spark.watching import local_workers
from spark_ext.spark.watching.local_workers import PySpy, ptrace_refused, started_by
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


HELD = """
import ctypes

def held_in_c():
    print("begins", flush=True)
    ctypes.PyDLL(None).sleep(600)

held_in_c()
"""

CAPABLE, PLAIN = "Name:\tpython\nCapEff:\t000001ffffffffff\n", "CapEff:\t0000000000000000\n"


@contextmanager
def process(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    program = folder / "held.py"
    program.write_text(text)
    started = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None and started.stdout.readline() == "begins\n"
        yield started
    finally:
        started.kill()
        started.wait()


def allowed() -> PySpy:
    found = PySpy.here()
    if found.refused:
        pytest.skip(found.refused)
    return found


def test_one_that_a_function_in_c_holds_is_read_from_outside(tmp_path: Path) -> None:
    reader = allowed()
    with process(tmp_path, HELD) as held:
        until(lambda: [one for one in reader.threads(held.pid)[0] if one.frames[0].line == 6], "it is in C")
        threads, why = reader.threads(held.pid)
        assert why == "" and len(threads) == 1
        inner = threads[0].frames[0]
        assert (inner.function, inner.line, inner.file) == ("held_in_c", 6, str(tmp_path / "held.py"))
        assert held.poll() is None, "it still runs"
    threads, why = reader.threads(held.pid)
    assert threads == () and f"py-spy has failed for process {held.pid}" in why


def test_one_that_does_not_answer_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with monkeypatch.context() as quick:
        quick.setattr(local_workers, "PY_SPY_WITHIN", 0.2)
        assert PySpy(str(slow)).threads(1) == ((), "py-spy has failed for process 1: it has not answered within 0.2 s")
    slow.write_text("#!/bin/sh\necho '[1]'\n")
    assert "no stacks of py-spy" in PySpy(str(slow)).threads(1)[1]
    slow.write_text(f"#!/bin/sh\nkill -{signal.SIGKILL.value} $$\n")
    assert PySpy(str(slow)).threads(1)[0] == ()


def test_without_it_the_reason_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ext.spark.watching.local_workers.sysconfig.get_path", lambda name: str(tmp_path))
    assert PySpy.here() == PySpy("", local_workers.NOT_INSTALLED)
    assert PySpy.here().threads(1) == ((), local_workers.NOT_INSTALLED)


@pytest.mark.parametrize(
    ("scope", "status", "refused"),
    [
        ("", PLAIN, ""),
        ("0\n", PLAIN, ""),
        ("1\n", PLAIN, "ptrace_scope is 1"),
        ("1\n", CAPABLE, ""),
        ("2\n", PLAIN, "ptrace_scope is 2"),
        ("2\n", CAPABLE, ""),
        ("3\n", CAPABLE, "ptrace_scope is 3"),
        ("1\n", "", "ptrace_scope is 1"),
    ],
)
def test_what_the_kernel_allows(scope: str, status: str, refused: str) -> None:
    found = ptrace_refused(scope, status)
    assert refused in found and bool(found) == bool(refused)
