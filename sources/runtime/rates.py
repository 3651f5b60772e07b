"""Rate limits of a source and of its channels, as the control events `rate_limit` have put them into force."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spark_ext.model.control import source as source_target
from spark_ext.sources.contract import Limit
from spark_ext.sources.runtime.bucket import MOST_S, Bucket

if TYPE_CHECKING:
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.offsets import Json, Position
    from spark_ext.sources.contract import Channel, ChannelSource


class Left:
    """What is left of an epoch's limit; None: no limit."""

    def __init__(self, rows: int | None, size: int | None) -> None:
        self._rows = rows
        self._bytes = size

    def share(self, among: int) -> Limit:
        """A part of it for one of so many channels, at least 1."""
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
    """A limit that is in force, and what is left of it in the epoch that is being planned."""

    def __init__(self, value: Mapping[str, Json], now: float) -> None:
        self.value = value
        self.older_s: float | None = None if value.get("older_than") is None else value["older_than"] / 1000
        """Rows have to be older than this for it to hold, s; None: it always holds."""
        rows, size = value.get("rows_per_second"), value.get("bytes_per_second")
        self._rows = None if rows is None else Bucket(rows, now)
        self._bytes = None if size is None else Bucket(size, now)
        self._left = Left(None, None)
        self._ready = self._cut = False
        self._used = (0, 0)

    @property
    def _buckets(self) -> list[Bucket]:
        return [bucket for bucket in (self._rows, self._bytes) if bucket is not None]

    def begin(self, now: float, most_s: float) -> None:
        """An epoch is to be planned."""
        rows = None if self._rows is None else self._rows.fill(now, most_s)
        size = None if self._bytes is None else self._bytes.fill(now, most_s)
        self._ready, self._cut, self._used = 0 not in (rows, size), False, (0, 0)
        given = [most for most in (rows, self.value.get("rows_per_epoch")) if most is not None]
        self._left = Left(min(given, default=None), size)

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read in this epoch."""
        return not self._ready or self._left.spent

    @property
    def wait_s(self) -> float:
        """How long it takes until something may be read, s; 0 if it is not waited for."""
        return 0.0 if self._ready else max((bucket.wait_s for bucket in self._buckets), default=0.0)

    def share(self, among: int) -> Limit:
        """A part of what is left, for one of so many channels."""
        return self._left.share(among)

    def spend(self, rows: int, size: int, *, cut: bool) -> None:
        """A channel is read in this epoch.

        Args:
            size: bytes of it.
            cut: whether a limit has kept it from reading more.
        """
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
        """The epoch is planned, or there is none."""
        if self._ready and not self._cut:
            self.rest()

    def rest(self) -> None:
        """There was less to read than it allowed."""
        for bucket in self._buckets:
            bucket.clip()

    def undo(self) -> None:
        """The last epoch that was planned has not become one."""
        self._use(-self._used[0], -self._used[1])
        self._used = (0, 0)


class Rates:
    """The limits of one source.

    Args:
        clock: s; never goes back.
        wall_clock: s since 1970 UTC, for the age of rows.
    """

    def __init__(
        self, source: ChannelSource, clock: Callable[[], float], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._clock = clock
        self._wall_clock = wall_clock
        self._followed: object = None
        self._limits: dict[str, Limited] = {}
        """By channel; "" for the whole source."""

    def follow(self, configuration: Configuration) -> None:
        """Take what is in force: a limit that has changed begins anew, without tokens or debts."""
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
        """The epoch is planned, or there is none."""
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
