"""The listeners `log` and `prometheus`."""

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from spark_ext.incidents.types import EventKind, MetricsContext, Severity
from spark_ext.listeners.log import LogListener, line
from spark_ext.listeners.prometheus import PrometheusListener
from tests.incidents.made import OPEN, RESOLVED, change, event

SHOP = MetricsContext(job="shop")


def test_the_level_is_that_of_the_severity(caplog: pytest.LogCaptureFixture) -> None:
    listener = LogListener(logger="shop.pager")
    with caplog.at_level(logging.INFO, "shop.pager"):
        for severity in Severity:
            listener.changed(change("abc", severity=severity), SHOP)
        listener.changed(change("abc", RESOLVED, OPEN, severity=Severity.CRITICAL), SHOP)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR", "CRITICAL", "INFO"]


def test_a_change_on_one_line() -> None:
    context = MetricsContext(job="shop", epoch=7, rows=100, lag=None)
    again = change("abcdef0123", OPEN, RESOLVED, count=4, what="it\tis late\nbecause", severity=Severity.ERROR)
    assert line(again, context) == (
        "[ERROR] late abcdef01 opened again: job 'shop', query 'q': it is late (because); 4 times; epoch 7, rows 100"
    )


def values(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    labels = ("job", "type", "severity", "state")
    return {
        (one.name, *(one.labels[name] for name in labels if name in one.labels)): one.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for one in family.samples
        if not one.name.endswith("_created")
    }


def test_prometheus_counts_changes_and_what_is_open() -> None:
    registry = CollectorRegistry()
    one, other = PrometheusListener(registry=registry), PrometheusListener(registry=registry)
    one.changed(change("a"), SHOP)
    one.changed(change("b"), SHOP)
    one.changed(change("a", RESOLVED, OPEN), SHOP)
    one.changed(change("unknown", RESOLVED, OPEN), SHOP)  # left open by an earlier driver: it was never counted
    other.changed(change("c"), MetricsContext(job="other"))
    assert values(registry) == {
        ("spark_ext_incident_changes_total", "shop", "late", "WARNING", "open"): 2,
        ("spark_ext_incident_changes_total", "shop", "late", "WARNING", "resolved"): 2,
        ("spark_ext_incident_changes_total", "other", "late", "WARNING", "open"): 1,
        ("spark_ext_incidents_open", "shop", "late", "WARNING"): 1,
        ("spark_ext_incidents_open", "other", "late", "WARNING"): 1,
    }
    one.close()
    assert values(registry)[("spark_ext_incidents_open", "shop", "late", "WARNING")] == 0


def test_events_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    with caplog.at_level(logging.INFO, "shop.pager"):
        for listener in (LogListener(logger="shop.pager"), PrometheusListener(registry=registry)):
            listener.happened(event("RESTARTING", old="RUNNING", cause="it\tfailed\nbadly"), SHOP)
            listener.happened(event("FINISHED", EventKind.SOURCE, source="in", details={"epoch": 4}), SHOP)
    assert [record.getMessage() for record in caplog.records] == [
        "[state] job 'shop', query 'q': RUNNING -> RESTARTING: it failed",
        "[source] job 'shop', query 'q', source 'in': FINISHED; epoch 4",
    ]
    text = generate_latest(registry).decode()
    assert 'spark_ext_lifecycle_events_total{job="shop",kind="state",new="RESTARTING"} 1.0' in text
    assert 'spark_ext_lifecycle_events_total{job="shop",kind="source",new="FINISHED"} 1.0' in text
