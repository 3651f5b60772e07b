"""One query of a running job under supervision: its state, its epochs as they commit, its restarts and its end.

Driven by the coordinator's `tick`, on its thread, which never blocks: what takes time is a command for the query's
worker. Decisions follow from Spark's logs and from how its query ended; listener events only add figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.kinds import FinishedKind
from spark_ext.model.commits import Epoch
from spark_ext.model.execution import REQUESTED, Phase, Shown, current
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import ANY_RUN, Action, AvailableNowRun, Cause
from spark_ext.queries.records import query_metadata
from spark_ext.queries.restarts import UNREADABLE, as_error
from spark_ext.queries.spark_query import End, phase_of
from spark_ext.spark.session.hold_notes import noted_hold
from spark_ext.spark.session.registry import noted_plan

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.errors import SparkExtError
    from spark_ext.failures.labels import Response
    from spark_ext.ledger.schema import FinishedRow
    from spark_ext.model.checkpoint_metadata import QueryMetadata
    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.queries.bad_rows import BadRowsWatch, ChangedInput
    from spark_ext.queries.catching_up import CatchingUp
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.describe_failure import Diagnosis, QueryFailures
    from spark_ext.queries.early import EarlyRows
    from spark_ext.queries.launcher import Launcher
    from spark_ext.queries.observer import EpochObserver, QueryPosition
    from spark_ext.queries.operator_hooks import OperatorHooks
    from spark_ext.queries.records import FinishedSources
    from spark_ext.queries.restarts import Outage, Restarts
    from spark_ext.queries.source_ends import SourceEnds
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.queries.watched import LifeCycle, WatchedQuery
    from spark_ext.queries.worker import Outcome, Worker
    from spark_ext.spark.watching.query_events import Hint

T = TypeVar("T")


class QueryRun:
    """A query under supervision; `query_run` assembles one. Its attributes are for reading.

    Its methods are for one thread at a time, the one that decides: that of the job's start, then the coordinator's.
    """

    def __init__(
        self,
        uid: str,
        context: JobContext,
        *,
        life: LifeCycle,
        watched: WatchedQuery,
        observer: EpochObserver,
        outage: Outage,
        restarts: Restarts,
        failures: QueryFailures,
        catching_up: CatchingUp,
        launcher: Launcher,
        changed_input: ChangedInput,
        bad_rows: BadRowsWatch,
        finished_sources: FinishedSources,
        source_ends: SourceEnds,
        early: EarlyRows,
        worker: Worker,
        clock: Callable[[], float],
    ) -> None:
        self.uid = self.sampled_as = uid
        self.operator = context.operator(uid)  # job and query, for messages
        self.checkpoint = context.checkpoint_of(uid)
        self.lineage = observer.lineage
        self.begun = context.begun.get(uid, context.incarnation.number)  # the start of the job in which the query began
        self.watched = watched  # what it does, finer than its state
        self.bad_rows = bad_rows  # moves bad rows of its sources, once their epochs are committed
        self.finished_sources = finished_sources  # by their flags in the ledger
        self.figures = observer.history.figures  # what is counted of it in this run
        self.had_finished = False  # whether it had finished before this incarnation: nothing was started
        self._context = context
        self._changed_input = changed_input
        self._life = life
        self.observer = observer
        self._source_ends = source_ends
        self._early = early
        self._outage = outage
        self._restarts = restarts
        self._failures = failures
        self._catching_up = catching_up
        self.launcher = launcher
        self._worker = worker
        self._clock = clock
        self._why_stopped = ""
        self._needs_epoch = False  # whether the final checkpoint waits for a further epoch
        self._final_recorded = False  # whether the final checkpoint is recorded: it is then completed, whatever comes

    # -- what is known of it ------------------------------------------------------------------------------------------

    @property
    def spec(self) -> QuerySpec:
        """The query as it runs, or is being restarted."""
        return self.launcher.spec

    @property
    def operators(self) -> OperatorHooks:
        """Calls the hooks of its operators."""
        return self.launcher.operators

    @property
    def open_sources(self) -> frozenset[str]:
        """See `Watchable`."""
        return frozenset(source.uid for source in self.spec.sources) - self.finished_sources.of(FinishedKind.SOURCE)

    @property
    def live(self) -> bool:
        """Whether Spark runs it, as the last poll has found."""
        return self.launcher.live

    @property
    def in_spark(self) -> StreamingQuery | None:
        """The query in Spark; None before its first start."""
        return self.launcher.query.handle

    @property
    def busy(self) -> str:
        """What its worker is carrying out; "" when it has nothing to do."""
        return self._worker.busy

    @property
    def state(self) -> State:
        """The query's state."""
        return self._life.state

    @property
    def reason(self) -> str:
        """Why it entered its state; "" when that needs no reason."""
        return self._life.reason

    @property
    def shown(self) -> Shown:
        """What it does, finer than its state."""
        return current(self.state, self.watched.shown)

    @property
    def phase(self) -> str:
        """What Spark is busy with, for display; "" when it does not run."""
        found = self.launcher.query.phase if self.state is State.RUNNING else ""
        if found != phase_of(Phase.PLANNING.value):
            return found
        uids = [source.uid for source in self.spec.sources]
        return f"{found} {noted_plan(self._context.registry, uids, self._context.incarnation.start)}".rstrip()

    @property
    def early_rows(self) -> int | None:
        """Rows of open windows that were shown at the end of this run; None: it has shown none."""
        return self._early.rows

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to stop."""
        return self._restarts.stopping

    @property
    def error(self) -> SparkExtError | None:
        """Why it failed for good; None unless it did."""
        return self._failures.error

    @property
    def response(self) -> Response | None:
        """What is to be done about the failure for which it was given up; None: it was not."""
        return self._failures.response

    @property
    def position(self) -> QueryPosition:
        """How far it has come. A snapshot: the parts belong together."""
        return self.observer.position

    @property
    def query_id(self) -> str | None:
        """Spark's id; None before the first start."""
        return self.position.query_id

    @property
    def committed(self) -> int:
        """The newest committed epoch; -1: none."""
        return self.position.epoch

    @property
    def offsets(self) -> LoggedOffsets | None:
        """The offsets of the newest committed epoch; None without one."""
        return self.position.offsets

    @property
    def ended_before(self) -> frozenset[str]:
        """Its sources that had ended before this start of the job."""
        every = frozenset(source.uid for source in self.spec.sources)
        return every if self.had_finished else self.observer.ended_before

    @property
    def input_done(self) -> bool:
        """Whether the newest committed epoch has all input, and the state is empty."""
        return self.position.input_done

    @property
    def application(self) -> str:
        """Under which its target knows its epochs; "" without a sink of ours."""
        sink, number = self.spec.sink, self._context.incarnation.number
        if sink is None:
            return ""
        return Epoch(sink.uid, self.lineage, self.query_id or "", self.committed, number).application

    @property
    def recent(self) -> tuple[tuple[int, LoggedOffsets], ...]:
        """The newest committed epochs with their offsets, ascending."""
        return self.observer.recent

    def final_flags(self, position: QueryPosition) -> list[FinishedRow]:
        """See `EpochObserver`."""
        return self.observer.final_flags(position)

    def metadata(self, position: QueryPosition | None = None, *, finished: bool | None = None) -> QueryMetadata:
        """The query's part of a checkpoint: at a position, or at its newest committed epoch and as its state says."""
        at = position or self.position
        finished = self.state is State.FINISHED or at.input_done if finished is None else finished
        epoch = None if at.epoch < 0 else at.epoch
        before = self.ended_before
        return query_metadata(self.spec, at.query_id, epoch, at.offsets, finished=finished, restored=before)

    # -- start --------------------------------------------------------------------------------------------------------

    def restore(self, known: tuple[str, int] | None) -> None:
        """Read what earlier runs have left; see `EpochObserver`."""
        self.observer.restore(known, self.operator)

    def finished_before(self, known: tuple[str, int] | None) -> None:
        """The query had finished in an earlier run, by the ledger: nothing is started, and no checkpoint is needed."""
        if known is not None:
            self.observer.recall(known)
        self.had_finished = True
        self._life.finished_before()

    def resume_final(self) -> None:
        """An earlier run has recorded the final checkpoint: what is left are its steps, without Spark."""
        self._final_recorded = True
        self._life.become(State.FINISHING, "resumed")

    def resume_drain(self) -> None:
        """A drain was in force before this start: the query runs the epoch that is planned, and no other."""
        self._restarts.drain()

    def start(self) -> None:
        """Command: start the Spark query. Failures come with `deliver`, as do those of the launcher's commands."""
        self.launcher.start()

    def begin_late(self, record: Callable[[], None]) -> None:
        """Command: all of a start at once, of a query that comes to a running job. If that fails, the query fails."""
        self.launcher.begin_late(record, self._start_failed)

    def _restart(self, *, claim: bool = False) -> None:
        self.launcher.restart(self._start_failed, claim=claim)

    def _start_failed(self, error: Exception) -> None:
        self._on_end(End(error), self._clock())

    def deliver(self) -> None:
        """Take in what commands have brought. Raises FencedError, and whatever a command of the job's start raised."""
        self._worker.deliver()

    # -- supervision --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Take in what commands have brought, poll the facts, and decide what they call for. Does not block."""
        self.deliver()
        self._changed_input.poll(now, last=self.state.ended)
        if self.state.ended:
            self._poll_figures()
        elif not self._life.starting:
            lasting = self._outage.during(now, lambda: self._poll(now))
            if self._outage.on and self._restarts.stopping:
                # Nothing in Spark's log decides about a query that is being stopped.
                self._poll_end(now)
            elif lasting is not None:
                self.fail(lasting)
        self._cancel_if_stopped()

    def _poll(self, now: float) -> None:
        self.observe()
        self._poll_figures()
        problem = self.bad_rows.poll(self.committed, stopping=self._restarts.stopping)
        if problem is not None:
            self.fail(problem)
        if self.state.ended:
            return
        if self.input_done and self.state is not State.FINISHING and not self._restarts.stopping:
            self._life.become(State.FINISHING)
        else:
            self._poll_end(now)
            self._poll_source_ends()
            self._poll_catching_up(now)
        self.launcher.poll_boundary(now, self._start_failed)

    def _poll_figures(self) -> None:
        """Ask for figures that no event has brought; those of the last epoch come after the query's end."""
        if self.observer.history.overdue() and not self._worker.busy:
            self.launcher.ask_for_figures()
        self._record_epochs()

    def observe(self) -> None:
        """Take in the epochs that have been committed since the last poll. May raise OSError."""
        flags = self.observer.poll()
        if flags is not None:
            self._restarts.progressed()
            self._context.write_behind.committed(self.uid, self.committed)
            self.watched.committed()
            self._life.show()
            for flag in flags:
                self._context.write_behind.put_soon(flag)

    def _record_epochs(self, *, everything: bool = False) -> None:
        for row in self.observer.epoch_rows(everything=everything):
            self._context.write_behind.put(row)

    def report(self, hint: Hint) -> None:
        """Take an event of a Spark query, if it is this one's; called on Spark's listener thread."""
        if hint.kind == "progress" and hint.query_id == self.query_id:
            self.launcher.take(hint)

    def take_snapshots(self, *, paused: bool) -> None:
        """Take in what the monitor has seen. A query that is stalled fails, if the job's settings say so."""
        hold = None
        if self.state is State.RUNNING and self.spec.feeds_exchange:
            uids = [source.uid for source in self.spec.sources]
            hold = noted_hold(self._context.registry, uids, self._context.incarnation.start)
        self.watched.take(running=self.state is State.RUNNING, paused=paused, hold=hold)
        self._life.show()
        stall = self.watched.stall
        if stall is not None and self._context.settings.on_stall == "fail" and self.state is State.RUNNING:
            self.fail(stall.error(self.operator))

    # -- the end of a source while others run on ----------------------------------------------------------------------

    def _poll_source_ends(self) -> None:
        """Command: the steps of the end of a source that has finished, one source at a time."""
        if self.state is State.FINISHING or self.state.ended or self._restarts.stopping or self._worker.busy:
            return
        ends, operators, position = self._source_ends, self.operators, self.position
        uid = ends.next(position, self.bad_rows.settled)
        if uid is None:
            return

        def taken(outcome: Outcome[bool]) -> None:
            error = outcome.problem()
            if error is not None and not self.state.ended:
                self._source_end_failed(uid, error)
            elif outcome.value:
                ends.progressed()
            else:
                ends.waits(uid)

        self._worker.do(f"the end of source '{uid}'", lambda: ends.finish(uid, operators, position), taken)

    def _source_end_failed(self, uid: str, error: Exception) -> None:
        """A step has failed: it is tried again, as a failed epoch is, while the query runs."""
        decision, found = self._source_ends.failed(uid, self._failures.diagnosed(error, self.committed))
        if decision.action is Action.RESTART:
            self._failures.record(decision.reason, f"tried again in {decision.delay_ms} ms", found)
        else:
            self.fail(found.error, found, decision.reason)

    # -- the end of the Spark query -----------------------------------------------------------------------------------

    def _poll_end(self, now: float) -> None:
        if self.live and self.launcher.query.ended:
            self._take_end(now)
        if self.state is not State.FINISHING and not self.state.ended and self._restarts.due(now):
            self._restart()

    def _take_end(self, now: float) -> None:
        run, newest = ANY_RUN, None
        launcher, stopping = self.launcher, self._restarts.stopping
        if not stopping:
            # Before the end is taken: if Spark's log cannot be read, it is still there for the next poll. An epoch may
            # have been committed between the last poll and the end, and resolves no incident of the end.
            self.observe()
            if launcher.ends_itself or launcher.between or self._restarts.draining:
                newest = self.observer.newest_planned()
                run = self.observer.run_since(launcher.committed_before, newest)
        end = launcher.take_end()
        if launcher.ends_itself and end.failure is None and not stopping:
            run = self._catching_up.judge(run, end.own, newest)
        self._on_end(end, now, run)

    def _on_end(self, end: End, now: float, run: AvailableNowRun = ANY_RUN) -> None:
        """The Spark query has ended, or could not be started."""
        found = None if end.failure is None else self._failures.diagnosed(end.failure, self.committed)
        if self.launcher.ended_for_restart(failed=found is not None):
            return
        if self.state is State.FINISHING and not self._needs_epoch:
            # All its input is committed: the final checkpoint needs no further epoch of it, as is known so far.
            if found is not None:
                self._failures.record(str(found.error), "ignored: all input is committed", found)
            return
        self._decide(self._restarts.cause(failed=found is not None), found, now, run)

    def _decide(self, cause: Cause, found: Diagnosis | None, now: float, run: AvailableNowRun = ANY_RUN) -> None:
        """Decide what follows an end or a failure, and carry it out: every failure takes this way."""
        decision = self._restarts.after(cause, found, now, run)
        action, reason, finishing = decision.action, decision.reason, self.state is State.FINISHING
        if action is Action.CANCEL:
            self._life.become(State.CANCELED, self._why_stopped or reason)
        elif action is Action.FINISH and not finishing:
            self._life.become(State.FINISHING, reason)
        elif action is Action.RUN_AGAIN and decision.delay_ms and not finishing:
            self._life.become(State.RESTARTING, f"{REQUESTED}a drain: an epoch is still to be committed")
        elif action is Action.SUSPEND:
            self._catching_up.read_all(finishing=finishing)
        elif action is Action.AWAIT_UPSTREAM:
            self._catching_up.rest(self._clock())
        elif action is Action.FAIL and found is not None:
            self.fail(found.error, found, reason)
        elif action is Action.RESTART and found is not None:
            what = f"restart {decision.failures.count} in {decision.delay_ms} ms"
            incident = self._failures.record(reason, what, found)
            if self.state in (State.RUNNING, State.RESTARTING):  # one that was built late has not run yet
                self._life.become(State.RESTARTING, reason, incident)

    def fail(self, error: SparkExtError, found: Diagnosis | None = None, reason: str = "") -> None:
        """The query has failed for good, with the given diagnosis or that of the error; Spark's query is stopped."""
        reason = reason or str(error)
        incident = self._failures.give_up(error, found or self._failures.diagnosed(error, self.committed), reason)
        self._life.become(State.FAILED, reason, incident)
        if self.live:
            self.launcher.stop()

    # -- an end with what is there, and restarts ----------------------------------------------------------------------

    def _poll_catching_up(self, now: float) -> None:
        """Whether there is more to read, or the last step is due."""
        if self.state.ended or self._restarts.stopping or self._life.starting:
            return
        self.launcher.poll_claim(self._claimed)
        if self._catching_up.has_more(now, paused=self.watched.paused):
            self._restart()
        elif self._catching_up.done and self._caught_up(now):
            acknowledge = self._catching_up.acknowledge(self.operators, self.offsets)
            self.take_step("acknowledging what was read", acknowledge, self._acknowledged)

    def _caught_up(self, now: float) -> bool:
        left = self.input_done or self.launcher.between or self._source_ends.left(self.position)
        return not left and self._may_suspend(now)

    def _acknowledged(self, unread: str) -> None:
        if unread or not self._early.wanted:
            self._suspended(unread)
        elif not (self.state.ended or self._restarts.stopping):
            self.take_step("showing open windows", self._show_early, self._shown_early)

    def _show_early(self) -> str | None:
        return self._early.show(self.spec, self.query_id, self.committed, self.launcher.claim_now)

    def _shown_early(self, done: str | None) -> None:
        if done is not None:
            self._suspended("", f"; {done}")

    def _suspended(self, unread: str, also: str = "") -> None:
        reach(FailPoint.SUSPENDED)
        if not self.state.ended:
            state = State.CANCELED if unread else State.SUSPENDED
            self._life.become(state, unread or f"it has read what was there{also}")

    def _may_suspend(self, now: float) -> bool:
        """Whether its worker is free, no wait is under way, and nothing that was committed is still to be moved."""
        settled = self.bad_rows.settled(self.committed)
        return settled and not self._worker.busy and not self._restarts.waiting(now)

    def _claimed(self, outcome: Outcome[None]) -> None:
        error = outcome.problem()
        if error is not None and not self.state.ended and not self._restarts.stopping:
            self._fail_after(error)

    def _fail_after(self, error: Exception) -> None:
        """A command has failed without which the query cannot go on."""
        found = self._failures.diagnosed(error, self.committed)
        self.fail(found.error, found)

    # -- the final checkpoint -----------------------------------------------------------------------------------------

    def may_finish(self, now: float) -> bool:
        """Whether the next step of the final checkpoint can be taken: its worker is free, and no wait is under way."""
        stopped = self._restarts.stopping and not self._final_recorded
        return self.state is State.FINISHING and not stopped and not self._life.starting and self._may_suspend(now)

    def take_step(self, what: str, action: Callable[[], T], then: Callable[[T], None]) -> None:
        """Command: a step of the final checkpoint. One that fails is tried again, as a failed epoch is."""

        def taken(outcome: Outcome[T]) -> None:
            error = outcome.problem()
            if error is None:
                then(outcome.result())
            elif not self.state.ended:
                found = self._failures.diagnosed(error, self.committed)
                self._decide(Cause.STEP, replace(found, error=as_error(error, self.operator)), self._clock())

        self._worker.do(what, action, taken)

    def step_taken(self, *, recorded: bool) -> None:
        """A step has been taken. Once the final checkpoint is recorded Spark is not needed, and a stop waits."""
        self._restarts.progressed()
        self._restarts.clear()
        self._needs_epoch = False
        self._final_recorded = recorded

    def ensure_running(self) -> None:
        """Start the Spark query unless it runs: finalization needs a further epoch."""
        self._needs_epoch = True
        if not self.live and not self._life.starting:
            self._restart(claim=self.launcher.starts == 0)

    def stop_spark(self) -> None:
        """Stop the Spark query, if it runs, and wait for it: for the worker's thread."""
        self.launcher.query.stop()

    def finished(self) -> None:
        """The final checkpoint is complete."""
        self._life.become(State.FINISHED)

    def notify_checkpoint(self, number: int, *, completed: bool) -> None:
        """Command: call the operators' hooks for an aligned checkpoint, complete or aborted. Failures are incidents."""
        if not self.state.ended:
            self.launcher.notify_checkpoint(number, completed=completed)

    # -- an end before that of the input ------------------------------------------------------------------------------

    def request_stop(self, reason: str = "stopped") -> None:
        """Stop the Spark query where it is; no end of input is emitted. A recorded final checkpoint is completed."""
        if self.state.ended or self._restarts.stopping:
            return
        self._why_stopped = reason
        self._restarts.stop()
        if self.live or self._worker.busy:
            self.launcher.stop()
        self._cancel_if_stopped()

    def _cancel_if_stopped(self) -> None:
        if not self._restarts.stopping or self.state.ended or self._worker.busy or self._final_recorded:
            return
        if self.state is State.FINISHING:
            self._life.become(State.CANCELED, "stopped before the final checkpoint; the next start takes it")
        elif not self.live:
            self._life.become(State.CANCELED, self._why_stopped)

    def request_drain(self) -> None:
        """A drain is in force: channel sources read it in the ledger, Spark's own cannot, so their query is stopped.

        An epoch that is planned by then is run to its end: its sink may have made a part of it visible.
        """
        if not self.may_end_by_drain or self.state.ended or self._restarts.draining or self._restarts.stopping:
            return
        runs = self.live or self._life.starting
        try:
            settled = not runs and not self.launcher.unsettled
        except UNREADABLE:
            return  # asked again by the next tick; its poll says when this has lasted too long
        self._restarts.drain()
        if runs:
            self.launcher.stop(self._drain_stopped)
        elif settled and self.state is not State.FINISHING:
            self._life.become(State.FINISHING, "drained")

    @property
    def may_end_by_drain(self) -> bool:
        """Whether a drain ends the query where it is: it has sources of Spark's own, and no others that still run."""
        return bool(self.spec.natives) and self.spec.fed.issubset(self.position.ended_sources)

    def _drain_stopped(self, outcome: Outcome[None]) -> None:
        if outcome.error is not None and not self.state.ended:
            self._fail_after(outcome.error)

    def cancel(self, reason: str) -> None:
        """Give the query up: its worker has not ended in time. Spark's query is stopped without waiting for it."""
        if not self.state.ended:
            self._context.write_behind.incident(self.operator, "stop", reason, "CANCELED")
            self._life.become(State.CANCELED, reason)
        self.give_up()

    def abandon(self, error: SparkExtError) -> None:
        """The job cannot be supervised any more: fail, and write nothing, as the ledger may have another owner.

        Spark's query is stopped; `busy` says whether that is still under way.
        """
        if not self.state.ended:
            self._failures.abandon(error)
            self._life.enter(State.FAILED)
            self.launcher.stop()

    def refuse(self) -> None:
        """The start of the job was refused: stop Spark's query, or give it up when its worker does not answer."""
        busy = self.busy
        if not self.state.ended:
            self._life.enter(State.CANCELED)
        if busy:
            self.give_up()
        elif self.live:
            self.launcher.stop()

    def give_up(self) -> None:
        """Stop Spark's query without waiting for it."""
        self._worker.abandon(self.launcher.query.stop)

    def ask_late(self) -> None:
        """The query has ended: ask for figures whose events have not come yet, and move the last bad rows."""
        if self.launcher.starts:
            self.launcher.ask_for_figures()
        self.bad_rows.poll(self.committed, stopping=True, last=True)

    def observe_late(self) -> None:
        """Take in what came with the end."""
        try:
            if self.launcher.starts:
                self.observe()
        finally:
            self._record_epochs(everything=True)
        left = self.figures.state_rows
        if self.state is State.FINISHED and left and not self.had_finished:
            what = f"the query has finished with {left:,} rows in its state, which no end of input has emptied: open "
            what += "windows, unmatched rows and timers among them are not in its output"
            self._context.write_behind.incident(self.operator, "state_left", what, "none")

    def state_after(self, epoch: int) -> tuple[int | None, int] | None:
        """See `EpochHistory`."""
        return self.observer.history.state_after(epoch)

    def release(self) -> None:
        """Withdraw the registrations of the query's operators, and end its worker."""
        self._worker.close()
        self.launcher.registrations.withdraw()

    def keep_registered(self) -> None:
        """Keep the registrations of its operators alive; for any thread."""
        self.launcher.registrations.keep()
