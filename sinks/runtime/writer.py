"""A `TwoPhaseCommitSink` as a stream writer of Spark: its tasks and commits. Authors of sinks need not read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_ext.control import current, levels
from spark_ext.control.current import Place
from spark_ext.errors import CommitError, StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import guarded
from spark_ext.model.barriers import NO_BARRIER, SourceBarrier, barrier_of
from spark_ext.model.query_offsets import final_epochs, source_offsets
from spark_ext.sinks.contract import CommitOutcome, Epoch, Task, TwoPhaseCommitSink
from spark_ext.sinks.runtime.identity import identity_of
from spark_ext.sinks.runtime.position import Position, remember, remembered
from spark_ext.sinks.runtime.retry import attempts
from spark_ext.spark.attendance import attend
from spark_ext.spark.spark_log import SparkLog
from spark_ext.spark.worker_process import begin_task, tune

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.model.logged_offsets import LoggedOffsets

QUERY_ID = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver: which epoch it wrote, and what it prepared."""

    query_id: str
    epoch: int
    rows: int
    prepared: Any


class EpochWriter(DataSourceStreamArrowWriter):
    """One sink in one query: `write` on executors, `commit` in a driver-side worker. Built anew for each epoch."""

    def __init__(self, sink: TwoPhaseCommitSink, schema: StructType) -> None:
        self._sink = sink
        self._schema = schema
        self._identity = identity_of(sink.given, f"sink '{sink.options.uid}'")
        tune()

    @property
    def _uid(self) -> str:
        return self._sink.options.uid

    @guarded()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Phase one, in a task."""
        from pyspark import TaskContext

        begin_task()
        context = TaskContext.get()
        assert context is not None
        query_id, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(EPOCH)
        assert query_id is not None and epoch is not None
        mine = self._identity
        task = Task(
            sink=self._uid,
            query_id=query_id,
            epoch=int(epoch),
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
            incarnation=mine.incarnation,
            lineage=mine.lineage,
            start=mine.start,
        )
        levels.follow()
        counted = _Counted(iterator)
        prepared = self._sink.write(self._schema, counted, task)
        reach(FailPoint.SINK_WRITTEN)
        tune()
        return Written(query_id, int(epoch), counted.rows, prepared)

    @guarded()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Phase two, retried with back-off; after the last attempt the query fails and says what is in doubt."""
        mine = self._identity
        if not mine.in_job:
            return self._commit(messages, batchId)
        if mine.samples:
            attend("committer", mine.state, mine.query, self._uid)
        start = f"{mine.incarnation:010}-{mine.start:016x}"
        with current.committing(Place(mine.job, mine.query, mine.checkpoint, start, batchId)):
            levels.follow()
            return self._commit(messages, batchId)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        if len(written) != len(messages):
            raise StateError(
                f"{len(messages) - len(written)} of {len(messages)} tasks of epoch {batchId} did not report",
                operator=f"sink '{self._uid}'",
                kept="nothing of this epoch was committed",
                do="start the job again: the epoch will be replayed",
            )
        prepared = [message.prepared for message in written if message.prepared is not None]
        final = self._sink.requires_finalization and self._is_final(batchId)
        barrier = self._barrier(batchId)
        empty = not prepared and not final and not (self._sink.records_barriers and barrier)
        mine = self._identity
        if empty and not mine.in_job:
            return  # nothing is fenced
        query_id = self._query_id(written) or ""
        before = remembered(mine.checkpoint, start=mine.start) if mine.checkpoint else None
        epoch = Epoch(
            sink=self._uid,
            lineage=mine.lineage,
            query_id=query_id,
            number=batchId,
            incarnation=mine.incarnation,
            final=final,
            start=mine.start,
            previous=before.of(self._uid, mine.lineage, query_id) if before else None,
            barrier=barrier or None,
        )
        if empty:
            tries = attempts(self._sink.options, f"the look at the target of sink '{self._uid}'", reraise=True)
            tries(self._sink.check, epoch)
            return
        reach(FailPoint.SINK_BEFORE_COMMIT)
        self._with_retries(epoch, prepared)
        reach(FailPoint.SINK_COMMITTED)
        if mine.checkpoint:
            remember(mine.checkpoint, Position(self._uid, mine.lineage, query_id, batchId), mine.start)
        tune()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: Spark also aborts after a commit that raised although it took effect.

        The next claim of the target cleans up what the tasks prepared.
        """

    def _with_retries(self, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        import tenacity

        tries = attempts(self._sink.options, f"the commit of epoch {epoch.number} of sink '{self._uid}'")
        try:
            return tries(self._sink.commit, self._schema, epoch, prepared)
        except tenacity.RetryError as given_up:
            last = given_up.last_attempt.exception()
            raise CommitError(
                f"epoch {epoch.number} could not be committed "
                f"in {given_up.last_attempt.attempt_number} attempts: {last}",
                operator=f"sink '{self._uid}', query id {epoch.query_id}, epoch {epoch.number}",
                kept=f"what {len(prepared)} tasks prepared; whether the last attempt took effect is in doubt "
                "until the epoch is replayed",
                do="check the target; the epoch will be retried, and committed once, when the query runs again",
            ) from last

    def _query_id(self, written: Sequence[Written]) -> str | None:
        for message in written:
            return message.query_id
        # An epoch without tasks.
        return SparkLog(self._identity.checkpoint).query_id()

    def _is_final(self, epoch: int) -> bool:
        """Whether the epoch comes after the last row: a source's offset counts the final epochs."""
        if not self._identity.in_job:
            return False
        logged = SparkLog(self._identity.checkpoint).offsets(epoch)
        return logged is not None and final_epochs(logged) > 0

    def _barrier(self, epoch: int) -> int:
        """The barrier with which the epoch ends, by the offsets of it and of the one before; 0: none."""
        if not self._identity.in_job:
            return NO_BARRIER
        log = SparkLog(self._identity.checkpoint)
        carried = _carried(log.offsets(epoch))
        return carried if carried and carried > _carried(log.offsets(epoch - 1)) else NO_BARRIER


def _carried(logged: LoggedOffsets | None) -> int:
    offsets = {} if logged is None else source_offsets(logged)
    return barrier_of([SourceBarrier(uid, offset.barrier, ended=offset.ended) for uid, offset in offsets.items()])


class _Counted:
    """Counts the rows that pass through."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.rows += batch.num_rows
        return batch
