"""Drivers in processes of their own, frozen at a fail point until a test wakes them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_ext.errors import FencedError, from_text
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


class Frozen:
    """A driver's process that waits at a fail point until it is woken."""

    def __init__(self, process: subprocess.Popen[str], gate: Path) -> None:
        self._process, self._gate = process, gate

    def wake(self) -> str:
        """Let it continue; returns what it said until its end."""
        self._gate.touch()
        return self._process.communicate(timeout=120)[0]


@contextmanager
def frozen(tmp_path: Path, point: str, program: str) -> Iterator[Frozen]:
    """A process that runs a program with `path` and the kit's names, and waits at the named point."""
    gate = tmp_path / "gate"
    process = started(tmp_path, program, {"SPARK_EXT_FAILPOINTS": f"{point}=wait:{gate}"})
    try:
        waiting = gate.with_name("gate.waiting")
        until(lambda: waiting.exists() or process.poll() is not None, f"waiting at {point}")
        assert process.poll() is None, process.communicate()[0]
        yield Frozen(process, gate)
    finally:
        process.kill()
        process.wait()


def started(tmp_path: Path, program: str, env: dict[str, str]) -> subprocess.Popen[str]:
    code = (
        "from pathlib import Path\nfrom tests.sinks.delta_2pc.delta_kit import *\n"
        + f"path = Path({str(tmp_path / 't')!r})\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code + textwrap.dedent(program)],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def was_fenced(said: str) -> bool:
    return isinstance(from_text(said), FencedError)
