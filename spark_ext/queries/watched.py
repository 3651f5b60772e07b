"""The execution state of one query: what it does, finer than its life cycle, and its record in the ledger."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_ext.errors import StallError
from spark_ext.failures.labels import FailureType, Origin
from spark_ext.model.execution import Look, Progress, Shown, execution_state
from spark_ext.model.holders import Holder
from spark_ext.model.lifecycle import IllegalTransition, State, can_follow
from spark_ext.model.pressure import Pressure

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.model.pressure import Hold
    from spark_ext.model.slow import SlowEpoch
    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.history import Figures


@dataclass(frozen=True)
class Stall:
    """A query makes no progress, or hardly any, or its stop does not come to an end."""

    kind: str  # type of the incident: `stall`, `slow`, `stop_blocked` or `backpressure`
    since: datetime  # the last progress, or the beginning of the epoch, the stop or the strain, UTC
    holder: Holder
    slow: SlowEpoch | None = None  # how slow the epoch is, of the kind `slow`
    hold: Hold | None = None  # which consumer is slow, of the kind `backpressure`

    @property
    def evidence(self) -> dict[str, Any]:
        """For the incident."""
        stacks = {
            thread.name: [frame.place for frame in thread.frames[:MOST_FRAMES]]
            for thread in self.holder.threads[:MOST_THREADS]
        }
        found: dict[str, Any] = {"since": self.since.isoformat(), "stacks": stacks}
        if self.slow is not None:
            found |= {"seconds": self.slow.seconds, "expected": self.slow.expected, "rows": self.slow.rows}
        if self.hold is not None:
            found |= self.hold.to_json()
        return found

    @property
    def what(self) -> str:
        """For the incident."""
        if self.slow is not None:
            seconds, expected, rows = self.slow.seconds, self.slow.expected, self.slow.rows
            size = f"its {rows:,} rows usually take" if rows else "one usually takes"
            return f"an epoch has taken {seconds:,.0f} s so far, and {size} {expected:,.1f} s: {self.holder.what}"
        if self.hold is not None:
            return f"{self.hold.what}; that query is in {self.holder.what}"
        words = "Spark's query does not stop" if self.kind == "stop_blocked" else "no progress"
        return f"{words} since {self.since:%H:%M:%S} UTC: {self.holder.what}"

    def error(self, operator: str) -> StallError:
        """Of a query that is given up for it."""
        return StallError(
            self.what,
            operator=operator,
            kept="all committed epochs",
            do="look at the stacks of the incident, correct what holds the query, and start the job again",
        )


MOST_THREADS: Final = 4  # threads whose stacks are kept with an incident
MOST_FRAMES: Final = 40  # frames of each of them


class WatchedQuery:
    """What a query does, from its life cycle, its commits, and snapshots of Spark that another thread takes.

    Its methods are for the thread that decides, except `polled` and `examined`.
    """

    def __init__(self, uid: str, operator: str, context: WatchContext) -> None:
        self._uid = uid
        self._operator = operator
        self._context = context
        self._monitored = bool(context.settings.monitor_interval)
        self._snapshots: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Stall | None] = queue.SimpleQueue()
        self.paused = False  # whether a control event keeps its sources from reading
        self.stall: Stall | None = None  # why it makes no progress; None: it makes progress, or is not expected to
        self.slow: Stall | None = None  # why its epoch is slow, although it makes progress; None: it is not
        self.pressure = Pressure()  # how its consumers hold it back
        self._said: Hold | None = None  # what holds it back, according to its newest record
        self._stall_incident: str | None = None
        self.incident: str | None = None  # that led to the present state of the life cycle
        self.shown = Shown(State.CREATED)  # what it does
        self.progress = Progress(settled=not self._monitored)  # what is known of its Spark query
        self.moved_at = time.monotonic()  # when it was last started, or has committed an epoch, s, monotonic

    def had_finished(self) -> None:
        """It had finished before this start: there is nothing to record."""
        self.shown = Shown(State.FINISHED)

    def attribute(self, incident: str | None) -> None:
        """An incident has led to the present state of the life cycle; None: none has."""
        self.incident = incident

    def launched(self, *, stateful: bool, further: bool = False) -> None:
        """Spark has started it, perhaps with state.

        `further`: it has been running; with the trigger `availableNow` one run follows another.
        """
        # Without snapshots: that it runs.
        self.progress = Progress(stateful=stateful, settled=further or not self._monitored)
        self.moved_at = time.monotonic()
        for left in (self._snapshots, self._found):
            while not left.empty():
                left.get()  # about what ran before
        self.stall = self.slow = self._stall_incident = None

    def committed(self) -> None:
        """It has committed an epoch."""
        self.progress = self.progress.committed()
        self.stall = self.slow = self._stall_incident = None
        self.moved_at = time.monotonic()

    def polled(self, snapshot: Look) -> None:
        """Take what Spark says of it at one moment; for any thread."""
        self._snapshots.put(snapshot)

    def examined(self, found: Stall | None) -> None:
        """Take that it is stalled, or not any more; for any thread."""
        self._found.put(found)
        self._context.wake.set()

    def take(self, *, running: bool, paused: bool, hold: Hold | None) -> None:
        """Take in the snapshots so far, which are of no use unless its life cycle is RUNNING.

        `paused`: a control event keeps its sources from reading. `hold`: a consumer of what it writes does.
        """
        self.paused = paused
        self.pressure = self.pressure.after(hold if running else None, time.monotonic())
        while not self._snapshots.empty():
            snapshot = self._snapshots.get()
            if running:
                self.progress = self.progress.after(snapshot)
        while not self._found.empty():
            found = self._found.get()
            if found is None or found.kind == "stall":
                if self._stall_incident is not None:
                    self._context.write_behind.incidents.resolve(self._stall_incident, "it makes progress again")
                self.stall = found if running else None
                self._stall_incident = None if self.stall is None else self._recorded(self.stall)
            else:
                self.slow = found if found.kind == "slow" and running else self.slow
                self._recorded(found)

    def _recorded(self, found: Stall) -> str:
        action = "waiting for it" if found.kind == "stop_blocked" else "reported"
        return self._context.write_behind.incident(
            self._operator, found.kind, found.what, action, found.evidence, found.holder.labels
        )

    def show(self, state: State, reason: str, *, starting: bool) -> None:
        """Record what it does, if that has changed."""
        now = execution_state(state, reason, self.progress, starting=starting and self._monitored, paused=self.paused)
        now = self._with_incident(now)
        hold = self.pressure.standing if now.state is State.RUNNING and self.stall is None else None
        if hold is not None:
            now = replace(now, reason=hold.what)
        if (now.state, now.incident) != (self.shown.state, self.shown.incident) or not _same(hold, self._said):
            self.shown, self._said = now, hold
            self._context.write_behind.state(self._uid, now.state, now.reason, now.since, now.incident)

    def _with_incident(self, now: Shown) -> Shown:
        if self.stall is not None and now.state in (State.RUNNING, State.DEPLOYING, State.RESTORING):
            reason = f"stalled: {self.stall.holder.what}"
            return replace(now, reason=reason, since=self.stall.since, incident=self._stall_incident)
        if now.state is not State.SCHEDULING:
            if self.shown.state is State.SCHEDULING and self.shown.incident is not None:
                self._context.write_behind.incidents.resolve(self.shown.incident, "its tasks run")
            return replace(now, incident=self.incident)
        if self.shown.state is State.SCHEDULING:
            return replace(now, incident=self.shown.incident)
        since = now.since or datetime.now(timezone.utc)
        found = self._context.write_behind.incident(
            self._operator,
            "scheduling",
            now.reason,
            "waiting for a slot",
            {"since": since.isoformat()},
            {"type": FailureType.SYSTEM.value, "origin": Origin.SPARK.value},
        )
        return replace(now, incident=found)


def _same(one: Hold | None, other: Hold | None) -> bool:
    """Whether these are one hold, whatever its figures are by now."""
    return (one is None) == (other is None) and (one is None or other is None or one.same(other))


class LifeCycle:
    """The state of a query in its life cycle. Each change is recorded as what the query does."""

    def __init__(self, operator: str, watched: WatchedQuery) -> None:
        self.operator = operator
        self.state = State.CREATED
        self.reason = ""  # why it entered its state; "" when that needs no reason
        self.starting = False  # whether Spark is asked to start it
        self._watched = watched

    def become(self, state: State, reason: str = "", incident: str | None = None) -> None:
        """Enter a state and record it; entering the present one again is no event."""
        further = state is not self.state
        if further:
            self.enter(state)
        if further or incident is not None:
            # A further failure while it recovers: the time from now on is that one's.
            self.reason = reason
            self._watched.attribute(incident)
            self.show()

    def enter(self, state: State) -> None:
        """Enter a state without a record."""
        self.require(state)
        self.state = state

    def require(self, state: State) -> None:
        """Refuse a state that cannot follow the present one."""
        if not can_follow(self.state, state):
            raise IllegalTransition(f"{self.operator}: {state.value} cannot follow {self.state.value}")

    def starts(self) -> None:
        """Spark is asked to start it."""
        self.starting = True
        self.show()

    def started(self) -> None:
        """The start has ended, in whichever way."""
        self.starting = False

    def launched(self, *, stateful: bool) -> None:
        """Spark has started it; see `WatchedQuery`."""
        self._watched.launched(stateful=stateful, further=self.state is State.RUNNING)
        if not self.state.ended and self.state is not State.FINISHING:
            self.become(State.RUNNING)

    def finished_before(self) -> None:
        """It had finished before this start: there is nothing to record."""
        self.enter(State.FINISHED)
        self._watched.had_finished()

    def show(self) -> None:
        """Record what it does, if that has changed."""
        self._watched.show(self.state, self.reason, starting=self.starting)


class Watchable(Protocol):
    """A query that the monitor looks at; its attributes are for reading, from any thread."""

    @property
    def uid(self) -> str:
        """Under which it is recorded."""

    @property
    def operator(self) -> str:
        """Job and query, for messages."""

    @property
    def open_sources(self) -> frozenset[str]:
        """Uids of its sources whose end the ledger does not have; of a query that others have started, none."""

    @property
    def live(self) -> bool:
        """Whether Spark runs it, by what is known."""

    @property
    def busy(self) -> str:
        """What is being done with it, such as `stop`; "" if nothing is."""

    @property
    def in_spark(self) -> StreamingQuery | None:
        """The query in Spark; None before its first start."""

    @property
    def sampled_as(self) -> str:
        """Under which its Python processes leave notes; see `spark.attendance`."""

    @property
    def watched(self) -> WatchedQuery:
        """What it does."""

    @property
    def figures(self) -> Figures:
        """What is counted of it."""

    @property
    def committed(self) -> int:
        """The newest committed epoch; -1 before the first one."""
