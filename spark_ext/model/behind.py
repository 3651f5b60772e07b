"""When a query falls behind: pure functions of how far behind it was.

It does if its lag becomes greater and greater although it works all the time and no slot is free: it needs more of
them, or less to do. A burst that is worked off again is none, and neither is a query that waits, as for its trigger, a
rate limit or another query, whatever its lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

WINDOW: Final = 60.0  # time in which the lag has to grow, s
EPOCHS: Final = 10  # epochs in that time, at least
PARTS: Final = 4  # of that time: the least lag of each has to be greater than that of the one before
GROWTH: Final = 0.1  # by how much the lag has to grow at least, as a share of the rows that were read meanwhile
WORKED: Final = 0.8  # the least share of the time in which the query works
BUSY: Final = 0.6  # the least share of looks at which all slots were taken: between two epochs they are not


@dataclass(frozen=True)
class Standing:
    """How far behind a query was at one moment."""

    at: float  # s, monotonic
    epoch: int  # the newest one that is committed
    lag: int  # rows that it has still to read
    read: int  # rows that it has read in this run
    busy: bool  # whether all slots were taken


@dataclass(frozen=True)
class Trend:
    """The newest standings of a query, for a little more than the window."""

    standings: tuple[Standing, ...] = ()

    def after(self, now: Standing | None) -> Trend:
        """With a further one; None: its lag is not known, or it is not expected to read."""
        if now is None:
            return Trend()
        before = [one for one in self.standings if one.at <= now.at - WINDOW]
        kept = [one for one in self.standings if one.at > now.at - WINDOW]
        return Trend((*before[-1:], *kept, now))

    @property
    def seconds(self) -> float:
        """The time that is known."""
        return self.standings[-1].at - self.standings[0].at if self.standings else 0.0

    def falls_behind(self, epoch_ms: float) -> bool:
        """Whether the query falls behind, if its epochs take so long on average."""
        if self.seconds < WINDOW:
            return False
        first, last = self.standings[0], self.standings[-1]
        epochs, read = last.epoch - first.epoch, last.read - first.read
        worked = epochs * epoch_ms / 1000 / self.seconds
        busy = sum(one.busy for one in self.standings) / len(self.standings)
        if epochs < EPOCHS or worked < WORKED or busy < BUSY:
            return False
        least = self._least()
        grows = all(before < after for before, after in pairwise(least))
        return grows and last.lag - first.lag >= max(1.0, GROWTH * read)

    @property
    def recovers(self) -> bool:
        """Whether the lag has become less, over the window."""
        return self.seconds >= WINDOW and self.standings[-1].lag < self.standings[0].lag

    def _least(self) -> list[int]:
        first, length = self.standings[0].at, self.seconds / PARTS
        parts: list[list[int]] = [[] for _ in range(PARTS)]
        for one in self.standings:
            parts[min(PARTS - 1, int((one.at - first) / length))].append(one.lag)
        return [min(part) for part in parts if part]
