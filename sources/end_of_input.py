"""The source of end-of-input markers; `spark_ext.with_watermark` adds it to the plan, users do not.

It has no channels: it watches the sources under one watermark and emits one row when all of them have ended, as
`spark_ext.model.end_of_input` decides. It finds its query's checkpoint through the session registry, so it only works
inside a job; elsewhere it emits nothing, and a query behaves as with Spark's own `withWatermark`.

Not for `Trigger.Once`: its single epoch ends before the end of input can pass, and sources do not know the trigger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_ext.errors import refused
from spark_ext.exchange.descriptor import event_times
from spark_ext.exchange.kinds import parts
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.end_of_input import END_MICROS, FORMAT, TIME, ZERO, EndOffset, next_offset, taken_over
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.options import Names, Options
from spark_ext.sources.runtime.stream_reader import StreamReader
from spark_ext.spark.logs import watermarks
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from spark_ext.spark.session.late_claim import before_planning
from spark_ext.storage import local_path

if TYPE_CHECKING:
    import pyarrow as pa

REMOTE_LOOK_EVERY: Final = 0.1
"""Minimum time between two looks at a checkpoint in an object store while the query is idle, s."""

IDLE_CALL: Final = 0.07
"""A longer pause between two calls means that an epoch ran in between, s. Spark calls an idle source every 10 ms, and
other sources of its query may wait for up to 30 ms."""


class EndOfInputOptions(Options):
    """Options of the format `end_of_input`."""

    watches: Names = ()
    """Uids of the sources under the watermark, comma-separated; empty, or with a `?`: the marker never comes."""
    processing_timers: Literal["fire", "drop"] = "drop"
    """Whether the end of the query waits for timers in processing time."""
    stays: Names = ()
    """By how much, ms, the watermark stays behind that of the producer of each; empty: the rows move it."""


class EndOfInput(DataSource):
    """One row at the end of all input under a watermark: again in each run, never before the last rows are committed.

    Options: see `EndOfInputOptions`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = EndOfInputOptions.parse(self.name(), options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return FORMAT

    def schema(self) -> str:
        """The marker's time, and a zero."""
        return f"{TIME} timestamp, {ZERO} int"

    def reader(self, schema: StructType) -> NoReturn:
        """Refused: only a stream has an end that is still to come."""
        raise refused("it marks the end of a stream's input", f"source '{FORMAT}'", "use spark_ext.with_watermark")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader that Spark uses."""
        registry.enter(self._given)
        return EndOfInputReader(self._options.uid, self._options.watches, tuple(map(int, self._options.stays)))


class CommittedEpochs:
    """The newest committed epoch of a query, looked up often: one listing at first, then a look for its successor."""

    def __init__(self, checkpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.checkpoint = checkpoint
        self._log = SparkLog(checkpoint)
        self._remote = local_path(checkpoint) is None
        self._clock = clock
        self._epoch: int | None = None
        self._newest: LoggedOffsets | None = None
        self._called = self._looked = float("-inf")

    def newest(self, *, at_once: bool) -> LoggedOffsets | None:
        """The offsets of the newest committed epoch, or None."""
        now = self._clock()
        idle = now - self._called < IDLE_CALL
        self._called = now
        if self._remote and idle and not at_once and now - self._looked < REMOTE_LOOK_EVERY:
            return self._newest
        self._looked = now
        epoch = self._log.newest_commit() if self._epoch is None else self._epoch
        while epoch is not None and self._log.is_committed(epoch + 1):
            epoch += 1
        if epoch is not None and (epoch != self._epoch or self._newest is None):
            self._epoch, self._newest = epoch, self._log.offsets(epoch)
        return self._newest

    @property
    def watermark_moved(self) -> bool:
        """Whether the watermark is later behind the newest committed epoch than it was in it."""
        logged = self._newest
        if logged is None:
            return False
        commit = self._log.commit(logged.epoch) or {}
        return int(commit.get("nextBatchWatermarkMs", 0)) > int(logged.metadata.get("batchWatermarkMs", 0))


class EndOfInputReader(StreamReader):
    """One marker in one query. Planning methods run in the planner process, `read` on an executor."""

    def __init__(self, uid: str, watches: tuple[str, ...], stays: tuple[int, ...]) -> None:
        self._uid = uid
        self._watches = watches
        self._stays = stays
        self._before: int | None = None
        self._epochs: CommittedEpochs | None = None
        self._available_now = False
        self._held: bool | None = None  # whether the job's start plans no epochs; None: not known
        self._begun: tuple[int, int, int | None] | None = None
        """When it began: the newest committed epoch, how often an event time had been put back, and the one to be."""
        self._moved = (-1, False)  # the newest committed epoch, and whether its watermark has yet to be passed on

    @property
    def uid(self) -> str:
        """Of the marker."""
        return self._uid

    def initialOffset(self) -> dict[str, Any]:
        """The same each time."""
        return EndOffset(self._uid).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Look at the log in every planning: the run ends as soon as no source has new rows."""
        self._available_now = True

    def next_offset(self, start: dict[str, Any]) -> dict[str, Any]:
        """The next step of the end of input, if it is due; else `start`, which starts no epoch."""
        registration = registry.lookup(self._uid) if self._held is None else None
        if registration is not None:
            self._held = registration.hold
        if self._held:
            return start
        offset = EndOffset.from_json(start, self._uid)
        if self._before is None:
            self._before = offset.marker
        if offset.flushed and offset.marker > self._before:
            return start
        end = next_offset(offset, self._watches, self._committed(), self._before)
        if end is offset:
            end = self._passing(self._taken_over(offset) if self._stays else self._carried(offset))
        if end is offset:
            return start
        before_planning(registry.lookup(self._uid))
        reach(FailPoint.END_OF_INPUT_PLANNED)
        return end.to_json()

    def _carried(self, offset: EndOffset) -> EndOffset:
        """The offset with the event time of earlier starts, once an epoch is committed in this one."""
        if self._begun is None:
            epoch = self._committed_epoch
            known = {} if self._epochs is None else watermarks.newest(self._epochs.checkpoint, epoch)
            self._begun = epoch, offset.carried, known.get(self._uid)
        first, before, at = self._begun
        if at is None or offset.carried > before or self._committed_epoch == first:
            return offset
        return replace(offset, carried=offset.carried + 1, at=at)

    def _taken_over(self, offset: EndOffset) -> EndOffset:
        """The offset with the watermark of the producers, if it is later than before, or once in each start."""
        epoch = self._committed_epoch
        if self._begun is None:
            self._begun = epoch, offset.carried, None
        first, before, _ = self._begun
        at = taken_over(self._committed(), self._watches, self._stays)
        again = offset.carried == before and epoch > first
        if at is None or (at <= offset.at and not again):
            return offset
        return replace(offset, carried=offset.carried + 1, at=min(max(at, offset.at), END_MICROS))

    def _passing(self, offset: EndOffset) -> EndOffset:
        """The offset with one more epoch, if the watermark has moved in the newest one and others wait for it."""
        epoch = self._committed_epoch
        if epoch != self._moved[0] and self._epochs is not None:
            self._moved = epoch, self._is_read and self._epochs.watermark_moved
        return replace(offset, passed=offset.passed + 1) if self._moved[1] else offset

    @cached_property
    def _is_read(self) -> bool:
        """Whether the query writes an exchange whose rows have its watermark."""
        registration = registry.lookup(self._uid)
        writes = () if registration is None else registration.writes
        about = [parts(kind, path, self._uid, options).master.describe() for kind, path, options, _ in writes]
        return any(event_times(one.schema) for one in about if one is not None)

    @property
    def _committed_epoch(self) -> int:
        committed = self._committed()
        return -1 if committed is None else committed.epoch

    def _committed(self) -> LoggedOffsets | None:
        if self._epochs is None:
            registration = registry.lookup(self._uid)
            if registration is None:
                return None
            self._epochs = CommittedEpochs(registration.checkpoint)
        return self._epochs.newest(at_once=self._available_now)

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task with the marker, in the epoch in which its number grows, or with an event time that is put back."""
        before, after = EndOffset.from_json(start, self._uid), EndOffset.from_json(end, self._uid)
        if after.marker > before.marker:
            return [InputPartition(END_MICROS)]
        return [InputPartition(after.at)] if after.carried > before.carried else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The row."""
        import pyarrow as pa

        columns = [pa.array([partition.value], pa.timestamp("us", tz="UTC")), pa.array([0], pa.int32())]
        yield pa.RecordBatch.from_arrays(columns, names=[TIME, ZERO])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to acknowledge."""

    def stop(self) -> None:
        """Nothing to release."""
