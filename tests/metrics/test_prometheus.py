"""What Prometheus reads: each metric of the catalogue with its labels, of all jobs of a driver, and from which port."""

import gc
import json
import subprocess
import sys
import urllib.request
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.metrics import exporters
from spark_ext.metrics.catalogue import CATALOGUE, MetricKind
from spark_ext.metrics.downtime import Past
from spark_ext.metrics.exporters import Exposition
from tests.ledger.rows import checkpoint, epoch, flag
from tests.metrics.jobs import BY_NAME, live, measured, value
from tests.metrics.rows import bad_rows, incident, state
from tests.servers.ports import free_ports
from tests.views.test_timeline import at

ROWS = (
    state("RUNNING", 1), epoch(0, at=at(50)), replace(epoch(1, at=at(90)), late_rows=4), flag(1),
    incident("a", 80, type="NETWORK", origin="user"), epoch(2, at=at(95)), checkpoint(1), bad_rows(1, 7),
    bad_rows(1, 7), replace(bad_rows(2, 5), rules={"positive": 3}), replace(bad_rows(3, 0), rules={"positive": 1}),
    replace(bad_rows(2, 0), rules={"positive": 3}, path="/other"),
)  # fmt: skip
OPEN = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def no_endpoints() -> Iterator[None]:
    exporters.close_all()
    yield
    exporters.close_all()


def parsed(text: str, accept: str = "") -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = (open_metrics if accept else plain_text)(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def series(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.mark.parametrize("accept", ["", OPEN], ids=["text", "openmetrics"])
def test_its_own_parser_reads_what_was_counted(accept: str) -> None:
    metrics = measured(*ROWS, shown=live(rows_in_flight=5, watermark="2026-01-01T12:01:30.000Z"))
    metrics.begin(Past(at(0)))
    text, content_type = Exposition(lambda: [metrics]).text(accept)
    assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
    found = parsed(text.decode(), accept)
    more: dict[str, str]
    for name, more, expected in (
        ("epochs_total", {}, 3),
        ("input_rows_total", {}, 30),
        ("late_rows_total", {}, 4),
        ("bad_rows_total", {"source": "q-in"}, 12),  # a row may come twice
        ("rule_failed_rows_total", {"rule": "positive"}, 4),
        ("epoch_duration_seconds_count", {}, 3),
        ("epoch_duration_seconds_bucket", {"le": "0.01"}, 3),
        ("epoch_stage_seconds_total", {"stage": "execution"}, 0.009),
        ("epoch_part_seconds_total", {"part": "commit"}, 0.006),
        ("source_lag_rows", {"source": "q-in"}, 12),
        ("recovery_duration_seconds_sum", {"class": "NETWORK"}, 15),
        ("query_state", {"state": "RUNNING"}, 1),
        ("query_state", {"state": "FINISHED"}, 0),
        ("watermark_delay_seconds", {}, 10),
        ("last_commit_timestamp_seconds", {}, at(95).timestamp()),
        ("query_info", {"query_id": "id-q", "run_id": "r", "query_name": "j/q", "spark_app_id": "local-1"}, 1),
    ):
        assert found[series(f"spark_ext_{name}", job="j", query="q", **more)] == pytest.approx(expected), name
    assert found[series("spark_ext_lag_rows", job="j")] == 5


def test_each_family_is_of_the_catalogue_and_has_its_labels() -> None:
    metrics = measured(*ROWS, shown=live(rows_in_flight=5, watermark="2026-01-01T12:01:30.000Z"))
    metrics.begin(Past(at(0)))
    metrics.report("late", 1, "", True)
    metrics.report("late", 1, "", False)
    text = Exposition(lambda: [metrics]).text()[0].decode()
    seen = set()
    for family in plain_text(text):
        metric = BY_NAME[family.name + ("_total" if family.type == "counter" else "")]
        seen.add(metric.name)
        assert family.type == metric.kind.value and family.documentation == metric.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
            assert ("le" in sample.labels) <= (metric.kind is MetricKind.HISTOGRAM)
    unseen = {metric.name for metric in CATALOGUE} - seen
    exchanges = ("exchange_rows", "exchange_bytes", "exchange_stored_bytes", "held_back_seconds_total")
    inboxes = {name for name in unseen if name.startswith("spark_ext_inbox_")}
    assert len(inboxes) == 11
    others = (
        *("checkpoint_duration_seconds", "latency_seconds", "latest_latency_seconds", "state_duration_seconds"),
        *exchanges,
    )
    assert unseen - inboxes == {f"spark_ext_{name}" for name in (*others, "telemetry_dropped_total")}


def test_jobs_of_one_driver_share_a_family() -> None:
    one, two = measured(epoch(0), job="one", shown=live("one")), measured(epoch(0), job="two", shown=live("two"))
    text = Exposition(lambda: [one, two]).text()[0].decode()
    assert text.count("# TYPE spark_ext_epochs_total counter") == 1
    assert {labels for name, labels in parsed(text) if name == "spark_ext_epochs_total"} == {
        frozenset({("job", name), ("query", "q")}) for name in ("one", "two")
    }


def test_hostile_names_are_quoted() -> None:
    name = 'a"} 1\nspark_ext_epochs_total{job="x'
    text = Exposition(lambda: [measured(epoch(0, name))]).text()[0].decode()
    assert parsed(text)[series("spark_ext_epochs_total", job="j", query=name)] == 1
    shared = [family.name for family in prometheus_client.REGISTRY.collect()]
    assert not any(name.startswith("spark_ext") for name in shared), "the library's global registry is not touched"


def scraped(port: int) -> dict[Any, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return parsed(answer.read().decode())


def test_jobs_share_a_port_and_a_later_run_replaces_an_earlier(no_endpoints: None) -> None:
    (port,) = free_ports(1)
    for metrics in (measured(epoch(0)), measured(epoch(0), job="k"), measured(epoch(0), epoch(1))):
        exporters.at("127.0.0.1", port, "job").show(metrics)
    found = scraped(port)
    assert found[series("spark_ext_epochs_total", job="j", query="q")] == 2
    assert found[series("spark_ext_epochs_total", job="k", query="q")] == 1


def test_a_port_that_is_in_use_is_refused_by_name(no_endpoints: None) -> None:
    (port,) = free_ports(1)
    taken = exporters.Endpoint("127.0.0.1", port)
    try:
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}") as refused:
            exporters.at("127.0.0.1", port, "job 'j', setting 'metrics_port'")
        assert "metrics_port" in refused.value.operator and "metrics_port" in refused.value.do
    finally:
        taken.close()
    exporters.at("127.0.0.1", port, "job")


def test_a_missing_library_is_refused_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(EnvironmentProblem) as refused:
        exporters.check("job 'j', setting 'metrics_port'")
    assert refused.value.do == "pip install 'spark-ext[metrics]', for the Python of the driver"
    assert "metrics_port" in refused.value.operator


def test_with_everything_off_no_library_or_thread_is_needed() -> None:
    code = """
import json, sys, threading
from spark_ext.jobs import job
from spark_ext.metrics import exporters
from spark_ext.settings import JobSettings
settings = JobSettings.of("j", {})
exporters.check_measuring("j", settings)
assert exporters.measured("j", settings) is None
threads = [one.name for one in threading.enumerate()]
print(json.dumps([sorted({name.partition(".")[0] for name in sys.modules}), threads]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, threads = json.loads(done.stdout)
    assert not {"prometheus_client", "opentelemetry"} & set(loaded)
    assert threads == ["MainThread"]


def test_values_stay_after_the_end_whatever_rows_come_then() -> None:
    metrics = measured(*ROWS, shown=live())
    metrics.end()
    metrics.watch(lambda: live(rows_in_flight=99))
    metrics.tap(epoch(9))
    assert value(metrics, "spark_ext_epochs_total", "q") == 3
    assert not [one for one in metrics.samples() if one.metric.name == "spark_ext_lag_rows"]


def test_a_run_that_has_ended_is_not_kept_alive_for_its_figures() -> None:
    class Run:
        """What a gauge would be read from."""

    run = Run()
    seen, metrics = weakref.ref(run), measured(*ROWS)
    metrics.watch(lambda run=run: live() if run else None)  # type: ignore[misc]
    del run
    metrics.end()
    gc.collect()
    assert seen() is None and value(metrics, "spark_ext_state_rows", "q") == 7


def test_a_row_that_cannot_be_counted_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    metrics = measured()
    for _ in range(2):
        metrics.tap(replace(incident("a", 1), labels=7))
    metrics.tap(epoch(0))
    assert value(metrics, "spark_ext_epochs_total", "q") == 1
    assert len(caplog.records) == 1
