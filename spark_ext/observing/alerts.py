"""The alert rules of a running job: evaluated from time to time, on the thread of the ledger's upkeep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.incidents.registry import AlertRule
from spark_ext.ledger.columns import from_json_many
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow, JobRow
from spark_ext.views.downtime import Availability, availability, downtime
from spark_ext.views.recorded import beats_of, rows_of
from spark_ext.views.timeline import timeline

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.write_behind import WriteBehind


class Alerts:
    """Opens and resolves the incidents of alert rules. For one thread at a time."""

    def __init__(self, job: str, ledger: Ledger, write_behind: WriteBehind) -> None:
        self._operator = f"job '{job}'"
        self._ledger = ledger
        self._write_behind = write_behind
        self._rules = write_behind.incidents.registry.alerts
        self._due = dict.fromkeys(range(len(self._rules)), 0.0)

    def due(self, now: float) -> bool:
        """Whether a rule is due."""
        return any(at <= now for at in self._due.values())

    def evaluate(self, now: float) -> None:
        """Evaluate the rules that are due. Reads the ledger."""
        rules = [self._rules[number] for number, at in self._due.items() if at <= now]
        for number, at in self._due.items():
            if at <= now:
                self._due[number] = now + self._rules[number].every / 1000
        if not rules:
            return
        incidents = _incidents(self._ledger)
        jobs = rows_of(self._ledger, JobRow)
        states = rows_of(self._ledger, ExecutionStateRow)
        moment = datetime.now(timezone.utc)
        running = frozenset({self._write_behind.incarnation.number})
        found = downtime(timeline(states, jobs, alive=running, beats=beats_of(self._ledger, jobs)), incidents, moment)
        for rule in rules:
            self._judge(rule, availability(rule, found, incidents, moment))

    def _judge(self, rule: AlertRule, found: Availability) -> None:
        known = self._write_behind.incidents
        open_ = [
            entry.incident.incident_id
            for entry in known.open("")
            if (entry.incident.type, entry.incident.fingerprint) == (rule.type, rule.fingerprint)
        ]
        if found.low and not open_:
            self._write_behind.incident(
                self._operator,
                rule.type,
                f"the job was available for {found.share:.4%} of the time, down for {found.down:,.0f} s: {rule.name}",
                "none: until the share is reached again",
                {"share": found.share, "down_s": found.down, "rule": rule.rule},
                {name: ",".join(values) for name, values in rule.labels.items()},
                fingerprint=rule.fingerprint,
            )
        elif not found.low:
            for incident_id in open_:
                known.resolve(incident_id, f"available for {found.share:.4%} of the time")


def _incidents(ledger: Ledger) -> list[dict[str, Any]]:
    table = ledger.table(IncidentRow)
    rows: list[dict[str, Any]] = table.read(["incident_id", "at", "type", "operator", "labels"]).to_pylist()
    for row, labels in zip(rows, from_json_many([row["labels"] for row in rows], IncidentRow, "labels"), strict=True):
        row["labels"] = labels
    # Only these say by their evidence when they began; that of others may be large.
    lost = table.read(["incident_id", "evidence"], [("type", "in", ["driver_lost", "stop_blocked"])]).to_pylist()
    evidence: Mapping[str, Any] = dict(
        zip(
            [row["incident_id"] for row in lost],
            from_json_many([row["evidence"] for row in lost], IncidentRow, "evidence"),
            strict=True,
        )
    )
    return [{**row, "evidence": evidence.get(row["incident_id"])} for row in rows]
