"""A `ChannelSource` as a stream reader of Spark: its planner and its tasks. Authors of sources need not read it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_ext.bad_rows.collector import Collector, Destination
from spark_ext.bad_rows.names import default_table, key_of, rules_of
from spark_ext.control import current, levels
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import guarded
from spark_ext.model.offsets import Range, SourceOffset, ranges
from spark_ext.sources.contract import Channel, ChannelSource, Committed
from spark_ext.sources.runtime.conform import conform, sifted
from spark_ext.sources.runtime.live_lag import LiveLag
from spark_ext.sources.runtime.planner import LedgerView, NoLedger, Planner
from spark_ext.sources.runtime.sample import keeps_bad_row, sampled, shares_of
from spark_ext.sources.runtime.stream_reader import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, StreamReader
from spark_ext.spark.session import registry
from spark_ext.spark.session.late_claim import await_claim, before_planning
from spark_ext.spark.watching.attendance import attend
from spark_ext.spark.watching.worker_process import begin_task, end_quietly, tune
from spark_ext.worker_internals import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


LOOK_S: Final = 1.0  # how often an idle source checks whether its job was started again without it, s
RATIONED_S: Final = 0.1  # between two looks at control events while a rate limit keeps an AvailableNow run waiting, s


@dataclass
class ReadTask(InputPartition):
    """What one task of an epoch reads, in this order."""

    ranges: tuple[Range, ...]
    shares: Mapping[str, float] = field(default_factory=dict)  # by channel; others are read whole
    bad_rows: Destination | None = None  # None: a bad row fails the query


def report_of(uid: str, planner: Planner, at: SourceOffset) -> dict[str, Any]:
    """What a source reports of itself once an epoch has been planned; see `spark.watching.query_events`."""
    found: dict[str, Any] = {"uid": uid, "waiting": planner.waiting}
    if planner.rows is not None:
        found["rows"] = planner.rows
    lag = None
    with suppress(Exception):  # A figure for display: what is wrong is found when the source plans its next epoch.
        lag = planner.lag(at)
    return found if lag is None else {**found, "lag": lag, "at": round(time.time(), 3)}


class ChannelReader(StreamReader):
    """One source in one query. Planning methods run in the planner process, `read` on executors."""

    def __init__(self, source: ChannelSource, schema: StructType) -> None:
        registry.enter(source.given)
        source.declared = schema
        self._source = source
        self._schema = schema
        self._planner: Planner | None = None
        self._idle = Idle()
        self._asked: tuple[dict[str, Any], SourceOffset] | None = None  # an idle query asks again and again
        self._planned: dict[str, Any] | None = None  # the end of the epoch that this process has planned last
        self._latest: dict[str, Any] | None = None  # changes with each epoch
        self._live: LiveLag | None = None  # asks for the lag between epochs, of a source that knows it
        self._newest_at = -LOOK_S  # when it last found that no newer start has replaced its own, s
        tune()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        registry.enter(self._source.given)
        # In a task the JVM sends this object first, and then the partition, for which the worker waits before `read`.
        begin_task()

    @property
    def uid(self) -> str:
        """Of the source."""
        return self._source.options.uid

    def _turn(self) -> AbstractContextManager[object]:
        """For as long as Spark asks something: nobody else uses the source meanwhile."""
        return nullcontext() if self._live is None else self._live.turn

    def _said(self, planner: Planner, end: SourceOffset) -> None:
        """An epoch has been planned, or for the first time none was."""
        self._latest = report_of(self.uid, planner, end)
        if self._live is not None:
            self._live.planned(end)
            return
        registration, place = planner.registration, registry.folder()
        if registration is None or not registration.lag_ms or place is None or "lag" not in self._latest:
            return

        def ask(at: SourceOffset) -> int | None:
            with current.planning():
                planner.enter(at)
                return planner.lag(at)

        self._live = LiveLag(self.uid, place, registration.lag_ms / 1000, ask)
        self._live.planned(end)
        self._live.start()

    @cached_property
    def _closed(self) -> bool:
        """Whether the source had finished before this start of its query, and its job has closed it."""
        registration = registry.lookup(self.uid)
        return registration is not None and registration.closed

    def _planning(self, offset: SourceOffset | None = None) -> Planner:
        if self._planner is None:
            registration = registry.lookup(self.uid)
            if registration is None and offset is not None and offset.of_a_job:
                raise StateError(
                    "this source's offsets are those of a job, and the job that runs it is not known in this session: "
                    "it is unknown what has finished",
                    operator=f"source '{self.uid}'",
                    kept="nothing was planned; the checkpoint and the output are unchanged",
                    do="start the query with job.run(); if it was started so, the temporary folder "
                    f"{registry.folder()} was deleted: start the job again",
                )
            if registration is None and self._source.options.on_bad_row == "quarantine":
                raise ConfigurationError(
                    "on_bad_row=quarantine needs a job: Spark never says that the last epoch of a query is committed, "
                    "so that its bad rows could not be moved into their table",
                    operator=f"source '{self.uid}'",
                    kept="nothing was read",
                    do="run the query in a job, with spark_ext.Job, or load with on_bad_row=fail",
                )
            if registration is not None and registration.samples:
                attend("planner", registration.state, registration.query, self.uid)
            self._planner = Planner(self._source, registration, _view(registration))
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """The same each time: Spark asks for it twice and does not log it."""
        return SourceOffset(self.uid).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """For display only; the planner takes its limits from the options."""
        options = self._source.options
        if options.max_rows_per_epoch is not None:
            return ReadMaxRows(options.max_rows_per_epoch)
        if options.max_bytes_per_epoch is not None:
            return ReadMaxBytes(options.max_bytes_per_epoch)
        return ReadAllAvailable()

    @guarded()
    def prepareForTriggerAvailableNow(self) -> None:
        """Plan only what is available now."""
        if not self._closed:
            with self._turn():
                self._planning().prepare_available_now()

    @guarded()
    def next_offset(self, start: dict[str, Any]) -> dict[str, Any]:
        """The end of the next epoch; `start` when there is nothing to read, which makes no epoch."""
        if self._asked is None or self._asked[0] != start:
            self._asked = start, SourceOffset.from_json(start, self.uid)
        offset = self._asked[1]
        if offset.ended and self._closed:
            return start  # without a look at anything, each 10 ms; other sources of the query notice a newer start
        self._idle.asked()
        with self._turn(), current.planning():
            planner = self._planning(offset)
            end = planner.next(offset)
            while end is offset and planner.rationed_s:
                # An AvailableNow run ends when there is nothing to read; a rate limit is not the end.
                time.sleep(min(planner.rationed_s, RATIONED_S))
                end = planner.next(offset)
            if end is not offset or self._latest is None:
                self._said(planner, end)
        if end is not offset or time.monotonic() >= self._newest_at + LOOK_S:
            self._require_newest(planner)
        if end is offset:
            return start
        before_planning(planner.registration)
        self._idle.epoch()
        self._planned = end.to_json()
        reach(FailPoint.SOURCE_PLANNED)
        if end.barrier > offset.barrier:
            reach(FailPoint.SOURCE_STAMPED)
        return self._planned

    def _require_newest(self, planner: Planner) -> None:
        mine = planner.registration
        if mine is not None and not registry.is_published(mine, self.uid):
            from spark_ext.ledger.incarnation import require_newest  # loads deltalake

            require_newest(mine, self.uid)
        self._newest_at = time.monotonic()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What is reported in Spark's progress events: how many channels wait to be started, and the lag in rows."""
        if self._closed:
            return {"uid": self.uid, "waiting": 0, "lag": 0, "at": round(time.time(), 3)}
        return self._latest

    @guarded()
    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of an epoch, which may have been planned by an earlier run."""
        begin, finish = SourceOffset.from_json(start, self.uid), SourceOffset.from_json(end, self.uid)
        if begin.ended and self._closed:
            return []
        planner = self._planning(finish)
        await_claim(planner.registration)  # an older driver may have planned it while the query was being started
        with self._turn(), current.planning():
            planner.enter(finish)
            pieces = ranges(begin, finish)
            shares = shares_of(planner.configuration(finish), self.uid, pieces)
            destination = self._destination(finish)
            if destination is not None and pieces and end != self._planned:
                destination.read_again()
            return assign(self._source, pieces, planner.readers, shares, destination)

    def _destination(self, end: SourceOffset) -> Destination | None:
        """Where the tasks of the epoch that ends there leave bad rows."""
        options = self._source.options
        registration = registry.lookup(self.uid) if options.on_bad_row == "quarantine" else None
        if registration is None:
            return None
        return Destination(
            registration.state,
            registration.checkpoint,
            self.uid,
            options.bad_rows_path or default_table(registration.state),
            end.lineage,
            key_of(end),
            registration.incarnation,
            options.max_bad_rows,
            self._rules,
        )

    @cached_property
    def _rules(self) -> str:
        return rules_of(self._source.options.public(), self._schema.json())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's ranges on an executor, each batch in exactly the declared schema."""
        assert isinstance(partition, ReadTask)
        reach(FailPoint.SOURCE_READ)
        current.require_environment(f"source '{self.uid}'")
        tune()
        levels.follow()
        schema = to_arrow_schema(self._schema)
        for piece in partition.ranges:
            with guarded():
                collector = self._collecting(partition, piece)
                yield from rows_of(self._source, schema, piece, partition.shares)
                if collector is not None:
                    collector.finish()
        self._source._collect = None
        tune()

    def _collecting(self, task: ReadTask, piece: Range) -> Collector | None:
        """What collects the bad rows of a range; None: one of them fails the query."""
        if task.bad_rows is None:
            return None
        collector = Collector(task.bad_rows, piece, _number_of_epoch, keeps_bad_row(piece, task.shares))
        self._source._collect = collector.add
        return collector

    @guarded()
    def commit(self, end: dict[str, Any]) -> None:
        """Spark reports that an epoch is safe; it never does so for the last one of a run.

        In a job, the driver acknowledges the epoch with which a source has ended, before it closes the source.
        """
        self._idle.epoch()
        offset = SourceOffset.from_json(end, self.uid)
        if offset.ended and self._closed:
            return
        with self._turn(), current.planning():
            planner = self._planning(offset)
            if offset.ended and planner.registration is not None:
                return
            planner.enter(offset)
            self._source.on_epoch_committed(Committed.of(offset, final=False))

    def stop(self) -> None:
        """Nothing to release: the planner process ends."""
        end_quietly()


def rows_of(
    source: ChannelSource, schema: pa.Schema, piece: Range, shares: Mapping[str, float] = MappingProxyType({})
) -> Iterator[pa.RecordBatch]:
    """The rows of a range in exactly the declared schema; bad rows go to what collects those of the source, if any."""
    from spark_ext.schemas.values import null_in, undecodable

    channel, uid, number = Channel(piece.channel, None, piece.data), source.options.uid, 0
    for batch in sampled(source.read(channel, piece.start, piece.end), piece, shares):
        if batch.schema.equals(schema) and undecodable(batch) is None and null_in(batch) is None:
            yield batch
        elif source.collects_bad_rows:
            yield sifted(batch, schema, piece, uid, number, source.bad_row)
        else:
            yield conform(batch, schema, piece, uid)
        number += batch.num_rows


def assign(
    source: ChannelSource,
    pieces: Sequence[Range],
    readers: int,
    shares: Mapping[str, float] | None = None,
    bad_rows: Destination | None = None,
) -> list[InputPartition]:
    """Spread the ranges of an epoch over at most `readers` tasks, largest first; order within a channel is kept."""
    # A source may want more tasks. Ranges of channels with a sample of rows (`shares`) are not split.
    shares = shares or {}
    if not pieces:
        return []
    readers = max(readers, source.least_tasks)
    cut = [
        Range(piece.channel, piece.data, start, end)
        for piece, parts in zip(pieces, _parts(source, pieces, readers), strict=True)
        for start, end in (
            source.split(Channel(piece.channel, None, piece.data), piece.start, piece.end, parts)
            if parts > 1 and piece.channel not in shares
            else ((piece.start, piece.end),)
        )
    ]
    loads = [(0, index) for index in range(min(readers, len(cut)))]
    bins: list[list[Range]] = [[] for _ in loads]
    for piece in sorted(cut, key=_weight, reverse=True):
        load, index = heapq.heappop(loads)
        bins[index].append(piece)
        heapq.heappush(loads, (load + _weight(piece), index))
    return [
        ReadTask(tuple(chosen), {one.channel: shares[one.channel] for one in chosen if one.channel in shares}, bad_rows)
        for chosen in bins
    ]


def _parts(source: ChannelSource, pieces: Sequence[Range], readers: int) -> list[int]:
    """Into how many parts each range may be cut."""
    even = -(-readers // len(pieces))
    if not source.least_tasks:
        return [even] * len(pieces)
    whole = sum(map(_weight, pieces))
    return [max(even, -(-readers * _weight(piece) // whole)) for piece in pieces]


def _weight(piece: Range) -> int:
    numbers = isinstance(piece.start, int) and isinstance(piece.end, int)
    return max(1, piece.end - piece.start) if numbers else 1


def _number_of_epoch() -> int | None:
    place = current.of_task()
    return None if place is None else place.number


def _view(registration: registry.Registration | None) -> LedgerView:
    if registration is None:
        return NoLedger()
    from spark_ext.sources.runtime.view import PlannerView

    return PlannerView(registration)


PATIENCE: Final = 50  # questions without an epoch after which a query is idle: half a second or more
PERIOD: Final = 0.03  # between two looks at an idle source, s. Of several sources of a query only the first one waits


class Idle:
    """Whether the query of a source is idle, as its planner sees it.

    A source without new rows may be one of several: a pause would then delay the epochs of the others. But Spark tells
    each source of a query of each epoch that was committed.
    """

    def __init__(
        self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sleep = sleep
        self._clock = clock
        self._questions = 0
        self._looked_at = 0.0

    def epoch(self) -> None:
        """The query has planned or committed an epoch."""
        self._questions = 0

    def asked(self) -> None:
        """Spark asks for the end of the next epoch: if the query is idle, wait until the next look is due."""
        self._questions += 1
        if self._questions > PATIENCE:
            left = self._looked_at + PERIOD - self._clock()
            if left > 0:
                self._sleep(left)
        self._looked_at = self._clock()
