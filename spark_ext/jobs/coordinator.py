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
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_ext.checkpoints.final import FinalCheckpoint
from spark_ext.checkpoints.unaligned import QueryLook, Taken
from spark_ext.control.job_events import in_force
from spark_ext.errors import FencedError, SparkExtError, placed
from spark_ext.jobs.checkpointing.barriers import AlignedCheckpoints, look_at
from spark_ext.jobs.checkpointing.checkpoint_request import Request
from spark_ext.jobs.checkpointing.finishing import Finishing
from spark_ext.jobs.checkpointing.periodic import PeriodicCheckpoints
from spark_ext.jobs.checkpointing.savepoint_requests import SavepointRequest, Savepoints
from spark_ext.jobs.ending import AT_LEAST, LOOK_EVERY, Ending
from spark_ext.jobs.execution import JobExecution
from spark_ext.masking import logger
from spark_ext.model.dag import JobGraph, QueryNode
from spark_ext.model.execution import Shown, current
from spark_ext.model.lifecycle import State, job_state
from spark_ext.model.until import Stands, Upstream, upstream_of
from spark_ext.observing.upkeep import Upkeep
from spark_ext.spark.watching.query_events import Hint

if TYPE_CHECKING:
    from spark_ext.jobs.controlling.controller import Controller
    from spark_ext.jobs.latency import LatencyMeter
    from spark_ext.jobs.linking.exchanges import Exchanges
    from spark_ext.jobs.linking.gates import Gates
    from spark_ext.ledger import Ledger
    from spark_ext.observing.dumps import Dumps
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun

log = logger("spark_ext.job")

ANSWER_WITHIN = 5.0
"""How long after a stop's time the coordinator's thread may be silent before it is given up, s."""

WATCH_EVERY = 0.5
"""Pause between two looks at whether it is, s."""

CLOSER_EVERY = 0.25
"""How often what the queries do is looked at more closely than for decisions, s."""


class Coordinator:
    """Supervises the queries of one incarnation until they have all ended.

    Args:
        context: the job's.
        ledger: for reading; writing goes through the context's `write_behind`.
        runs: the queries.
        finals: final checkpoints that an earlier run left unfinished, by query.
        exchanges: between the queries.
        gates: queries that wait for the end of others.
        graph: of the job; None: its queries are independent.
    """

    def __init__(
        self,
        context: JobContext,
        ledger: Ledger,
        runs: Sequence[QueryRun],
        finals: dict[str, FinalCheckpoint],
        exchanges: Exchanges | None = None,
        gates: Gates | None = None,
        graph: JobGraph | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.state = State.CREATED
        self.failure: SparkExtError | None = None
        self.done = threading.Event()
        self._context = context
        self._next_checkpoint = context.first_checkpoint
        self._finals = dict(finals)
        self._exchanges = exchanges
        self._gates = gates
        self._graph = graph or JobGraph(tuple(QueryNode(run.spec.uid) for run in runs))
        self._finishing: dict[str, Finishing] = {}
        self._upkeep = Upkeep(context, ledger, self._keep_registered)
        self._ending = Ending(context, self._upkeep, lambda: self.state)
        self.at_end = self._ending.at_end
        """Called when the job has ended, before `done` is set; what they raise is logged."""
        self.at_end.append(self._upkeep.maintain_late)
        self._look_by: float | None = None
        self._given_up = False
        self._savepoints = None if exchanges is None else Savepoints(context, ledger, self._take_id, exchanges)
        self._periodic = PeriodicCheckpoints(context, self._take_id, self._savepoints)
        self._aligned = AlignedCheckpoints(
            context, self._take_id, lambda: self.graph, self._reads, self._newest_cut, self._savepoints
        )
        self._lock = threading.Lock()
        self._stop_by: float | None = None
        self._watcher: threading.Thread | None = None
        self._drained = max((event.lineage for event in in_force(ledger.open_control_events(), "drain")), default=0)
        self.controller: Controller | None = None
        """Follows the job's control events; None: nobody does."""
        self.latency: LatencyMeter | None = None
        """Follows latency markers; None: there are none."""
        self.dumps: Dumps | None = None
        """Takes dumps on request; None: nobody does."""
        self._execution = JobExecution(context)
        self._closer_at = 0.0
        self._thread = threading.Thread(target=self._loop, name=f"spark-ext-coordinator-{context.job}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._context.write_behind.start(self._context.wake.set)
        self._settle()
        self._ending.alive_at = time.monotonic()
        self._thread.start()

    @property
    def late(self) -> SparkExtError | None:
        """What went wrong first after the job had ended; it changes nothing about how it has ended."""
        return self._ending.failure

    @property
    def shown(self) -> Shown:
        """What the job does, finer than its state."""
        return current(self.state, self._execution.shown)

    @property
    def stopping(self) -> bool:
        """Whether the job has been asked to stop."""
        return self._stop_by is not None

    def stop(self, timeout: float | None = None) -> None:
        """End all queries that run, without end of input.

        Args:
            timeout: seconds after which a query that has not ended is given up as CANCELED; None: the setting
                `stop_timeout`.
        """
        within = self._context.settings.stop_timeout / 1000 if timeout is None else timeout
        with self._lock:
            by = time.monotonic() + within
            self._stop_by = by if self._stop_by is None else min(by, self._stop_by)
            if self._watcher is None:
                name = f"spark-ext-stop-{self._context.job}"
                self._watcher = threading.Thread(target=self._watch, name=name, daemon=True)
                self._watcher.start()
        self._context.wake.set()

    def refuse(self) -> None:
        """The start was refused: stop what runs, and release whoever waits for the end."""
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
        attempt("the end of a checkpoint", lambda: self._aligned.end((), "the job's start was refused"))
        attempt("the end of a savepoint", lambda: self._end_savepoints("the job's start was refused"))
        self._upkeep.close()
        self._close_links()
        self.done.set()

    def drained(self, lineage: int) -> bool:
        """Whether a drain is in force for a query of this lineage; it stays in force until the job has finished."""
        return self._drained >= lineage

    def drain(self) -> None:
        """A drain has been written to the ledger: stop the queries whose sources cannot read it there."""
        # As in the ledger: also for a query that is built later.
        self._drained = max(self._drained, self._context.incarnation.lineage, *(run.lineage for run in self.runs))
        self._context.wake.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; returns whether it has come."""
        return self.done.wait(timeout)

    @property
    def graph(self) -> JobGraph:
        """The job's graph, as far as its queries are built."""
        return self._graph if self._exchanges is None else self._exchanges.graph

    @property
    def waiting(self) -> tuple[str, ...]:
        """Queries that are not built yet."""
        return () if self._gates is None else self._gates.uids

    def upstream(self, uid: str) -> Upstream:
        """About the queries that feed another one, in a run that ends with what is there."""
        stands = {run.spec.uid: Stands(run.state, run.committed) for run in self.runs}
        waiting = {} if self._gates is None or self._context.holds_gates else self._gates.after
        return upstream_of(self.graph.producers(uid), stands, waiting)

    def unread(self, uid: str) -> str:
        """What has kept a query from reading all that is there; "" for nothing. Reads the ledger; for any thread."""
        run = next((run for run in self.runs if run.spec.uid == uid), None)
        return "" if run is None or self.controller is None else self.controller.unread(run)

    def _waits_for_nobody(self, run: QueryRun) -> bool:
        """Whether a query may wait for ever to write to a limited exchange: one that reads it has left this run."""
        limited = run.spec.sink is not None and "max_in_flight" in run.spec.sink.options
        if self._context.until is None or not limited or run.state.ended:
            return False
        readers = {uid for name in self.graph[run.spec.uid].writes for uid, _ in self.graph.consumers(name)}
        return any(one.spec.uid in readers and one.state is State.CANCELED for one in self.runs)

    @property
    def rows_in_flight(self) -> int | None:
        """Rows between the queries at the newest cut; None: unknown, or there are no exchanges."""
        newest = self._newest_cut()
        return None if newest is None else newest.rows_in_flight

    def _newest_cut(self) -> Taken | None:
        return None if self._exchanges is None else self._exchanges.newest

    def _reads(self, run: QueryRun) -> dict[str, str]:
        named = {reader.uid: reader.exchange for reader in self.graph[run.spec.uid].reads}
        # An exchange whose producer has finished, and has left the job, is not in the graph. Nor is one whose producer
        # is not built yet: nobody delivers a barrier to its readers.
        ended = run.spec.fed if self._exchanges is None else run.spec.fed & self._exchanges.ended_readers
        return dict.fromkeys(ended, "") | named

    def checkpoint(self, folder: str | None = None) -> Request:
        """Ask for an aligned checkpoint.

        Args:
            folder: of the savepoint that it is to be; None: it is none.
        """
        return self._aligned.request(folder)

    def align(self, prepare: Callable[[int, Callable[[bool], None]], None]) -> Request:
        """Ask for an aligned checkpoint whose number is handed over before it is triggered; see `barriers.Request`."""
        return self._aligned.request(prepare=prepare)

    def paused(self, run: QueryRun) -> bool:
        """Whether a control event keeps a query from reading; for any thread."""
        return self.controller is not None and self.controller.paused(run)

    def savepoint(self, folder: str) -> SavepointRequest:
        """Ask for a savepoint at the newest consistent cut.

        Args:
            folder: absolute path or URI; empty or missing.
        """
        assert self._savepoints is not None
        return self._savepoints.request(folder)

    def hint(self, hint: Hint) -> None:
        """Take an event from Spark's listener thread."""
        for run in self.runs:
            run.report(hint)
        self._context.wake.set()

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
        by = self._look_by if self._stop_by is None else min(self._look_by, self._stop_by)
        return self._upkeep.looking and now < by

    def _tick(self, now: float) -> None:
        self._ending.alive_at = now
        self._context.write_behind.check()
        self._upkeep.tick(now)
        closer = now >= self._closer_at
        if closer:
            self._closer_at = now + CLOSER_EVERY
        if self._stop_by is not None:
            self._stop_all()
        for run in self.runs:
            if self.drained(run.lineage):
                run.request_drain()
            before = run.state
            run.tick(now)
            if closer:
                run.look_closer(paused=self.paused(run))
            if run.state in (State.CANCELED, State.FAILED) and run.state is not before and not self.stopping:
                # A newer incarnation stops queries of its session, and removes what others are writing.
                self._upkeep.look_at_fence()
            if run.state is State.FINISHING:
                self._finish(run, now)
            if self._waits_for_nobody(run):
                run.request_stop("a query that reads what it writes has ended before it")
        if self.latency is not None:
            self.latency.tick(self.runs)
        if self._stop_by is not None and now >= self._stop_by:
            self._give_up()
        if self._gates is not None and not self.stopping and not self._aligned.under_way:
            self.runs = (*self.runs, *self._gates.tick(self.runs))
        self._aligned.tick(now, self.runs, self.waiting)
        if self.controller is not None:
            self.controller.tick(now, self.runs, self.waiting)
        if self._savepoints is not None:
            self._savepoints.tick(self.runs, self.looks)
        if self._exchanges is not None:
            self._exchanges.tick(now, self.looks, lambda: self._aligned.held)
        self._settle()
        if self._exchanges is None or not self._exchanges.links:
            self._periodic.tick(now, self.runs, None, self.looks)
        elif self._exchanges.newest is not None:
            self._periodic.tick(now, self.runs, self._exchanges.newest, self.looks)

    def _finish(self, run: QueryRun, now: float) -> None:
        uid = run.spec.uid
        if uid not in self._finishing:
            feeding = self.graph.producers(uid)
            if any(other.spec.uid in feeding and not other.state.ended for other in self.runs):
                return  # queries finish in the order of the flow
            final = self._finals.get(uid) or FinalCheckpoint(
                run, run.spec, run.lineage, run.operators, self._context, self._take_id()
            )
            self._finishing[uid] = Finishing(run, final)
        self._finishing[uid].tick(now)

    def _settle(self) -> None:
        """Derive the job's state from its queries'; one that has failed for good ends the others at once."""
        failed = next((run for run in self.runs if run.state is State.FAILED), None)
        if self.failure is None:
            if failed is not None:
                assert failed.error is not None
                self._fail(failed.error.within(failed.who))
            elif self._gates is not None and self._gates.failure is not None:
                self._fail(self._gates.failure)
            elif self._aligned.failure is not None:
                self._fail(self._aligned.failure)
        self._become(job_state(self._states()))

    def _fail(self, error: SparkExtError) -> None:
        self.failure = error
        self._become(State.FAILING)
        self.stop()
        self._stop_all()

    def _states(self) -> list[State]:
        """The states from which the job's follows: a query that is still to be built keeps a job from ending."""
        states = [run.state for run in self.runs]
        failed = (self._aligned.failure, None if self._gates is None else self._gates.failure)
        if any(failure is not None for failure in failed):
            states.append(State.FAILED)
            return states
        waiting = self._gates is not None and bool(self._gates.uids)
        if self._context.until is not None:
            if self._gates is not None and self._gates.due(self.runs):
                states.append(State.CANCELED if self.stopping else State.RUNNING)
            elif waiting:
                # Those whose turn does not come in this run wait for another one.
                states.append(State.SUSPENDED)
        elif waiting and all(state is State.FINISHED or not state.ended for state in states):
            states.append(State.CANCELED if self.stopping else State.RUNNING)
        return states

    def looks(self) -> dict[str, QueryLook]:
        """A look at each query, from which a cut of the job is taken."""
        return {run.spec.uid: look_at(run) for run in self.runs}

    def _become(self, state: State) -> None:
        self.state = state
        self._execution.show(state, self.runs)

    def _stop_all(self) -> None:
        for run in self.runs:
            run.request_stop()

    def _give_up(self) -> None:
        """The time for stopping is over."""
        for run in self.runs:
            if not run.state.ended:
                what = f"'{run.busy}' was under way" if run.busy else "Spark's query had not stopped"
                run.cancel(f"it did not stop in time: {what}; the next start continues from the last committed epoch")

    def _keep_registered(self) -> None:
        for run in self.runs:
            run.keep_registered()

    def _take_id(self) -> int:
        taken = self._next_checkpoint
        self._next_checkpoint += 1
        return taken

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
        assert self._stop_by is not None
        by = max(self._stop_by, time.monotonic() + AT_LEAST)
        if self.failure is None:
            # What is being pinned is complete before the job reports its end.
            attempt("waiting for a savepoint", lambda: self._ending.wait(self._pinned, by, self._deliver_links))
        attempt("the end of a checkpoint", lambda: self._aligned.end(self.runs, "the job is ending"))
        attempt("the end of a savepoint", lambda: self._end_savepoints("the job is ending"))
        for run in self.runs:
            attempt(f"a question to query '{run.spec.uid}'", run.ask_late)
        self._ending.wait(self._idle, by, self._deliver)
        for run in self.runs:
            if run.busy:
                attempt(f"giving query '{run.spec.uid}' up", run.give_up)
            attempt(f"the last look at query '{run.spec.uid}'", run.observe_late)
            attempt(f"the release of query '{run.spec.uid}'", run.release)
        if self.latency is not None:
            self.latency.tick(self.runs)
        if not self._given_up:
            self._write_the_end(by)

    def _write_the_end(self, by: float) -> None:
        self._ending.attempt("writing the last rows", lambda: self._ending.write(by))
        self._ending.attempt("notifying of the last incidents", self._context.write_behind.notify_last)
        self._ending.attempt("ending a thread", self._upkeep.close)
        self._ending.attempt("ending a thread", self._close_links)
        self._ending.attempt("ending a thread", self._context.write_behind.close)

    def _close_links(self) -> None:
        if self.controller is not None:
            self.controller.close()
        if self._gates is not None:
            self._gates.close()
        if self._exchanges is not None:
            self._exchanges.close()

    def _end_savepoints(self, reason: str) -> None:
        if self._savepoints is not None:
            self._savepoints.end(reason)

    def _pinned(self) -> bool:
        return self._exchanges is None or not self._exchanges.busy

    def _deliver_links(self) -> None:
        if self._exchanges is not None:
            try:
                self._exchanges.deliver()
            except Exception as problem:
                log.warning("job '%s' has ended, and then: %s", self._context.job, problem)

    def _idle(self) -> bool:
        return not any(run.busy for run in self.runs)

    def _deliver(self) -> None:
        for run in self.runs:
            try:
                run.deliver()
            except Exception as problem:
                log.warning("query '%s' has ended, and then: %s", run.spec.uid, problem)

    def _watch(self) -> None:
        """On a thread of its own, once the job has been asked to stop: whether the coordinator's own thread answers.

        It looks at Spark's logs itself, and storage such as a lost mount may hold it there. It is then given up as a
        worker is: the job ends without it.
        """
        while True:
            assert self._stop_by is not None
            silent = time.monotonic() - max(self._stop_by, self._ending.alive_at)
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
        self._ending.attempt("the end of a checkpoint", lambda: self._aligned.end((), "the job has ended"))
        self._ending.attempt("the end of a savepoint", lambda: self._end_savepoints("the job has ended"))
        self._write_the_end(time.monotonic())
        self.done.set()
