"""Metrics in Prometheus' formats, through `prometheus-client` and a registry of our own: never its global one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from spark_ext.clients.library import load
from spark_ext.metrics.book import Sample
from spark_ext.metrics.catalogue import CATALOGUE, Kind, Metric
from spark_ext.metrics.job_metrics import JobMetrics

EXTRA: Final = "metrics"
"""The extra of this package that installs the library."""

Sources = Callable[[], Iterable[JobMetrics]]


def check(who: str) -> None:
    """Refuse what needs the library if it is not installed."""
    load("prometheus_client", EXTRA, who, "the Python of the driver")


class Exposition:
    """The metrics of some jobs, each metric once with the series of all jobs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        client = load("prometheus_client", EXTRA, "metrics")
        self.registry: Any = client.CollectorRegistry(auto_describe=False)
        """A registry with this as its only collector."""
        self.registry.register(self)

    def collect(self) -> Iterator[Any]:
        """All families, as the library wants them of a collector."""
        by_name: dict[str, list[Sample]] = defaultdict(list)
        for job in self._sources():
            for sample in job.samples():
                by_name[sample.metric.name].append(sample)
        for metric in CATALOGUE:
            if metric.name in by_name:
                yield _family(metric, by_name[metric.name])

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics as text.

        Returns:
            The text and its content type.
        """
        exposition = load("prometheus_client.exposition", EXTRA, "metrics")
        encode, content_type = exposition.choose_encoder(accept)
        return encode(self.registry), content_type


def _family(metric: Metric, samples: Iterable[Sample]) -> Any:
    core = load("prometheus_client.core", EXTRA, "metrics")
    if metric.kind is Kind.HISTOGRAM:
        found = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            assert sample.distribution is not None
            found.add_metric(sample.labels, list(sample.distribution.cumulated(metric)), sample.distribution.sum)
        return found
    kind = core.CounterMetricFamily if metric.kind is Kind.COUNTER else core.GaugeMetricFamily
    found = kind(metric.base, metric.help, labels=metric.labels)
    for sample in samples:
        found.add_metric(sample.labels, sample.value)
    return found
