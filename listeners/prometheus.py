"""Incident listener `prometheus`: counts incidents and events in a registry of the library prometheus-client.

The metrics are in the registry of the process, which an endpoint of yours exports. Their labels are bounded: the job,
the type and severity of an incident, and the kind of an event and what it led to.
"""

from __future__ import annotations

import threading
from typing import Any, Final
from weakref import WeakKeyDictionary

from spark_ext.clients.library import load
from spark_ext.listeners.contract import (
    IncidentChange,
    IncidentListener,
    IncidentState,
    LifecycleEvent,
    ListenerOptions,
    MetricsContext,
)

COUNTER: Final = "spark_ext_incident_changes"
GAUGE: Final = "spark_ext_incidents_open"
EVENTS: Final = "spark_ext_lifecycle_events"
_lock = threading.Lock()
_made: WeakKeyDictionary[Any, tuple[Any, Any, Any]] = WeakKeyDictionary()  # by registry: a name can be registered once


class PrometheusListener(IncidentListener):
    """Counts changes of incidents by the state they led to, and incidents that are open.

    Args:
        registry: None: the library's own of this process.
        **options: none.
    """

    def __init__(self, registry: Any = None, **options: object) -> None:
        ListenerOptions.of("prometheus", options)
        self._client = load("prometheus_client", "metrics", "listener 'prometheus'")
        self._registry = registry
        self._open: dict[str, tuple[str, str, str]] = {}

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        """Count a change."""
        counter, gauge, _ = self._metrics()
        one = change.incident
        labels = (context.job or "", one.type, one.severity.value)
        counter.labels(*labels, change.new.value.lower()).inc()
        before = self._open.pop(one.incident_id, None)
        if change.new is IncidentState.OPEN:
            self._open[one.incident_id] = labels
            if before is None:
                gauge.labels(*labels).inc()
        elif before is not None:
            gauge.labels(*before).dec()

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        """Count an event."""
        self._metrics()[2].labels(context.job or "", event.kind.value, event.new).inc()

    def close(self) -> None:
        """What is open stays so in the ledger; this process does not follow it any more."""
        if self._open:
            _, gauge, _ = self._metrics()
            for labels in self._open.values():
                gauge.labels(*labels).dec()
            self._open.clear()

    def _metrics(self) -> tuple[Any, Any, Any]:
        registry = self._client.REGISTRY if self._registry is None else self._registry
        with _lock:
            if registry not in _made:
                labels = ["job", "type", "severity"]
                about = "Changes of incidents, by the state they led to."
                _made[registry] = (
                    self._client.Counter(COUNTER, about, [*labels, "state"], registry=registry),
                    self._client.Gauge(GAUGE, "Incidents that are open.", labels, registry=registry),
                    self._client.Counter(
                        EVENTS, "Lifecycle events, by what they led to.", ["job", "kind", "new"], registry=registry
                    ),
                )
            return _made[registry]
