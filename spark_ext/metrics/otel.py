"""Metrics and spans for OpenTelemetry: made on a thread of their own, so that no exporter holds a job."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from queue import SimpleQueue
from typing import Any, Final
from weakref import WeakKeyDictionary

from spark_ext.clients.library import load
from spark_ext.masking import logger
from spark_ext.metrics.book import Sample
from spark_ext.metrics.catalogue import CATALOGUE, Metric, MetricKind
from spark_ext.metrics.job_metrics import JobMetrics, Moment
from spark_ext.metrics.otel_setup import EXTRA, Providers
from spark_ext.metrics.spans import Span, spans

log = logger("spark_ext.metrics")

WAITING: Final = 10_000  # how many rows may wait; further ones are dropped, and counted
FLUSH_WITHIN: Final = 5_000  # how long the last export may take, ms
SAME: Final = 0.2  # how long one look at a job serves the instruments that ask for it one after the other, s
SCOPE: Final = "spark_ext"  # name of the instrumentation scope


class Instruments:
    """The instruments of a meter provider, shared by the jobs of the process."""

    def __init__(self, provider: Any, version: str) -> None:
        self._jobs: dict[str, JobMetrics] = {}
        self._polled: dict[str, tuple[float, dict[str, list[Sample]]]] = {}
        self._observation = load("opentelemetry.metrics", EXTRA, "metrics").Observation
        meter = provider.get_meter(SCOPE, version)
        self._histograms: dict[str, Any] = {}
        for metric in CATALOGUE:
            named = {"name": metric.otel, "unit": metric.otel_unit, "description": metric.help}
            if metric.kind is MetricKind.HISTOGRAM:
                bounds = list(metric.buckets)
                self._histograms[metric.name] = meter.create_histogram(
                    **named, explicit_bucket_boundaries_advisory=bounds
                )
            else:
                counter = metric.kind is MetricKind.COUNTER
                make = meter.create_observable_counter if counter else meter.create_observable_gauge
                make(**named, callbacks=[self._callback(metric)])

    def show(self, metrics: JobMetrics) -> None:
        """Report a run; it replaces an earlier one of a job of the same name."""
        self._jobs = {**self._jobs, metrics.job: metrics}
        self._polled.pop(metrics.job, None)

    def hide(self, metrics: JobMetrics) -> None:
        """Report a run no longer."""
        self._jobs = {name: one for name, one in self._jobs.items() if one is not metrics}

    def record(self, moment: Moment) -> None:
        """Take the observations of a moment."""
        for change in moment.changes:
            if change.metric.kind is MetricKind.HISTOGRAM:
                attributes = dict(zip(change.metric.labels, change.labels, strict=True))
                self._histograms[change.metric.name].record(change.value, attributes)

    def _callback(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            for name, job in self._jobs.items():
                for sample in self._poll(name, job).get(metric.name, ()):
                    yield self._observation(sample.value, sample.named)

        return observe

    def _poll(self, name: str, job: JobMetrics) -> dict[str, list[Sample]]:
        now = time.monotonic()
        at, found = self._polled.get(name, (float("-inf"), {}))
        if now - at > SAME:
            found = {}
            for sample in job.samples():
                found.setdefault(sample.metric.name, []).append(sample)
            self._polled[name] = now, found
        return found


_instruments: Final[WeakKeyDictionary[Any, Instruments]] = WeakKeyDictionary()


class Bridge:
    """Follows one run of a job, and reports it to OpenTelemetry."""

    def __init__(self, metrics: JobMetrics, providers: Providers, version: str) -> None:
        self._metrics, self._providers = metrics, providers
        self._tracer = providers.tracer.get_tracer(SCOPE, version)
        if providers.meter not in _instruments:
            _instruments[providers.meter] = Instruments(providers.meter, version)
        self._instruments = _instruments[providers.meter]
        self._instruments.show(metrics)
        self._trace = load("opentelemetry.trace", EXTRA, "metrics")
        self._queue: SimpleQueue[Moment | None] = SimpleQueue()
        self._dropped = 0
        self._ended = False
        self._thread = threading.Thread(target=self._work, name=f"spark-ext-otel-{metrics.job}", daemon=True)
        self._thread.start()
        # A process that ends with its job exports the rest first, if that is possible in a short time.
        atexit.register(self.wait)

    @property
    def dropped(self) -> int:
        """How many rows it could not keep up with."""
        return self._dropped

    def take(self, moment: Moment) -> None:
        """Take a moment; waits for nothing."""
        if self._queue.qsize() < WAITING:
            self._queue.put(moment)
        else:
            self._dropped += 1

    def end(self) -> None:
        """The job has ended: what waits is exported on the thread, which then ends."""
        if not self._ended:
            self._ended = True
            self._queue.put(None)

    def wait(self, seconds: float = 2 * FLUSH_WITHIN / 1000) -> bool:
        """End, and wait until all is exported, at most so long; returns whether it is."""
        self.end()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        failed = False
        while (moment := self._queue.get()) is not None:
            try:
                self._instruments.record(moment)
                self._make(spans(self._metrics.job, moment))
            except Exception:
                if not failed:
                    failed = True
                    log.exception("job '%s' could not be reported to OpenTelemetry", self._metrics.job)
        for provider in self._providers:
            try:
                if hasattr(provider, "force_flush"):
                    provider.force_flush(FLUSH_WITHIN)
            except Exception as problem:
                log.warning("the last export of job '%s' failed: %s", self._metrics.job, problem)
        self._instruments.hide(self._metrics)
        atexit.unregister(self.wait)

    def _make(self, made: Iterable[Span]) -> None:
        contexts: dict[int, Any] = {}
        for one in made:
            context = contexts.get(id(one.follows))
            span = self._tracer.start_span(
                one.name,
                context=load("opentelemetry.context", EXTRA, "metrics").Context(),
                attributes=dict(one.attributes),
                links=[] if context is None else [self._trace.Link(context)],
                start_time=_ns(one.since),
            )
            if one.error:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, one.error))
            span.end(end_time=_ns(one.until))
            contexts[id(one)] = span.get_span_context()


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
