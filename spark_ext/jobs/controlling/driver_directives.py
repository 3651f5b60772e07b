"""What the driver itself does at the request of control events: checkpoints, stop, log levels, stacks, settings."""

from __future__ import annotations

import faulthandler
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_ext.control import levels as python_levels
from spark_ext.errors import SparkExtError, TerminalError
from spark_ext.jobs.checkpointing.savepoint_requests import check_folder, check_root
from spark_ext.masking import logger
from spark_ext.model.control import JOB, Event
from spark_ext.model.event_progress import Step
from spark_ext.model.lifecycle import State
from spark_ext.observing.dumps import PATIENCE
from spark_ext.queries.worker import Outcome, Worker
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.checkpointing.barriers import AlignedCheckpoints
    from spark_ext.jobs.checkpointing.savepoint_requests import CheckpointRequest, Savepoints
    from spark_ext.jobs.controlling.lookup_versions import LookupVersions
    from spark_ext.jobs.controlling.rebuild import Rebuilds
    from spark_ext.jobs.ending import EndRequest
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.control_kinds import Kind
    from spark_ext.model.offsets import Json
    from spark_ext.observing.dumps import Dumps
    from spark_ext.queries.context import JobContext

log = logger("spark_ext.job")
Put = Callable[[Event, Step], None]
FOLDER = "stacks"  # folder of stack dumps in the state directory
LOST = "the driver ended before it was carried out"  # why a request of an earlier start has failed


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
        self.stop_requested = ""  # who has asked an earlier start to stop; "" if nobody has

    def configure(self, configuration: Configuration) -> None:
        """Put into force what stands: log levels and settings of checkpoints."""
        slots = configuration.standing.get("log_level", {}).get(str(JOB), {})
        levels = {name: str(value["level"]) for name, value in slots.items()}
        if levels != self._levels:
            former, self._levels = self._levels, levels
            self._worker.do("log levels", partial(self._actions.set_log_levels, levels, former), _logged)
        settings = dict(configuration.of("checkpoint_config", JOB) or {})
        if settings != self._settings:
            self._settings = settings
            self._actions.set_checkpoint_settings(settings)

    def take(self, event: Event, kind: Kind, *, left: bool, put: Put) -> None:
        """An event that the driver obeys. If an earlier start was to obey it (`left`), all but a stop have failed."""
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
        elif event.kind == "reload":
            self._reload(event, put)
        elif left:
            put(event, Step("failed", reason=LOST))
        else:
            self._once(event, kind, put)

    def _reload(self, event: Event, put: Put) -> None:
        """Make the event of the version, whose outcome is that of the request."""

        def done(outcome: Outcome[None]) -> None:
            if isinstance(outcome.error, TerminalError):
                put(event, Step("rejected", reason=outcome.error.what))
            elif outcome.error is not None:
                put(event, Step("failed", reason=str(outcome.error)))

        self._worker.do(event.kind, partial(self._actions.reload, event), done)

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
            else:
                take = self._actions.checkpoint if event.value.get("aligned") else self._actions.savepoint
                self._wait(event, take(outcome.result()), put)

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
        for event in (*(one.event for one in self._waiting), *self._restarts):
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


class JobActions:
    """The parts of the job that obey."""

    def __init__(
        self,
        spark: SparkSession,
        context: JobContext,
        request: EndRequest,
        aligned: AlignedCheckpoints,
        savepoints: Savepoints,
        dumps: Dumps,
        rebuilds: Rebuilds,
        lookups: LookupVersions,
    ) -> None:
        self._in_spark, self._context, self._dumps = backend_of(spark).diagnosis(spark), context, dumps
        self.stop, self.checkpoint, self.savepoint = request.stop, aligned.request, savepoints.request
        self.restart, self.restarted, self.reload = rebuilds.restart, rebuilds.restarted, lookups.reload

    def check_folder(self, folder: str, *, remote: bool) -> str:
        """The folder of a savepoint, as the driver sees it; refuses one that cannot be used, or not over HTTP."""
        if remote:
            check_root(folder, self._context.settings.savepoint_roots, self._context.job, self._context.state)
        return check_folder(folder, self._context.job, self._context.state)

    def dump_driver(self, event_id: str) -> str:
        """Write the stacks of the driver's threads; returns where. May take a second."""
        name = f"{FOLDER}/{event_id}.txt"
        with tempfile.TemporaryFile("w+b") as draft:
            draft.write(b"Threads of the driver's Python process\n\n")
            draft.flush()
            faulthandler.dump_traceback(draft, all_threads=True)
            draft.seek(0, 2)
            draft.write(b"\nThreads of the driver's JVM\n\n" + self._in_spark.driver_threads().encode())
            draft.seek(0)
            content = draft.read()
        Location(self._context.state).folder.write(name, content)
        return f"{self._context.state}/{name}"

    def dump(self, event_id: str, *, heap: bool) -> str:
        """Write the stacks of all processes, and the driver's heap if it is wanted; returns where. May take minutes."""
        return self._dumps.take(f"asked for by the control event {event_id}", heap=heap, timeout=PATIENCE)

    def set_log_levels(self, levels: dict[str, str], former: dict[str, str]) -> None:
        """Set the levels of loggers, "" for the root; `former` are those that were set before."""
        for name in {**former, **levels}:
            self._in_spark.set_log_level(name, levels.get(name))
        python_levels.apply(levels)

    def set_checkpoint_settings(self, settings: dict[str, Any]) -> None:
        """Put settings of checkpoints in the place of those of the job; {}: as the job was started with."""
        self._context.changed.clear()
        self._context.changed.update(settings)
