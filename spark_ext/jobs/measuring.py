"""The metrics of a job's run, if its settings ask for them: fed with the rows of its ledger, exported until its end.

With everything off nothing is made: no thread, no counter, and no optional library is imported.
"""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from spark_ext.jobs.snapshot import job_snapshot
from spark_ext.ledger import Ledger
from spark_ext.metrics import endpoint, otel_setup, prometheus
from spark_ext.metrics.gauges import Live, QueryFacts
from spark_ext.metrics.job_metrics import JobMetrics
from spark_ext.metrics.otel import Bridge

if TYPE_CHECKING:
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.queries.context import JobContext
    from spark_ext.settings import JobSettings


def check_measuring(job: str, settings: JobSettings) -> None:
    """Refuse settings for which something is missing here.

    Args:
        job: its name.
        settings: its settings.

    Raises:
        EnvironmentProblem: the library of an extra is not installed.
        ConfigurationError: the environment names an exporter of OpenTelemetry that there is not.
    """
    for name in ("metrics", "metrics_port"):
        if getattr(settings, name):
            prometheus.check(_who(job, name))
    if settings.opentelemetry:
        otel_setup.check(_who(job, "opentelemetry"))


def measured(job: str, settings: JobSettings) -> JobMetrics | None:
    """The metrics of a run that is about to be started; None: nobody wants them.

    Args:
        job: its name.
        settings: its settings.

    Raises:
        ConfigurationError: the port is in use.
        EnvironmentProblem: the library of an extra is not installed.
    """
    if not settings.measured:
        return None
    metrics = JobMetrics(job)
    if settings.metrics_port:
        endpoint.at(settings.metrics_host, settings.metrics_port, _who(job, "metrics_port")).show(metrics)
    if settings.opentelemetry:
        providers = otel_setup.providers(_who(job, "opentelemetry"))
        metrics.follow(Bridge(metrics, providers, version("spark-ext")))
    return metrics


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
                )
                for run in coordinator.runs
            },
            application_id=application_id,
            rows_in_flight=coordinator.rows_in_flight,
            ledger_waiting=context.write_behind.waiting,
        )

    metrics.watch(live)
    metrics.read_past(Ledger(context.state), context.incarnation.number)
    coordinator.at_end.append(metrics.end)


def _who(job: str, setting: str) -> str:
    return f"job '{job}', setting '{setting}'"
