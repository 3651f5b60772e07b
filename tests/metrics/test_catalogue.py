"""Names, units and labels of all metrics keep to the conventions of Prometheus and of OpenTelemetry's translation."""

import re
from itertools import pairwise

import pytest

from spark_ext.metrics.catalogue import CATALOGUE, LABELS, Metric, MetricKind

NEVER = {"channel", "epoch", "event", "event_id", "message", "incident_id", "incarnation", "offset", "le", "instance"}


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_name_says_type_and_unit_and_labels_are_bounded(metric: Metric) -> None:
    assert re.fullmatch(r"spark_ext(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is MetricKind.COUNTER)
    assert not re.search(r"_(count|sum|bucket|created)$", metric.name)
    assert not re.search(r"(milli|micro|nano)?(_ms|_millis|minutes|hours|bytes_kb)", metric.name)
    if metric.unit:
        assert metric.base.endswith(f"_{metric.unit}")
    for unit in ("seconds", "rows", "bytes"):
        assert (unit in metric.base.split("_")) <= (metric.unit == unit)
    assert metric.labels[0] == "job" and len(set(metric.labels)) == len(metric.labels)
    assert set(metric.labels) <= LABELS.keys() and not set(metric.labels) & NEVER
    assert metric.help and not metric.help.endswith(".") and "\n" not in metric.help
    assert bool(metric.buckets) is (metric.kind is MetricKind.HISTOGRAM)
    assert all(low < high for low, high in pairwise(metric.buckets))


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_opentelemetry_leads_to_the_same_name_in_prometheus(metric: Metric) -> None:
    """The translation of its specification: dots, then the unit unless it is an annotation, then `_total`."""
    name = metric.otel.replace(".", "_")
    unit = {"s": "seconds"}.get(metric.otel_unit, "")
    assert metric.otel_unit in ("", "s") or re.fullmatch(r"\{\w+\}", metric.otel_unit)
    name += f"_{unit}" if unit and not name.endswith(f"_{unit}") else ""
    assert name + ("_total" if metric.kind is MetricKind.COUNTER else "") == metric.name


def test_names_are_unique_and_every_label_is_used() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE) == len({metric.otel for metric in CATALOGUE})
    assert {label for metric in CATALOGUE for label in metric.labels} == LABELS.keys()
