"""Ends the servers of a test process that is gone, also when it was killed with SIGKILL.

`python watchdog.py PID STARTED FOLDER`: waits for the end of process PID (started at STARTED, so that a number used
again is not taken for it), then kills what FOLDER/pids lists, with all its children, and removes FOLDER. A server that
ends by itself or by its fixture takes its line out of FOLDER/pids; the fixture ends the watchdog.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

PIDS = "pids"
"""File of the folder: a line `pid started` for each process to end."""


class Watched:
    """A folder whose servers do not outlive this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        me = psutil.Process()
        self._guard = subprocess.Popen(
            [sys.executable, __file__, str(me.pid), repr(me.create_time()), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, pid: int) -> None:
        """End this one too."""
        with (self.folder / PIDS).open("a") as file:
            file.write(f"{pid} {psutil.Process(pid).create_time()!r}\n")

    def close(self) -> None:
        """End what is left, remove the folder, and stop watching."""
        self._guard.kill()
        self._guard.wait()
        clear(self.folder)


def trees(lines: Iterable[str]) -> list[psutil.Process]:
    """The living processes that lines of a pid file name, and all their children."""
    found = []
    for line in lines:
        pid, started = line.split()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if process.create_time() == float(started):
                found += [process, *process.children(recursive=True)]
    return found


def clear(folder: Path) -> None:
    """Kill all that the folder's pid file names, and remove the folder."""
    with contextlib.suppress(FileNotFoundError):
        left = trees((folder / PIDS).read_text().splitlines())
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=30)
    shutil.rmtree(folder, ignore_errors=True)


def main(pid: int, started: float, folder: Path) -> None:
    """Wait for the end of a process, then clear."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.2)
            process = psutil.Process(pid)
    clear(folder)


if __name__ == "__main__":
    os.chdir("/")
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
