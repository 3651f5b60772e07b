"""Ends the servers of a test process that is gone, also when it was killed with SIGKILL: `watchdog.py PID FOLDER`.

It waits for the end of process PID, kills what FOLDER/pids lists, with all children, and removes FOLDER.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

# File of the folder: a line `pid identity` for each process to end. The identity is psutil's, by which a reused pid is
# told; unlike the start time, it does not move when the machine's clock is set.
PIDS = "pids"


class Watched:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._guard = subprocess.Popen(
            [sys.executable, __file__, str(os.getpid()), str(folder)], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def start(self, command: Sequence[str | Path], **how: Any) -> subprocess.Popen[bytes]:
        """A server that writes to `server.log` in the folder, and is ended too."""
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **how
            )
        self.add(process.pid)
        return process

    def add(self, pid: int) -> None:
        with (self.folder / PIDS).open("a") as file:
            file.write(f"{pid} {hash(psutil.Process(pid))}\n")

    def close(self) -> None:
        self._guard.kill()
        self._guard.wait()
        clear(self.folder)


def trees(lines: Iterable[str]) -> list[psutil.Process]:
    """The living processes that lines of a pid file name, and all their children."""
    found = []
    for line in lines:
        pid, identity = line.split()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if hash(process) == int(identity):
                found += [process, *process.children(recursive=True)]
    return found


def clear(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        left = trees((folder / PIDS).read_text().splitlines())
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=30)
    shutil.rmtree(folder, ignore_errors=True)


def main(parent: int, folder: Path) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    clear(folder)


if __name__ == "__main__":
    os.chdir("/")
    main(int(sys.argv[1]), Path(sys.argv[2]))
