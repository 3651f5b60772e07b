"""What OpenTelemetry's SDK is handed: the same figures as Prometheus, and spans; and where it is exported to."""

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.metrics import otel, otel_setup
from spark_ext.metrics.catalogue import CATALOGUE, MetricKind
from spark_ext.metrics.downtime import Past
from spark_ext.metrics.job_metrics import JobMetrics
from spark_ext.metrics.otel import Bridge
from spark_ext.metrics.otel_setup import Providers
from tests.ledger.rows import epoch
from tests.listeners.endpoint import serving
from tests.metrics.jobs import live, measured
from tests.metrics.rows import incident
from tests.metrics.test_prometheus import ROWS
from tests.support.waiting import until
from tests.views.test_timeline import at


class Export:
    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self.spans = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        tracer = TracerProvider(shutdown_on_exit=False)
        tracer.add_span_processor(SimpleSpanProcessor(exporter or self.spans))
        self.providers = Providers(tracer, MeterProvider([self.reader], shutdown_on_exit=False))

    def bridge(self, metrics: JobMetrics) -> Bridge:
        found = Bridge(metrics, self.providers, "1")
        metrics.follow(found)
        return found

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def test_it_has_the_figures_of_prometheus_under_its_own_names() -> None:
    export, metrics = Export(), measured(shown=live(rows_in_flight=5))
    bridge = export.bridge(metrics)
    # Histograms are recorded on the bridge's thread, and read before its end.
    for row in ROWS:
        metrics.tap(row)
    until(lambda: len(export.spans.get_finished_spans()) == 5, "it is exported", 10)
    found, expected = export.points(), {}
    for sample in metrics.samples():
        expected[sample.metric.otel, tuple(sorted(sample.named.items()))] = sample.value
    seen = {}
    for name, points in found.items():
        metric = next(one for one in CATALOGUE if one.otel == name)
        for point in points:
            key = name, tuple(sorted((str(label), str(value)) for label, value in point.attributes.items()))
            seen[key] = point.count if metric.kind is MetricKind.HISTOGRAM else point.value
            if metric.kind is MetricKind.HISTOGRAM:
                assert tuple(point.explicit_bounds) == metric.buckets
    assert seen == expected and len(found) > 15
    assert bridge.wait(10)
    assert export.points() == {} or not export.points().get("spark_ext.epochs"), "a run that has ended reports no more"


def test_spans_have_times_attributes_and_links() -> None:
    export, metrics = Export(), measured()
    bridge = export.bridge(metrics)
    for row in ROWS:
        metrics.tap(row)
    assert bridge.wait(10)
    spans = export.spans.get_finished_spans()
    assert [span.name.removeprefix("spark_ext.") for span in spans] == [
        "epoch", "epoch", "recovery", "epoch", "checkpoint",
    ]  # fmt: skip
    recovery, of_epoch = spans[2:4]
    assert recovery.attributes is not None and recovery.attributes["spark_ext.incident_id"] == "a"
    assert recovery.start_time == int(at(80).timestamp() * 1e9) and recovery.end_time == int(at(95).timestamp() * 1e9)
    assert of_epoch.start_time is not None and of_epoch.end_time is not None
    assert of_epoch.end_time - of_epoch.start_time == 5_000_000
    assert of_epoch.links[0].context.span_id == recovery.context.span_id
    assert all(span.parent is None for span in spans)


class Hanging(SpanExporter):
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.gate.wait(30)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is left."""


def test_a_hanging_exporter_holds_nobody_and_drops_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "WAITING", 10)
    hanging = Hanging()
    export, metrics = Export(hanging), measured()
    bridge = export.bridge(metrics)
    metrics.tap(epoch(0))
    assert hanging.entered.wait(10)
    for number in range(1, 31):
        metrics.tap(epoch(number))
    metrics.end()
    assert bridge.dropped == 20
    assert [one.value for one in metrics.samples() if one.metric.name == "spark_ext_telemetry_dropped_total"] == [20]
    assert not bridge.wait(0.01)
    hanging.gate.set()
    assert bridge.wait(10)


def test_jobs_of_one_process_share_the_instruments(caplog: pytest.LogCaptureFixture) -> None:
    export = Export()
    one, two = measured(job="one"), measured(job="two")
    bridges = [export.bridge(one), export.bridge(two)]
    one.tap(epoch(0))
    two.tap(epoch(0))
    assert {point.attributes["job"] for point in export.points()["spark_ext.epochs"]} == {"one", "two"}
    assert all(bridge.wait(10) for bridge in bridges)
    assert not caplog.records


def test_an_earlier_starts_failure_becomes_a_span_of_this_one() -> None:
    export, metrics = Export(), measured()
    bridge = export.bridge(metrics)
    metrics.tap(epoch(3, at=at(30), incarnation=2))
    cause = incident("a", 1, type="USER_CODE")
    row = {"incident_id": "a", "type": "failure", "operator": cause.operator, "labels": cause.labels, "at": cause.at}
    metrics.begin(Past(at(20), {"USER_CODE": 19.0}, row))
    assert bridge.wait(10)
    span = export.spans.get_finished_spans()[-1]
    assert span.name == "spark_ext.recovery" and span.attributes is not None
    assert span.attributes["spark_ext.incident_id"] == "a" and span.attributes["spark_ext.incarnation"] == 2


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("TRACES_EXPORTER", "METRICS_EXPORTER", "EXPORTER_OTLP_PROTOCOL", "SDK_DISABLED"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    return monkeypatch


def names(signal: str = "TRACES") -> list[str]:
    return [one.name for one in otel_setup.exporters(signal, "job 'j'")]


def test_variables_name_exporters_and_without_them_it_is_otlp(environment: pytest.MonkeyPatch) -> None:
    assert names("TRACES") == names("METRICS") == ["otlp_proto_http"]
    environment.setenv("OTEL_TRACES_EXPORTER", "console, otlp")
    environment.setenv("OTEL_METRICS_EXPORTER", "none")
    assert names("TRACES") == ["console", "otlp_proto_http"] and names("METRICS") == []
    environment.setenv("OTEL_SDK_DISABLED", "TRUE")
    assert names("TRACES") == []


def test_a_missing_exporter_or_protocol_is_refused_by_name(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_TRACES_EXPORTER", "zipkin9")
    with pytest.raises(ConfigurationError, match="'zipkin9' is not installed") as refused:
        otel_setup.check("job 'j', setting 'opentelemetry'")
    assert "OTEL_TRACES_EXPORTER" in refused.value.do and "spark-ext[otel]" in refused.value.do
    environment.setenv("OTEL_TRACES_EXPORTER", "otlp")
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/xml")
    with pytest.raises(ConfigurationError, match="http/xml"):
        otel_setup.check("job 'j'")


def test_a_missing_library_is_refused_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(EnvironmentProblem) as refused:
        otel_setup.check("job 'j', setting 'opentelemetry'")
    assert "pip install 'spark-ext[otel]'" in refused.value.do


USERS_OWN = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from spark_ext.metrics import otel_setup
trace.set_tracer_provider(TracerProvider())
metrics.set_meter_provider(MeterProvider())
otel_setup.check("job 'j'")
found = otel_setup.providers("job 'j'")
assert found == (trace.get_tracer_provider(), metrics.get_meter_provider())
"""


def test_providers_that_the_user_has_set_up_come_first() -> None:
    """The exporter that the environment names is then not looked for."""
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "zipkin9", "OTEL_METRICS_EXPORTER": "zipkin9"}
    subprocess.run([sys.executable, "-c", USERS_OWN], check=True, env=environment)


def unpacked(body: bytes) -> bytes:
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


DRIVER = """
import sys
from spark_ext.metrics import otel_setup
from spark_ext.metrics.otel import Bridge
from tests.ledger.rows import epoch
from tests.listeners.endpoint import serving
from tests.metrics.jobs import measured
from opentelemetry import metrics as api, trace
found = otel_setup.providers("job 'j'")
again = otel_setup.providers("job 'k'")
assert found.tracer is again.tracer and found.meter is again.meter
assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider), "the global one stays as it is"
metrics = measured()
metrics.follow(Bridge(metrics, found, "1"))
for number in range(1_500):
    metrics.tap(epoch(number))
# The process ends with its job: what waits is exported at the exit.
"""


def test_the_environment_alone_leads_to_a_collector_to_the_end() -> None:
    with serving([200] * 1_000) as collector:
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url.removesuffix("/hooks/"), "OTEL_SERVICE_NAME": "orders"}
        env = {**os.environ, **given}
        done = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True, check=True, env=env)
    assert done.stderr == ""
    bodies = {"/v1/traces": b"", "/v1/metrics": b""}
    for path, (_, body) in zip(collector.paths, collector.requests, strict=True):
        bodies[path] += unpacked(body)
    assert bodies["/v1/traces"].count(b"spark_ext.query_id") == 1_500 and b"orders" in bodies["/v1/traces"]
    assert b"spark_ext.epochs" in bodies["/v1/metrics"]
