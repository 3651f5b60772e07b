"""One query of a running job under supervision: its state, its epochs as they commit, its restarts and its end.

Driven by the coordinator's `tick`, on its thread, which never blocks: what takes time is a command for the query's
worker. Decisions follow from Spark's logs and from how its query ended; listener events only add figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spark_ext.errors import FencedError, SparkExtError
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import ANY_RUN, AvailableNowRun, Cause
from spark_ext.queries.bad_rows import BadRowsWatch
from spark_ext.queries.boundary import Phase
from spark_ext.queries.catching_up import CatchingUpQuery
from spark_ext.queries.restarts import as_error
from spark_ext.queries.spark_query import End, Launch, RunnableQuery
from spark_ext.queries.worker import Commands, Outcome

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.spark.watching.query_events import Hint

T = TypeVar("T")


class QueryRun(CatchingUpQuery):
    """A query under supervision. Its attributes are for reading; its state changes by its methods alone.

    Its methods are for one thread at a time, the one that decides: that of the job's start, then the coordinator's.

    Args:
        spec: the query.
        context: the job's.
        lineage: the query's: flags and sink identities of other lineages are not its own.
        flagged: per source, the last finish sequence whose flag is in the ledger.
        elsewhere: whether its sink writes to another target from this start on, on request.
        query: in Spark; None: made from the specification.
        worker: carries out commands; None: a thread.
        clock: s; never goes back. The same as that of `tick`.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        lineage: int,
        flagged: Mapping[str, int],
        *,
        elsewhere: bool = False,
        query: RunnableQuery | None = None,
        worker: Commands | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(spec, context, lineage, flagged, elsewhere=elsewhere, query=query, worker=worker, clock=clock)
        self._committed_before = -1
        self._runs = 0
        self._needs_epoch = False
        self.bad_rows = BadRowsWatch(spec, context, lineage, self.checkpoint)
        """Moves bad rows of its sources, once their epochs are committed."""

    @property
    def phase(self) -> str:
        """What Spark is busy with, for display; "" when it does not run."""
        return self._query.phase if self._state is State.RUNNING else ""

    # -- start --------------------------------------------------------------------------------------------------------

    def resume_final(self) -> None:
        """An earlier run has recorded the final checkpoint: what is left are its steps, without Spark."""
        self._final_recorded = True
        self._become(State.FINISHING, "resumed")

    def claim(self, *, late: bool) -> None:
        """Command: fence older incarnations off the target; see `OperatorHooks.claim`. Failures come with `deliver`.

        Args:
            late: whether a run that ends with what is there may leave this to its first epoch; see `late_claim`.
        """
        late = self._claims_late = late and self._may_claim_late
        operators = self.operators
        self._worker.do("claim", lambda: operators.check_target() if late else operators.claim(), self._done)

    def open(self) -> None:
        """Command: call the operators' `open`, except that of sources which have ended."""
        ended = self.position.ended_sources
        self._worker.do("open", lambda: self.operators.open(ended), self._done)

    def start(self) -> None:
        """Command: start the Spark query. A start that fails is raised by `deliver`."""
        self._require(State.RUNNING)
        self._before_launch()
        self._starting = True
        self._show()
        self._worker.do("start", self._launch, self._launched_first)

    def begin_late(self, record: Callable[[], None]) -> None:
        """Command: all of a start at once, of a query that comes to a running job. One that fails is a failed query.

        Args:
            record: called once the target is claimed.
        """
        ended = self.position.ended_sources

        def first() -> None:
            self.operators.claim()
            record()
            self.operators.open(ended)

        self._before_first = first
        self._restart()

    def deliver(self) -> None:
        """Take in what commands have brought.

        Raises:
            Exception: what a command of the job's start has raised.
            FencedError: a newer incarnation owns the ledger or a target.
        """
        self._worker.deliver()

    def _done(self, outcome: Outcome[None]) -> None:
        if not self._restarts.stopping:
            outcome.result()

    def _launched_first(self, outcome: Outcome[Launch]) -> None:
        self._starting = False
        if outcome.error is None or not self._restarts.stopping:
            self._launched(outcome.result())

    def _launched(self, launch: Launch) -> None:
        self._live = True
        self._runs += 1
        self._planned_before = launch.planned
        self._committed_before = self.committed
        self._observer.started(launch.query_id)
        self.watched.launched(stateful=launch.stateful, further=self._state is State.RUNNING)
        if not self._state.ended and self._state is not State.FINISHING:
            self._become(State.RUNNING)
        wanted = self._boundary
        if wanted is not None and wanted.phase is Phase.STARTING:
            self.since = self.committed + 1
            wanted.done(self.since, self._clock())
            self._boundary = None
        elif self.since < 0 and not (wanted is not None and wanted.completing):
            self.since = self.committed + 1

    # -- supervision --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Take in what commands have brought, look at the facts, and decide what they call for. Does not block.

        Args:
            now: s, on the run's clock.

        Raises:
            FencedError: a newer incarnation owns the ledger or a target.
        """
        self.deliver()
        if not self._state.ended and not self._starting:
            lasting = self._outage.during(now, lambda: self._look(now))
            if self._outage.on and self._restarts.stopping:
                # Nothing in Spark's log decides about a query that is being stopped.
                self._look_at_the_end(now)
            elif lasting is not None:
                self.fail(lasting)
        self._cancel_if_stopped()

    def _look(self, now: float) -> None:
        self.observe()
        if self._observer.history.overdue() and not self._worker.busy:
            self._ask_for_figures()
        self._record_epochs()
        self._move_bad_rows(now)
        if self._state.ended:
            return
        if self.input_done and self._state is not State.FINISHING and not self._restarts.stopping:
            self._become(State.FINISHING)
        else:
            self._look_at_the_end(now)
            self._look_at_the_rest(now)
        self._look_at_the_boundary(now)

    def _move_bad_rows(self, now: float) -> None:
        if self.bad_rows.due(self.committed, now) and not self._worker.busy:
            upto = self.committed
            self._worker.do("moving bad rows", self.bad_rows.move, lambda outcome: self._bad_rows_moved(outcome, upto))
        exceeded = self.bad_rows.exceeded(self._observer.history)
        if exceeded is not None and not self._restarts.stopping:
            self.fail(exceeded)

    def _bad_rows_moved(self, outcome: Outcome[None], upto: int) -> None:
        if isinstance(outcome.error, FencedError):
            raise outcome.error
        lasting = self.bad_rows.moved(outcome.error, upto, self._clock())
        if lasting is not None and not self._state.ended:
            self.fail(lasting)

    def _look_at_the_end(self, now: float) -> None:
        if self._live and self._query.ended:
            run = ANY_RUN
            if not self._restarts.stopping:
                # Before the end is taken: if Spark's log cannot be read, it is still there for the next look. An epoch
                # may have been committed between the last look and the end, and resolves no incident of the end.
                self.observe()
            if (
                self._ends_itself or self._restarts.draining or self._boundary is not None
            ) and not self._restarts.stopping:
                run = self._observer.run_since(self._committed_before)
            end = self._query.take_end()
            assert end is not None
            if self._ends_itself and end.failure is None and not self._restarts.stopping:
                run = self._how_it_ended(run, end.own)
            self._live = False
            self._on_end(end, now, run)
        if self._state is not State.FINISHING and not self._state.ended and self._restarts.due(now):
            self._restart()

    def ask_late(self) -> None:
        """The query has ended: ask for figures whose events have not come yet."""
        if self._runs:
            self._ask_for_figures()
        if self.bad_rows.due(self.committed + 1, self._clock(), last=True):
            # What was committed last may not be known yet; Spark's log is asked.
            upto = self.committed
            self._worker.do("moving bad rows", self.bad_rows.move, lambda outcome: self._bad_rows_moved(outcome, upto))

    def observe_late(self) -> None:
        """Take in what came with the end."""
        try:
            if self._runs:
                self.observe()
        finally:
            self._record_epochs(everything=True)

    def _ask_for_figures(self) -> None:
        after = self._observer.history.reported_upto

        def ask() -> list[Hint]:
            self._keep_event_times()
            return self._query.reports(after)

        self._worker.do("figures", ask, self._figures)

    def _figures(self, outcome: Outcome[list[Hint]]) -> None:
        # Figures are hints: without them history has none.
        for hint in outcome.value or ():
            self._observer.history.report(hint)

    def _on_end(self, end: End, now: float, run: AvailableNowRun = ANY_RUN) -> None:
        """The Spark query has ended, or could not be started."""
        found = None if end.failure is None else self._diagnosed(end.failure)
        if self._ended_for_restart(failed=found is not None):
            return
        if self._state is State.FINISHING and not self._needs_epoch:
            # All its input is committed: the final checkpoint needs no further epoch of it, as far as is known.
            if found is not None:
                self._failure_incident(str(found.error), "ignored: all input is committed", found)
            return
        self._decide(self._restarts.cause(failed=found is not None), found, now, run)

    def _restart(self, *, claim: bool = False) -> None:
        def launch() -> Launch:
            # What led to the restart is in the ledger before it, whatever happens next.
            with suppress(SparkExtError):
                self._context.write_behind.flush()
            if claim:
                self.operators.claim()
            if self._before_first is not None:
                self._before_first()
                self._before_first = None
            return self._launch()

        self._restarts.clear()
        self._before_launch()
        self._starting = True
        self._show()
        self._worker.do("start", launch, self._restarted)

    def _restarted(self, outcome: Outcome[Launch]) -> None:
        self._starting = False
        if outcome.error is not None:
            self._on_end(End(outcome.error), self._clock())
        else:
            self._launched(outcome.result())

    # -- the final checkpoint -----------------------------------------------------------------------------------------

    def may_finish(self, now: float) -> bool:
        """Whether the next step of the final checkpoint can be taken: its worker is free, and no wait is under way."""
        stopped = self._restarts.stopping and not self._final_recorded
        return self._state is State.FINISHING and not stopped and not self._starting and self._may_suspend(now)

    def _may_suspend(self, now: float) -> bool:
        settled = self.bad_rows.settled(self.committed)
        return settled and not self._worker.busy and not self._restarts.waiting(now)

    def take_step(self, what: str, action: Callable[[], T], then: Callable[[T], None]) -> None:
        """Command: a step of the final checkpoint. One that fails is tried again, as a failed epoch is.

        Args:
            what: for messages.
            action: the step, on the worker's thread.
            then: gets what it returned, on the deciding thread.
        """

        def taken(outcome: Outcome[T]) -> None:
            if isinstance(outcome.error, FencedError):
                raise outcome.error
            if outcome.error is None:
                then(outcome.result())
            elif not self._state.ended:
                found = self._diagnosed(outcome.error)
                step = replace(found, error=as_error(outcome.error, self.who))
                self._decide(Cause.STEP, step, self._clock())

        self._worker.do(what, action, taken)

    def step_taken(self, *, recorded: bool) -> None:
        """A step of the final checkpoint has been taken.

        Args:
            recorded: whether the final checkpoint is recorded: from here on Spark is not needed, and a stop waits.
        """
        self._restarts.progressed()
        self._restarts.clear()
        self._needs_epoch = False
        self._final_recorded = recorded

    def ensure_running(self) -> None:
        """Start the Spark query unless it runs: finalization needs a further epoch."""
        self._needs_epoch = True
        if not self._live and not self._starting:
            self._restart(claim=self._runs == 0)

    def stop_spark(self) -> None:
        """Stop the Spark query, if it runs, and wait for it: for the worker's thread."""
        self._query.stop()

    def finished(self) -> None:
        """The final checkpoint is complete."""
        self._become(State.FINISHED)

    def notify_checkpoint(self, number: int, *, completed: bool) -> None:
        """Command: call the operators' hooks for an aligned checkpoint. What they raise is an incident.

        Args:
            number: of the checkpoint.
            completed: whether it is complete; else it was aborted.
        """
        if self._state.ended:
            return

        def called(outcome: Outcome[list[Exception]]) -> None:
            for problem in outcome.value or ([outcome.error] if outcome.error is not None else []):
                what = f"checkpoint {number}: {problem}"
                self._context.write_behind.incident(self.who, "checkpoint", what, "ignored")

        self._worker.do("checkpoint", lambda: self.operators.checkpoint(number, completed=completed), called)

    # -- end -----------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Withdraw the registrations of the query's operators, and end its worker."""
        self._worker.close()
        self._registered.withdraw()

    def keep_registered(self) -> None:
        """Keep the registrations of its operators alive; for any thread."""
        self._registered.keep()
