"""The dashboard and the alert rules ask for metrics and labels that there are, as fits the type of each."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import promql_parser as promql
import pytest
import yaml

from spark_ext.metrics.catalogue import LABELS, Metric, MetricKind
from tests.metrics.jobs import BY_NAME

DASHBOARD = json.loads(files("spark_ext.conf").joinpath("grafana-dashboard.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load(files("spark_ext.conf").joinpath("prometheus-rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
OF_COUNTERS = {"rate", "increase", "irate"}
OF_GAUGES = {"deriv", "delta", "max_over_time", "changes", "min_over_time", "avg_over_time"}
VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m"}


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], note["expr"]


EXPRESSIONS = dict(expressions())


def metric_of(name: str) -> tuple[Metric, str]:
    """The metric of a series, and what of a histogram it is."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name not in BY_NAME and name.endswith(suffix):
            metric = BY_NAME[name.removesuffix(suffix)]
            assert metric.kind is MetricKind.HISTOGRAM, name
            return metric, suffix
    assert name in BY_NAME, f"there is no metric {name}"
    assert BY_NAME[name].kind is not MetricKind.HISTOGRAM, f"{name} has no series of its own"
    return BY_NAME[name], ""


def check(node: Any, within: str = "") -> set[str]:
    """Check an expression; returns the labels that its result may have."""
    if isinstance(node, promql.Call):
        name = node.func.name
        if name == "histogram_quantile":
            found = check(node.args[1])
            assert "le" in found, "a quantile needs the buckets"
            return found - {"le"}
        labels: set[str] = set()
        for argument in node.args:
            labels |= check(argument, name)
        return labels
    if isinstance(node, promql.MatrixSelector):
        assert within in OF_COUNTERS | OF_GAUGES, within
        return check(node.vector_selector, within)
    if isinstance(node, promql.VectorSelector):
        return check_selector(node, within)
    if isinstance(node, promql.AggregateExpr):
        labels = check(node.expr)
        by = node.modifier
        if by is None:
            return set()
        asked = set(by.labels)
        assert str(by.type) == "AggModifierType.By" and asked <= labels, f"{asked - labels} are not labels here"
        return asked
    if isinstance(node, promql.BinaryExpr):
        sides = [check(side) for side in (node.lhs, node.rhs) if not is_scalar(side)]
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None:
            assert all(set(matching.labels) <= side for side in sides), matching.labels
        return sides[0] if sides else set()
    if isinstance(node, (promql.ParenExpr, promql.UnaryExpr, promql.SubqueryExpr)):
        return check(node.expr, within)
    assert isinstance(node, promql.NumberLiteral), type(node)
    return set()


def is_scalar(node: Any) -> bool:
    return isinstance(node, promql.NumberLiteral) or (isinstance(node, promql.Call) and node.func.name == "time")


def check_selector(node: Any, within: str) -> set[str]:
    metric, part = metric_of(node.name)
    counts = metric.kind is MetricKind.COUNTER or bool(part)
    assert not (within in OF_COUNTERS and not counts), f"{within}({node.name}): it is a gauge"
    assert not (within in OF_GAUGES and counts), f"{within}({node.name}): it is a counter"
    for matcher in node.matchers.matchers:
        assert matcher.name in metric.labels, f"{node.name} has no label {matcher.name}"
        label = LABELS[matcher.name]
        if not label.open:
            assert set(matcher.value.split("|")) <= set(label.values), f"{matcher.name}: {matcher.value}"
    return {*metric.labels, *(["le"] if part == "_bucket" else [])}


def parse(text: str) -> Any:
    for variable, given in VARIABLES.items():
        text = text.replace(variable, given)
    return promql.parse(text)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_asks_for_what_there_is(name: str) -> None:
    check(parse(EXPRESSIONS[name]))


@pytest.mark.parametrize(
    "wrong",
    [
        "rate(spark_ext_state_rows[5m])", "deriv(spark_ext_epochs_total[5m])", "spark_ext_epoch_total",
        "spark_ext_epoch_duration_seconds", 'spark_ext_epochs_total{channel="c"}',
        'spark_ext_query_state{state="RUNING"}', "sum by (source) (rate(spark_ext_epochs_total[5m]))",
        "histogram_quantile(0.9, sum by (job) (rate(spark_ext_epoch_duration_seconds_bucket[5m])))",
        "histogram_quantile(0.9, rate(spark_ext_epoch_duration_seconds_sum[5m]))",
        "spark_ext_lag_rows and on (query) spark_ext_state_rows",
    ],
)  # fmt: skip
def test_the_check_finds_what_is_wrong(wrong: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check(parse(wrong))


def test_the_dashboard_shows_every_metric_that_describes_a_job() -> None:
    shown = set(re.findall(r"spark_ext_\w+", json.dumps(DASHBOARD)))
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert BY_NAME.keys() - shown == {"spark_ext_start_timestamp_seconds", "spark_ext_telemetry_dropped_total"}


def test_the_dashboard_has_its_rows_and_a_choice_of_data_source() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Epochs", "Lag", "Checkpoints", "Incidents and availability", "Query $query"]
    sources = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if panel["type"] != "row"}
    assert sources == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        mine = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not mine & places and grid["x"] + grid["w"] <= 24, panel["title"]
        places |= mine


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "do"}
    labels = check(parse(rule["expr"]))
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert "job" in named and named <= labels, "a summary names labels that the alert has"
