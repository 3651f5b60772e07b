"""Trees of real processes that a test starts, kills in part, and never leaves behind.

Each is a session of the operating system: its processes are found even after their parents have died.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.waiting import until


@dataclass(frozen=True)
class Member:
    process: psutil.Process
    command: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_jvm(self) -> bool:
        return Path(self.command.partition(" ")[0]).name == "java"

    @property
    def is_executor(self) -> bool:
        return self.is_jvm and "CoarseGrainedExecutorBackend" in self.command

    @property
    def is_python_worker(self) -> bool:
        """Whether it is one of Spark's Python processes, and not pyspark's shell script that starts the JVM."""
        known = " -m pyspark." in self.command or " -m spark_ext.spark.watching.worker_daemon " in self.command
        return (known or self._is_forked) and not self.is_jvm

    @property
    def plans(self) -> bool:
        """Whether it is Spark's process that plans epochs of a Python source."""
        with suppress(psutil.NoSuchProcess):
            return "streaming_source" in self.command or self.process.name().endswith("source_runner")
        return False

    @property
    def _is_forked(self) -> bool:
        """Whether it is one of Spark's Python processes that `tests.support.forks` or `daemon` has forked."""
        with suppress(psutil.NoSuchProcess):
            parent = self.process.parent() if " -m tests.support." in self.command else None
            return parent is not None and " ".join(parent.cmdline()) == self.command
        return False

    def kill(self) -> bool:
        """Send SIGKILL; returns whether the process still existed."""
        with suppress(psutil.NoSuchProcess):
            # psutil tells a reused pid by the start since boot, which a change of the machine's clock does not move.
            if self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
                self.process.kill()
                return True
        return False


class Tree:
    """A command, and all processes that descend from it. Use it in a `with`, whose end terminates them all."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(part) for part in command], stdin=stdin, stdout=out if stdout is None else stdout, stderr=out,
                env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_all()

    def tell(self, line: str | None) -> None:
        """Write a line to its standard input; None closes that."""
        assert self._process.stdin is not None
        if line is None:
            self._process.stdin.close()
            return
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def said(self) -> Iterator[bytes]:
        """The lines of its standard output, as they come; for `stdout=subprocess.PIPE`."""
        assert self._process.stdout is not None
        yield from self._process.stdout

    def poll(self) -> int | None:
        """The command's exit code; None while it runs. A signal gives a negative number."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait until the command ends, at most this long; returns its exit code, or None."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def members(self) -> list[Member]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(Member(process, " ".join(process.cmdline())))
        return found

    def kill(self) -> None:
        """Send SIGKILL to the command alone: the processes that it started survive."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait()

    def terminate(self, seconds: float = 30) -> None:
        """Send SIGTERM to the command, then kill all processes that are left."""
        self._process.terminate()
        self.wait(seconds)
        self.kill_all()

    def kill_all(self) -> None:
        """Send SIGKILL to every process of the tree, and wait until none is left."""

        def none_left() -> bool:
            # Repeated, because a process may have started another one between the listing and the kill.
            left = self.members()
            for member in left:
                member.kill()
            self._process.poll()
            return not left

        until(none_left, f"no process of session {self.pid} left")
        self._process.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace")
