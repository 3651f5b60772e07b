"""The exporters that the settings of a run ask for: `/metrics` for Prometheus, and OpenTelemetry.

A driver has one endpoint for each address, shared by all jobs of the process that name it. It exists as long as the
process, as is usual for Prometheus: the last figures of a job that has ended can be scraped. With everything off
nothing is made: no thread, no counter, and no optional library is imported.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from spark_ext.clients.library import load
from spark_ext.clients.listener import Listener
from spark_ext.errors import refused
from spark_ext.masking import logger
from spark_ext.metrics import otel_setup
from spark_ext.metrics.book import Sample
from spark_ext.metrics.catalogue import CATALOGUE, Metric, MetricKind
from spark_ext.metrics.job_metrics import JobMetrics
from spark_ext.metrics.otel import Bridge

if TYPE_CHECKING:
    from spark_ext.settings import JobSettings

EXTRA: Final = "metrics"  # the extra of this package that installs the library
Sources = Callable[[], Iterable[JobMetrics]]


def check(operator: str) -> None:
    """Refuse what needs the library if it is not installed."""
    load("prometheus_client", EXTRA, operator, "the Python of the driver")


class Exposition:
    """The metrics of some jobs, each metric once with the series of all jobs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        client = load("prometheus_client", EXTRA, "metrics")
        self.registry: Any = client.CollectorRegistry(auto_describe=False)  # a registry with this as its only collector
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
        """All metrics as text, and its content type."""
        exposition = load("prometheus_client.exposition", EXTRA, "metrics")
        encode, content_type = exposition.choose_encoder(accept)
        return encode(self.registry), content_type


def _family(metric: Metric, samples: Iterable[Sample]) -> Any:
    core = load("prometheus_client.core", EXTRA, "metrics")
    if metric.kind is MetricKind.HISTOGRAM:
        found = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            assert sample.distribution is not None
            found.add_metric(sample.labels, list(sample.distribution.cumulated(metric)), sample.distribution.sum)
        return found
    kind = core.CounterMetricFamily if metric.kind is MetricKind.COUNTER else core.GaugeMetricFamily
    found = kind(metric.base, metric.help, labels=metric.labels)
    for sample in samples:
        found.add_metric(sample.labels, sample.value)
    return found


log = logger("spark_ext.metrics")

CONNECTIONS: Final = 32  # of an endpoint at once, each on a thread of its own; a further one replaces the oldest


class Endpoint:
    """An HTTP server on threads of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._jobs: dict[str, JobMetrics] = {}
        self._lock = threading.Lock()
        client = load("prometheus_client", EXTRA, "metrics")
        self._server: Any
        self._server, self._thread = client.start_http_server(port, host, registry=Exposition(self.jobs).registry)
        self._server.socket = Listener(self._server.socket, CONNECTIONS)
        self._server.socket.listen(CONNECTIONS)

    def jobs(self) -> list[JobMetrics]:
        """The jobs that it shows."""
        with self._lock:
            return list(self._jobs.values())

    def show(self, metrics: JobMetrics) -> None:
        """Show a run; it replaces an earlier one of a job of the same name."""
        with self._lock:
            self._jobs[metrics.job] = metrics

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_open: Final[dict[tuple[str, int], Endpoint]] = {}
_lock: Final = threading.Lock()


def at(host: str, port: int, operator: str) -> Endpoint:
    """The endpoint of this process at an address; made if it is not there."""
    with _lock:
        if (host, port) not in _open:
            try:
                _open[host, port] = Endpoint(host, port)
            except (OSError, OverflowError) as problem:
                raise refused(
                    f"metrics cannot be served at {host}:{port}: {problem}",
                    operator,
                    "use another metrics_port, or metrics_host; metrics_port=0 switches it off",
                    kept="nothing was started",
                ) from None
            log.info("metrics are served at http://%s:%d/metrics", host, port)
        return _open[host, port]


def close_all() -> None:
    """Close all endpoints of this process."""
    with _lock:
        while _open:
            _open.popitem()[1].close()


def check_measuring(job: str, settings: JobSettings) -> None:
    """Refuse settings for which something is missing here."""
    for name in ("metrics", "metrics_port"):
        if getattr(settings, name):
            check(_operator(job, name))
    if settings.opentelemetry:
        otel_setup.check(_operator(job, "opentelemetry"))


def measured(job: str, settings: JobSettings) -> JobMetrics | None:
    """The metrics of a run that is about to be started; None: nobody wants them."""
    if not settings.measured:
        return None
    metrics = JobMetrics(job)
    if settings.metrics_port:
        at(settings.metrics_host, settings.metrics_port, _operator(job, "metrics_port")).show(metrics)
    if settings.opentelemetry:
        providers = otel_setup.providers(_operator(job, "opentelemetry"))
        metrics.follow(Bridge(metrics, providers, version("spark-ext")))
    return metrics


def _operator(job: str, setting: str) -> str:
    return f"job '{job}', setting '{setting}'"
