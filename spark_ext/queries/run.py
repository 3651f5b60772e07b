"""One query of a running job: its start, its epochs as they commit, its failures, and its end.

Driven by the coordinator's `tick`; all decisions are taken from Spark's logs by `lifecycle`, listener hints only add
figures. Nothing here runs on an epoch's critical path.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.errors import SparkExtError
from spark_ext.failpoints import reach
from spark_ext.ledger.schema import EpochRow, FinishedRow
from spark_ext.model import query_offsets, restarts
from spark_ext.model.checkpoint_metadata import QueryMetadata
from spark_ext.model.commits import Claim
from spark_ext.model.lifecycle import State
from spark_ext.model.logged_offsets import LoggedOffsets
from spark_ext.queries import operators
from spark_ext.queries.describe_failure import describe
from spark_ext.queries.history import EpochHistory, Figures
from spark_ext.queries.records import channel_flags, final_flags, query_metadata, registrations
from spark_ext.queries.spec import QuerySpec
from spark_ext.sinks.runtime.retry import attempts
from spark_ext.spark import checkpoint_directory, jvm, registry
from spark_ext.spark.query_events import hint_of
from spark_ext.spark.spark_log import SparkLog

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.queries.context import JobContext

log = logging.getLogger("spark_ext.job")


class QueryRun:
    """A query under supervision.

    Args:
        spec: the query.
        context: the job's.
        lineage: the query's: flags and sink identities of other lineages are not its own.
        flagged: per source, the last finish sequence whose flag is in the ledger.
    """

    def __init__(self, spec: QuerySpec, context: JobContext, lineage: int, flagged: dict[str, int]) -> None:
        self.spec = spec
        self.context = context
        self.lineage = lineage
        self.checkpoint = f"{context.state.rstrip('/')}/queries/{spec.uid}/checkpoint"
        self.log = SparkLog(self.checkpoint)
        self.state = State.CREATED
        self.reason = ""
        self.error: BaseException | None = None
        self.history = EpochHistory()
        self.query_id: str | None = None
        self.committed = -1
        self.offsets: LoggedOffsets | None = None
        self._flagged = dict(flagged)
        self.final_flagged: frozenset[tuple[str, str]] = frozenset()
        """Kind and source of the final flags that an interrupted final checkpoint has left in the ledger."""
        self._query: StreamingQuery | None = None
        self._ended: tuple[BaseException | None] | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._restart_at: float | None = None
        self._planned_before: LoggedOffsets | None = None
        self._stopping = False
        self._draining = False
        self.had_finished = False
        self.input_done = False
        """Whether the newest committed epoch has all input, and the state is empty."""

    # -- start --------------------------------------------------------------------------------------------------------

    @property
    def who(self) -> str:
        """For messages."""
        return f"job '{self.context.job}', query '{self.spec.uid}'"

    def restore(self, known: tuple[str, int] | None) -> None:
        """Look at what an earlier run left: the facts from which this one goes on.

        Args:
            known: Spark's query id and the newest committed epoch as the ledger has them; None: never ran.

        Raises:
            StateError: the ledger knows committed epochs of this query and its checkpoint is gone or another one.
        """
        left = checkpoint_directory.look(self.log, known, self.who, self.spec.uid)
        self.query_id, self.committed, self.offsets = left.query_id, left.committed, left.offsets
        self.history.begin_after(self.committed)
        # What an earlier run committed and did not come to write down: history has no gaps.
        for epoch in range(0 if known is None else known[1] + 1, self.committed + 1):
            logged = self.log.offsets(epoch)
            if logged is not None:
                self.history.committed(epoch, logged, in_this_run=False)
        self._judge()

    @property
    def figures(self) -> Figures:
        """What is counted of it in this run."""
        return self.history.figures

    def _judge(self) -> None:
        """Whether the newest committed epoch has all input, and the state is empty."""
        self.input_done = (
            self.offsets is not None
            and bool(self.spec.sources)
            and not self.spec.natives
            and query_offsets.input_ended(self.offsets, (source.uid for source in self.spec.sources))
            and query_offsets.flushed(self.offsets, (end.uid for end in self.spec.ends))
        )

    def claim(self) -> None:
        """Fence older incarnations off the target; see `TwoPhaseCommitSink.claim`."""
        if self.spec.sink is None:
            return
        sink = operators.sink(self.spec.sink.format, self.spec.sink.options)
        schema, mine = jvm.writer_frame(self.spec.writer).schema, self.context.incarnation
        uid, job, job_id, state = self.spec.sink.uid, self.context.job, self.context.job_id, self.context.state
        # A target may still be busy with what a driver that died had asked of it.
        tries = attempts(sink.options, f"the claim of sink '{uid}'", reraise=True)
        tries(sink.validate, schema)
        tries(sink.claim, Claim(uid, job, job_id, mine.number, self.lineage, state))
        reach("sink.claimed")

    def open(self) -> None:
        """Call the operators' `open`; sources that have ended are passed over."""
        ended = self.ended_sources()
        for source in self.spec.sources:
            if source.uid not in ended:
                operators.source(source.format, source.options).open()
        if self.spec.sink is not None:
            operators.sink(self.spec.sink.format, self.spec.sink.options).open()

    def ended_sources(self) -> frozenset[str]:
        """Sources that have ended in the newest committed epoch."""
        if self.offsets is None:
            return frozenset()
        offsets = query_offsets.source_offsets(self.offsets)
        return frozenset(uid for uid, offset in offsets.items() if offset.ended)

    def start(self) -> None:
        """Start the Spark query."""
        registry.publish(registrations(self.spec, self.context, self.checkpoint, self.lineage), self.context.registry)
        self._planned_before = self._newest_planned()
        self._ended = None
        self._restart_at = None
        # A restart comes from the coordinator's thread, which has no session of its own.
        jvm.activate(jvm.writer_frame(self.spec.writer).sparkSession)
        writer = self.spec.writer.option("checkpointLocation", self.checkpoint)
        writer = writer.queryName(f"{self.context.job}/{self.spec.uid}")
        if self.spec.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="0 seconds")
        self._query = writer.start()
        self.query_id = str(self._query.id)
        if self.state is not State.FINISHING:
            self._become(State.RUNNING)
        waiter = threading.Thread(
            target=self._await, args=(self._query,), name=f"spark-ext-await-{self.spec.uid}", daemon=True
        )
        waiter.start()

    def _await(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
            self._ended = (None,)
        except BaseException as failure:
            self._ended = (failure,)
        self.context.wake.set()

    def _newest_planned(self) -> LoggedOffsets | None:
        newest = self.log.newest_offsets()
        return None if newest is None else self.log.offsets(newest)

    # -- supervision --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look at the facts, and do what they call for."""
        if self.state.ended or self.state is State.FINISHING:
            return
        self.observe()
        if self.history.overdue():
            self._ask_for_figures()
        self._record_epochs()
        if self.input_done and not self._stopping:
            self._become(State.FINISHING)
        elif self._ended is not None:
            self._on_end(self._ended[0], now)
        elif self._restart_at is not None and now >= self._restart_at:
            self._restart(now)

    def observe(self) -> None:
        """Take in the epochs that have been committed since the last look."""
        newest = self.committed
        while self.log.is_committed(newest + 1):
            newest += 1
        if newest == self.committed:
            return
        for epoch in range(self.committed + 1, newest + 1):
            logged = self.log.offsets(epoch)
            if logged is not None:
                self.offsets = logged
            self.history.committed(epoch, logged)
        self.committed = newest
        self._failures = 0
        self._judge()
        assert self.offsets is not None
        for flag in channel_flags(self.offsets, self._flagged, self._row(), datetime.now(timezone.utc)):
            self._flagged[flag.source] = flag.sequence
            self.context.write_behind.put_soon(flag)

    def _row(self) -> dict[str, Any]:
        """What the query's rows share."""
        return {
            "query": self.spec.uid,
            "epoch": self.committed,
            "lineage": self.lineage,
            "incarnation": self.context.incarnation.number,
        }

    def flags(self) -> list[FinishedRow]:
        """The finished flags that follow from the query's final checkpoint, and any of a channel that is missing."""
        if self.offsets is None:
            return []
        now = datetime.now(timezone.utc)
        missing = channel_flags(self.offsets, self._flagged, self._row(), now)
        final = final_flags(self.offsets, self._row(), now)
        return [*missing, *(flag for flag in final if (flag.kind, flag.source) not in self.final_flagged)]

    def metadata(self) -> QueryMetadata:
        """The query's part of a checkpoint at its newest committed epoch."""
        return query_metadata(
            self.spec,
            self.query_id,
            None if self.committed < 0 else self.committed,
            self.offsets,
            finished=self.state is State.FINISHED or self.input_done,
            restored=self.had_finished,
        )

    def observe_late(self) -> None:
        """Take in what came with the end: epochs, and figures that the listener has not brought yet."""
        if self._query is not None:
            self.observe()
            self._ask_for_figures()
        self._record_epochs(everything=True)

    def _ask_for_figures(self) -> None:
        if self._query is not None:
            for report in jvm.recent_progress(self._query, self.history.told_upto):
                self.history.told(hint_of(report))

    def _record_epochs(self, *, everything: bool = False) -> None:
        for epoch in self.history.ready(everything=everything):
            at = self.log.committed_at(epoch.number)
            self.context.write_behind.put(
                EpochRow(
                    query=self.spec.uid,
                    query_id=self.query_id or "",
                    epoch=epoch.number,
                    lineage=self.lineage,
                    incarnation=self.context.incarnation.number,
                    input_rows=epoch.input_rows,
                    committed_at=datetime.fromtimestamp(at or time.time(), tz=timezone.utc),
                    duration_ms=epoch.duration_ms,
                    offsets=None if epoch.offsets is None else list(epoch.offsets.sources),
                )
            )

    def _on_end(self, failure: BaseException | None, now: float) -> None:
        self._ended = None
        if failure is not None:
            self._on_failure(failure, now)
        elif self._draining:
            self._become(State.FINISHING, "drained")
        elif self._stopping:
            self._become(State.CANCELED, "stopped")
        elif self.spec.available_now:
            self._on_available_now_end()
        else:
            self._become(State.CANCELED, "the query was stopped from outside the job")

    def _on_available_now_end(self) -> None:
        # A stop in the middle also ends without an exception, so one run that ended proves nothing: the input is
        # at its end only when a further run has nothing to plan.
        newest, before = self._newest_planned(), self._planned_before
        if newest is not None and before is not None and query_offsets.same_input(newest, before):
            self._become(State.FINISHING)
        else:
            self.start()

    def _on_failure(self, failure: BaseException, now: float) -> None:
        if self._stopping:
            self._become(State.CANCELED, "stopped; a failure came on the way")
            return
        if not self._failures:
            self._failing_since = now
        self._failures += 1
        error = describe(failure, self.who, self.committed)
        outage = (now - self._failing_since) * 1000 if restarts.is_outage(error) else None
        policy = self.context.settings.restarts
        delay = None if restarts.is_terminal(error) else policy.delay_ms(self._failures, outage)
        if delay is None:
            self.fail(error, {"stack": str(failure)})
            return
        self.context.write_behind.incident(
            self.who, "failure", str(error), f"restart {self._failures} in {delay} ms", {"stack": str(failure)}
        )
        self._restart_at = now + delay / 1000
        self._become(State.RESTARTING, str(error))

    def fail(self, error: SparkExtError, evidence: Any = None) -> None:
        """The query has failed for good."""
        self.error = error
        self.context.write_behind.incident(self.who, "failure", str(error), "stopped: FAILED", evidence)
        self._become(State.FAILED, str(error))

    def _restart(self, now: float) -> None:
        self._restart_at = None
        try:
            self.start()
        except Exception as failure:
            self._on_failure(failure, now)

    # -- end ----------------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Ask the Spark query to stop; no end of input is emitted."""
        self._stopping = True
        if self._query is None or self.state is State.RESTARTING:
            self._restart_at = None
            if not self.state.ended:
                self._become(State.CANCELED, "stopped")
            return
        self.stop_spark()

    def request_drain(self) -> None:
        """A drain is in force: channel sources see it in the ledger, Spark's own cannot, so their query is stopped.

        The cut is then the last committed epoch: what was planned after it is not part of the job.
        """
        if self.spec.natives and not self.state.ended and not self._draining:
            self._draining = True
            self.stop_spark()

    def ensure_running(self) -> None:
        """Start the Spark query again if it does not run: for the further epochs that finalization needs."""
        if self._query is None:
            self.claim()
        if self._query is None or self._ended is not None:
            self.start()

    def stop_spark(self) -> None:
        """Stop the Spark query, if it runs."""
        if self._query is not None and self._query.isActive:
            self._query.stop()

    def finished(self) -> None:
        """The final checkpoint is closed."""
        self._become(State.FINISHED)

    def finished_before(self, known: tuple[str, int] | None) -> None:
        """The query had finished in an earlier run: nothing of it is started, its checkpoint is not needed.

        Args:
            known: Spark's query id and the last epoch, as the ledger has them.
        """
        self.state = State.FINISHED
        self.had_finished = True
        if known is not None:
            self.query_id, self.committed = known
            self.offsets = self.log.offsets(self.committed)
            self._judge()

    def resume_final(self) -> None:
        """An earlier run has recorded the final checkpoint: what is left are its steps, without Spark."""
        self._become(State.FINISHING, "resumed")

    def release(self) -> None:
        """Forget the query's registrations."""
        context = self.context
        uids = (operator.uid for operator in self.spec.operators)
        registry.withdraw(uids, context.registry, (context.job_id, context.incarnation.number))

    def _become(self, state: State, reason: str = "") -> None:
        if state is not self.state:
            self.state, self.reason = state, reason
            self.context.write_behind.state(self.spec.uid, state, reason)
