"""The coordinator of a running job: one thread on the driver that looks at the facts and decides what they call for.

It wakes when an event of Spark's or a result of a worker arrives, and looks by itself many times a second; a dropped
event costs latency, never correctness. It never blocks: hooks, starts, stops, claims and the steps of a final
checkpoint are commands for the worker of their query, the ledger's upkeep has a worker, and history is written by a
thread of its own. So nothing in one query delays another. Only its looks at Spark's logs can hold it, if the storage
hangs; a stop then ends the job without it. Queries run by themselves: nothing here is on the critical path of an epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spark_ext.checkpoints.final import Advance, FinalCheckpoint
from spark_ext.errors import FencedError, FinalizationTimeout, SparkExtError, placed
from spark_ext.incidents.reporter import STOPPED
from spark_ext.jobs.ending import AT_LEAST, LOOK_EVERY, Ending, EndRequest
from spark_ext.masking import logger
from spark_ext.model.execution import HEALTHY, Shown, current, job_execution
from spark_ext.model.lifecycle import State, job_state
from spark_ext.queries.describe_failure import diagnosed

if TYPE_CHECKING:
    from spark_ext.jobs.checkpointing.barriers import AlignedCheckpoints
    from spark_ext.jobs.checkpointing.periodic import PeriodicCheckpoints
    from spark_ext.jobs.checkpointing.savepoint_requests import Savepoints
    from spark_ext.jobs.controlling.controller import Controller
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.jobs.latency import LatencyMeter, NoLatency
    from spark_ext.jobs.linking.exchanges import Exchanges
    from spark_ext.jobs.linking.gates import Gates
    from spark_ext.jobs.linking.inboxes import Inboxes
    from spark_ext.observing.dumps import Dumps
    from spark_ext.observing.upkeep import Upkeep
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun

log = logger("spark_ext.job")
ANSWER_WITHIN = 5.0  # how long after a stop's time the coordinator's thread may be silent before it is given up, s
WATCH_EVERY = 0.5  # pause between two looks at whether it is, s
CLOSER_EVERY = 0.25  # how often what the queries do is looked at more closely than for decisions, s


@dataclass(frozen=True)
class JobParts:
    """What a running job consists of beside its queries."""

    request: EndRequest
    upkeep: Upkeep
    exchanges: Exchanges
    inboxes: Inboxes
    gates: Gates
    savepoints: Savepoints
    aligned: AlignedCheckpoints
    periodic: PeriodicCheckpoints
    controller: Controller
    latency: LatencyMeter | NoLatency
    dumps: Dumps


class Coordinator:
    """Supervises the queries of one incarnation until they have all ended."""

    def __init__(
        self,
        context: JobContext,
        execution: ExecutionGraph,
        parts: JobParts,
        finals: Mapping[str, FinalCheckpoint],
        at_end: Sequence[Callable[[], object]],
    ) -> None:
        self.state = State.CREATED
        self.failure: SparkExtError | None = None
        self.done = threading.Event()
        self.parts, self._context, self._execution, self._finals = parts, context, execution, finals
        self._finishing: dict[str, _Finishing] = {}
        last = (
            parts.upkeep.maintain_late,
            parts.dumps.finish,
            lambda: parts.controller.conclude(self.state),
            *at_end,
            parts.exchanges.release_late,
            parts.latency.record,
        )
        self._ending = Ending(context, parts.upkeep, lambda: self.state, last)
        self._look_by: float | None = None
        self._given_up = False
        self._shown = Shown(State.CREATED)
        self._blamed: str | None = None  # the incident of a failure that is no query's
        self._ran = False
        self._closer_at = 0.0
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._thread = threading.Thread(target=self._loop, name=f"spark-ext-coordinator-{context.job}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._context.write_behind.start(self._context.wake.set)
        self._settle()
        self._ending.show_life()
        self._thread.start()

    @property
    def runs(self) -> tuple[QueryRun, ...]:
        """The queries that are built."""
        return self._execution.runs

    @property
    def late(self) -> SparkExtError | None:
        """What went wrong first after the job had ended; it changes nothing about how it has ended."""
        return self._ending.failure

    @property
    def shown(self) -> Shown:
        """What the job does, finer than its state."""
        return current(self.state, self._shown)

    @property
    def stopping(self) -> bool:
        """Whether the job has been asked to stop."""
        return self.parts.request.stopping

    def stop(self, timeout: float | None = None) -> None:
        """End all queries that run, without end of input; see `EndRequest.stop`."""
        self.parts.request.stop(timeout)
        self._watch_stop()

    def _watch_stop(self) -> None:
        with self._lock:
            if self._watcher is None:
                name = f"spark-ext-stop-{self._context.job}"
                self._watcher = threading.Thread(target=self._watch, name=name, daemon=True)
                self._watcher.start()

    def refuse(self) -> None:
        """The start was refused: stop what runs, and release those who wait for the end."""
        attempt = self._ending.attempt
        for run in self.runs:
            attempt(f"the stop of query '{run.spec.uid}'", run.refuse)
        by = time.monotonic() + self._context.settings.stop_timeout / 1000
        self._ending.wait(self._idle, by, self._deliver)
        for run in self.runs:
            if run.busy:
                attempt(f"giving query '{run.spec.uid}' up", run.give_up)
            attempt(f"the release of query '{run.spec.uid}'", run.release)
        self.state = job_state(run.state for run in self.runs)
        self._end_checkpoints((), "the job's start was refused")
        self.parts.upkeep.close()
        self._close_parts()
        self.done.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; returns whether it has come."""
        return self.done.wait(timeout)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._given_up and (not self.state.ended or self._awaits_look(time.monotonic())):
                self._context.wake.wait(LOOK_EVERY)
                self._context.wake.clear()
                self._tick(time.monotonic())
        except Exception as problem:
            if not self._given_up:
                if not isinstance(problem, FencedError):
                    log.exception("the coordinator of job '%s' failed", self._context.job)
                self._abandon(
                    placed(
                        problem,
                        f"job '{self._context.job}'",
                        "the coordinator failed",
                        kept="all committed epochs",
                        do="run the job again; if it fails again, report the stack, which is in the log",
                    )
                )
        finally:
            if not self._given_up:
                try:
                    self._close()
                finally:
                    self.done.set()

    def _awaits_look(self, now: float) -> bool:
        """All queries have ended: whether to wait for a look at the fence, as long as a stop may take."""
        if self._look_by is None:
            self._look_by = now + self._context.settings.stop_timeout / 1000
        stop_by = self.parts.request.stop_by
        by = self._look_by if stop_by is None else min(self._look_by, stop_by)
        return self.parts.upkeep.looking and now < by

    def _tick(self, now: float) -> None:
        parts = self.parts
        self._ending.show_life()
        self._context.write_behind.check()
        parts.upkeep.tick(now)
        if closer := now >= self._closer_at:
            self._closer_at = now + CLOSER_EVERY
        if self.stopping:
            self._stop_all()
        for run in self.runs:
            self._tick_query(run, now, closer=closer)
        parts.latency.tick(self.runs)
        if parts.request.stop_by is not None and now >= parts.request.stop_by:
            self._give_up()
        if not self.stopping and not parts.aligned.under_way:
            parts.gates.tick()
        parts.aligned.tick(now)
        parts.controller.tick(now)
        if self.stopping:
            self._watch_stop()  # a control event may have asked for it
        parts.savepoints.tick()
        parts.exchanges.tick(now, lambda: parts.aligned.held)
        self._settle()
        parts.periodic.tick(now)

    def _tick_query(self, run: QueryRun, now: float, *, closer: bool) -> None:
        if self.parts.request.drained(run.lineage):
            run.request_drain()
        before = run.state
        run.tick(now)
        if closer:
            run.take_snapshots(paused=self.parts.controller.paused(run))
        if run.state in (State.CANCELED, State.FAILED) and run.state is not before and not self.stopping:
            # A newer incarnation stops queries of its session, and removes what others are writing.
            self.parts.upkeep.look_at_fence()
        if run.state is State.FINISHING:
            self._finish(run, now)
        if self._blocked_for_good(run):
            run.request_stop("a query that reads what it writes has ended before it")

    def _blocked_for_good(self, run: QueryRun) -> bool:
        """Whether a query waits forever to write to a full exchange: the query for which it waits has left this run."""
        hold = run.watched.pressure.standing
        reader = None if hold is None or run.state.ended else self._execution.find(hold.by)
        return reader is not None and reader.state is State.CANCELED

    def _finish(self, run: QueryRun, now: float) -> None:
        uid = run.spec.uid
        if uid not in self._finishing:
            feeding = self._execution.graph.producers(uid)
            if any(other.spec.uid in feeding and not other.state.ended for other in self.runs):
                return  # queries finish in the order of the flow
            final = self._finals.get(uid) or FinalCheckpoint(
                run, run.operators, self._context, self.parts.savepoints.take_id()
            )
            self._finishing[uid] = _Finishing(run, final)
        self._finishing[uid].tick(now)

    def _settle(self) -> None:
        """Derive the job's state from its queries'; one that has failed for good ends the others at once."""
        failed = next((run for run in self.runs if run.state is State.FAILED), None)
        if self.failure is None:
            if failed is not None:
                assert failed.error is not None
                self._fail(failed.error.within(failed.operator))
            elif (failure := self._failure_of_part) is not None:
                self._blamed = self._record(failure)
                self._fail(failure)
        self._become(job_state(self._states()))

    @property
    def _failure_of_part(self) -> SparkExtError | None:
        return self.parts.gates.failure or self.parts.aligned.failure

    def _record(self, error: SparkExtError) -> str:
        """The failure of a part that is no query's: an incident like any other."""
        operator = f"job '{self._context.job}'"
        found = diagnosed(error, operator, -1, self._context.classifier)
        return self._context.write_behind.incident(
            operator, "failure", str(error), STOPPED, found.stored, found.verdict.labels
        )

    def _fail(self, error: SparkExtError) -> None:
        self.failure = error
        self._become(State.FAILING)
        self.stop()
        self._stop_all()

    def _states(self) -> list[State]:
        """The states from which the job's follows: a query that is still to be built keeps a job from ending."""
        states = [run.state for run in self.runs]
        if self._failure_of_part is not None:
            return [*states, State.FAILED]
        waiting = bool(self._execution.waiting)
        if self._context.until is not None:
            due = self.parts.gates.due()
        else:
            due = waiting and all(state is State.FINISHED or not state.ended for state in states)
        if due:
            states.append(State.CANCELED if self.stopping else State.RUNNING)
        elif waiting and self._context.until is not None:
            # Those whose turn does not come in this run wait for another one.
            states.append(State.SUSPENDED)
        return states

    def _become(self, state: State) -> None:
        """Take on a state, and record what the job does if that has changed."""
        self.state = state
        now = job_execution(state, [(run.spec.uid, run.watched.shown) for run in self.runs], ran=self._ran)
        if state in (State.FAILING, State.FAILED):
            failed = (run.watched.incident for run in self.runs if run.state is State.FAILED)
            now = replace(now, incident=next(failed, self._blamed))
        self._ran = self._ran or (now.state in HEALTHY and now.incident is None)
        if replace(now, since=None) != replace(self._shown, since=None):
            self._shown = now
            self._context.write_behind.state("", now.state, now.reason, now.since, now.incident)

    def _stop_all(self) -> None:
        for run in self.runs:
            run.request_stop()

    def _give_up(self) -> None:
        """The time for stopping is over."""
        for run in self.runs:
            if not run.state.ended:
                what = f"'{run.busy}' was under way" if run.busy else "Spark's query had not stopped"
                run.cancel(f"it did not stop in time: {what}; the next start continues from the last committed epoch")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _abandon(self, error: SparkExtError) -> None:
        """Stop everything; the ledger may have another owner by now."""
        self.failure = error
        self.stop()
        for run in self.runs:
            run.abandon(error)
        self.state = State.FAILED

    def _close(self) -> None:
        """Wait for what is still under way, as long as a stop may take; then write the last rows.

        A step that fails, or that hangs in the storage, keeps none of the others from being taken.
        """
        attempt = self._ending.attempt
        attempt("limiting the time of the end", self.stop)
        assert self.parts.request.stop_by is not None
        by = max(self.parts.request.stop_by, time.monotonic() + AT_LEAST)
        if self.failure is None:
            # What is being pinned is complete before the job reports its end.
            exchanges = self.parts.exchanges
            pinned = partial(self._ending.wait, lambda: not exchanges.busy, by, exchanges.deliver)
            attempt("waiting for a savepoint", pinned)
        self._end_checkpoints(self.runs, "the job is ending")
        for run in self.runs:
            attempt(f"a question to query '{run.spec.uid}'", run.ask_late)
        self._ending.wait(self._idle, by, self._deliver)
        for run in self.runs:
            if run.busy:
                attempt(f"giving query '{run.spec.uid}' up", run.give_up)
            attempt(f"the last look at query '{run.spec.uid}'", run.observe_late)
            attempt(f"the release of query '{run.spec.uid}'", run.release)
        self.parts.latency.tick(self.runs)
        if not self._given_up:
            self._write_the_end(by)

    def _write_the_end(self, by: float) -> None:
        self._ending.attempt("writing the last rows", lambda: self._ending.write(by))
        self._ending.attempt("notifying of the last incidents", self._context.write_behind.notify_last)
        for close in (self.parts.upkeep.close, self._close_parts, self._context.write_behind.close):
            self._ending.attempt("ending a thread", close)

    def _close_parts(self) -> None:
        self.parts.controller.close()
        self.parts.gates.close()
        self.parts.exchanges.close()

    def _end_checkpoints(self, runs: Sequence[QueryRun], reason: str) -> None:
        self._ending.attempt("the end of a checkpoint", lambda: self.parts.aligned.end(runs, reason))
        self._ending.attempt("the end of a savepoint", lambda: self.parts.savepoints.end(reason))

    def _idle(self) -> bool:
        return not any(run.busy for run in self.runs)

    def _deliver(self) -> None:
        for run in self.runs:
            try:
                run.deliver()
            except Exception as problem:
                log.warning("error after query '%s' ended: %s", run.spec.uid, problem)

    def _watch(self) -> None:
        """On a thread of its own, once the job has been asked to stop: whether the coordinator's own thread answers.

        It looks at Spark's logs itself, and storage such as a lost mount may hold it there. It is then given up as a
        worker is: the job ends without it.
        """
        while True:
            assert self.parts.request.stop_by is not None
            silent = time.monotonic() - max(self.parts.request.stop_by, self._ending.alive_at)
            if silent >= ANSWER_WITHIN and self._thread.is_alive():
                break
            if self.done.wait(min(WATCH_EVERY, ANSWER_WITHIN)):
                return
        self._given_up = True
        reason = "it did not stop in time: a look at Spark's log was under way, and the storage did not answer"
        for run in self.runs:
            self._ending.attempt(f"giving query '{run.spec.uid}' up", partial(run.cancel, reason))
            self._ending.attempt(f"the release of query '{run.spec.uid}'", run.release)
        self._become(job_state(self._states()))
        self._end_checkpoints((), "the job has ended")
        self._write_the_end(time.monotonic())
        self.done.set()


class _Finishing:
    """Gives the worker of a query in the state FINISHING one step of its final checkpoint after the other."""

    def __init__(self, run: QueryRun, final: FinalCheckpoint) -> None:
        self._run, self._final = run, final

    def tick(self, now: float) -> None:
        """Give the next step if it can be taken now."""
        run, final = self._run, self._final
        if not run.may_finish(now):
            return
        position = run.position

        def step() -> Advance | FinalizationTimeout:
            try:
                return final.advance(position)
            except FinalizationTimeout as late:
                return late

        run.take_step("a step of the final checkpoint", step, self._taken)

    def _taken(self, came: Advance | FinalizationTimeout) -> None:
        run = self._run
        if run.state.ended:
            return
        if isinstance(came, FinalizationTimeout):
            run.fail(came)
        elif came is Advance.STEP:
            run.step_taken(recorded=self._final.recorded)
            if self._final.done:
                run.finished()
        elif came is Advance.EPOCH:
            run.ensure_running()
