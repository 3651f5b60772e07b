"""Sessions as platforms hand them over, with all that these take away: in drivers of their own."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.disks import remount, small_disk
from tests.support.fuse import refusing_disk
from tests.support.windows import expected, windows
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


def test_windows_to_the_end_with_all_that_is_taken_away(tmp_path: Path) -> None:
    with small_disk(tmp_path / "cwd", "1m") as cwd, refusing_disk(tmp_path / "volume", "append") as volume:
        assert remount(cwd, "ro")
        done = run(volume, cwd)
        assert done.returncode == 0, done.stderr[-4000:]
        ended = json.loads(done.stdout.splitlines()[-1])
        assert ended == {"state": "FINISHED", "rows": {"windows": 4000, "copy": 4000}}
        assert windows(volume) == expected(volume)


def test_a_volume_without_hard_links_is_refused(tmp_path: Path) -> None:
    with refusing_disk(tmp_path / "volume", "links") as volume:
        done = run(volume, tmp_path)
        assert done.returncode != 0 and "lacks hard links" in done.stderr, done.stderr[-4000:]
        assert not list((volume / "state").iterdir())


def test_workers_without_the_variables_of_register(tmp_path: Path) -> None:
    python = tmp_path / "python"
    names = '$(env | sed -n "s/^\\(SPARK_EXT_[A-Z_]*\\)=.*/\\1/p")'
    python.write_text(f'#!/bin/sh\nunset {names} || :\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    done = run(tmp_path, tmp_path, str(python))
    assert done.returncode != 0 and "without the environment variable SPARK_EXT_REGISTRY" in done.stderr, done.stderr
    assert len(DeltaTable(tmp_path / "copies").to_pandas()) == 0
