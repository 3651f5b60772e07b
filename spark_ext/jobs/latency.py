"""The latency markers of a running job: made from the epochs that its queries commit, as Spark's own log has them.

When the rows of an epoch were taken up is in Spark's log (`batchTimestampMs` of `offsets/N`, which a replay keeps);
what it has read of an exchange is in its offsets, and whose rows those were in the entries of the exchange.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.errors import OffsetError
from spark_ext.ledger.schema import LatencyRow
from spark_ext.masking import logger
from spark_ext.model.latency import Commit, Flow, Latencies, Latency, Marker, Passage, Sampler
from spark_ext.model.offsets import SourceOffset, ranges
from spark_ext.model.query_offsets import source_offsets
from spark_ext.views.snapshot import LatencySnapshot

if TYPE_CHECKING:
    from spark_ext.exchange.view import ExchangeView
    from spark_ext.model.dag import JobGraph
    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun

log = logger("spark_ext.job")
LATE: Final = 1_000  # age of the last look at commits, ms, from which on those found now were not made just now
RECORD_EVERY: Final = 10_000  # how often what has changed is recorded, ms


def _now() -> int:
    return time.time_ns() // 1_000_000


class LatencyMeter:
    """Follows the markers of one run of a job. Safe for several threads; `arrived` and `record` must not wait.

    Times are in ms; the clock is the driver's, since 1970 UTC, as the stamps in Spark's log are.
    """

    def __init__(
        self,
        job: str,
        graph: Callable[[], JobGraph],
        *,
        interval: int,
        keep: bool,
        arrived: Callable[[Marker], None],
        record: Callable[[str, LatencySnapshot], None],
        clock: Callable[[], int] = _now,
    ) -> None:
        self._job, self._graph, self._arrived, self._record, self._clock = job, graph, arrived, record, clock
        self._lock = threading.Lock()
        self._flow, self._sampler, self._latencies = Flow(), Sampler(interval), Latencies(keep=keep)
        self._last: dict[str, tuple[int, LoggedOffsets | None]] = {}
        self._since = self._looked = clock()
        self._recorded_at, self._recorded = self._since, dict[tuple[str, str, tuple[str, ...]], int]()
        self._failed = False

    def of(self, query: str) -> tuple[LatencySnapshot, ...]:
        """The latencies of a query, by source and way; for any thread."""
        with self._lock:
            return tuple(map(_shown, self._latencies.of(query)))

    def tick(self, runs: Iterable[QueryRun]) -> None:
        """Take in the epochs that were committed since the last look; for the coordinator's thread. Never raises."""
        now = self._clock()
        new = [run for run in runs if run.spec.uid not in self._last or run.committed > self._last[run.spec.uid][0]]
        if new:
            self._guarded(lambda: self._take(new, now))
        self._looked = now
        if now - self._recorded_at >= RECORD_EVERY:
            self.record()

    def record(self) -> None:
        """Record what has changed since the last time. Never raises."""
        self._guarded(self._put)

    def follow(self, views: Mapping[str, ExchangeView]) -> None:
        """Take in what the entries of the exchanges are, after each look at them. Never raises."""

        def brought(passage: Passage) -> list[tuple[str, int]] | None:
            view = views.get(passage.exchange)
            return None if view is None else view.brought_between(passage.begin, passage.end)

        def count() -> None:
            with self._lock:
                self._count(self._flow.arrivals(brought))

        self._guarded(count)

    def _put(self) -> None:
        self._recorded_at = self._clock()
        with self._lock:
            changed = [
                (query, one)
                for query in self._latencies.queries
                for one in map(_shown, self._latencies.of(query))
                if self._recorded.get((query, one.source, one.way)) != one.markers
            ]
            self._recorded |= {(query, one.source, one.way): one.markers for query, one in changed}
        for query, one in changed:
            self._record(query, one)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception(
                    "the latency of job '%s' could not be measured; further failures are not logged", self._job
                )

    def _take(self, runs: Sequence[QueryRun], now: int) -> None:
        # Without the lock: storage that does not answer must not hold those who ask for a snapshot.
        commits = [commit for run in runs for commit in self._commits(run, now)]
        graph = self._graph()
        with self._lock:
            for run in runs:
                for exchange in graph[run.spec.uid].writes:
                    readers = [reader.uid for _, reader in graph.consumers(exchange)]
                    self._flow.produces(exchange, run.spec.uid, run.application, readers)
            for commit in commits:
                self._flow.commit(commit)
            for run in runs:
                self._flow.seen(run.application, run.committed)
            self._count(self._flow.arrivals())

    def _commits(self, run: QueryRun, now: int) -> list[Commit]:
        """The epochs that a query has committed since the last look, if it is known what they have read."""
        uid, position = run.spec.uid, run.committed
        known, before = self._last.get(uid, (-1, None))
        found = []
        for epoch, logged in run.recent:
            if known < epoch <= position:
                # What an epoch has read is known only if the one before it is.
                if epoch == known + 1 and (before is not None or epoch == 0):
                    found.append((before, logged))
                known, before = epoch, logged
        self._last[uid] = position, before if known == position else None
        return [self._commit(run, start, end, self._time_of(run, end.epoch, now)) for start, end in found]

    def _time_of(self, run: QueryRun, epoch: int, now: int) -> int | None:
        """When an epoch was committed, ms since 1970 UTC; None: not known."""
        if now - self._looked <= LATE:
            return now
        # The thread was held, as by a long start. The storage knows, if its clock is about that of the driver.
        at = run.observer.committed_at(epoch)
        return None if at is None or not self._looked - LATE <= at * 1_000 <= now else int(at * 1_000)

    def _commit(self, run: QueryRun, before: LoggedOffsets | None, logged: LoggedOffsets, at: int | None) -> Commit:
        old, new = ({} if one is None else source_offsets(one) for one in (before, logged))
        node = self._graph()[run.spec.uid]
        return Commit(
            run.spec.uid,
            run.application if node.writes else "",
            logged.epoch,
            at,
            tuple(self._markers(run, old, new, int(logged.metadata.get("batchTimestampMs", 0)))),
            tuple(
                Passage(reader.exchange, reader.uid, begin, end)
                for reader in node.reads
                if (begin := _entry(old.get(reader.uid))) < (end := _entry(new.get(reader.uid)))
            ),
        )

    def _markers(
        self, run: QueryRun, old: Mapping[str, SourceOffset], new: Mapping[str, SourceOffset], stamp: int
    ) -> Iterable[Marker]:
        if stamp < self._since:
            return  # planned by an earlier driver, by another clock
        for uid, offset in new.items():
            if uid not in run.spec.fed and _reads(old.get(uid), offset) and self._sampler.take(uid, stamp):
                yield Marker(uid, stamp)

    def _count(self, arrived: Iterable[Marker]) -> None:
        for marker in arrived:
            self._latencies.take(marker)
            self._arrived(marker)


class NoLatency:
    """In the place of `LatencyMeter` where the settings want no markers."""

    def of(self, query: str) -> tuple[LatencySnapshot, ...]:
        """Nothing."""
        return ()

    def tick(self, runs: Iterable[QueryRun]) -> None:
        """Nothing to do."""

    def record(self) -> None:
        """Nothing to record."""

    def follow(self, views: Mapping[str, ExchangeView]) -> None:
        """Nothing to follow."""


def measured_latency(
    context: JobContext, graph: Callable[[], JobGraph], arrived: Callable[[Marker], None]
) -> LatencyMeter | NoLatency:
    """The meter of a run, which writes to its ledger."""
    if context.settings.latency == "off":
        return NoLatency()
    keep = context.settings.latency == "histogram"

    def record(query: str, one: LatencySnapshot) -> None:
        context.write_behind.put(
            LatencyRow(
                query=query,
                source=one.source,
                way=list(one.way),
                at=one.at,
                incarnation=context.incarnation.number,
                latency_ms=one.ms,
                hops=[list(hop) for hop in one.hops],
                markers=one.markers,
                p50_ms=one.p50_ms,
                p95_ms=one.p95_ms,
                p99_ms=one.p99_ms,
            )
        )

    return LatencyMeter(
        context.job, graph, interval=context.settings.latency_interval, keep=keep, arrived=arrived, record=record
    )


def _reads(old: SourceOffset | None, new: SourceOffset) -> bool:
    """Whether an epoch reads anything of a source."""
    try:
        return bool(ranges(SourceOffset(new.uid) if old is None else old, new))
    except OffsetError:
        return False


def _entry(offset: SourceOffset | None) -> int:
    """The entry of an exchange in which a source stands: it has read all of those before it."""
    if offset is None:
        return 0
    positions = [state.at for state in offset.running.values()] + [one.at for one in offset.finished]
    return max((int(at[0]) for at in positions), default=0)


def _shown(latency: Latency) -> LatencySnapshot:
    newest = latency.newest
    return LatencySnapshot(
        source=newest.source,
        ms=newest.ms,
        at=datetime.fromtimestamp(newest.arrived_at / 1000, tz=timezone.utc),
        hops=tuple((hop.query, hop.ms) for hop in newest.hops),
        way=newest.way,
        markers=latency.markers,
        p50_ms=latency.p50,
        p95_ms=latency.p95,
        p99_ms=latency.p99,
    )
