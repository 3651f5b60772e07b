"""Rows of a running job."""

from __future__ import annotations

from typing import Any

from spark_ext.ledger.schema import BadRowsRow, ExecutionStateRow, IncidentRow
from tests.views.test_timeline import at


def state(
    name: str, seconds: float, operator: str = "q", incarnation: int = 1, blame: str | None = None
) -> ExecutionStateRow:
    return ExecutionStateRow(
        operator=operator, state=name, since=at(seconds), incarnation=incarnation, reason="", incident=blame
    )


def incident(
    name: str,
    seconds: float,
    operator: str = "job 'j', query 'q'",
    kind: str = "failure",
    evidence: Any = None,
    **labels: str,
) -> IncidentRow:
    return IncidentRow(
        incident_id=name,
        at=at(seconds),
        job="j",
        incarnation=1,
        operator=operator,
        type=kind,
        labels=labels,
        what="it broke",
        evidence=evidence,
        action="restart 1 in 100 ms",
        severity="ERROR" if kind in ("failure", "driver_lost") else "WARNING",
        fingerprint="f",
    )


def bad_rows(number: int, rows: int) -> BadRowsRow:
    return BadRowsRow(
        query="q",
        source="q-in",
        epoch=number,
        rows=rows,
        path="/table",
        role="source",
        lineage=1,
        incarnation=1,
        at=at(number),
    )
