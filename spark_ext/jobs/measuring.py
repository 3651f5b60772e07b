"""The metrics of a job's run: gauges are read from it until its end."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from spark_ext.jobs.snapshot import job_snapshot
from spark_ext.ledger import Ledger
from spark_ext.metrics.gauges import Live, QueryFacts
from spark_ext.spark.watching.source_reports import known_lags, lags_at

if TYPE_CHECKING:
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.queries.context import JobContext


def follow(
    metrics: JobMetrics,
    state_directory: str,
    started: datetime,
    application_id: str,
    context: JobContext,
    coordinator: Coordinator,
) -> None:
    """The run is under way: read gauges from it, until its end.

    Args:
        metrics: of the run.
        state_directory: as the user knows it.
        started: when this incarnation was started.
        application_id: Spark's.
        context: the job's.
        coordinator: of the run.
    """

    def live() -> Live:
        return Live(
            snapshot=job_snapshot(state_directory, started, context, coordinator),
            facts={
                run.spec.uid: QueryFacts(
                    query_id=run.query_id or "",
                    run_id=run.figures.run_id,
                    name=f"{context.job}/{run.spec.uid}",
                    watermark=run.figures.watermark,
                    newest_row=run.figures.newest_row,
                    lags=known_lags(lag.sources),
                    lags_at=lags_at(lag.sources),
                )
                for run, lag in [(run, run.figures.lag) for run in coordinator.runs]
            },
            application_id=application_id,
            rows_in_flight=coordinator.rows_in_flight,
            ledger_waiting=context.write_behind.waiting,
        )

    metrics.watch(live)
    metrics.read_past(Ledger(context.state), context.incarnation.number)
    coordinator.at_end.append(metrics.end)
