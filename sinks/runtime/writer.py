"""A `TwoPhaseCommitSink` as a stream writer of Spark: its tasks and commits. Authors of sinks need not read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_ext.bad_rows.epoch import CommitRows, Left, SinkPlace, TaskRows
from spark_ext.bad_rows.names import default_table
from spark_ext.bad_rows.rules import NO_FAILURES, Failures, Judge, leave_failures, rules_of, without_rules
from spark_ext.bad_rows.sift import Numbered
from spark_ext.control import current, levels
from spark_ext.control.current import EpochContext
from spark_ext.errors import NOTHING_VISIBLE, CommitError, ConfigurationError, DataError, StateError, refused
from spark_ext.exchange.descriptor import event_times
from spark_ext.failpoints import FailPoint, reach
from spark_ext.failures import record
from spark_ext.masking import guarded
from spark_ext.model.barriers import NO_BARRIER, SourceBarrier, barrier_of
from spark_ext.model.end_of_input import DELAY, passed_watermark
from spark_ext.model.identity import ONLY_JOBS, Identity, state_of
from spark_ext.model.query_offsets import final_epochs, source_offsets
from spark_ext.options import written_to
from spark_ext.sinks.contract import CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.sinks.runtime.aside import Aside
from spark_ext.sinks.runtime.position import Position, remember, remembered
from spark_ext.sinks.runtime.retry import attempts
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from spark_ext.spark.watching.attendance import attend
from spark_ext.spark.watching.worker_process import begin_task, tune
from spark_ext.storage import folder_at, sync_systems

if TYPE_CHECKING:
    from spark_ext.model.offsets import LoggedOffsets


SHOWN = "shown"  # the note of the rows that were shown early, in the checkpoint directory of the copy
QUERY_ID = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver: which epoch it wrote, and what it prepared."""

    query_id: str
    epoch: int
    rows: int
    prepared: Any
    bad: Left | None = None
    failures: Failures = NO_FAILURES


def write_task(
    sink: TwoPhaseCommitSink, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task, identity: Identity
) -> Written:
    """Phase one of one task."""
    rules, schema = rules_of(schema), without_rules(schema)
    rows, into = 0, None
    if sink.options.on_bad_row == "quarantine":
        into = TaskRows(bad_rows_place(sink.options, identity, task.query_id, task.epoch))

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    judge = Judge(rules, task.partition, sink.bad_row)
    sink.collect_bad_rows(into)
    try:
        judged = judge.good(counted()) if rules else counted()
        prepared = sink.write(schema, _decodable(judged, sink, task), task)
        left = None if into is None else into.finish()
    finally:
        sink.collect_bad_rows(None)
    reach(FailPoint.SINK_WRITTEN)
    return Written(task.query_id, task.epoch, rows, prepared, left, judge.failures)


def _decodable(batches: Iterator[pa.RecordBatch], sink: TwoPhaseCommitSink, task: Task) -> Iterator[pa.RecordBatch]:
    """Drop rows with a text that is not UTF-8, whatever the sink: few readers of a target accept it."""
    from spark_ext.schemas.values import undecodable

    def check(batch: pa.RecordBatch) -> None:
        column = undecodable(batch)
        if column is not None:
            raise ValueError(f"column '{column}' has a text that is not UTF-8")

    def refuse(number: int, row: pa.RecordBatch, problem: Exception) -> None:
        raise DataError(
            f"row {number + 1}: {problem}",
            operator=f"sink '{task.sink}', epoch {task.epoch}, partition {task.partition}",
            kept=NOTHING_VISIBLE,
            do="decode the bytes in the query, decode(CAST(column AS binary), 'ISO-8859-1') for example, or write them "
            "as binary; filter such rows, or put them aside with on_bad_row=quarantine where the sink supports it",
        )

    bad = Aside(sink, task).row if sink.collects_bad_rows else refuse
    return Numbered(check, ValueError, bad).good(batches)


def bad_rows_place(options: SinkOptions, identity: Identity, query_id: str, epoch: int) -> SinkPlace:
    """Where the bad rows of an epoch of a sink are left."""
    return SinkPlace(
        identity.state,
        options.bad_rows_path or default_table(identity.state),
        options.uid,
        query_id,
        epoch,
        identity.lineage,
        identity.incarnation,
        options.max_bad_rows,
    )


# By checkpoint and start of the job: rows that were bad, and all that were given, in the epochs that this process has
# committed with `quarantine`; and what was counted by rule in all epochs that it has committed.
_so_far: dict[tuple[str, int], tuple[int, int]] = {}
_failures: dict[tuple[str, int], Failures] = {}


if hasattr(datasource, "DataSourceStreamArrowWriter"):
    ArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class ArrowWriter(datasource.DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[no-redef, misc]
        """Spark 4.0 gives Arrow batches to a stream writer that is an Arrow writer of batch queries too."""


class EpochWriter(ArrowWriter):
    """One sink in one query: `write` on executors, `commit` in a driver-side worker. Built for each epoch."""

    def __init__(self, sink: TwoPhaseCommitSink, schema: StructType) -> None:
        registry.enter(sink.given)
        self._sink = sink
        self._given, self._schema, self._rules = schema, without_rules(schema), rules_of(schema)
        self._identity = identity_of(sink.given, f"sink '{sink.options.uid}'")
        if sink.options.on_bad_row == "quarantine" and not self._identity.in_job:
            raise ConfigurationError(
                "on_bad_row=quarantine needs a job: it moves the bad rows of committed epochs into their table",
                operator=f"sink '{sink.options.uid}'",
                kept="nothing was written",
                do="run the query in a job, with spark_ext.Job, or write with on_bad_row=fail",
            )
        if self._rules and not self._identity.in_job:
            raise ConfigurationError(
                f"{self._rules[0].said} needs a job, which counts the rows that fail it",
                operator=f"sink '{sink.options.uid}'",
                kept="nothing was written",
                do="run the query in a job, with spark_ext.Job, or filter the rows in the query",
            )
        tune()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        registry.enter(self._sink.given)

    @property
    def _uid(self) -> str:
        return self._sink.options.uid

    @guarded()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Phase one, in a task."""
        from pyspark import TaskContext

        begin_task()
        current.require_environment(f"sink '{self._uid}'")
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
        written = write_task(self._sink, self._given, iterator, task, mine)
        tune()
        return written

    @guarded()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Phase two, retried with back-off; after the last attempt the query fails and says what is in doubt."""
        mine = self._identity
        if not mine.in_job:
            return self._commit(messages, batchId)
        if not registry.is_published(mine, self._uid):
            from spark_ext.ledger.incarnation import require_newest  # loads deltalake

            require_newest(mine, self._uid)
        if mine.samples:
            attend("committer", mine.state, mine.query, self._uid)
        start = f"{mine.incarnation:010}-{mine.start:016x}"
        with current.committing(EpochContext(mine.job, mine.query, mine.checkpoint, start, batchId)):
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
        if self._identity.early:
            return self._show_early(prepared, batchId, sum(message.rows for message in written))
        final = self._sink.requires_finalization and self._is_final(batchId)
        barrier, watermark, advanced = self._carried_by(batchId)
        bad = [message.bad for message in written if message.bad is not None]
        carries = (self._sink.records_barriers and barrier) or advanced
        empty = not prepared and not bad and not final and not carries
        failures = sum((message.failures for message in written), NO_FAILURES)
        self._check_rules(batchId, failures)
        mine = self._identity
        if empty and not mine.in_job:
            return  # nothing is fenced
        # An epoch without tasks has its query's id in Spark's log alone.
        query_id = written[0].query_id if written else SparkLog(mine.checkpoint).query_id() or ""
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
            watermark=watermark,
        )
        if empty:
            tries = attempts(self._sink.options, f"the check of the target of sink '{self._uid}'", reraise=True)
            tries(self._sink.check, epoch)
            return self._count(epoch, failures, CommitOutcome.COMMITTED)
        self._sync()  # no target may have an epoch whose rows, offsets or state a power failure takes away
        reach(FailPoint.SINK_BEFORE_COMMIT)
        if self._sink.options.on_bad_row == "quarantine":
            rows = CommitRows(self._place(epoch), bad)
            outcome = self._with_retries(epoch, prepared, rows, sum(message.rows for message in written))
        else:
            outcome = self._with_retries(epoch, prepared)
        reach(FailPoint.SINK_COMMITTED)
        self._count(epoch, failures, outcome)
        self._sync()  # nor may Spark count as committed what the target loses
        if mine.checkpoint:
            remember(mine.checkpoint, Position(self._uid, mine.lineage, query_id, batchId), mine.start)
        tune()

    def _show_early(self, prepared: Sequence[Any], epoch: int, rows: int) -> None:
        """Show the rows of windows that are open after the epoch before: this one is that of a copy of the query."""
        mine = self._identity
        whose = (self._uid, mine.lineage, mine.early)
        shown = Epoch(*whose, epoch - 1, mine.incarnation, start=mine.start, early=True)
        reach(FailPoint.EARLY_BEFORE_COMMIT)
        if prepared:
            self._with_retries(shown, prepared)
        reach(FailPoint.EARLY_COMMITTED)
        folder_at(mine.checkpoint).write(SHOWN, str(rows))

    def _check_rules(self, epoch: int, failures: Failures) -> None:
        """Refuse rows that fail rules, or too many of them, before anything is visible."""
        so_far = _failures.get(self._start, NO_FAILURES) + failures
        for rule in self._rules:
            what = rule.exceeded(so_far.failed.get(rule.name, 0), so_far.rows)
            if what is not None:
                redacted = getattr(self._sink.options, "redact", False)
                example = "" if redacted else f"; one of them: {so_far.examples[rule.name]}"
                raise DataError(
                    f"{what}{example}",
                    operator=f"sink '{self._uid}', epoch {epoch}",
                    kept=NOTHING_VISIBLE,
                    do="correct the rows in the query or the rule, or raise max_share, and start again: the epoch is "
                    "judged again",
                )

    def _count(self, epoch: Epoch, failures: Failures, outcome: CommitOutcome) -> None:
        """The target has the epoch: what was counted by rule counts."""
        if outcome is CommitOutcome.COMMITTED:
            _failures[self._start] = _failures.get(self._start, NO_FAILURES) + failures
        if failures.failed:
            leave_failures(self._place(epoch), failures, again=outcome is CommitOutcome.ALREADY_COMMITTED)
            reach(FailPoint.RULES_COUNTED)

    def _place(self, epoch: Epoch) -> SinkPlace:
        return bad_rows_place(self._sink.options, self._identity, epoch.query_id, epoch.number)

    def _sync(self) -> None:
        if self._identity.syncs:
            sync_systems({self._identity.state, *written_to(self._sink.given, sink=True)})

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: Spark also aborts after a commit that raised although it took effect.

        The next claim of the target cleans up what the tasks prepared.
        """

    def _quarantining(self, epoch: Epoch, prepared: Sequence[Any], rows: CommitRows, given: int) -> CommitOutcome:
        """One attempt at a commit whose bad rows are collected: those of the attempt that took effect count."""
        rows.begin()
        self._sink.collect_bad_rows(rows)
        try:
            outcome = self._sink.commit(self._schema, epoch, prepared)
        finally:
            self._sink.collect_bad_rows(None)
        if outcome is CommitOutcome.COMMITTED:
            mark = rows.kept
            bad, all_given = _so_far.get(self._start, (0, 0))
            _so_far[self._start] = bad + rows.count, all_given + given
        else:
            mark = self._sink.kept_bad_rows(epoch)
        rows.decide(mark, *_so_far.get(self._start, (0, 0)))
        return outcome

    def _failing(self, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        """One attempt at a commit without bad rows. An earlier start that has committed the epoch may have had some."""
        outcome = self._sink.commit(self._schema, epoch, prepared)
        if outcome is CommitOutcome.ALREADY_COMMITTED and self._sink.quarantines and self._identity.in_job:
            mark = self._sink.kept_bad_rows(epoch)
            if mark is not None:
                CommitRows(self._place(epoch), ()).decide(mark, *_so_far.get(self._start, (0, 0)))
        return outcome

    @property
    def _start(self) -> tuple[str, int]:
        """The key of `_so_far`."""
        return self._identity.checkpoint, self._identity.start

    def _with_retries(
        self, epoch: Epoch, prepared: Sequence[Any], rows: CommitRows | None = None, given: int = 0
    ) -> CommitOutcome:
        import tenacity

        tries = attempts(self._sink.options, f"the commit of epoch {epoch.number} of sink '{self._uid}'")
        try:
            if rows is not None:
                return tries(self._quarantining, epoch, prepared, rows, given)
            return tries(self._failing, epoch, prepared)
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

    def _is_final(self, epoch: int) -> bool:
        """Whether the epoch comes after the last row: a source's offset counts the final epochs."""
        if not self._identity.in_job:
            return False
        logged = SparkLog(self._identity.checkpoint).offsets(epoch)
        return logged is not None and final_epochs(logged) > 0

    def _carried_by(self, epoch: int) -> tuple[int, int, bool]:
        """What the offsets of the epoch and of the one before say, so that a replay of it finds the same.

        The barrier with which it ends, or 0; the watermark to pass on, or 0; and whether that is a later one.
        """
        if not self._identity.in_job:
            return NO_BARRIER, 0, False
        log = SparkLog(self._identity.checkpoint)
        logged = log.offsets(epoch)
        carried = _carried(logged)
        passes = self._sink.passes_watermarks and event_times(self._schema, DELAY)
        watermark = passed_watermark(logged) if passes else 0
        before = log.offsets(epoch - 1) if carried or watermark else None
        barrier = carried if carried > _carried(before) else NO_BARRIER
        return barrier, watermark, watermark > passed_watermark(before)


def _carried(logged: LoggedOffsets | None) -> int:
    offsets = {} if logged is None else source_offsets(logged)
    return barrier_of([SourceBarrier(uid, offset.barrier, ended=offset.ended) for uid, offset in offsets.items()])


def identity_of(given: Mapping[str, str], operator: str) -> Identity:
    """The identity in a writer's options; that of no job when the query runs outside any."""
    options = {name.lower(): value for name, value in given.items()}
    identity = Identity.of(options, operator)
    checkpoint = options.get("checkpointlocation", "")
    found = state_of(checkpoint)
    if identity.in_job or found is None or "ledger" not in folder_at(found[0]).names():
        return identity
    raise StateError(
        f"the query runs on the checkpoint of query '{found[1]}' of a job, and was not started by this job: "
        "nothing would fence its epochs",
        operator=operator,
        kept="nothing of this epoch was committed; the job's state is unchanged",
        do=f"start the query with job.run() ({ONLY_JOBS}), or give it a checkpoint location outside {found[0]}",
    )


class SinkAdapter(DataSource):
    """Holds one sink; subclasses name its class."""

    contract: ClassVar[type[TwoPhaseCommitSink]]  # The class that was registered

    def __init__(self, options: Mapping[str, str]) -> None:
        # The options stay with the sink, which knows how to keep secrets.
        super().__init__({})
        self._given = options

    @cached_property
    def sink(self) -> TwoPhaseCommitSink:
        """The sink. Made on first use: a batch write is refused as such, whatever its options."""
        with guarded():
            return self.contract(self._given)

    @classmethod
    def name(cls) -> str:
        """The sink's format name."""
        return cls.contract.name()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The sink's writer and committer."""
        record.install()
        return EpochWriter(self.sink, schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refused: without a job's epochs nothing would be exactly once."""
        record.install()
        name = self.name()
        raise refused(
            f"{name} writes the epochs of streaming queries, and this is a batch write",
            f"sink '{name}'",
            "read the input with spark.readStream, and let a job write it, which ends by itself over bounded sources: "
            f"job.add(uid, df.writeStream.format('{name}').options(...)), job.run()",
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _wrapped, (self.sink,)


@cache
def data_source(kind: type[TwoPhaseCommitSink]) -> type[SinkAdapter]:
    """The data source that wraps a class of sinks."""
    described = {"contract": kind, "__module__": __name__, "__doc__": kind.__doc__}
    return type(f"SinkAdapter({kind.__name__})", (SinkAdapter,), described)


def _wrapped(sink: TwoPhaseCommitSink) -> SinkAdapter:
    """An adapter that has arrived in another process."""
    kind = data_source(type(sink))
    made = kind.__new__(kind)
    made.__dict__.update(options={}, sink=sink)
    return made
