"""Rate limits of a source and of its channels, as the control events `rate_limit` have put them into force.

A bucket is emptied as epochs are planned, and fills for up to ten seconds while an epoch runs, so that the average
holds with long epochs, and a query that is slower than the limit does not read ever more at once. After a time with
less input than the limit allows, a bucket keeps what one second brings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_ext.model.control import source as source_target
from spark_ext.model.token_bucket import TokenBucket
from spark_ext.sources.contract import Limit

if TYPE_CHECKING:
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.offsets import Json, Position
    from spark_ext.sources.aligned import Together
    from spark_ext.sources.contract import Advance, Channel, ChannelSource


BURST_S: Final = 1.0  # what a bucket keeps at most when there was less to read than it allowed, s of its rate
LEAST_S: Final = 0.1  # what it holds before an epoch is planned, s of its rate: one per row is too expensive
MOST_S: Final = 10.0  # what a bucket holds at most, s of its rate, unless epochs start at longer intervals


def bucket(rate: float, now: float) -> TokenBucket:
    """The bucket of a limit per second, empty at first."""
    return TokenBucket(rate, now, burst=rate * BURST_S, least=max(1.0, rate * LEAST_S))


class Remaining:
    """What is left of an epoch's limit; None: no limit."""

    def __init__(self, rows: int | None, size: int | None) -> None:
        self._rows = rows
        self._bytes = size

    def share(self, among: int) -> Limit:
        """The part of it for one of `among` channels, at least 1."""
        return Limit(_share(self._rows, among), _share(self._bytes, among))

    def spend(self, rows: int, size: int) -> None:
        """Take some away, perhaps more than is left."""
        self._rows = None if self._rows is None else self._rows - rows
        self._bytes = None if self._bytes is None else self._bytes - size

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return (self._rows is not None and self._rows <= 0) or (self._bytes is not None and self._bytes <= 0)


class Limited:
    """A limit that is in force, perhaps for old rows only, and what is left of it for the epoch being planned."""

    def __init__(self, value: Mapping[str, Json], now: float) -> None:
        self.value = value
        self.older_s: float | None = None if value.get("older_than") is None else value["older_than"] / 1000
        rows, size = value.get("rows_per_second"), value.get("bytes_per_second")
        self._rows = None if rows is None else bucket(rows, now)
        self._bytes = None if size is None else bucket(size, now)
        self._left = Remaining(None, None)
        self._ready = self._cut = False
        self._used = (0, 0)

    @property
    def _buckets(self) -> list[TokenBucket]:
        return [one for one in (self._rows, self._bytes) if one is not None]

    def begin(self, now: float, most_s: float) -> None:
        """An epoch is to be planned."""
        rows = None if self._rows is None else self._rows.fill(now, most_s)
        size = None if self._bytes is None else self._bytes.fill(now, most_s)
        self._ready, self._cut, self._used = 0 not in (rows, size), False, (0, 0)
        given = [most for most in (rows, self.value.get("rows_per_epoch")) if most is not None]
        self._left = Remaining(min(given, default=None), size)

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read in this epoch."""
        return not self._ready or self._left.spent

    @property
    def wait_s(self) -> float:
        """How long it takes until something may be read, s; 0 if it is not waited for."""
        return 0.0 if self._ready else max((one.wait_s for one in self._buckets), default=0.0)

    def share(self, among: int) -> Limit:
        """The part of what is left for one of `among` channels."""
        return self._left.share(among)

    def spend(self, rows: int, size: int, *, cut: bool) -> None:
        """A channel is read in this epoch; `cut` if a limit has kept it from reading more."""
        self._left.spend(rows, size)
        self._cut |= cut
        self._used = (self._used[0] + rows, self._used[1] + size)
        self._use(rows, size)

    def _use(self, rows: int, size: int) -> None:
        if self._rows is not None:
            self._rows.use(rows)
        if self._bytes is not None:
            self._bytes.use(size)

    def end(self) -> None:
        """The epoch is planned, or nothing was."""
        if self._ready and not self._cut:
            self.rest()

    def rest(self) -> None:
        """There was less to read than it allowed."""
        for one in self._buckets:
            one.clip()

    def undo(self) -> None:
        """The last epoch that was planned has not become one."""
        self._use(-self._used[0], -self._used[1])
        self._used = (0, 0)


class Rates:
    """The limits of one source. `clock`: s; never goes back. `wall_clock`: s since 1970 UTC, for the age of rows."""

    def __init__(
        self, source: ChannelSource, clock: Callable[[], float], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._clock = clock
        self._wall_clock = wall_clock
        self._followed: object = None
        self._limits: dict[str, Limited] = {}  # by channel; "" for the whole source

    def follow(self, configuration: Configuration) -> None:
        """Take what is in force: a limit that has changed begins again without tokens or debts."""
        standing = configuration.standing.get("rate_limit")
        if standing is self._followed:
            return
        self._followed = standing
        mine, now = str(source_target(self._source.options.uid)), self._clock()
        found = {}
        for target, slots in (standing or {}).items():
            uid, _, name = target.partition("/")
            if uid == mine:
                kept = self._limits.get(name)
                found[name] = kept if kept is not None and kept.value == slots[""] else Limited(slots[""], now)
        self._limits = found

    def begin(self, interval_s: float) -> None:
        """An epoch is to be planned."""
        now = self._clock()
        for limited in self._limits.values():
            limited.begin(now, max(MOST_S, 2 * interval_s))

    @property
    def waits(self) -> bool:
        """Whether nothing more may be read of any channel in this epoch."""
        whole = self._limits.get("")
        return whole is not None and whole.older_s is None and whole.spent

    @property
    def wait_s(self) -> float:
        """How long it takes until something may be read that could not be read in this epoch, s; 0 if nothing waits."""
        return min((limited.wait_s for limited in self._limits.values() if limited.wait_s), default=0.0)

    def limits(self, channel: str) -> bool:
        """Whether a channel has a limit of its own."""
        return channel in self._limits

    def of(self, channel: Channel, at: Position) -> list[tuple[str, Limited]]:
        """The limits that hold for a channel whose next row is at a position."""
        found = [(name, self._limits[name]) for name in ("", channel.id) if name in self._limits]
        return [(name, limited) for name, limited in found if self._holds(limited, channel, at)]

    def _holds(self, limited: Limited, channel: Channel, at: Position) -> bool:
        if limited.older_s is None:
            return True
        if not self._source.knows_when_written:
            return False
        return self._source.written_before(channel, at, self._wall_clock() - limited.older_s)

    def end(self) -> None:
        """The epoch is planned, or nothing was."""
        for limited in self._limits.values():
            limited.end()

    def rest(self) -> None:
        """Nothing is read now, whatever the limits."""
        self.begin(0.0)
        for limited in self._limits.values():
            limited.rest()

    def undo(self) -> None:
        """The last epoch that was planned has not become one."""
        for limited in self._limits.values():
            limited.undo()


def _share(left: int | None, among: int) -> int | None:
    return None if left is None else max(1, -(-left // max(1, among)))


@dataclass(frozen=True)
class Allowance:
    """How much of a channel an epoch may read."""

    limit: Limit
    limits: tuple[Limited, ...]  # what it is taken from, besides the limits of the options


class Budget:
    """What is left of an epoch's read limits, at first those of the options: `rows`, and `size` in bytes."""

    def __init__(self, rows: int | None, size: int | None, rates: Rates) -> None:
        self._left = Remaining(rows, size)
        self._rates = rates
        self.planned = 0  # rows of the epoch so far
        self.rows: int | None = 0  # the same; None: a step did not say

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read of any channel."""
        return self._left.spent or self._rates.waits

    def allowed(self, channel: Channel, at: Position, among: int, upto: Position = None) -> Allowance | None:
        """How much of a channel may be read; None: nothing in this epoch."""
        found = self._rates.of(channel, at)
        if any(limited.spent for _, limited in found):
            return None
        shares = [self._left.share(among), *(limited.share(1 if name else among) for name, limited in found)]
        rows = min((share.rows for share in shares if share.rows is not None), default=None)
        size = min((share.bytes for share in shares if share.bytes is not None), default=None)
        return Allowance(Limit(rows, size, upto), tuple(limited for _, limited in found))

    def spend(self, allowed: Allowance, step: Advance | Together) -> None:
        """A channel is read. A source that cannot count is assumed to have used all that it was allowed."""
        limit = allowed.limit
        rows = (limit.rows or 0) if step.rows is None else step.rows
        size = (limit.bytes or 0) if step.bytes is None else step.bytes
        self.planned += rows
        self.rows = None if self.rows is None or step.rows is None else self.rows + step.rows
        self._left.spend(rows, size)
        # Bytes are limits that a whole row must not exceed, and shares of channels that go together are rounded.
        full = limit.rows is not None and 2 * rows >= limit.rows
        full |= limit.bytes is not None and 2 * size >= limit.bytes
        for limited in allowed.limits:
            limited.spend(rows, size, cut=full)


FIRST: Final = 1_000  # rows of the first epoch: nothing is known yet
GROWTH: Final = 4.0  # by how much the limit grows at most from one epoch to the next
CLOSE: Final = 0.05  # a deviation that changes nothing, as a fraction


class Pace:
    """The read limit of one source by a wanted duration of an epoch, ms; for 0 it sets no limit."""

    def __init__(self, target_ms: int, clock: Callable[[], float]) -> None:
        self._target = target_ms / 1000
        self._clock = clock
        self._limit = FIRST
        self._rows = 0
        self._planned_at: float | None = None

    def limit(self, given: int | None) -> int | None:
        """How many rows an epoch may have, at most `given`, the user's limit; None means no limit."""
        if not self._target:
            return given
        return self._limit if given is None else min(given, self._limit)

    def asked(self) -> None:
        """Spark asks for the end of the next epoch: the last one has been committed."""
        if self._planned_at is None:
            return
        took, rows = self._clock() - self._planned_at, self._rows
        self._planned_at = None
        if took <= 0:
            return
        ratio = self._target / took
        if abs(ratio - 1) <= CLOSE:
            return
        if ratio > 1 and rows < self._limit:
            return  # there was no more to read, which says nothing about what an epoch can take
        self._limit = max(1, round(min(rows, self._limit) * min(ratio, GROWTH)))

    def planned(self, rows: int) -> None:
        """An epoch has been planned."""
        if self._target and rows > 0:
            self._planned_at, self._rows = self._clock(), rows
