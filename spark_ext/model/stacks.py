"""Stacks of threads and samples of processes, and how they are read from what Python and a JVM write. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from spark_ext.failures.evidence import Frame
from spark_ext.failures.owners import owner_of_class, owner_of_file


@dataclass(frozen=True)
class Thread:
    """The stack of one thread."""

    name: str
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    runs: bool = False
    """Whether it uses a processor, as far as its JVM knows."""
    cpu: float | None = field(default=None, compare=False)
    """CPU time so far, s, of a thread of the driver's Python process; None: unknown."""


@dataclass(frozen=True)
class WorkerSample:
    """A Python process that works for a query, at one moment."""

    host: str
    pid: int
    role: str
    """`task`, `planner` or `committer`."""
    uid: str = ""
    """Of the source or sink, if it is one's planner or committer."""
    cpu: float = 0.0
    """CPU time so far, s."""
    switches: int = 0
    """How often it has waited so far."""
    threads: tuple[Thread, ...] = ()

    @property
    def who(self) -> str:
        """For people."""
        what = f"{self.role} of '{self.uid}'" if self.uid else "Python worker"
        return f"{what}, process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Sample:
    """What was seen of a query at one moment."""

    workers: tuple[WorkerSample, ...] = ()
    driver: tuple[Thread, ...] = ()
    """The thread that runs the query in the driver's JVM."""
    python: tuple[Thread, ...] = ()
    """Threads of the driver's Python process that the JVM has called."""
    tasks: tuple[Thread, ...] = ()
    """Threads of executors that run its tasks."""
    silent: tuple[str, ...] = ()
    """Executors that do not answer."""


_THREAD: Final = re.compile(
    r"^(?:Current thread|Thread) (?P<name>0x[0-9a-f]+(?: \[[^\]]*\])?) \(most recent call first\):"
)
_FILE: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def threads_of(text: str) -> tuple[Thread, ...]:
    """The threads of what Python's faulthandler has written."""
    found: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        begin = _THREAD.match(line)
        if begin is not None:
            found.append((begin["name"], []))
            continue
        match = _FILE.match(line)
        if match is not None and found:
            number = 0 if match["line"] == "???" else int(match["line"])
            file = match["file"]
            found[-1][1].append(Frame(owner_of_file(file), file, number, match["function"]))
    return tuple(Thread(name, tuple(frames)) for name, frames in found)


_JAVA: Final = re.compile(r"^\s*(?:at )?(?P<method>[\w.$/<>]+)\((?P<file>[^:)]*)(?::(?P<line>\d+))?\)")


def java_thread(name: str, state: str, stack: Iterable[str]) -> Thread:
    """A thread of a JVM.

    Args:
        name: its name.
        state: as the JVM calls it.
        stack: its lines, innermost first.
    """
    frames = []
    for line in stack:
        match = _JAVA.match(line)
        if match is not None:
            method = match["method"].rpartition("/")[2]
            owner = owner_of_class(method.rpartition(".")[0])
            frames.append(Frame(owner, match["file"], int(match["line"] or 0), method))
    return Thread(name, tuple(frames), state == "RUNNABLE")
