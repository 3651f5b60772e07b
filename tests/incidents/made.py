"""Incidents for tests."""

from datetime import datetime, timedelta, timezone
from typing import Any

from spark_ext.incidents.registry import Registry, read_registry
from spark_ext.incidents.types import (
    EventKind,
    Incident,
    IncidentChange,
    IncidentState,
    LifecycleEvent,
    Severity,
    query_in,
)

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
OPEN, RESOLVED = IncidentState.OPEN, IncidentState.RESOLVED

OWN = """
types:
  - {name: late, severity: WARNING, description: Rows are late., window: 1 min}
  - {name: lone, severity: ERROR, description: Never the same., window: 0}
  - {name: noted, severity: INFO, description: Information., window: 1 min, resolved: at once}
  - {name: told, severity: CRITICAL, description: Until it is reported., window: 1 min, resolved: report}
  - {name: broken, severity: ERROR, description: It has to recover., window: 1 min, interrupts: true}
"""


def registry(more: str = "") -> Registry:
    return read_registry(OWN + more, "shop.yaml")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def incident(id_: str, seconds: float = 0, type_: str = "late", query: str = "q", **fields: Any) -> Incident:
    operator = f"job 'shop', query '{query}'" if query else "job 'shop'"
    given: dict[str, Any] = {
        "severity": registry().of(type_).severity, "what": "something", "action": "none", "fingerprint": "f", **fields,
    }  # fmt: skip
    return Incident(incident_id=id_, type=type_, operator=operator, query=query_in(operator), at=at(seconds), **given)


def change(
    id_: str = "a", new: IncidentState = OPEN, old: IncidentState | None = None, seconds: float = 0, count: int = 1,
    severity: Severity = Severity.WARNING, **fields: Any,
) -> IncidentChange:  # fmt: skip
    one = incident(id_, seconds, severity=severity, **fields)
    return IncidentChange(incident=one, old=old, new=new, cause="because", at=at(seconds), count=count)


def event(new: str, kind: EventKind = EventKind.STATE, seconds: float = 0, **fields: Any) -> LifecycleEvent:
    given: dict[str, Any] = {"event_id": f"{new}-{seconds}", "query": "q", "incarnation": 3, **fields}
    return LifecycleEvent(kind=kind, at=at(seconds), new=new, **given)
