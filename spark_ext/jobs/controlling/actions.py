"""What a running job does at the request of control events."""

from __future__ import annotations

import faulthandler
import tempfile
from typing import TYPE_CHECKING, Any

from spark_ext.control import levels as python_levels
from spark_ext.jobs.checkpointing.savepoint_requests import check_folder, check_root
from spark_ext.observing.dumps import PATIENCE
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.checkpointing.barriers import AlignedCheckpoints
    from spark_ext.jobs.checkpointing.savepoint_requests import CheckpointRequest, Savepoints
    from spark_ext.jobs.controlling.rebuild import Rebuilds
    from spark_ext.jobs.ending import EndRequest
    from spark_ext.model.control import Event
    from spark_ext.model.event_progress import Step
    from spark_ext.observing.dumps import Dumps
    from spark_ext.queries.context import JobContext

FOLDER = "stacks"
"""Folder of stack dumps in the state directory."""


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
    ) -> None:
        self._in_spark, self._context, self._request = backend_of(spark).diagnosis(spark), context, request
        self._aligned, self._savepoints, self._dumps, self._rebuilds = aligned, savepoints, dumps, rebuilds

    def stop(self) -> None:
        """Stop the job; returns at once."""
        self._request.stop()

    def checkpoint(self, folder: str | None) -> CheckpointRequest:
        """Ask for an aligned checkpoint, or for a savepoint that is one."""
        return self._aligned.request(folder)

    def savepoint(self, folder: str) -> CheckpointRequest:
        """Ask for a savepoint at the newest consistent cut."""
        return self._savepoints.request(folder)

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

    def restart(self, event: Event) -> None:
        """Restart queries at an epoch boundary; `restarted` says how it has ended."""
        self._rebuilds.restart(event)

    def restarted(self, event: Event) -> Step | None:
        """How a restart has ended; None: it is under way."""
        return self._rebuilds.restarted(event)
