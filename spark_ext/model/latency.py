"""Latency markers: when rows were taken up at a source, and when each query on their way has committed them. Pure.

A marker is metadata of an epoch, never a row. It is made when a source takes up rows in an epoch. It passes the commit
of that epoch and, with the epoch's entry in an exchange, the commits of those who read the exchange. Its age at a
commit is the latency from the source to that query.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, TypeAlias

WINDOW: Final = 600  # the number of newest markers that percentiles cover: ten minutes at the default interval
MOST_CARRIED: Final = 512  # epochs of a query whose markers wait for readers of its exchange; more are thinned out
MOST_WAITING: Final = 1_024  # commits of a query that wait to learn what they read; older ones are forgotten


@dataclass(frozen=True, slots=True)
class Hop:
    """A query that a marker has passed."""

    query: str
    ms: int  # from the source to the commit of this query


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker of a source."""

    source: str
    at: int  # when the rows were taken up, ms since 1970 UTC
    hops: tuple[Hop, ...] = ()  # the queries that have committed it, in the order of the flow
    way: tuple[str, ...] = ()  # uids of the sources by which it was read from exchanges

    @property
    def query(self) -> str:
        """Uid of the last query that has committed it; "" if none has."""
        return self.hops[-1].query if self.hops else ""

    @property
    def ms(self) -> int:
        """From the source to that commit; 0 before the first."""
        return self.hops[-1].ms if self.hops else 0

    @property
    def arrived_at(self) -> int:
        """When that was, ms since 1970 UTC."""
        return self.at + self.ms

    def committed(self, query: str, at: int) -> Marker:
        """The marker behind a commit, ms since 1970 UTC. A clock that was set back makes no negative latency."""
        return replace(self, hops=(*self.hops, Hop(query, max(0, at - self.at))))

    def read_by(self, reader: str) -> Marker:
        """The marker on its way into the next query."""
        return replace(self, way=(*self.way, reader))


class Sampler:
    """Chooses the epochs that are marked, at least `interval` ms apart for each source."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._last: dict[str, int] = {}

    def take(self, source: str, at: int) -> bool:
        """Whether an epoch is marked that took up rows at a time, ms since 1970 UTC."""
        last = self._last.get(source)
        if last is not None and last <= at < last + self._interval:
            return False
        self._last[source] = at
        return True


@dataclass(frozen=True, slots=True)
class Passage:
    """What an epoch has read of an exchange to the end of an entry: the entries `begin` to `end - 1`."""

    exchange: str
    reader: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Commit:
    """An epoch of a query that was committed."""

    query: str
    application: str  # under which the query's exchange knows its epochs; "" if it writes none
    epoch: int
    at: int | None  # when, ms since 1970 UTC; None: not known well enough. Its markers end there.
    marked: tuple[Marker, ...] = ()
    passages: tuple[Passage, ...] = ()


Brought: TypeAlias = Callable[[Passage], Sequence[tuple[str, int]] | None]
"""The epochs, by application and number, that have brought the entries of a passage; None: that is not known yet."""


@dataclass(frozen=True, slots=True)
class _Producer:
    query: str
    application: str
    readers: tuple[str, ...]


_NOBODY: Final = _Producer("", "", ())


def _unknown(_: Passage) -> None:
    return None


class Flow:
    """Takes markers from commit to commit. For one thread at a time.

    Each reader passes each entry once, and each commit is given once. So a query counts a marker once for each way by
    which it comes, and nothing need be remembered for that.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Commit]] = {}
        self._producers: dict[str, _Producer] = {}
        self._seen: dict[str, int] = {}
        self._carried: dict[str, dict[int, tuple[Marker, ...]]] = {}
        self._reached: dict[tuple[str, str], int] = {}

    def produces(self, exchange: str, query: str, application: str, readers: Iterable[str]) -> None:
        """Say who writes an exchange."""
        self._producers[exchange] = _Producer(query, application, tuple(readers))

    def seen(self, application: str, epoch: int) -> None:
        """All known commits of a query up to this epoch have been given."""
        self._seen[application] = max(epoch, self._seen.get(application, -1))

    def commit(self, commit: Commit) -> None:
        """Take a commit; those of one query in the order of their epochs."""
        waiting = self._waiting.setdefault(commit.query, deque(maxlen=MOST_WAITING))
        waiting.append(commit)

    def arrivals(self, brought: Brought = _unknown) -> list[Marker]:
        """The markers that have passed commits since the last call, those of each query in the order of its commits.

        `brought` says what the entries of exchanges are; without it only commits that have read none get on.
        """
        found: list[Marker] = []
        moved = True
        while moved:
            # What one query has committed is what the next one has read.
            moved = False
            for waiting in self._waiting.values():
                while waiting and (arrived := self._passed(waiting[0], brought)) is not None:
                    self._carry(waiting.popleft(), arrived)
                    found += arrived
                    moved = True
        return found

    def _passed(self, commit: Commit, brought: Brought) -> list[Marker] | None:
        """The markers in a commit; None when they are not known yet."""
        read: list[Marker] = []
        reached: dict[tuple[str, str], int] = {}
        for passage in commit.passages:
            entries = brought(passage)
            producer = self._producers.get(passage.exchange, _NOBODY)
            application = producer.application
            epochs = [epoch for name, epoch in entries or () if name == application]
            if entries is None or max(epochs, default=-1) > self._known_upto(producer):
                return None
            carried = self._carried.get(application, {})
            read += [marker.read_by(passage.reader) for epoch in epochs for marker in carried.get(epoch, ())]
            if epochs:
                reached[application, passage.reader] = max(epochs)
        self._reached |= reached
        at = commit.at
        return [] if at is None else [marker.committed(commit.query, at) for marker in (*commit.marked, *read)]

    def _known_upto(self, producer: _Producer) -> int:
        """The newest epoch of a query whose markers are known, as those of all epochs before it are."""
        seen = self._seen.get(producer.application, -1)
        waiting = self._waiting.get(producer.query)
        return min(seen, waiting[0].epoch - 1) if waiting else seen

    def _carry(self, commit: Commit, markers: list[Marker]) -> None:
        """Keep markers for those who read what the epoch has written."""
        if not markers or not commit.application:
            return
        carried = self._carried.setdefault(commit.application, {})
        carried[commit.epoch] = tuple(markers)
        if len(carried) <= MOST_CARRIED:
            return
        readers = next((one.readers for one in self._producers.values() if one.query == commit.query), ())
        passed = min((self._reached.get((commit.application, uid), -1) for uid in readers), default=commit.epoch)
        left = {epoch: own for epoch, own in carried.items() if epoch > passed}
        if len(left) > MOST_CARRIED // 2:
            # A reader stands still. Every other epoch goes, so that those which stay tell of the whole wait; and the
            # newest one stays for readers that do not.
            items = list(left.items())
            left = dict([*items[:-1:2], items[-1]])
        self._carried[commit.application] = left


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The latency from a source to a query, by one way."""

    newest: Marker
    markers: int  # how many have arrived in this run
    p50: int | None = None  # ms, of the newest markers; None: they are not kept
    p95: int | None = None
    p99: int | None = None


class Latencies:
    """What has arrived, by query, source and way; the newest markers only if `keep`, else the last. For one thread."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._newest: dict[tuple[str, str, tuple[str, ...]], tuple[Marker, int]] = {}
        self._window: dict[tuple[str, str, tuple[str, ...]], deque[int]] = {}

    def take(self, marker: Marker) -> None:
        """Take a marker that has passed a commit."""
        key = marker.query, marker.source, marker.way
        _, markers = self._newest.get(key, (marker, 0))
        self._newest[key] = marker, markers + 1
        if self._keep:
            self._window.setdefault(key, deque(maxlen=WINDOW)).append(marker.ms)

    @property
    def queries(self) -> tuple[str, ...]:
        """Uids of the queries at which markers have arrived."""
        return tuple(dict.fromkeys(query for query, _, _ in self._newest))

    def of(self, query: str) -> tuple[Latency, ...]:
        """The latencies of a query, by source and way."""
        return tuple(
            self._latency(key, newest, markers)
            for key, (newest, markers) in sorted(self._newest.items(), key=lambda item: item[0])
            if key[0] == query
        )

    def _latency(self, key: tuple[str, str, tuple[str, ...]], newest: Marker, markers: int) -> Latency:
        values = sorted(self._window.get(key, ()))
        if not values:
            return Latency(newest=newest, markers=markers)
        p50, p95, p99 = (percentile(values, share) for share in (50, 95, 99))
        return Latency(newest=newest, markers=markers, p50=p50, p95=p95, p99=p99)


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest of the values, in ascending order, that at least this percentage of all does not exceed."""
    return ordered[ceil(len(ordered) * percent / 100) - 1]
