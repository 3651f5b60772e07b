"""Sessions as platforms hand them over, with all that these take away: in drivers of their own."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tools.project import ROOT

pytestmark = [pytest.mark.slow(40, "starts drivers of their own"), pytest.mark.process]

GIVEN = ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR")
"""Of the environment; a platform has others, and not those of this machine."""


def run(folder: Path, cwd: Path, *how: str) -> subprocess.CompletedProcess[str]:
    env = {name: os.environ[name] for name in GIVEN if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.handed_over", folder, *how], capture_output=True, text=True, check=False,
        timeout=300, cwd=cwd, env={**env, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def test_workers_without_the_variables_of_register(tmp_path: Path) -> None:
    python = tmp_path / "python"
    names = '$(env | sed -n "s/^\\(SPARK_EXT_[A-Z_]*\\)=.*/\\1/p")'
    python.write_text(f'#!/bin/sh\nunset {names} || :\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    done = run(tmp_path, tmp_path, str(python))
    assert done.returncode != 0 and "without the environment variable SPARK_EXT_REGISTRY" in done.stderr, done.stderr
    assert len(DeltaTable(tmp_path / "copies").to_pandas()) == 0
