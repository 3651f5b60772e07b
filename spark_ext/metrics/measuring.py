"""The metrics that the settings of a run ask for.

With everything off nothing is made: no thread, no counter, and no optional library is imported.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from spark_ext.metrics import endpoint, otel_setup, prometheus
from spark_ext.metrics.job_metrics import JobMetrics
from spark_ext.metrics.otel import Bridge

if TYPE_CHECKING:
    from spark_ext.settings import JobSettings


def check_measuring(job: str, settings: JobSettings) -> None:
    """Refuse settings for which something is missing here."""
    for name in ("metrics", "metrics_port"):
        if getattr(settings, name):
            prometheus.check(_who(job, name))
    if settings.opentelemetry:
        otel_setup.check(_who(job, "opentelemetry"))


def measured(job: str, settings: JobSettings) -> JobMetrics | None:
    """The metrics of a run that is about to be started; None: nobody wants them."""
    if not settings.measured:
        return None
    metrics = JobMetrics(job)
    if settings.metrics_port:
        endpoint.at(settings.metrics_host, settings.metrics_port, _who(job, "metrics_port")).show(metrics)
    if settings.opentelemetry:
        providers = otel_setup.providers(_who(job, "opentelemetry"))
        metrics.follow(Bridge(metrics, providers, version("spark-ext")))
    return metrics


def _who(job: str, setting: str) -> str:
    return f"job '{job}', setting '{setting}'"
