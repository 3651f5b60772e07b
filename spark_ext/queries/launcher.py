"""A query in Spark: the claim of its target, its registrations, its starts and restarts, and its stop.

`QueryRun` decides when, on the thread that decides. What takes time is a command for the query's worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.control import stamps
from spark_ext.errors import SparkExtError, StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.kinds import FinishedKind
from spark_ext.model.execution import REQUESTED
from spark_ext.model.lifecycle import State
from spark_ext.queries.builder import record_plan
from spark_ext.queries.early import forget_copies
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.records import registrations
from spark_ext.queries.spark_query import End, Launch, RunnableQuery
from spark_ext.spark.logs import watermarks
from spark_ext.spark.logs.watermarks import EventTimes
from spark_ext.spark.session import registry
from spark_ext.spark.session.late_claim import is_asked
from spark_ext.storage import Folder, Location, child, local_path

if TYPE_CHECKING:
    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.queries.catching_up import CatchingUp
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.observer import EpochObserver
    from spark_ext.queries.records import FinishedSources
    from spark_ext.queries.restarts import Restarts
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.queries.watched import LifeCycle
    from spark_ext.queries.worker import Outcome, Worker
    from spark_ext.spark.session.registry import Registration
    from spark_ext.spark.watching.query_events import Hint

    # Of its specification, its job's context, its checkpoint directory, its lineage, and its newest committed epoch.
    InSpark = Callable[[QuerySpec, JobContext, str, int, Callable[[], int]], RunnableQuery]

IDLE_WITHIN: Final = 1.0  # s for which a query of Spark's own sources may be idle and seem busy, until it is stopped


class RestartPhase(Enum):
    """How far it has come."""

    WAITING = "waiting for the boundary"
    STOPPING = "stopping"
    STOPPED = "stopped"  # what is planned decides what is next
    COMPLETING = "running the epoch that was interrupted"
    STARTING = "starting"
    DONE = "done"
    LATE = "late"  # the query has not come to a boundary in time; it continues as it was
    OVER = "over"  # the query is ending, or has ended


@dataclass
class BoundaryRestart:
    """A restart between two epochs that is wanted: no failure, no wait, no epoch that is cut in two.

    The query's sources hold before the event that calls for it, so nothing more is planned. Sources of Spark's own
    cannot hold: the restart waits for a moment in which no epoch is under way. If one is interrupted nevertheless, it
    is run to its end as it was planned, before the query continues with its new plan. The launcher takes the steps, on
    the deciding thread.
    """

    sequence: int  # of the event before which the sources hold; from then on the query has passed it
    by: float  # until when the query has to come to a boundary, s on its clock
    begun: float  # when it was wanted, s on the same clock
    spec: QuerySpec  # the query as it is to run
    prepare: Callable[[], None] | None = None  # what has to be done before it is started, on the worker's thread
    phase: RestartPhase = RestartPhase.WAITING
    completed: int | None = None  # the epoch that was interrupted, and has been run to its end
    epoch: int = -1  # the first epoch after it
    took_ms: int = 0
    why: str = ""  # why it is late or over
    _idle_since: float | None = field(default=None, init=False, repr=False)  # no epoch was planned and uncommitted, s

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.phase in (RestartPhase.DONE, RestartPhase.LATE, RestartPhase.OVER)

    def enter(self, phase: RestartPhase) -> None:
        """Take the next step."""
        self.phase = phase

    def complete(self, epoch: int) -> None:
        """An epoch was interrupted: it is run to its end."""
        self.phase, self.completed = RestartPhase.COMPLETING, epoch

    def ended(self, *, failed: bool, ends_itself: bool) -> bool:
        """The Spark query has ended; returns whether that is a step of the restart.

        `ends_itself`: Spark ends it when there is nothing to read. It may do so while the sources hold, which is not
        the end of its input.
        """
        by_itself = (RestartPhase.COMPLETING, RestartPhase.WAITING) if ends_itself else (RestartPhase.COMPLETING,)
        expected = self.phase is RestartPhase.STOPPING or (not failed and self.phase in by_itself)
        if expected:
            self.phase = RestartPhase.STOPPED
        return expected

    def idle_for(self, now: float, *, unsettled: bool) -> float | None:
        """How long no epoch has been under way, s; None while one is planned and not committed."""
        if unsettled:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        return None if self._idle_since is None else now - self._idle_since

    def done(self, epoch: int, now: float) -> None:
        """The query runs again."""
        self.phase, self.epoch = RestartPhase.DONE, epoch
        self.took_ms = round((now - self.begun) * 1000)

    def give_up(self, phase: RestartPhase, why: str) -> None:
        """It does not take place."""
        self.phase, self.why = phase, why


class Launcher:
    """What a query is at present, and what is done with it in Spark. For the deciding thread, except `_launch`.

    `elsewhere`: its sink writes to another target from this start on, on request.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        *,
        life: LifeCycle,
        observer: EpochObserver,
        restarts: Restarts,
        catching_up: CatchingUp,
        finished: FinishedSources,
        worker: Worker,
        in_spark: InSpark,
        clock: Callable[[], float],
        elsewhere: bool,
    ) -> None:
        self.spec = spec
        self.checkpoint = context.checkpoint_of(spec.uid)
        self.operators = OperatorHooks(spec, context, observer.lineage, self.checkpoint, finished, elsewhere=elsewhere)
        self.passed = max(context.passed, spec.built.sequence if spec.built is not None else 0)  # it needs no restart
        self.since = -1  # the first epoch with its present plan and configuration; -1: it has not been started
        self.live = False  # whether Spark runs it, as the last poll has found
        self.starts = 0  # its starts in this start of the job
        self.committed_before = -1  # the newest epoch that was committed before its last start
        self._context = context
        self._life = life
        self._observer = observer
        self._restarts = restarts
        self._catching_up = catching_up
        self._finished = finished
        self._worker = worker
        self._in_spark = in_spark
        self._clock = clock
        self.query = self._made()
        self.registrations = Registrations(self._entries(), context.registry)
        self._event_times = EventTimes()
        self._claims_late = False  # whether its target is still to be claimed, when a planner asks for that
        self._before_first: Callable[[], None] | None = None
        self._wanted: BoundaryRestart | None = None

    def _made(self) -> RunnableQuery:
        observer = self._observer
        return self._in_spark(
            self.spec, self._context, self.checkpoint, observer.lineage, lambda: observer.position.epoch
        )

    def _entries(self, claims_after: int | None = None) -> list[Registration]:
        observer = self._observer
        closed = observer.position.finished & self._finished.of(FinishedKind.CLOSED)
        return registrations(
            self.spec, self._context, self.checkpoint, observer.lineage, self.passed, closed, claims_after
        )

    @property
    def unsettled(self) -> bool:
        """Whether an epoch is planned and not committed, by Spark's logs."""
        return self._is_unsettled(self._observer.newest_planned())

    def _is_unsettled(self, planned: LoggedOffsets | None) -> bool:
        return planned is not None and planned.epoch > self._observer.position.epoch

    @property
    def ends_itself(self) -> bool:
        """Whether Spark ends it when there is nothing to read."""
        return self.spec.available_now or self._context.until is not None

    # -- claims -------------------------------------------------------------------------------------------------------

    def claim(self, *, late: bool) -> None:
        """Command: fence older incarnations off the target; see `OperatorHooks.claim`.

        `late`: a run that ends with what is there may leave this to its first epoch; see `late_claim`.
        """
        self._claims_late = late and self._may_claim_late
        self._worker.do("claim", self.operators.check_target if self._claims_late else self.operators.claim, self._done)

    @property
    def _may_claim_late(self) -> bool:
        """Whether each epoch to come is one that its planners ask for: Spark's own sources do not.

        An exchange is claimed at the start: it is the job's own, and its readers look at it at once.
        """
        spec = self.spec
        asks = spec.sink is not None and not spec.natives and not spec.feeds_exchange
        return self._context.until is not None and asks and self._observer.position.epoch >= 0 and not self.unsettled

    def poll_claim(self, then: Callable[[Outcome[None]], None]) -> None:
        """Claim what was left to the first epoch, if a planner waits for it now."""
        uids = [one.uid for one in (*self.spec.sources, *self.spec.ends)]
        context = self._context
        asked = self._claims_late and not self._worker.busy
        if asked and is_asked(uids, context.incarnation.start, context.registry):
            self._worker.do("claim", self._claim_for_planner, then)

    def _claim_for_planner(self) -> None:
        self.claim_now()
        self.registrations.publish()

    def claim_now(self) -> None:
        """On the worker's thread: claim what is left to the first epoch, if it is."""
        if self._claims_late:
            self.operators.claim()
            self._claims_late = False
            self.registrations.renew(self._entries())

    def open(self) -> None:
        """Command: call the operators' `open`, except that of sources which have ended."""
        ended = self._observer.position.ended_sources
        self._worker.do("open", lambda: self.operators.open(ended), self._done)

    def _done(self, outcome: Outcome[None]) -> None:
        """A command of the job's start has ended: raise its error, unless the query is being stopped."""
        if not self._restarts.stopping:
            outcome.result()

    # -- starts -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Command: start the Spark query. An error is raised when the worker delivers it."""

        def started(outcome: Outcome[Launch]) -> None:
            self._life.started()
            if outcome.error is None or not self._restarts.stopping:
                self._launched(outcome.result())

        self._life.require(State.RUNNING)
        self._start(self._launch, started)

    def begin_late(self, record: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Command: all of a start at once, of a query that comes to a running job."""
        ended = self._observer.position.ended_sources

        def first() -> None:
            self.operators.claim()
            record()
            self.operators.open(ended)

        self._before_first = first
        self.restart(failed)

    def restart(self, failed: Callable[[Exception], None], *, claim: bool = False) -> None:
        """Command: start the Spark query again, as it now is."""

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

        def restarted(outcome: Outcome[Launch]) -> None:
            self._life.started()
            if outcome.error is not None:
                failed(outcome.error)
            else:
                self._launched(outcome.result())

        self._restarts.clear()
        self._start(launch, restarted)

    def _start(self, launch: Callable[[], Launch], then: Callable[[Outcome[Launch]], None]) -> None:
        self._catching_up.launching()
        self._life.starts()
        self._worker.do("start", launch, then)

    def _launch(self) -> Launch:
        """On the worker's thread."""
        planned = self._observer.newest_planned()
        unsettled = self._is_unsettled(planned)
        committed = self._observer.position.epoch
        if planned is None or unsettled:
            self.claim_now()  # Spark repeats the epoch
        self.registrations.renew(self._entries(planned.epoch if planned is not None and self._claims_late else None))
        self.registrations.publish()
        if self.since < 0:
            if self._context.early or local_path(self.checkpoint) is not None:  # a store is not asked for nothing
                forget_copies(self.checkpoint)
            stamps.forget(self.checkpoint, self._context.incarnation.start)
        self._keep_event_times()
        state = Location.of(child(self.checkpoint, "state"), {}).folder
        if planned is None and committed < 0:
            # Of a discarded history: Spark's maintenance of state writes after a query has ended, up to a minute later.
            self.query.settle()
            state.delete_tree()
        # With a drain only the epoch that was planned before it is left to run, or with a restart, in the old plan.
        only_planned = unsettled and (self._restarts.draining or self._completing)
        built = self.spec.built
        if built is not None and not unsettled:
            record_plan(self.checkpoint, committed + 1, built.values, built.sequence)
        stateful = planned is not None and _has_files(state)
        return Launch(self.query.start(only_planned=only_planned), planned, stateful)

    def _launched(self, launch: Launch) -> None:
        committed = self.committed_before = self._observer.position.epoch
        self.live = True
        self.starts += 1
        self._catching_up.launched(launch.planned)
        self._observer.started(launch.query_id)
        self._life.launched(stateful=launch.stateful)
        wanted = self._wanted
        if wanted is not None and wanted.phase is RestartPhase.STARTING:
            self.since = committed + 1
            wanted.done(self.since, self._clock())
            self._wanted = None
        elif self.since < 0 and not self._completing:
            self.since = committed + 1

    # -- while it runs ------------------------------------------------------------------------------------------------

    def ask_for_figures(self) -> None:
        """Command: ask Spark for figures whose events have not come."""
        history = self._observer.history
        after = history.reported_upto

        def ask() -> list[Hint]:
            self._keep_event_times()
            return self.query.reports(after)

        def asked(outcome: Outcome[list[Hint]]) -> None:
            # Figures are hints: without them history has none.
            for hint in outcome.value or ():
                history.report(hint)

        self._worker.do("figures", ask, asked)

    def take(self, hint: Hint) -> None:
        """Take figures and event times from a report; for any thread."""
        self._observer.history.report(hint)
        self._event_times.take(hint)

    def _keep_event_times(self) -> None:
        """On the worker's thread: write down how far each watermark has come, which Spark forgets at its next start."""
        if len(self.spec.ends) + len(self.spec.natives) < 2:
            return  # Spark restores the only one
        for hint in self.query.reports(-1):
            self._event_times.take(hint)
        epoch = max(self._observer.position.epoch, self._event_times.epoch)
        watermarks.record(self.checkpoint, epoch, self._event_times.at)

    def notify_checkpoint(self, number: int, *, completed: bool) -> None:
        """Command: call the operators' hooks for an aligned checkpoint. What they raise is an incident."""

        def called(outcome: Outcome[list[Exception]]) -> None:
            for problem in outcome.value or ([outcome.error] if outcome.error is not None else []):
                what = f"checkpoint {number}: {problem}"
                self._context.write_behind.incident(self._life.operator, "checkpoint", what, "ignored")

        self._worker.do("checkpoint", lambda: self.operators.checkpoint(number, completed=completed), called)

    def stop(self, then: Callable[[Outcome[None]], None] | None = None) -> None:
        """Command: stop the Spark query, whose end comes from itself. Without `then`, a failure is an incident."""
        self._worker.do("stop", self.query.stop, then or self._stop_returned)

    def _stop_returned(self, outcome: Outcome[None]) -> None:
        if outcome.error is not None and not self._life.state.ended:
            what = f"Spark's query could not be stopped: {outcome.error}"
            self._context.write_behind.incident(self._life.operator, "stop", what, "none")

    def take_end(self) -> End:
        """The Spark query has ended, and `query.ended` says so: how."""
        end = self.query.take_end()
        assert end is not None
        self.live = False
        return end

    # -- a restart at a boundary --------------------------------------------------------------------------------------

    @property
    def between(self) -> bool:
        """Whether a restart at a boundary is wanted, or under way."""
        return self._wanted is not None

    @property
    def _completing(self) -> bool:
        return self._wanted is not None and self._wanted.phase is RestartPhase.COMPLETING

    def restart_at(self, wanted: BoundaryRestart) -> None:
        """Restart the query between two epochs, as soon as it is there; the only one until it is over."""
        self._wanted = wanted
        self._context.wake.set()

    def pass_by(self, sequence: int) -> None:
        """The query needs no restart for a control event: what it runs with is what the event calls for."""
        if sequence > self.passed:
            self.passed, self.since = sequence, self._observer.position.epoch + 1

    def complete_first(self, then: QuerySpec) -> None:
        """Before the start: the epoch that an earlier one has planned is run as this query; then `then` follows."""
        now = self._clock()
        passed = max(self.passed, then.built.sequence if then.built is not None else 0)
        self._wanted = BoundaryRestart(passed, now, now, then, phase=RestartPhase.COMPLETING)

    def ended_for_restart(self, *, failed: bool) -> bool:
        """Whether the end of the Spark query is a step of such a restart: the next poll decides what follows."""
        if self._wanted is None or self._restarts.stopping or self._restarts.draining:
            return False
        return self._wanted.ended(failed=failed, ends_itself=self.ends_itself)

    def poll_boundary(self, now: float, failed: Callable[[Exception], None]) -> None:
        """Take the next step of a restart that is wanted; `failed` is called if a start fails."""
        wanted, life = self._wanted, self._life
        if wanted is None:
            return
        if life.state.ended or life.state is State.FINISHING or self._restarts.stopping or self._restarts.draining:
            self._wanted = None
            wanted.give_up(RestartPhase.OVER, "the query is ending, or has ended")
        elif wanted.phase is RestartPhase.WAITING:
            if self._may_stop(wanted, now):
                reach(FailPoint.QUERY_HELD)
                wanted.enter(RestartPhase.STOPPING)
                life.become(State.RESTARTING, f"{REQUESTED}control event {wanted.sequence}")
                self.stop()
            elif now >= wanted.by:
                self._wanted = None
                wanted.give_up(RestartPhase.LATE, "the query did not come to the end of an epoch in time")
        elif wanted.phase is RestartPhase.COMPLETING and not (self.live or life.starting or self.unsettled):
            wanted.enter(RestartPhase.STOPPED)
        elif wanted.phase is RestartPhase.STOPPED and not life.starting:
            self._go_on(wanted)
            self.restart(failed)

    def _may_stop(self, wanted: BoundaryRestart, now: float) -> bool:
        """Whether no epoch is under way, and none can be planned; for Spark's own sources, or seems to be."""
        if not self.live or self._life.starting or self._worker.busy:
            return False
        sources = {source.uid for source in self.spec.sources} - self._observer.position.ended_sources
        if not stamps.all_hold(self.checkpoint, self._context.incarnation.start, wanted.sequence, sources):
            return False
        # Spark's own sources cannot hold: a query that is never idle is stopped in the end, and completes its epoch.
        native = bool(self.spec.natives)
        idle = wanted.idle_for(now, unsettled=self.unsettled)
        if native and now >= wanted.by:
            return True
        return idle is not None and (not native or not self.query.working or idle >= IDLE_WITHIN)

    def _go_on(self, wanted: BoundaryRestart) -> None:
        """The Spark query has stopped: an epoch that it has left is completed first, as it was planned."""
        reach(FailPoint.QUERY_STOPPED)
        planned = self._observer.newest_planned()
        if planned is not None and self._is_unsettled(planned):
            wanted.complete(planned.epoch)
        else:
            wanted.enter(RestartPhase.STARTING)
            self._adopt(wanted)
        self._life.become(State.RESTARTING, f"{REQUESTED}control event {wanted.sequence}")

    def _adopt(self, wanted: BoundaryRestart) -> None:
        if wanted.spec is not self.spec:
            self.spec = wanted.spec
            self._observer.adopt(wanted.spec)
            lineage, checkpoint = self._observer.lineage, self.checkpoint
            self.operators = OperatorHooks(wanted.spec, self._context, lineage, checkpoint, self._finished)
            self.query = self._made()
            self._before_first = wanted.prepare
        self.passed = max(self.passed, wanted.sequence)
        self.registrations.renew(self._entries())


def _has_files(folder: Folder) -> bool:
    try:
        return next(folder.files(), None) is not None
    except OSError:
        return False


class Registrations:
    """The registrations of one query's operators, from its start until its job has ended.

    Safe for several threads: once withdrawn they stay so.
    """

    def __init__(self, entries: Sequence[Registration], folder: Path) -> None:
        self._entries = tuple(entries)
        self._folder = folder
        self._lock = threading.Lock()
        self._there = False
        self._withdrawn = False

    def publish(self) -> None:
        """The query is about to start."""
        with self._lock:
            if self._withdrawn:
                raise StateError(
                    "the query's job has ended, and its start comes too late",
                    operator=" and ".join(sorted({f"job '{one.job}', query '{one.query}'" for one in self._entries})),
                    kept="all committed epochs; nothing was started",
                    do="nothing: the job's next start continues",
                )
            registry.publish(self._entries, self._folder)
            self._there = True

    def renew(self, entries: Sequence[Registration]) -> None:
        """Put others in their place, of the same uids: those are published with the next start."""
        with self._lock:
            self._entries = tuple(entries)

    def keep(self) -> None:
        """Write them again if a cleaner of temporary files has deleted them, and make them look used."""
        with self._lock:
            if self._there:
                registry.keep(self._entries, self._folder)

    def withdraw(self) -> None:
        """The query has ended for good."""
        with self._lock:
            self._there = False
            self._withdrawn = True
            for entry in self._entries:
                registry.withdraw([entry.uid], self._folder, (entry.job_id, entry.incarnation))
