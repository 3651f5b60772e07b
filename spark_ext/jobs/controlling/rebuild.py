"""Supervised restarts of queries at an epoch boundary, on request or when a key changes that their functions read.

Events are taken up in their order, one after the other. At each one the queries that it concerns hold; all of them are
built again before any is stopped. If one cannot be built, none is restarted, the event is rejected, and the key gets
its former value again before the queries continue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ext.control import stamps
from spark_ext.control.job_events import takes_back
from spark_ext.errors import ConfigurationError, FencedError, SparkExtError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import logger
from spark_ext.model.changes import compare
from spark_ext.model.configuration import Configuration, changed_key, holds_at
from spark_ext.model.control import Delivery, Event, Scope
from spark_ext.model.event_progress import Rebuilt, Step
from spark_ext.model.lifecycle import State
from spark_ext.queries.builder import planned_values, refuse_change
from spark_ext.queries.context import checkpoint_of
from spark_ext.queries.launcher import BoundaryRestart, RestartPhase
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.spec import definition_of
from spark_ext.queries.worker import Outcome, Worker
from spark_ext.spark.logs.epoch_files import unrecorded_settings
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.control.log import ControlLog
    from spark_ext.jobs.controlling.lookup_versions import LookupVersions
    from spark_ext.jobs.ending import EndRequest
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.model.offsets import Json
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec

log = logger("spark_ext.job")
NOTHING = Configuration()
KINDS = ("restart", "set_config", "release")  # kinds of events at which a query may hold


class _Change:
    """An event at which queries may hold; `subject` takes effect: the event, or the aligned one that it releases."""

    def __init__(
        self,
        event: Event,
        subject: Event,
        only: Sequence[QueryRun] = (),
        before: Configuration = NOTHING,
        after: Configuration = NOTHING,
    ) -> None:
        self.event, self.subject, self.only, self.before, self.after = event, subject, only, before, after
        self.runs: tuple[QueryRun, ...] = ()  # those that hold at it
        self.able: tuple[QueryRun, ...] = ()  # those of them that can be restarted
        self.restarts: dict[str, BoundaryRestart] = {}
        self.ready = False  # whether it is known which queries are restarted

    def apply(self, before: Configuration) -> Configuration:
        """It is the next one; returns what is in force behind it."""
        self.before, self.after = before, before.after([self.event])
        return self.after

    def hold(self, candidates: Sequence[QueryRun]) -> None:
        """Find the queries that hold at it."""
        self.runs = tuple(run for run in candidates if self.concerns(run))
        self.able = tuple(run for run in self.runs if not _cannot(run))

    def decide(self, *, known: bool) -> None:
        """Whether it is known by now which queries are restarted."""
        self.ready = known

    def late(self, run: QueryRun) -> _Change:
        """It, for a query that was built while it came."""
        return _Change(self.event, self.subject, (run,), self.before, self.after)

    @property
    def event_id(self) -> str:
        """Of the event that takes effect."""
        return str(self.event.value["event_id"]) if self.event.kind == "release" else self.event.event_id

    def aligned(self, sequence: int) -> Json:
        """The aligned event with a sequence, as it waits."""
        held, one = self.before.aligned.get(str(sequence)), self.subject
        if held is None and one.sequence == sequence and one is not self.event:
            # It is in force in other queries, which an earlier barrier has passed.
            return {"kind": one.kind, "target": str(one.target), "value": one.value}
        return held

    def concerns(self, run: QueryRun) -> bool:
        """Whether a query holds at it."""
        spec, passed = run.spec, run.launcher.passed
        return self.event.sequence > passed and holds_at(self.event, spec.uid, spec.rebuild, self.aligned)


class Rebuilds:
    """The restarts of a job; `clock`, s, is that of the queries."""

    def __init__(
        self,
        context: JobContext,
        control: ControlLog,
        configuration: Configuration,
        execution: ExecutionGraph,
        request: EndRequest,
        lookups: LookupVersions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._control, self._configuration = context, control, configuration
        self._execution, self._request, self._lookups, self._clock = execution, request, lookups, clock
        self._worker = Worker(f"spark-ext-rebuilds-{context.job}", context.wake.set)
        self._left: deque[_Change] = deque()
        self._current: _Change | None = None
        self._past: list[_Change] = []  # those that a query which is built later may meet
        self._known: set[str] = set()
        self._aligned: dict[int, Event] = {}
        self._wanted: dict[str, Step | None] = {}  # restarts that were requested, and their outcome
        self._refused: dict[str, Step] = {}
        self._rebuilt: dict[str, dict[str, Rebuilt]] = {}
        self._put_back: set[str] = set()  # events by which a key got its former value again

    # -- events -------------------------------------------------------------------------------------------------------

    def resume(self, refused: Mapping[str, Step]) -> None:
        """Take up what an earlier start has refused."""
        self._refused.update(refused)

    def take(self, event: Event) -> None:
        """An event; all of them, in their order."""
        if event.delivery is Delivery.ALIGNED:
            self._aligned[event.sequence] = event
        if event.kind in KINDS:
            subject = self._aligned.get(int(event.value["sequence"])) if event.kind == "release" else event
            self._left.append(_Change(event, subject or event))

    def restart(self, event: Event) -> None:
        """A restart is requested: it is carried out when it is its turn."""
        if event.target.scope is Scope.QUERY:
            run = self._execution.find(event.target.uid)
            wrong = "waits for others to finish, and does not run yet" if run is None else _cannot(run)
            if wrong:
                raise ConfigurationError(
                    f"query '{event.target.uid}' {wrong}",
                    operator=f"job '{self._context.job}', query '{event.target.uid}'",
                    kept="the job continues as it was",
                    do="nothing: a restart would change nothing",
                )
        self._wanted[event.event_id] = None

    def restarted(self, event: Event) -> Step | None:
        """The outcome of a requested restart; None: it is under way."""
        return self._wanted.get(event.event_id)

    def pending(self, event_id: str) -> bool:
        """Whether it is still open what an event means for queries that may hold at it."""
        current = () if self._current is None else (self._current,)
        return any(change.event_id == event_id for change in (*current, *self._left))

    def refusal(self, event_id: str) -> Step | None:
        """Why an event is not obeyed; None: it is, or it is not known yet."""
        return self._refused.get(event_id)

    def rebuilt(self, event_id: str) -> dict[str, Rebuilt]:
        """The queries that were restarted for an event."""
        return self._rebuilt.get(event_id, {})

    # -- the coordinator's thread -------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Take in what the worker has brought, and go on; `now` is s, on the clock."""
        self._worker.deliver()
        if self._request.stopping:
            return  # what is open is obeyed by the next start
        self._meet_late_ones()
        while self._current is None and self._left:
            self._begin(self._left.popleft(), now)
        current = self._current
        if current is not None and current.ready and all(one.over for one in current.restarts.values()):
            self._conclude(current)

    def _meet_late_ones(self) -> None:
        """Queries that were built while an event came may hold at one that all others have passed."""
        for run in self._execution.runs:
            if run.spec.uid not in self._known:
                self._known.add(run.spec.uid)
                missed = [one.late(run) for one in self._past if one.concerns(run)]
                self._left.extendleft(reversed(missed))

    def _begin(self, change: _Change, now: float) -> None:
        if not change.only:
            self._configuration = change.apply(self._configuration)
            if self._execution.waiting:
                self._past.append(change)
        change.hold(change.only or self._execution.runs)
        able, event = change.able, change.event
        requested = event.kind == "restart"
        if requested and event.event_id in self._wanted and not able:
            self._wanted[event.event_id] = Step("rejected", reason="no query of the job runs")
        if not able or (requested and event.event_id not in self._wanted):
            self._release(change)
            return
        self._current = change
        if requested:
            self._restart(change, dict.fromkeys((run.spec.uid for run in able), None), now)
        else:
            self._build(change, able)

    def _build(self, change: _Change, runs: Sequence[QueryRun]) -> None:
        def build() -> dict[str, QuerySpec]:
            found = {}
            for run in runs:
                values = change.after.user(run.spec.uid)
                assert run.spec.built is not None
                if run.spec.built.differs(values) and not _late(change.subject, run):
                    found[run.spec.uid] = rebuilt(run.spec, run.checkpoint, values, change.event.sequence)
            self._lookups.fix()
            return found

        def built(outcome: Outcome[dict[str, QuerySpec]]) -> None:
            if outcome.error is None:
                self._restart(change, dict(outcome.result()), self._clock())
                return
            problem = outcome.error
            reason = problem.what if isinstance(problem, SparkExtError) else f"{type(problem).__name__}: {problem}"
            self._refuse(change, Step("rejected", reason=f"the query cannot be built with it: {reason}"))

        self._worker.do("the building of queries", build, built)

    def _restart(self, change: _Change, specs: dict[str, QuerySpec | None], now: float) -> None:
        """Those of the queries that hold which differ are restarted; the others continue at once."""
        by = now + self._context.settings.stop_timeout / 1000
        for run in change.runs:
            if run.spec.uid in specs:
                spec = specs[run.spec.uid]
                prepare = prepared(run, spec, self._context)
                wanted = BoundaryRestart(change.event.sequence, by, now, spec or run.spec, prepare)
                change.restarts[run.spec.uid] = wanted
                run.launcher.restart_at(wanted)
        change.decide(known=True)
        self._release(change, [run for run in change.runs if run.spec.uid not in specs])

    def _conclude(self, change: _Change) -> None:
        self._current = None
        late = {uid: one for uid, one in change.restarts.items() if one.phase is RestartPhase.LATE}
        done = {uid: one for uid, one in change.restarts.items() if one.phase is RestartPhase.DONE}
        if late:
            reason = "; ".join(f"query '{uid}': {one.why}" for uid, one in late.items())
            self._current = change
            self._refuse(change, Step("failed", reason=reason))
            return
        self._release(change, [run for run in change.runs if run.spec.uid not in done])
        found = {uid: Rebuilt(one.epoch, one.took_ms, one.completed) for uid, one in done.items()}
        why = next((one.why for one in change.restarts.values()), "")
        if change.event.kind != "restart":
            self._rebuilt.setdefault(change.event_id, {}).update(found)
        else:
            self._wanted[change.event.event_id] = _step_of(found) if found else Step("failed", reason=why)

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, change: _Change, step: Step) -> None:
        """The queries continue as they were: the key gets its former value before they do."""
        change.decide(known=False)

        def put_back() -> Event | None:
            return None if change.event_id in self._put_back else self._former(change, step)

        def done(outcome: Outcome[Event | None]) -> None:
            if isinstance(outcome.error, FencedError):
                raise outcome.error
            if outcome.error is not None:
                log.warning("could not restore the previous value of a key: %s", outcome.error)
            elif outcome.value is not None:
                self._put_back.add(outcome.value.event_id)
            if change.event.kind == "restart":
                self._wanted[change.event.event_id] = step
            else:
                self._refused[change.event_id] = step
            self._current = None
            self._release(change, behind=outcome.value)

        self._worker.do("a former value", put_back, done)

    def _former(self, change: _Change, step: Step) -> Event | None:
        """Have the event accepted that gives a key the value that it had before; it keeps the outcome of this one."""
        changed = changed_key(change.event, change.aligned)
        if changed is None:
            return None
        target, key = changed
        before = change.before.of("set_config", target, key)
        given = change.after.of("set_config", target, key)
        if self._control.configuration().of("set_config", target, key) != given:
            return None  # somebody has set it again since
        value = {"key": key, "unset": True} if before is None else {"key": key, "value": before.get("value")}
        return takes_back(self._control, change.event_id, step, str(target), "set_config", value)

    def _release(self, change: _Change, runs: Sequence[QueryRun] | None = None, *, behind: Event | None = None) -> None:
        """The queries that hold (None: all) and are not restarted obey the event, with one behind it, and continue."""
        chosen = change.runs if runs is None else runs
        if not chosen:
            return
        start, sequence = self._context.incarnation.start, change.event.sequence

        def release() -> None:
            reach(FailPoint.QUERY_BEFORE_RELEASE)
            for run in chosen:
                if behind is not None:
                    stamps.release(run.checkpoint, start, behind.sequence)
                stamps.release(run.checkpoint, start, sequence)

        def released(outcome: Outcome[None]) -> None:
            if isinstance(outcome.error, OSError):
                log.warning("could not release queries that stand still; will retry: %s", outcome.error)
                self._worker.do("a release", release, released)
            else:
                outcome.result()
                for run in chosen:
                    run.launcher.pass_by(sequence)

        self._worker.do("a release", release, released)

    def close(self) -> None:
        """No further command comes."""
        self._worker.close()


def _cannot(run: QueryRun) -> str:
    """Why a query cannot be restarted; "" if it can."""
    if run.state is State.FINISHED:
        return "has finished"
    if run.state is State.FINISHING or run.input_done:
        return "has read all its input, and is about to finish"
    return f"has ended: {run.state.value}" if run.state.ended else ""


def _late(event: Event, run: QueryRun) -> bool:
    """Whether an event had expired, as the planners of a query see it."""
    if event.expires_ms is None or event.kind != "set_config":
        return False
    late = time.time() * 1000 >= event.expires_ms
    question = f"expiry-{run.lineage}-{event.sequence}"
    return stamps.decide(run.checkpoint, question, "late" if late else "in time") == "late"


def _step_of(found: dict[str, Rebuilt]) -> Step:
    epochs = {uid: one.epoch for uid, one in found.items()}
    result: dict[str, Json] = {
        "took_ms": max(one.took_ms for one in found.values()),
        "epoch": next(iter(epochs.values())) if len(epochs) == 1 else epochs,
    }
    reason = "; ".join(one.note(uid) for uid, one in found.items() if one.completed is not None)
    return Step("acknowledged", reason=reason, result=result)


def rebuilt(before: QuerySpec, checkpoint: str, values: Mapping[str, Json], sequence: int) -> QuerySpec:
    """A query built with another configuration, if it can take the place of the one that runs. May take seconds."""
    assert before.built is not None
    after = before.built.build(values, sequence)
    for change in compare(before.uid, definition_of(before), definition_of(after)):
        if change.breaking:
            raise ConfigurationError(
                str(change),
                operator=before.built.operator,
                kept="the query continues as it was",
                do="let the configuration decide how, not what is read and written",
            )
    refuse_change(before, after, _settings_in(checkpoint))
    OperatorHooks.check(after)
    return after


def _settings_in(checkpoint: str) -> dict[str, str]:
    """The settings of Spark's that a checkpoint holds: they are in force whatever the session has."""
    log = SparkLog(checkpoint)
    newest = log.newest_offsets()
    logged = None if newest is None else log.offsets(newest)
    if logged is None:
        return {}
    held = {str(key): str(value) for key, value in logged.metadata.get("conf", {}).items()}
    return {**held, **unrecorded_settings(checkpoint)}


def prepared(run: QueryRun, after: QuerySpec | None, context: JobContext) -> Callable[[], None] | None:
    """What is to be done on a worker before a query is started again: operators that differ are claimed and opened."""
    before = run.spec
    if after is None:
        return None
    claims = before.sink != after.sink or before.schema != after.schema
    opens = claims or before.sources != after.sources
    hooks = OperatorHooks(after, context, run.lineage, run.checkpoint, run.finished_sources)
    ended = run.position.ended_sources

    def prepare() -> None:
        if claims:
            hooks.claim()
        hooks.open(ended)

    return prepare if opens else None


def as_planned(spec: QuerySpec, state: str) -> QuerySpec | None:
    """The query with which an epoch was planned that an earlier start has not committed, if it differs."""
    if spec.built is None:
        return None
    checkpoint = checkpoint_of(state, spec.uid)
    log = SparkLog(checkpoint)
    planned, committed = log.newest_offsets(), log.newest_commit()
    if planned is None or (committed is not None and planned <= committed):
        return None
    values = planned_values(checkpoint, planned)
    if values is None or not spec.built.differs(values):
        return None
    return spec.built.build(values, spec.built.sequence)
