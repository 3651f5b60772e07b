"""Runs a server for as long as its owner lives: `python watchdog.py COMMAND...`, with a pipe of the owner's as stdin.

The owner holds the pipe's other end. However it ends, also by `kill -9`, the system closes that end, and the server is
killed. Prints the server's process id first. Imports nothing but the standard library: it runs as a script.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

_PR_SET_PDEATHSIG = 1


class Guarded:
    """A server under a watchdog, as its owner sees it.

    Args:
        command: what to run.
        log: where its output goes.
    """

    def __init__(self, command: list[str], log: IO[bytes]) -> None:
        self._watchdog = subprocess.Popen(
            [sys.executable, __file__, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert self._watchdog.stdout is not None
        said = self._watchdog.stdout.readline()
        if not said:
            raise OSError(f"{command[0]} could not be started")
        self.pid = int(said)

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._watchdog.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._ended(30)

    def stop(self, seconds: float = 30) -> None:
        """Ask it to end; kill it if it does not."""
        self.signal(signal.SIGTERM)
        self._ended(seconds)

    def _ended(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(seconds)
        for pipe in (self._watchdog.stdin, self._watchdog.stdout):
            assert pipe is not None
            pipe.close()  # the end of stdin is what the watchdog waits for
        self._watchdog.wait()


def main(command: list[str]) -> None:
    """Start the command, and end it when stdin ends."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_watchdog() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, preexec_fn=die_with_watchdog
    )

    def owner_gone() -> None:
        sys.stdin.buffer.read()
        server.kill()

    threading.Thread(target=owner_gone, daemon=True).start()
    print(server.pid, flush=True)
    os._exit(server.wait() & 0xFF)


if __name__ == "__main__":
    main(sys.argv[1:])
