"""Brings changes of incidents and lifecycle events to listeners: each has its own queue, thread and time limit.

A listener that hangs, raises or is slow delays neither the job nor another listener. The thread of a listener starts
with its first change. Nothing is sent twice, and nothing is kept: what a queue has no room for is dropped and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, Final, Protocol

from spark_ext.incidents.registry import ListenerEntry, Registry, accepted, for_listeners
from spark_ext.incidents.types import EventKind, IncidentChange, IncidentState, LifecycleEvent, MetricsContext, Notice
from spark_ext.masking import logger, mask

log = logger("spark_ext.incidents")

Subject = IncidentChange | LifecycleEvent
MOST_IN_A_DIGEST: Final = 10_000  # changes in one call at most


class Notified(Protocol):
    """What a listener has; see `listeners.contract.IncidentListener`."""

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        """Take one change."""

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        """Take one event."""

    def digest(self, notices: Sequence[Notice]) -> None:
        """Take several."""

    def close(self) -> None:
        """No further change comes."""


def kinds_of(entry: ListenerEntry, listener: object) -> frozenset[EventKind]:
    """The kinds of lifecycle events that a listener gets: as configured, or else as its class has them."""
    if "events" in entry.model_fields_set:
        return frozenset(entry.events)
    return frozenset(for_listeners(tuple(map(EventKind, getattr(listener, "events", ())))))


@dataclass(frozen=True)
class Figures:
    """The outcome of the changes and events for a listener."""

    delivered: int = 0
    dropped: int = 0  # changes that found the queue full, or were left when the job ended
    failed: int = 0  # changes for which the listener raised
    late: int = 0  # changes for which the listener did not return in time


class Outlet:
    """One listener. `window` is that of a type by its name, s; `digest` the ms for which changes are collected."""

    def __init__(
        self,
        name: str,
        listener: Notified,
        entry: ListenerEntry,
        window: Callable[[str], float],
        context: Callable[[Subject], MetricsContext],
        digest: int,
        delivered: Callable[[IncidentChange], None] = lambda change: None,
    ) -> None:
        self.name = name
        self.events = kinds_of(entry, listener)
        self.figures = Figures()
        self._listener = listener
        self._entry = entry
        self._context = context
        self._digest = digest / 1000
        self._delivered = delivered
        self._damper = Damper(window)
        self._queue: deque[tuple[float, Subject]] = deque()
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._said: set[str] = set()

    def wants(self, change: IncidentChange) -> bool:
        """Whether it is configured for a change."""
        return not change.counted and accepted(self._entry, change.incident.type, change.incident.severity)

    def put(self, change: Subject) -> None:
        """Queue a change or event. Returns at once; after `finish` it is dropped."""
        with self._lock:
            closing, full = self._closing, len(self._queue) >= self._entry.queue
            if closing or full:
                self._count("dropped", 1)
            else:
                self._queue.append((time.monotonic(), change))
                if self._thread is None:
                    name = f"spark-ext-incidents-{self.name}"
                    self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
                    self._thread.start()
                self._lock.notify()
        if full and not closing:
            self._say_once("dropped", "its queue of %d changes is full; further changes are dropped", self._entry.queue)

    def finish(self) -> None:
        """Nothing more comes: what is queued is delivered without waiting for a digest."""
        with self._lock:
            self._closing = True
            self._lock.notify()

    def join(self, by: float) -> None:
        """Wait until everything is delivered, and then leave it."""
        if self._thread is not None:
            self._thread.join(max(0.0, by - time.monotonic()))
        with self._lock:
            self._abandoned = True
            left = len(self._queue)
            self._queue.clear()
            self._count("dropped", left)
        if self.figures != replace(self.figures, dropped=0, failed=0, late=0):
            log.warning(
                "incident listener '%s' was notified of %d changes; %d were dropped, it failed for %d, and did not "
                "return in time for %d",
                self.name,
                *astuple(self.figures),
            )

    def _loop(self) -> None:
        while True:
            changes = self._next()
            if changes is None:
                break
            if changes:
                self._deliver(changes)
        if self._thread is not None and not self._abandoned:
            self._call(self._listener.close, ())

    def _next(self) -> list[Subject] | None:
        """Wait for what is due; None: nothing more comes."""
        with self._lock:
            while not self._abandoned:
                now = time.monotonic()
                if self._queue and (self._closing or now >= self._queue[0][0] + self._digest):
                    most = MOST_IN_A_DIGEST if self._digest else 1
                    taken = [self._queue.popleft()[1] for _ in range(min(most, len(self._queue)))]
                    return [one for one in taken if isinstance(one, LifecycleEvent) or self._damper.take(one, now)]
                held: list[Subject] = list(self._damper.release(inf if self._closing else now))
                if held:
                    return held
                if self._closing:
                    return None
                at = min(self._queue[0][0] + self._digest if self._queue else inf, self._damper.due or inf)
                self._lock.wait(None if at == inf else max(0.0, at - now))
            return None

    def _deliver(self, changes: list[Subject]) -> None:
        notices = [(masked(change), self._context_of(change)) for change in changes]
        if self._digest:
            self._call(lambda: self._listener.digest(notices), changes)
            return
        for change, context in notices:
            if isinstance(change, LifecycleEvent):
                self._call(partial(self._listener.happened, change, context), [change])
            else:
                self._call(partial(self._listener.changed, change, context), [change])

    def _context_of(self, change: Subject) -> MetricsContext:
        try:
            return self._context(change)
        except Exception as problem:
            log.debug("no context for a change of an incident: %s", problem)
            return MetricsContext()

    def _call(self, action: Callable[[], object], changes: Sequence[Subject]) -> None:
        """Call the listener, on a thread that can be left behind; wait for a call that is late before the next one."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                action()
            except BaseException as problem:  # a listener that calls sys.exit() must not go unnoticed
                failed.append(problem)

        call = threading.Thread(target=run, name=f"spark-ext-incidents-{self.name}-call", daemon=True)
        call.start()
        call.join(self._entry.timeout / 1000)
        if call.is_alive():
            self._count("late", len(changes))
            limit = self._entry.timeout / 1000
            self._say_once("late", "it did not return within %g s; further changes wait", limit)
            call.join()
            return
        if failed:
            self._count("failed", len(changes))
            kind = type(failed[0]).__name__
            self._say_once("failed", "%s: %s; its further errors are counted, not logged", kind, failed[0])
        else:
            self._count("delivered", len(changes))
            for change in changes:
                if isinstance(change, IncidentChange):
                    self._delivered(change)

    def _count(self, kind: str, changes: int) -> None:
        with self._lock:
            self.figures = replace(self.figures, **{kind: getattr(self.figures, kind) + changes})

    def _say_once(self, kind: str, text: str, *values: object) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning(f"incident listener '%s': {text}", self.name, *values)


class Deliveries:
    """Gives `told` each change that all listeners have taken that it was queued for. Safe for several threads."""

    def __init__(self, told: Callable[[IncidentChange], None] = lambda change: None) -> None:
        self._told = told
        self._left: dict[tuple[str, IncidentState], int] = {}
        self._lock, self._telling = threading.Lock(), threading.Lock()

    def queued(self, change: IncidentChange, listeners: int) -> None:
        """It is queued for this number of listeners."""
        with self._lock:
            self._left[change.incident.incident_id, change.new] = listeners
            if len(self._left) > MOST:
                del self._left[next(iter(self._left))]

    def delivered(self, change: IncidentChange) -> None:
        """A listener has taken it."""
        key = change.incident.incident_id, change.new
        with self._lock:
            left = self._left.pop(key, 0) - 1
            if left > 0:
                self._left[key] = left
        if left == 0:
            with self._telling:
                self._told(change)


class Dispatcher:
    """All listeners of a job. Safe for several threads."""

    def __init__(self, outlets: Sequence[Outlet], deliveries: Deliveries) -> None:
        self.outlets, self._deliveries = tuple(outlets), deliveries

    @classmethod
    def of(
        cls,
        registry: Registry,
        listeners: Sequence[Notified],
        context: Callable[[Subject], MetricsContext],
        told: Callable[[IncidentChange], None] = lambda change: None,
    ) -> Dispatcher | None:
        """The dispatcher of a registry's listeners; None if it has none.

        `told` is given each change that all listeners have taken that want it, on any thread.
        """
        if not listeners:
            return None

        def window(type_: str) -> float:
            return registry.of(type_).window / 1000

        outlets, deliveries = [], Deliveries(told)
        for number, (entry, listener) in enumerate(zip(registry.listeners, listeners, strict=True), 1):
            name = f"{entry.use.rpartition(':')[2]}-{number}" if len(listeners) > 1 else entry.use.rpartition(":")[2]
            digest = None if "digest" in entry.model_fields_set else getattr(listener, "digest_ms", None)
            digest = entry.digest if digest is None else digest
            outlets.append(Outlet(name, listener, entry, window, context, digest, deliveries.delivered))
        return cls(outlets, deliveries)

    def put(self, change: IncidentChange) -> None:
        """Queue a change for each listener that is configured for it. Returns at once."""
        wanting = [outlet for outlet in self.outlets if outlet.wants(change)]
        self._deliveries.queued(change, len(wanting))
        for outlet in wanting:
            outlet.put(change)

    @property
    def wanted(self) -> frozenset[EventKind]:
        """The kinds of lifecycle events that a listener is configured for."""
        return frozenset().union(*(outlet.events for outlet in self.outlets))

    def tell(self, event: LifecycleEvent) -> None:
        """Queue an event for each listener that is configured for its kind. Returns at once."""
        for outlet in self.outlets:
            if event.kind in outlet.events:
                outlet.put(event)

    def close(self, within: float) -> None:
        """Deliver what is queued, within a limit in s."""
        by = time.monotonic() + within
        for outlet in self.outlets:
            outlet.finish()
        for outlet in self.outlets:
            with suppress(RuntimeError):  # a listener that ends the job does not wait for itself
                outlet.join(by)

    @property
    def figures(self) -> dict[str, Figures]:
        """What has become of the changes, by listener."""
        return {outlet.name: outlet.figures for outlet in self.outlets}


def masked(change: Subject) -> Subject:
    """A change or event as a listener gets it: no text has a secret that this process knows."""
    if isinstance(change, LifecycleEvent):
        details = {name: mask(one) if isinstance(one, str) else one for name, one in change.details.items()}
        return replace(change, cause=mask(change.cause), details=details)
    one = change.incident
    texts: dict[str, Any] = {name: mask(getattr(one, name)) for name in ("what", "action", "operator")}
    labels = {mask(name): mask(value) for name, value in one.labels.items()}
    return replace(change, cause=mask(change.cause), incident=replace(one, labels=labels, **texts))


MOST: Final = 5_000  # how many incidents are remembered; the oldest are forgotten first


@dataclass
class Damper:
    """Decides which changes a listener is notified of, and when; `window` is that of a type by its name, s."""

    window: Callable[[str], float]
    _notified: dict[str, IncidentState] = field(default_factory=dict)  # by id, the last state that was let through
    _reopened: dict[str, None] = field(default_factory=dict)
    _held: dict[str, tuple[float, IncidentChange]] = field(default_factory=dict)  # with when they are due

    def take(self, change: IncidentChange, now: float) -> bool:
        """Whether listeners are notified of a change now, s on any clock that never goes back."""
        if change.counted:
            return False
        one = change.incident.incident_id
        if change.new is IncidentState.RESOLVED:
            if one in self._reopened:
                self._held[one] = (now + self.window(change.incident.type), change)
                return False
        else:
            if change.old is not None:
                self._reopened[one] = None
            if self._held.pop(one, None) is not None:
                return False
        if self._notified.pop(one, None) is change.new:
            self._notified[one] = change.new
            return False
        self._notified[one] = change.new
        if len(self._notified) > MOST:
            oldest = next(iter(self._notified))
            del self._notified[oldest]
            self._reopened.pop(oldest, None)
        return True

    @property
    def due(self) -> float | None:
        """When the next held resolution is due; None without any."""
        return min((at for at, _ in self._held.values()), default=None)

    def release(self, now: float) -> Iterator[IncidentChange]:
        """The resolutions that are due."""
        for one in [one for one, (at, _) in self._held.items() if at <= now]:
            _, change = self._held.pop(one)
            self._reopened.pop(one, None)
            self._notified[one] = change.new
            yield change
