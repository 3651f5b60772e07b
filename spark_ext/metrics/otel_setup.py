"""Where OpenTelemetry exports to: the providers that the user has set up, else those that the environment describes.

Only the standard variables count: OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER, OTEL_EXPORTER_OTLP_...,
OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_..., OTEL_METRIC_EXPORT_INTERVAL,
OTEL_SDK_DISABLED. Providers that are made of them are this module's: the global ones of the process stay as they are.
"""

from __future__ import annotations

import os
import threading
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple

from spark_ext.clients.library import load
from spark_ext.errors import refused

EXTRA: Final = "otel"  # the extra of this package that installs the libraries
_GROUPS: Final = {"TRACES": "opentelemetry_traces_exporter", "METRICS": "opentelemetry_metrics_exporter"}
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class Providers(NamedTuple):
    """A tracer provider and a meter provider."""

    tracer: Any
    meter: Any


def check(operator: str) -> None:
    """Refuse what needs OpenTelemetry if it cannot be used."""
    load("opentelemetry.sdk", EXTRA, operator, "the Python of the driver")
    for signal, own in zip(_GROUPS, _own(), strict=True):
        if own:
            exporters(signal, operator)


def providers(operator: str) -> Providers:
    """The providers of this process."""
    trace, metrics = load("opentelemetry.trace", EXTRA, operator), load("opentelemetry.metrics", EXTRA, operator)
    tracer_is_own, meter_is_own = _own()
    with _lock:
        if tracer_is_own and "tracer" not in _made:
            _made["tracer"] = _tracer_provider(operator)
        if meter_is_own and "meter" not in _made:
            _made["meter"] = _meter_provider(operator)
        return Providers(
            _made["tracer"] if tracer_is_own else trace.get_tracer_provider(),
            _made["meter"] if meter_is_own else metrics.get_meter_provider(),
        )


def _own() -> tuple[bool, bool]:
    """Whether the user has set up no provider of spans, and none of metrics."""
    trace, metrics = load("opentelemetry.trace", EXTRA, "metrics"), load("opentelemetry.metrics", EXTRA, "metrics")
    tracer, meter = trace.get_tracer_provider(), metrics.get_meter_provider()
    # What stands for a provider that is still to be set has no public name.
    return isinstance(tracer, trace.ProxyTracerProvider), type(meter).__name__ == "_ProxyMeterProvider"


_made: Final[dict[str, Any]] = {}
_lock: Final = threading.Lock()


def _tracer_provider(operator: str) -> Any:
    sdk, export = (load(f"opentelemetry.sdk.trace{part}", EXTRA, operator) for part in ("", ".export"))
    provider = sdk.TracerProvider()
    for found in exporters("TRACES", operator):
        provider.add_span_processor(export.BatchSpanProcessor(found.load()()))
    return provider


def _meter_provider(operator: str) -> Any:
    sdk, export = (load(f"opentelemetry.sdk.metrics{part}", EXTRA, operator) for part in ("", ".export"))
    made = [found.load()() for found in exporters("METRICS", operator)]
    # An exporter that is asked, such as Prometheus', is a reader itself.
    readers = [
        one if isinstance(one, export.MetricReader) else export.PeriodicExportingMetricReader(one) for one in made
    ]
    return sdk.MeterProvider(metric_readers=readers)


def exporters(signal: str, operator: str) -> list[EntryPoint]:
    """The exporters that the environment names for `TRACES` or `METRICS`; OTLP if it names none, none for `none`."""
    variable = f"OTEL_{signal}_EXPORTER"
    names = [name.strip() for name in os.environ.get(variable, "otlp").split(",") if name.strip()]
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or "none" in names:
        return []
    return [
        _exporter(signal, _protocol(signal, operator) if name == "otlp" else name, variable, operator) for name in names
    ]


def _protocol(signal: str, operator: str) -> str:
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    given = next((os.environ[name] for name in variables if os.environ.get(name)), "http/protobuf")
    if given not in _PROTOCOLS:
        raise refused(
            f"unknown OTLP protocol '{given}' in the environment",
            operator,
            f"set {variables[1]} to one of: {', '.join(_PROTOCOLS)}",
            kept="nothing was started",
        )
    return _PROTOCOLS[given]


def _exporter(signal: str, name: str, variable: str, operator: str) -> EntryPoint:
    found = next(iter(entry_points(group=_GROUPS[signal], name=name)), None)
    if found is None:
        there = sorted({one.name for one in entry_points(group=_GROUPS[signal])})
        raise refused(
            f"the OpenTelemetry exporter '{name}' is not installed",
            operator,
            f"install it, pip install 'spark-ext[{EXTRA}]' for OTLP over HTTP, or set {variable} to one of: "
            f"{', '.join([*there, 'none'])}",
            kept="nothing was started",
        )
    return found
