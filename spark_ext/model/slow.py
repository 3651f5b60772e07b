"""When an epoch is slow although it moves: pure functions of what was seen of it.

An epoch is slow if it takes many times what its rows usually take. One that is larger may take longer, so one whose
size is not known (see `planned_rows`) is never slow. Time in which a query waits for data, for a slot, or for the end
of a pause does not count, and neither does planning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_ext.failures.labels import Origin
from spark_ext.model.execution import Look, Phase
from spark_ext.model.holders import Holder, holder
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.stacks import Sample, certain
from spark_ext.model.stalls import usual

FLOOR: Final = 30.0  # no epoch is slow before this time, s
KNOWN: Final = 10  # the number of epochs whose duration has to be known


@dataclass(frozen=True)
class Usual:
    """What the recent epochs of a query were like: three quarters of them had no more."""

    seconds: float
    rows: float

    @classmethod
    def of(cls, recent: Sequence[tuple[int, int]]) -> Usual | None:
        """What is usual by the durations, ms, and rows of recent epochs; None: too few are known."""
        if len(recent) < KNOWN:
            return None
        return cls(usual([ms for ms, _ in recent]), 1000 * usual([rows for _, rows in recent]))

    def expected(self, rows: float) -> float:
        """The expected duration of an epoch with that number of rows, s."""
        return self.seconds * max(1.0, rows / max(1.0, self.rows))


@dataclass(frozen=True)
class EpochClock:
    """How long a query has worked on its present epoch."""

    epoch: int | None = None  # the newest one that is committed
    at: float = 0.0  # when it was looked at last, s, monotonic
    worked: float = 0.0
    busy: bool = False  # whether it was worked on then

    def after(self, look: Look, epoch: int, now: float) -> EpochClock:
        """The clock after a further look; `epoch` is the newest one that is committed."""
        tasks = look.tasks
        waits = tasks is not None and tasks.running == 0 and tasks.waiting > 0
        busy = look.phase is Phase.EPOCH and not waits
        if epoch != self.epoch or look.phase is not Phase.EPOCH:
            return EpochClock(epoch, now, busy=busy)
        return EpochClock(epoch, now, self.worked + (now - self.at if busy and self.busy else 0.0), busy)


def is_slow(worked: float, known: Usual | None, rows: float, factor: float) -> bool:
    """Whether an epoch with these rows (0: as if it were small) takes too long, after `worked` s."""
    if known is None or factor <= 0:
        return False
    return worked >= max(FLOOR, factor * known.expected(rows))


@dataclass(frozen=True)
class SlowEpoch:
    """An epoch that is slow."""

    seconds: float  # that it has taken so far
    expected: float  # that its rows usually take, s
    rows: int  # that it has
    holder: Holder  # what it is in, most of the time


def slowed_by(phase: Phase, samples: Sequence[Sample]) -> Holder:
    """What an epoch is in that moves slowly: what most of the samples say."""
    found = [holder(phase, certain(one)) for one in samples]
    counts = {one: sum((one.type, one.origin) == (other.type, other.origin) for other in found) for one in found}
    # Of two that are as frequent the user's own line says most; of equal ones the newest is as good as any.
    return max(reversed(found), key=lambda one: (counts[one], one.origin is Origin.USER))


NEEDED: Final = 5  # the number of epochs whose rows and advance both have to be known
ALIKE: Final = 1.25  # rows by advance may differ so much among epochs

_OTHERS: Final = ("logOffset", "reservoirVersion")
"""In the offsets of Spark's files and of Delta: they count files and commits of any size."""


def advance(before: LoggedOffsets, after: LoggedOffsets) -> float | None:
    """How far the offsets of two epochs are apart; None if they are not made of the same numbers."""
    earlier, later = dict(_numbers(list(before.sources))), dict(_numbers(list(after.sources)))
    if earlier.keys() != later.keys() or any(word in path for path in later for word in _OTHERS):
        return None
    return sum(abs(later[path] - earlier[path]) for path in later)


def planned_rows(known: Sequence[tuple[float, int]], now: float | None) -> float | None:
    """How many rows an epoch will have; None if its advance does not say so."""
    rates = sorted(rows / far for far, rows in known if far > 0 and rows > 0)
    if now is None or len(rates) < NEEDED or rates[-1] > ALIKE * rates[0]:
        return None
    return now * rates[len(rates) // 2]


def _numbers(part: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(part, dict):
        for name, inner in part.items():
            yield from _numbers(inner, (*path, str(name)))
    elif isinstance(part, list):
        for number, inner in enumerate(part):
            yield from _numbers(inner, (*path, str(number)))
    elif isinstance(part, (int, float)) and not isinstance(part, bool):
        yield path, float(part)
