"""When a query is stuck: pure functions of what was seen of it.

The clock of a stall runs on lack of progress, not on the age of an epoch. Progress is anything that Spark counts (an
epoch committed, a task done, a record read), and the CPU time of the processes that work on the epoch. Waiting for
data, for a slot, or for the end of a pause is not being stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_ext.model.execution import Look, Phase
from spark_ext.model.stacks import BUSY, Sample, Thread

SHORTEST: Final = 5.0  # a query that moves in shorter epochs is not stuck before this time, s
FIRST: Final = 60.0  # before the first epoch of a start has been committed, nothing is known of how long one takes, s
USUAL: Final = 2.0  # a query is examined after this multiple of its expected epoch
WEAK: Final = 6  # a process that only wakes up now and then is stuck after this multiple of the patience


def patience(recent_ms: Sequence[int], fixed: float | None) -> float:
    """How long a query may make no progress, s, by durations of recent epochs, ms, or as the user has `fixed` it."""
    if fixed is not None:
        return fixed
    return max(SHORTEST, USUAL * usual(recent_ms)) if recent_ms else FIRST


def weak_patience(limit: float, expected: float | None) -> float:
    """How long a query may make next to no progress, s: a large epoch of a function that mostly waits looks like that.

    `limit` is how long it may make none, and `expected` what an epoch with its rows takes, s.
    """
    return max(WEAK * limit, USUAL * (expected or 0.0))


def usual(recent_ms: Sequence[int]) -> float:
    """How long an epoch usually takes, s: three quarters of the recent ones, given in ms, took no longer."""
    return sorted(recent_ms)[(3 * len(recent_ms) - 1) // 4] / 1000


@dataclass(frozen=True)
class Marks:
    """What Spark counts of a query: any difference is progress."""

    epoch: int
    phase: Phase
    jobs: tuple[int, ...] = ()
    done: int = 0
    failed: int = 0
    running: int = 0
    records: int = 0


@dataclass(frozen=True)
class StallClock:
    """How long a query has made no progress."""

    marks: Marks | None = None
    since: float = 0.0  # the last progress, s, monotonic

    def after(self, look: Look, marks: Marks, now: float, *, paused: bool) -> StallClock:
        """The clock after a further look; `paused` if a control event keeps the sources from reading."""
        waits = look.tasks is not None and look.tasks.running == 0 and look.tasks.waiting > 0
        not_stuck = look.phase in (Phase.IDLE, Phase.UNKNOWN) or waits or (paused and look.tasks is None)
        if self.marks != marks or not_stuck:
            return StallClock(marks, now)
        return self

    def moved(self, now: float) -> StallClock:
        """Processes that work on the epoch are busy."""
        return StallClock(self.marks, now)

    def still(self, now: float) -> float:
        """For how long there has been no progress, s."""
        return 0.0 if self.marks is None else now - self.since


class Moves:
    """What two samples say about progress."""

    NOT = 0
    WEAKLY = 1
    YES = 2


def moves(before: Sample, after: Sample, seconds: float) -> int:
    """Whether the processes of a query do anything: one of the values of `Moves`."""
    # What may work for another query says nothing about this one.
    mine = [one for one in after.workers if one.alone]
    known = {(one.host, one.pid): one for one in before.workers if one.alone}
    pairs = [(known[one.host, one.pid], one) for one in mine if (one.host, one.pid) in known]
    cpu = sum(max(0.0, late.cpu - early.cpu) for early, late in pairs)
    if any("ForeachBatch" in frame.function for thread in after.driver for frame in thread.frames):
        cpu += _cpu_of_driver(before.python, after.python)
    if cpu >= BUSY * seconds or (mine and not pairs):
        return Moves.YES
    stacks = {one.name: one.frames for one in before.tasks}
    # A JVM calls a thread runnable also when it waits for the operating system.
    runs = [one for one in after.tasks if one.runs and not _is_in(one, _WAITS)]
    if any(not _is_in(one, _FILES) for one in runs) or any(
        one.name in stacks and stacks[one.name] != one.frames for one in after.tasks
    ):
        return Moves.YES
    # Those that are left use a file: it is read, and Spark counts records before the longer patience is over, or the
    # disk does not answer.
    if set(before.silent) & set(after.silent) and not after.tasks:
        # Python workers may wake up for nothing; whoever is to give them rows has not answered twice.
        return Moves.NOT
    weakly = bool(runs) or any(late.switches != early.switches for early, late in pairs)
    return Moves.WEAKLY if weakly else Moves.NOT


def _cpu_of_driver(before: Sequence[Thread], after: Sequence[Thread]) -> float:
    """CPU time that functions of `foreachBatch` have used on the driver between two samples, s."""
    known = {one.name: one.cpu for one in before if one.cpu is not None}
    return sum(max(0.0, one.cpu - known[one.name]) for one in after if one.cpu is not None and one.name in known)


_WAITS: Final = ("socketRead", "SocketDispatcher.", "UnixDomainSockets.", "poll", "epollWait", "park", "wait")

_FILES: Final = ("read0", "pread0", "readBytes", "write0", "pwrite0", "writeBytes", "force0", "open0", "stat0", "list0")
"""Those in which it uses a file."""


def _is_in(thread: Thread, words: tuple[str, ...]) -> bool:
    """Whether the innermost frame of a thread is a method, or of a class, whose name begins so."""
    if not thread.frames:
        return False
    # Without the package: that of Spark has one of the words in it.
    owner, _, method = thread.frames[0].function.rpartition(".")
    name = f"{owner.rpartition('.')[2]}.{method}"
    return any(method.startswith(word) or name.startswith(word) for word in words)
