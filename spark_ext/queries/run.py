"""One query of a running job under supervision: its state, its epochs as they commit, its restarts and its end.

Driven by the coordinator's `tick`. All decisions follow from Spark's logs and from how the Spark query ended; listener
events only add figures. Nothing here is on an epoch's critical path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spark_ext.errors import SparkExtError
from spark_ext.ledger.schema import FinishedRow
from spark_ext.model.checkpoint_metadata import QueryMetadata
from spark_ext.model.lifecycle import IllegalTransition, State, can_follow
from spark_ext.model.logged_offsets import LoggedOffsets
from spark_ext.model.query_offsets import same_input
from spark_ext.model.restarts import Action, Cause
from spark_ext.queries.describe_failure import describe
from spark_ext.queries.history import Figures
from spark_ext.queries.observer import EpochObserver
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.records import query_metadata, registrations
from spark_ext.queries.restarts import Restarts
from spark_ext.queries.spark_query import End, RunnableQuery, SparkQuery
from spark_ext.queries.spec import QuerySpec
from spark_ext.spark import registry
from spark_ext.spark.query_events import Hint
from spark_ext.spark.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext


class QueryRun:
    """A query under supervision. Its attributes are for reading; its state changes by its methods alone.

    Args:
        spec: the query.
        context: the job's.
        lineage: the query's: flags and sink identities of other lineages are not its own.
        flagged: per source, the last finish sequence whose flag is in the ledger.
        query: the query in Spark; None: made from the specification.
        clock: s; never goes back. The same as that of `tick`.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        lineage: int,
        flagged: Mapping[str, int],
        *,
        query: RunnableQuery | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.lineage = lineage
        self.checkpoint = f"{context.state.rstrip('/')}/queries/{spec.uid}/checkpoint"
        self.operators = OperatorHooks(spec, context, lineage, self.checkpoint)
        self._context = context
        self._query = query or SparkQuery(
            spec,
            f"{context.job}/{spec.uid}",
            self.checkpoint,
            context.wake.set,
            context.identity(spec.uid, self.checkpoint, lineage),
        )
        self._observer = EpochObserver(
            spec, SparkLog(self.checkpoint), lineage, context.incarnation.number, flagged, clock
        )
        self._restarts = Restarts(context.settings.restarts, available_now=spec.available_now)
        self._planned_before: LoggedOffsets | None = None
        self._state = State.CREATED
        self._reason = ""
        self._error: SparkExtError | None = None
        self._had_finished = False

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def who(self) -> str:
        """Job and query, for messages."""
        return f"job '{self._context.job}', query '{self.spec.uid}'"

    @property
    def state(self) -> State:
        """The query's state."""
        return self._state

    @property
    def reason(self) -> str:
        """Why it entered its state; "" when that needs no reason."""
        return self._reason

    @property
    def error(self) -> SparkExtError | None:
        """Why it failed for good; None unless it did."""
        return self._error

    @property
    def had_finished(self) -> bool:
        """Whether it had finished before this incarnation: nothing of it was started."""
        return self._had_finished

    @property
    def figures(self) -> Figures:
        """What is counted of it in this run."""
        return self._observer.history.figures

    @property
    def query_id(self) -> str | None:
        """Spark's id; None before the first start."""
        return self._observer.position.query_id

    @property
    def committed(self) -> int:
        """The newest committed epoch; -1 when there is none."""
        return self._observer.position.epoch

    @property
    def offsets(self) -> LoggedOffsets | None:
        """The offsets of the newest committed epoch; None when there is none."""
        return self._observer.position.offsets

    @property
    def input_done(self) -> bool:
        """Whether the newest committed epoch has all input, and the state is empty."""
        return self._observer.position.input_done

    def metadata(self) -> QueryMetadata:
        """The query's part of a checkpoint at its newest committed epoch."""
        return query_metadata(
            self.spec,
            self.query_id,
            None if self.committed < 0 else self.committed,
            self.offsets,
            finished=self._state is State.FINISHED or self.input_done,
            restored=self._had_finished,
        )

    def final_flags(self) -> list[FinishedRow]:
        """The finished flags that follow from the query's final checkpoint, and any of a channel that is missing."""
        return self._observer.final_flags()

    # -- start --------------------------------------------------------------------------------------------------------

    def restore(self, known: tuple[str, int] | None) -> None:
        """Read what earlier runs have left: the facts from which this one continues.

        Args:
            known: Spark's query id and the newest committed epoch as the ledger has them; None: never ran.

        Raises:
            StateError: the ledger knows committed epochs of this query and its checkpoint is gone or another one.
        """
        self._observer.restore(known, self.who)

    def finished_before(self, known: tuple[str, int] | None) -> None:
        """The query had finished in an earlier run: nothing of it is started, its checkpoint is not needed.

        Args:
            known: Spark's query id and the last epoch, as the ledger has them.
        """
        if known is not None:
            self._observer.recall(known)
        self._had_finished = True
        self._enter(State.FINISHED)

    def resume_final(self) -> None:
        """An earlier run has recorded the final checkpoint: what is left are its steps, without Spark."""
        self._become(State.FINISHING, "resumed")

    def claim(self) -> None:
        """Fence older incarnations off the target; see `OperatorHooks.claim`."""
        self.operators.claim()

    def open(self) -> None:
        """Call the operators' `open`, except that of sources which have ended."""
        self.operators.open(self._observer.position.ended_sources)

    def start(self) -> None:
        """Start the Spark query.

        Raises:
            IllegalTransition: it has ended.
            Exception: whatever Spark raises.
        """
        running = self._state in (State.RUNNING, State.FINISHING)
        if not running:
            self._require(State.RUNNING)
        context = self._context
        registry.publish(registrations(self.spec, context, self.checkpoint, self.lineage), context.registry)
        self._planned_before = self._observer.newest_planned()
        self._restarts.clear()
        self._observer.started(self._query.start())
        if not running:
            self._become(State.RUNNING)

    def ensure_running(self) -> None:
        """Start the Spark query unless it runs: for the further epochs that finalization needs."""
        if not self._query.started:
            self.claim()
        if not self._query.started or self._query.ended:
            self.start()

    # -- supervision --------------------------------------------------------------------------------------------------

    def report(self, hint: Hint) -> None:
        """Take an event of a Spark query, if it is this one's; called on Spark's listener thread."""
        if hint.kind == "progress" and hint.query_id == self.query_id:
            self._observer.history.report(hint)

    def tick(self, now: float) -> None:
        """Look at the facts, and do what they call for.

        Args:
            now: s, on the run's clock.
        """
        if self._state.ended or self._state is State.FINISHING:
            return
        self.observe()
        if self._observer.history.overdue():
            self._ask_for_figures()
        self._record_epochs()
        if self.input_done and not self._restarts.stopping:
            self._become(State.FINISHING)
            return
        end = self._query.take_end()
        if end is not None:
            self._on_end(end, now)
        elif self._restarts.due(now):
            self._restart(now)

    def observe(self) -> None:
        """Take in the epochs that have been committed since the last look."""
        flags = self._observer.look()
        if flags is not None:
            self._restarts.epoch_committed()
            for flag in flags:
                self._context.write_behind.put_soon(flag)

    def observe_late(self) -> None:
        """Take in what came with the end: epochs, and figures whose events have not come yet."""
        if self._query.started:
            self.observe()
            self._ask_for_figures()
        self._record_epochs(everything=True)

    def _ask_for_figures(self) -> None:
        for hint in self._query.reports(self._observer.history.reported_upto):
            self._observer.history.report(hint)

    def _record_epochs(self, *, everything: bool = False) -> None:
        for row in self._observer.epoch_rows(everything=everything):
            self._context.write_behind.put(row)

    def _on_end(self, end: End, now: float) -> None:
        cause = self._restarts.cause(failed=end.failure is not None)
        error = None if end.failure is None else describe(end.failure, self.who, self.committed)
        nothing_new = cause is Cause.AVAILABLE_NOW and self._planned_nothing()
        decision = self._restarts.after(cause, error, now, same_input=nothing_new)
        evidence = {"stack": str(end.failure)}
        if decision.action is Action.FAIL:
            assert error is not None
            self.fail(error, evidence)
        elif decision.action is Action.RESTART:
            action = f"restart {decision.failures.count} in {decision.delay_ms} ms"
            self._context.write_behind.incident(self.who, "failure", decision.reason, action, evidence)
            self._become(State.RESTARTING, decision.reason)
        elif decision.action is Action.RUN_AGAIN:
            self.start()
        elif decision.action is Action.FINISH:
            self._become(State.FINISHING, decision.reason)
        else:
            self._become(State.CANCELED, decision.reason)

    def _planned_nothing(self) -> bool:
        """Whether Spark has planned no input since the last start."""
        newest, before = self._observer.newest_planned(), self._planned_before
        return newest is not None and before is not None and same_input(newest, before)

    def _restart(self, now: float) -> None:
        self._restarts.clear()
        try:
            self.start()
        except Exception as failure:
            self._on_end(End(failure), now)

    # -- end ----------------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Stop the Spark query where it is; no end of input is emitted."""
        self._restarts.stop()
        if self._query.started and self._state is not State.RESTARTING:
            self._query.stop()
        elif not self._state.ended:
            self._become(State.CANCELED, "stopped")

    def request_drain(self) -> None:
        """A drain is in force: channel sources read it in the ledger, Spark's own cannot, so their query is stopped.

        The cut is then the last committed epoch: what was planned after it is not part of the job.
        """
        if self.spec.natives and not self._state.ended and not self._restarts.draining:
            self._restarts.drain()
            self._query.stop()

    def stop_spark(self) -> None:
        """Stop the Spark query, if it runs."""
        self._query.stop()

    def finished(self) -> None:
        """The final checkpoint is complete."""
        self._become(State.FINISHED)

    def fail(self, error: SparkExtError, evidence: Any = None) -> None:
        """The query has failed for good.

        Args:
            error: why.
            evidence: for the ledger's incident, such as the stack.
        """
        self._error = error
        self._context.write_behind.incident(self.who, "failure", str(error), "stopped: FAILED", evidence)
        self._become(State.FAILED, str(error))

    def abandon(self, error: SparkExtError) -> None:
        """The job cannot be supervised any more: fail, and write nothing, as the ledger may have another owner."""
        if not self._state.ended:
            self._error = error
            self._enter(State.FAILED)

    def release(self) -> None:
        """Withdraw the registrations of the query's operators."""
        context = self._context
        uids = (operator.uid for operator in self.spec.operators)
        registry.withdraw(uids, context.registry, (context.job_id, context.incarnation.number))

    def _become(self, state: State, reason: str = "") -> None:
        """Enter a state and record it; entering the present one again is no event."""
        if state is not self._state:
            self._enter(state)
            self._reason = reason
            self._context.write_behind.state(self.spec.uid, state, reason)

    def _enter(self, state: State) -> None:
        self._require(state)
        self._state = state

    def _require(self, state: State) -> None:
        if not can_follow(self._state, state):
            raise IllegalTransition(f"{self.who}: {state.value} cannot follow {self._state.value}")
