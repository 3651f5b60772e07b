"""What the driver itself does at the request of control events: checkpoints, stop, log levels, stacks, settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_ext.errors import SparkExtError, TerminalError
from spark_ext.masking import logger
from spark_ext.model.control import JOB, Event
from spark_ext.model.event_progress import Step
from spark_ext.model.lifecycle import State
from spark_ext.queries.worker import Outcome, Worker

if TYPE_CHECKING:
    from spark_ext.jobs.checkpointing.savepoint_requests import CheckpointRequest
    from spark_ext.jobs.controlling.actions import JobActions
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.control_kinds import Kind
    from spark_ext.model.offsets import Json

log = logger("spark_ext.job")

Put = Callable[[Event, Step], None]

LOST = "the driver ended before it was carried out"
"""Why a request of an earlier start has failed: the client may repeat it."""


@dataclass(frozen=True)
class _Waiting:
    event: Event
    request: CheckpointRequest
    begun: float


class DriverDirectives:
    """Carries them out; for the coordinator's thread."""

    def __init__(self, job: str, actions: JobActions, wake: Callable[[], None]) -> None:
        self._actions = actions
        self._waiting: list[_Waiting] = []
        self._restarts: list[Event] = []
        self._stops: list[Event] = []
        self._worker = Worker(f"spark-ext-directives-{job}", wake)
        # Of its own, as it may take minutes; its thread starts with its first command.
        self._dumper = Worker(f"spark-ext-dump-directives-{job}", wake)
        self._levels: dict[str, str] = {}
        self._settings: dict[str, Any] = {}
        self.stop_requested = ""
        """Who has asked an earlier start to stop; "" if nobody has."""

    def configure(self, configuration: Configuration) -> None:
        """Put into force what stands: log levels and settings of checkpoints."""
        slots = configuration.standing.get("log_level", {}).get(str(JOB), {})
        levels = {name: str(value["level"]) for name, value in slots.items()}
        if levels != self._levels:
            former, self._levels = self._levels, levels

            def act() -> None:
                self._actions.set_log_levels(levels, former)

            self._worker.do("log levels", act, _logged)
        settings = dict(configuration.of("checkpoint_config", JOB) or {})
        if settings != self._settings:
            self._settings = settings
            self._actions.set_checkpoint_settings(settings)

    def take(self, event: Event, kind: Kind, *, left: bool, put: Put) -> None:
        """An event that the driver obeys.

        Args:
            left: whether an earlier start was to obey it: a stop holds, other requests have failed.
        """
        if event.expires_ms is not None and time.time() * 1000 >= event.expires_ms:
            put(event, Step("expired", reason="its time was over before it was obeyed"))
        elif event.kind == "stop":
            self._stops.append(event)
            if left:
                self.stop_requested = event.event_id
            self._actions.stop()
            put(event, Step("applied"))
        elif kind.standing and kind.name == "checkpoint_config":
            put(event, Step("acknowledged"))
        elif kind.standing or event.kind == "drain":
            pass  # epochs obey it as well, and say when
        elif left:
            put(event, Step("failed", reason=LOST))
        else:
            self._once(event, kind, put)

    def _once(self, event: Event, kind: Kind, put: Put) -> None:
        try:
            if event.kind == "checkpoint":
                self._wait(event, self._actions.checkpoint(None), put)
            elif event.kind == "savepoint":
                self._savepoint(event, put)
            elif event.kind == "restart":
                self._actions.restart(event)
                self._restarts.append(event)
                put(event, Step("applied"))
            elif event.kind == "dump" and event.value.get("scope") == "driver":
                self._do(event, lambda: {"path": self._actions.dump_driver(event.event_id)}, put)
            elif event.kind == "dump":
                heap = bool(event.value.get("heap"))
                dump = partial(self._actions.dump, event.event_id, heap=heap)
                self._do(event, lambda: {"path": dump()}, put, self._dumper)
            elif kind.handle is not None:
                handle = kind.handle
                self._do(event, lambda: handle(event.value), put)
            else:
                put(event, Step("rejected", reason=f"nothing in this driver obeys events of the kind {event.kind!r}"))
        except SparkExtError as problem:
            put(event, Step("rejected", reason=problem.what))

    def _savepoint(self, event: Event, put: Put) -> None:
        def done(outcome: Outcome[str]) -> None:
            if isinstance(outcome.error, TerminalError):
                put(event, Step("rejected", reason=outcome.error.what))
            elif outcome.error is not None:
                put(event, Step("failed", reason=str(outcome.error)))
            elif event.value.get("aligned"):
                self._wait(event, self._actions.checkpoint(outcome.result()), put)
            else:
                self._wait(event, self._actions.savepoint(outcome.result()), put)

        # A folder on a store is listed, which takes time.
        path = event.value["path"]
        self._worker.do("the savepoint's folder", lambda: self._actions.check_folder(path, remote=event.remote), done)

    def _wait(self, event: Event, request: CheckpointRequest, put: Put) -> None:
        put(event, Step("applied"))
        self._waiting.append(_Waiting(event, request, time.monotonic()))

    def _do(self, event: Event, action: Callable[[], Json], put: Put, worker: Worker | None = None) -> None:
        put(event, Step("applied"))

        def done(outcome: Outcome[Json]) -> None:
            if outcome.error is None:
                put(event, Step("acknowledged", result=outcome.value))
            else:
                put(event, Step("failed", reason=f"{type(outcome.error).__name__}: {outcome.error}"))

        (worker or self._worker).do(event.kind, action, done)

    def tick(self, put: Put) -> None:
        """Record what is done."""
        self._worker.deliver()
        self._dumper.deliver()
        for one in [one for one in self._waiting if one.request.done.is_set()]:
            self._waiting.remove(one)
            put(one.event, _step_of(one))
        for event in list(self._restarts):
            step = self._actions.restarted(event)
            if step is not None:
                self._restarts.remove(event)
                put(event, step)

    def conclude(self, state: State, put: Put) -> None:
        """The job has ended."""
        self.tick(put)
        for event in self._stops:
            put(event, Step("acknowledged", result={"state": state.value}))
        for one in self._waiting:
            put(one.event, Step("failed", reason=f"the job has ended: {state.value}"))
        for event in self._restarts:
            put(event, Step("failed", reason=f"the job has ended: {state.value}"))
        self._stops, self._waiting, self._restarts = [], [], []

    def close(self) -> None:
        """No further command comes."""
        self._worker.close()
        self._dumper.close()


def _step_of(one: _Waiting) -> Step:
    if one.request.failure is not None:
        return Step("failed", reason=one.request.failure.what)
    took = round((time.monotonic() - one.begun) * 1000)
    result: dict[str, Json] = {"checkpoint": one.request.number, "took_ms": took}
    if one.event.kind == "savepoint":
        result["path"] = one.event.value["path"]
    return Step("acknowledged", result=result)


def _logged(outcome: Outcome[None]) -> None:
    if outcome.error is not None:
        log.warning("a log level could not be set: %s", outcome.error)
