"""The control events of a running job: taken in, carried out by the driver or by epochs, and followed to their end.

The outcome of an event is derived from facts, so a start continues where a driver that was killed has left off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_ext.control.job_events import refusals, transition
from spark_ext.errors import FencedError
from spark_ext.jobs.controlling.aligned_events import Align, AlignedEvents
from spark_ext.jobs.controlling.control_poll import ControlPoll, PolledQuery, PollResult, poll_pace
from spark_ext.jobs.controlling.driver_directives import DriverDirectives
from spark_ext.ledger.view import event_of
from spark_ext.masking import logger
from spark_ext.model.checkpoint_plan import Phase
from spark_ext.model.control import JOB, Event, query, source
from spark_ext.model.control_kinds import Where, kinds
from spark_ext.model.event_progress import Progress, QueryView, Standing, Step
from spark_ext.model.lifecycle import State
from spark_ext.queries.restarts import UNREADABLE
from spark_ext.queries.worker import Outcome, Worker

if TYPE_CHECKING:
    from spark_ext.control.log import ControlLog
    from spark_ext.jobs.controlling.rebuild import Rebuilds
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.ledger import Ledger
    from spark_ext.model.offsets import Json
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun

log = logger("spark_ext.job")
BEING_STARTED = (Phase.STARTING, Phase.RESTARTING)
POLL_EVERY = 0.05  # least time between the begins of two polls, s


class Controller:
    """Follows all open events of a job."""

    def __init__(
        self,
        context: JobContext,
        ledger: Ledger,
        control: ControlLog,
        execution: ExecutionGraph,
        directives: DriverDirectives,
        rebuilds: Rebuilds,
        align: Align,
        drained: Callable[[], None],
        present: Callable[[Event], Event],
    ) -> None:
        self._context, self._execution = context, execution
        self._directives, self._rebuilds, self._drained = directives, rebuilds, drained
        self._open: dict[str, Progress] = {}
        self._reloads: set[str] = set()  # open ones, whose outcome is that of the versions that they ask for
        self._known: dict[str, int] = {}  # by query, the last epoch before which no open event can have been obeyed
        self._worker = Worker(f"spark-ext-control-{context.job}", context.wake.set)
        self._aligned = AlignedEvents(control, align, self._worker, self._warn)
        self._polled_at, self._poll_pace = 0.0, 0.0
        self._polling = False
        self._warned = False
        self._configuration = control.configuration()
        left = ledger.open_control_events()
        rebuilds.resume(refusals(left))
        self._begin([present(event_of(row)) for row in left])
        self._poll = ControlPoll(ledger, control, self._configuration.sequence)

    # -- start --------------------------------------------------------------------------------------------------------

    def _begin(self, events: Sequence[Event]) -> None:
        """Take up what earlier starts have left."""
        self._directives.configure(self._configuration)
        for event in events:
            if event.sequence > self._configuration.sequence:
                continue  # accepted since; the first poll finds it
            self._take(event, left=event.incarnation < self._context.incarnation.number)

    @property
    def stop_requested(self) -> str:
        """Who has asked for a stop that an earlier start was to obey; "" if nobody has."""
        return self._directives.stop_requested

    def paused(self, run: QueryRun) -> bool:
        """Whether a query reads nothing because of a control event; for any thread."""
        return self._configuration.pauses(run.spec.uid, [source.uid for source in run.spec.sources])

    def _passes_barriers(self, run: QueryRun) -> bool:
        """Whether a query can have a barrier now: a paused reader of an exchange does not come to those in it."""
        if Phase.of(run.state) in BEING_STARTED:
            return False
        paused = [JOB, query(run.spec.uid), *(source(uid) for uid in run.spec.fed)]
        return not run.spec.fed or not any(self._configuration.has("pause", target) for target in paused)

    # -- the coordinator's thread -------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Take in what was found, poll again, and decide the outcome of each event; `now` is s, monotonic."""
        self._worker.deliver()
        self._rebuilds.tick(time.monotonic())
        self._directives.tick(self._put)
        self._aligned.tick(ready=all(self._passes_barriers(run) for run in self._execution.runs))
        self._settle(self._execution.waiting)
        if not self._polling and now - self._polled_at >= max(POLL_EVERY, self._poll_pace):
            self._polled_at, self._polling = now, True
            self._aligned.say_again()
            runs = self._execution.runs
            polled = [self._polled(run) for run in runs]

            def poll() -> PollResult:
                begun = time.perf_counter()
                try:
                    return self._poll.poll(polled)
                finally:
                    self._poll_pace = poll_pace(time.perf_counter() - begun)

            def done(outcome: Outcome[PollResult]) -> None:
                self._polling = False
                if isinstance(outcome.error, FencedError):
                    raise outcome.error
                if outcome.error is None:
                    self._warned = False
                    self._found(outcome.result(), runs, polled)
                elif isinstance(outcome.error, UNREADABLE):
                    self._warn(outcome.error)
                else:
                    outcome.result()

            self._worker.do("a poll of control events", poll, done)

    def _warn(self, problem: Exception) -> None:
        # The look at the ledger that decides about the job's end is the one at the fence.
        if not self._warned:
            log.warning("could not read control events; will retry: %s", problem)
        self._warned = True

    def _polled(self, run: QueryRun) -> PolledQuery:
        wanted = any(run.spec.uid not in one.applied for one in self._open.values() if one.concerns(_view(run)))
        # Until a poll has found nothing to be obeyed, any epoch may have obeyed what the next one finds.
        after = self._known.setdefault(run.spec.uid, -1)
        return PolledQuery(run.spec.uid, run.checkpoint, run.lineage, after, run.committed, wanted)

    def _found(self, result: PollResult, runs: Sequence[QueryRun], polled: Sequence[PolledQuery]) -> None:
        for event in result.events:
            self._configuration = self._configuration.after([event])
            self._take(event, left=False)
        if any(kinds()[event.kind].standing for event in result.events if event.kind in kinds()):
            self._directives.configure(self._configuration)
        views = {run.spec.uid: _view(run) for run in runs}
        for epoch in result.epochs:
            for event_id, one in list(self._open.items()):
                outcome = epoch.outcomes.get(event_id)
                if outcome is not None and epoch.query not in one.outcomes:
                    one = one.with_outcome(epoch.query, outcome)
                if not epoch.holds(one.event):
                    one = one.seen(views[epoch.query], epoch.epoch, epoch.offsets)
                if epoch.query in one.applied and epoch.query not in self._open[event_id].applied:
                    self._put(one.event, one.first_step(epoch.query))
                self._open[event_id] = one
        for asked in polled:
            if result.events or asked.wanted:
                # Its newest epoch may be planned and not committed: the next poll reads it again.
                epochs = (one.epoch for one in result.epochs if one.query == asked.uid)
                self._known[asked.uid] = min(max([asked.after, *epochs]), asked.committed)
            else:
                self._known[asked.uid] = asked.committed

    def _take(self, event: Event, *, left: bool) -> None:
        """An event that is open; `left`: an earlier start was to obey it."""
        self._rebuilds.take(event)
        kind = kinds().get(event.kind)
        if event.kind == "reload":
            self._reloads.add(event.event_id)
        if event.kind in ("align", "release", "renamed"):
            self._put(event, Step("acknowledged", reason="see the events that it puts into force"))
            return
        if kind is None:
            self._put(event, Step("rejected", reason=f"this release knows no events of the kind {event.kind!r}"))
            return
        over = left and not kind.standing and event.lineage < self._context.incarnation.lineage
        if event.kind == "stop" and over:
            self._put(event, Step("failed", reason="the job was restored, or a query reset, since"))
            return
        if event.kind == "drain" and not left:
            self._drained()
        if kind.where is not Where.EPOCH:
            self._directives.take(event, kind, left=left, put=self._put)
        if kind.where is not Where.DRIVER:
            self._open[event.event_id] = Progress(event)
            if str(event.sequence) in self._configuration.aligned:
                self._aligned.take(event)

    # -- what has come of them ----------------------------------------------------------------------------------------

    def _settle(self, waiting: Iterable[str]) -> None:
        if not self._open:
            return
        runs = self._execution.runs
        views = [_view(run) for run in runs] + [QueryView(uid, frozenset(), Standing.ABLE) for uid in waiting]
        for event_id, one in list(self._open.items()):
            if one.event.kind == "drain":
                if runs and all(run.lineage > one.event.lineage for run in runs):
                    self._close_event(one.event, Step("failed", reason="the job was restored, or reset, since"))
                continue  # it is over when the job has finished
            if (failure := self._aligned.given_up(event_id)) is not None:
                last: Step | None = Step("failed", reason=f"no barrier has passed all queries: {failure}")
            else:
                last = self._last_step(event_id, one, views)
            if last is not None:
                self._close_event(one.event, last)

    def _last_step(self, event_id: str, one: Progress, views: Sequence[QueryView]) -> Step | None:
        """What has finally come of an event, restarts included; None: not decided yet."""
        if self._rebuilds.pending(event_id):
            return None
        if (refusal := self._rebuilds.refusal(event_id)) is not None:
            return refusal
        one = replace(one, rebuilt=self._rebuilds.rebuilt(event_id))
        for view in views:
            moved = one.restarted(view)
            if moved is not one:
                one = moved
                self._put(one.event, one.first_step(view.uid))
        self._open[event_id] = one
        return one.last_step(views)

    def _close_event(self, event: Event, last: Step) -> None:
        del self._open[event.event_id]
        self._aligned.close(event.event_id)
        kind = kinds()[event.kind]
        if kind.where is Where.BOTH and last.status == "rejected":
            # The driver has obeyed it, whether or not an epoch could.
            last = replace(last, status="acknowledged")
        self._put(event, last)

    def _put(self, event: Event, step: Step) -> None:
        request = event.value.get("event_id") if event.kind == "lookup_version" else None
        if request in self._reloads:
            # Before its own: a version that is settled is not looked at again, and its request would stay open.
            self._write(request, event.value["sequence"], replace(step, result=None if step.query else _version(event)))
            if not step.query:
                self._reloads.discard(request)
        self._write(event.event_id, event.sequence, step)

    def _write(self, event_id: str, sequence: int, step: Step) -> None:
        self._context.write_behind.put_soon(
            transition(
                self._context.incarnation,
                event_id,
                sequence,
                step.status,
                query=step.query,
                epoch=step.epoch,
                reason=step.reason,
                result=step.result,
            )
        )

    # -- end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """No further command comes."""
        self._worker.close()
        self._directives.close()
        self._rebuilds.close()

    def conclude(self, state: State) -> None:
        """The job has ended: a last poll, and the outcome of the events that it decides; on the upkeep's thread."""
        deadline = time.monotonic() + 1.0
        while self._polling and time.monotonic() < deadline:
            time.sleep(0.005)
            self._worker.deliver()
        runs = self._execution.runs
        for _ in range(2):  # the first may find new events, the second sees their outcome
            polled = [self._polled(run) for run in runs]
            self._found(self._poll.poll(polled), runs, polled)
        self._settle(())
        self._directives.conclude(state, self._put)


def _version(event: Event) -> Json:
    return {"version": event.value["version"]}


def unread(control: ControlLog, run: QueryRun | None) -> str:
    """What has kept a query from reading all that is there; "" for nothing, or if it is not built. For any thread."""
    if run is None:
        return ""
    found = control.configuration().pauses_within(run.spec.uid, [source.uid for source in run.spec.sources])
    return f"not all that is there was read: paused are {', '.join(found)}" if found else ""


def _view(run: QueryRun) -> QueryView:
    sources = frozenset(source.uid for source in run.spec.sources)
    ended = run.position.ended_sources
    if run.state is State.FINISHED:
        standing = Standing.FINISHED
    elif run.state.ended:
        standing = Standing.STOPPED
    elif ended.issuperset(sources):
        standing = Standing.BLIND
    else:
        standing = Standing.ABLE
    keys, at = run.spec.rebuild, run.launcher
    return QueryView(
        run.spec.uid, sources, standing, run.committed, ended, keys, at.passed, at.since, run.lineage, run.begun
    )
