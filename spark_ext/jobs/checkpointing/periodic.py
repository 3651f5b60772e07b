"""The periodic checkpoint of a job: a row of the ledger that says how far every query had come, consistently."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.errors import FencedError
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, QueryMetadata
from spark_ext.model.cut import CutPoint
from spark_ext.queries.observer import QueryPosition

if TYPE_CHECKING:
    from spark_ext.checkpoints.unaligned import Taken
    from spark_ext.jobs.checkpointing.savepoint_requests import Savepoints
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.jobs.linking.exchanges import Exchanges
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.worker import Outcome


BACK_OFF: Final = 5  # how often the interval doubles while checkpoints to be retained fail: each is an incident


class PeriodicCheckpoints:
    """Writes the rows, behind the epochs. For the coordinator's thread."""

    def __init__(
        self, context: JobContext, execution: ExecutionGraph, exchanges: Exchanges, savepoints: Savepoints
    ) -> None:
        self._context, self._execution, self._exchanges, self._savepoints = context, execution, exchanges, savepoints
        self._pinning = False
        self._failures = 0  # how many that were to be retained have failed in a row
        self._last: dict[str, CutPoint] = {}
        self._at = time.monotonic()

    def tick(self, now: float) -> None:
        """Record a checkpoint when one is due; `now` is s, monotonic."""
        taken = self._exchanges.newest if self._exchanges.links else None
        if taken is None and self._exchanges.links:
            return
        if now - self._at < self._context.checkpointing.checkpoint_interval / 1000 * 2 ** min(self._failures, BACK_OFF):
            return
        self._at, runs = now, self._execution.runs
        # Without links the queries are independent: the last committed epochs of all are a consistent cut.
        points = {run.spec.uid: point_of(run, taken) for run in runs}
        running = any(not run.state.ended for run in runs)
        if not running or points == self._last or all(point.epoch is None for point in points.values()):
            return
        if self._context.checkpointing.retained_checkpoints:
            self._keep(points)
        else:
            self._record({run.spec.uid: part_of(run, points[run.spec.uid], taken) for run in runs}, taken)
            self._last = points

    def _keep(self, points: dict[str, CutPoint]) -> None:
        if self._pinning:
            return  # the next time that one is due

        def done(outcome: Outcome[None]) -> None:
            self._pinning = False
            if isinstance(outcome.error, FencedError):
                raise outcome.error
            self._failures = 0 if outcome.error is None else self._failures + 1
            if outcome.error is None:
                self._last = points

        self._pinning = True
        looks = self._execution.looks()
        self._savepoints.pin(self._savepoints.take_id(), "periodic", CheckpointMode.UNALIGNED, looks, None, done)

    def _record(self, queries: dict[str, QueryMetadata], taken: Taken | None) -> None:
        incarnation, at = self._context.incarnation, datetime.now(timezone.utc)
        metadata = CheckpointMetadata(self._context.job, incarnation.lineage, incarnation.number, queries)
        self._context.write_behind.put_soon(
            CheckpointRow(
                checkpoint_id=self._savepoints.take_id(),
                kind="periodic",
                status="COMPLETED",
                lineage=incarnation.lineage,
                incarnation=incarnation.number,
                metadata=metadata.to_json(),
                at=at,
                mode=CheckpointMode.UNALIGNED.value,
                triggered_at=at if taken is None else taken.at,
                rows_in_flight=0 if taken is None else taken.rows_in_flight,
            )
        )


def point_of(run: QueryRun, taken: Taken | None) -> CutPoint:
    """The place of a query in a cut of the job, or where it is now."""
    if taken is None or run.spec.uid not in taken.cut.points:
        return CutPoint(run.committed if run.committed >= 0 else None, run.input_done)
    return taken.cut.points[run.spec.uid]


def part_of(run: QueryRun, point: CutPoint, taken: Taken | None) -> QueryMetadata:
    """A query's part of a checkpoint's metadata, at its place."""
    uid = run.spec.uid
    if taken is None or uid not in taken.cut.points:
        return run.metadata()
    at = QueryPosition(run.query_id, -1 if point.epoch is None else point.epoch, taken.offsets[uid], point.finished)
    return run.metadata(at, finished=point.finished)
