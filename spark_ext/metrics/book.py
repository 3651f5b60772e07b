"""The values of one job's metrics: counters and histograms that were changed, and a limit on how many there are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from spark_ext.masking import logger
from spark_ext.metrics.catalogue import LABELS, OTHER, Metric, MetricKind

log = logger("spark_ext.metrics")

LIMIT: Final = 1_000  # different values of a metric's open labels that are kept apart: some queries and their sources


@dataclass(frozen=True)
class Change:
    """A change of a counter, a further observation of a histogram, or the new value of a gauge."""

    metric: Metric
    labels: tuple[str, ...]  # values in the order of the metric's labels
    value: float = 1.0


@dataclass(frozen=True)
class Distribution:
    """The value of a histogram."""

    counts: tuple[int, ...]  # observations in each bucket, and above the last one
    sum: float

    def cumulated(self, metric: Metric) -> Iterator[tuple[str, int]]:
        """The upper bound of each bucket as text, and how many observations are not above it; `+Inf` last."""
        total = 0
        for bound, count in zip((*map(str, metric.buckets), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total


@dataclass(frozen=True)
class Sample:
    """The value of a metric for some values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float  # of a histogram, the number of observations
    distribution: Distribution | None = None  # of a histogram

    @property
    def named(self) -> dict[str, str]:
        """The labels by name."""
        return dict(zip(self.metric.labels, self.labels, strict=True))


class Bound:
    """Keeps the number of series of each metric limited: further values of open labels become `_other`."""

    def __init__(self, job: str, limit: int = LIMIT, warn: Callable[[str], None] = log.warning) -> None:
        self._job, self._limit, self._warn = job, limit, warn
        self._seen: dict[str, set[tuple[str, ...]]] = {}
        self._warned: set[str] = set()

    def admit(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels under which a value is kept."""
        seen = self._seen.setdefault(metric.name, set())
        free = tuple(value for name, value in zip(metric.labels, labels, strict=True) if _limited(name))
        if free in seen:
            return labels
        if len(seen) < self._limit:
            seen.add(free)
            return labels
        if metric.name not in self._warned:
            self._warned.add(metric.name)
            self._warn(
                f"job '{self._job}': {metric.name} has more than {self._limit} combinations of "
                f"{', '.join(filter(_limited, metric.labels))}; further ones are counted as {OTHER}"
            )
        return tuple(OTHER if _limited(name) else value for name, value in zip(metric.labels, labels, strict=True))


def _limited(name: str) -> bool:
    """A job's own name is one value."""
    return LABELS[name].open and name != "job"


class Book:
    """Counters and histograms, and gauges that were set. For one thread at a time."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}
        self._counts: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        self._metrics: dict[str, Metric] = {}

    def apply(self, change: Change) -> None:
        """Apply a change."""
        metric = change.metric
        self._metrics[metric.name] = metric
        key = metric.name, self._bound.admit(metric, change.labels)
        if metric.kind is MetricKind.GAUGE:
            self._values[key] = change.value
            return
        self._values[key] = self._values.get(key, 0.0) + change.value
        if metric.kind is MetricKind.HISTOGRAM:
            counts = self._counts.setdefault(key, [0] * (len(metric.buckets) + 1))
            counts[bisect_left(metric.buckets, change.value)] += 1

    def samples(self) -> list[Sample]:
        """All values."""
        found = []
        for (name, labels), value in self._values.items():
            metric = self._metrics[name]
            counts = self._counts.get((name, labels))
            spread = None if counts is None else Distribution(tuple(counts), value)
            found.append(Sample(metric, labels, value if spread is None else sum(spread.counts), spread))
        return found


def folded(samples: Iterable[Sample], bound: Bound) -> list[Sample]:
    """Gauges with limited labels: those that share labels then are one."""
    found: dict[tuple[str, tuple[str, ...]], Sample] = {}
    for sample in samples:
        labels = bound.admit(sample.metric, sample.labels)
        key = sample.metric.name, labels
        value = sample.metric.fold(found[key].value, sample.value) if key in found else sample.value
        found[key] = Sample(sample.metric, labels, value)
    return list(found.values())
