"""Stacks of Python processes by py-spy, which reads their memory from outside: they need not have been prepared for it.

So it also answers for a process whose interpreter is held by a function in C. It is optional (`spark-ext[stacks]`), and
the kernel has to allow it. The processes are not stopped: their stacks are read while they run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_ext.masking import mask
from spark_ext.model.stacks import Thread, threads_of_py_spy

WITHIN: Final = 3.0
"""How long py-spy may take for one process, s."""

NICE: Final = "10"

NOT_INSTALLED: Final = "py-spy is not installed (spark-ext[stacks])"

_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_STATUS: Final = Path("/proc/self/status")
_CAP_SYS_PTRACE: Final = 1 << 19


@dataclass(frozen=True)
class PySpy:
    """py-spy, as far as this machine has it and allows it."""

    program: str
    """Its path; "" if it is not to be used."""
    refused: str = ""
    """Why it is not."""

    @classmethod
    def here(cls) -> PySpy:
        """What this interpreter's environment has, and what the kernel allows; reads three small files."""
        program = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
        if program is None:
            return cls("", NOT_INSTALLED)
        if not sys.platform.startswith("linux"):
            return cls("", f"py-spy needs privileges on {sys.platform}")
        refused = ptrace_refused(_text(_SCOPE), _text(_STATUS))
        return cls("" if refused else program, refused)

    def threads(self, pid: int) -> tuple[tuple[Thread, ...], str]:
        """The stacks of a process, and "" or why there are none.

        Args:
            pid: its number; whose it is has to be known.
        """
        if not self.program:
            return (), self.refused
        nice = shutil.which("nice")
        command = [*([nice, "-n", NICE] if nice else []), self.program, "dump", "--pid", str(pid)]
        try:
            done = subprocess.run(
                [*command, "--json", "--nonblocking"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=WITHIN,
                check=False,
                text=True,
                errors="replace",
            )
            if done.returncode == 0:
                return threads_of_py_spy(mask(done.stdout)), ""
            words = " ".join(done.stderr.split())
        except subprocess.TimeoutExpired:
            words = f"it has not answered within {WITHIN:g} s"
        except (OSError, ValueError) as problem:
            words = f"{type(problem).__name__}: {problem}"
        return (), f"py-spy has failed for process {pid}: {mask(words)[:_LONGEST]}"


_LONGEST: Final = 200


def ptrace_refused(scope: str, status: str) -> str:
    """Why this process may not read the memory of others of its user; "" if it may. Pure.

    Args:
        scope: the setting of Linux's security module Yama; "" without it.
        status: `/proc/self/status`, which has the capabilities of this process.
    """
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    # Its children may only be read by their parents, which py-spy is not.
    level = int(scope.strip() or 0)
    if level == 0 or (level < 3 and int(effective, 16) & _CAP_SYS_PTRACE):
        return ""
    return f"ptrace is not allowed: kernel.yama.ptrace_scope is {level}"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
