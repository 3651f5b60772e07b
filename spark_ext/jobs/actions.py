"""What a running job does at the request of control events, as `driver_orders` asks for it."""

from __future__ import annotations

import faulthandler
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spark_ext.control import levels as python_levels
from spark_ext.jobs.checkpointing.savepoint_requests import check_folder, check_root
from spark_ext.jobs.controlling.controller import Controller
from spark_ext.jobs.controlling.driver_directives import DriverOrders
from spark_ext.jobs.controlling.rebuild import Rebuilds
from spark_ext.observing.dumps import PATIENCE
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.control.log import ControlLog
    from spark_ext.jobs.checkpointing.checkpoint_request import Request
    from spark_ext.jobs.checkpointing.savepoint_requests import SavepointRequest
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.ledger import Ledger
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.control import Event
    from spark_ext.model.event_progress import Step
    from spark_ext.queries.context import JobContext

FOLDER = "stacks"
"""Folder of stack dumps in the state directory."""


class JobActions:
    """See `driver_orders.Actions`.

    Args:
        spark: the job's session.
        context: the job's.
        coordinator: of the job.
        rebuilds: the restarts of its queries.
    """

    def __init__(self, spark: SparkSession, context: JobContext, coordinator: Coordinator, rebuilds: Rebuilds) -> None:
        self._in_spark = backend_of(spark).diagnosis(spark)
        self._rebuilds = rebuilds
        self._context = context
        self._coordinator = coordinator

    def stop(self) -> None:
        """See `Actions`."""
        self._coordinator.stop()

    def checkpoint(self, folder: str | None) -> Request:
        """See `Actions`."""
        return self._coordinator.checkpoint(folder)

    def savepoint(self, folder: str) -> SavepointRequest:
        """See `Actions`."""
        return self._coordinator.savepoint(folder)

    def check_folder(self, folder: str, *, remote: bool) -> str:
        """See `Actions`."""
        if remote:
            check_root(folder, self._context.settings.savepoint_roots, self._context.job, self._context.state)
        return check_folder(folder, self._context.job, self._context.state)

    def stack_dump(self, event_id: str) -> str:
        """See `Actions`."""
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
        """See `Actions`."""
        dumps = self._coordinator.dumps
        assert dumps is not None  # set before any event is obeyed
        return dumps.take(f"asked for by the control event {event_id}", heap=heap, timeout=PATIENCE)

    def set_log_levels(self, levels: dict[str, str], former: dict[str, str]) -> None:
        """See `Actions`."""
        for name in {**former, **levels}:
            self._in_spark.set_log_level(name, levels.get(name))
        python_levels.apply(levels)

    def set_checkpoint_settings(self, settings: dict[str, Any]) -> None:
        """See `Actions`."""
        self._context.changed.clear()
        self._context.changed.update(settings)

    def restart(self, event: Event) -> None:
        """See `Actions`."""
        self._rebuilds.restart(event)

    def restarted(self, event: Event) -> Step | None:
        """See `Actions`."""
        return self._rebuilds.restarted(event)


def controlled(
    spark: SparkSession,
    ledger: Ledger,
    control: ControlLog,
    context: JobContext,
    coordinator: Coordinator,
    configuration: Configuration,
    present: Callable[[Event], Event],
) -> Controller:
    """The controller of a job that is being started: it takes up what earlier starts have left.

    Args:
        spark: the job's session.
        ledger: the job's.
        control: accepts events, with the fence of this incarnation.
        context: the job's.
        coordinator: of the job.
        configuration: in force when the queries were built.
        present: gives an event of an earlier start the target that it has now.

    Raises:
        StateError, StorageError: the ledger cannot be read.
    """
    rebuilds = Rebuilds(
        context,
        control,
        configuration,
        lambda: coordinator.runs,
        lambda: coordinator.waiting,
        lambda: coordinator.stopping,
    )
    actions = JobActions(spark, context, coordinator, rebuilds)
    orders = DriverOrders(context.job, actions, context.wake.set)
    controller = Controller(context, ledger, control, orders, coordinator.align, coordinator.drain, rebuilds, present)
    last: Callable[[], None] = lambda: controller.conclude(coordinator.runs, coordinator.state)  # noqa: E731
    coordinator.at_end.append(last)
    return controller
