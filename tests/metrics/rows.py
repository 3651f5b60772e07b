"""Rows of a running job."""

from dataclasses import replace
from typing import Any

from spark_ext.ledger.schema import BadRowsRow, ExecutionStateRow, IncidentRow
from tests.ledger import rows as made
from tests.views.test_timeline import at

QUERY = "job 'j', query 'q'"


def state(
    name: str, seconds: float, operator: str = "q", incarnation: int = 1, blame: str | None = None
) -> ExecutionStateRow:
    return replace(made.state(name, operator, at(seconds)), incarnation=incarnation, incident=blame)


def incident(
    name: str, seconds: float, operator: str = QUERY, kind: str = "failure", evidence: Any = None, **labels: str
) -> IncidentRow:
    severity = "ERROR" if kind in ("failure", "driver_lost") else "WARNING"
    given: dict[str, Any] = {"operator": operator, "type": kind, "severity": severity}
    return replace(made.incident(0, at(seconds)), incident_id=name, evidence=evidence, labels=labels, **given)


def bad_rows(number: int, rows: int) -> BadRowsRow:
    return replace(made.bad_rows(number, at(number)), source="q-in", rows=rows)
