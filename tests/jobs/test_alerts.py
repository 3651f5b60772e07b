"""Alert rules over a real ledger: an incident is open while the share is too small, across starts too."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from spark_ext.incidents.registry import Registry, read_registry
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import ExecutionStateRow, IncidentChangeRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.observing.job_incidents import NO_RULE, JobIncidents
from spark_ext.observing.upkeep import Alerts
from tests.ledger.rows import incident

RULES = """
alerts:
  - {rule: availability below 90 % over 1 h, labels: {type: SYSTEM}, every: 10 s}
  - {rule: availability below 1 % over 1 h, every: 1 h}
"""


def started(folder: Path, registry: Registry, ago: float) -> tuple[WriteBehind, Ledger]:
    """A driver that began so many minutes ago."""
    ledger = Ledger(str(folder / "state"))
    now = datetime.now(timezone.utc) - timedelta(minutes=ago)
    incarnation = start_incarnation(ledger, "shop", takeover=True, now=now)
    forget(ledger.uri, incarnation.number)
    behind = WriteBehind(LedgerWriter(ledger, incarnation), "shop", registry=registry)
    incidents = JobIncidents(registry, [])
    incidents.inherit(ledger, behind)
    incidents.adopt(JobMemory.read(ledger), [], behind)
    state(behind, "RUNNING", ago)
    return behind, ledger


def state(behind: WriteBehind, name: str, ago: float) -> None:
    since = datetime.now(timezone.utc) - timedelta(minutes=ago)
    number = behind.incarnation.number
    behind.put(ExecutionStateRow(operator="", state=name, since=since, incarnation=number, reason=""))


def test_it_is_open_while_the_share_is_too_small(tmp_path: Path) -> None:
    registry = read_registry(RULES, "shop.yaml")
    behind, ledger = started(tmp_path, registry, 60)
    alerts = Alerts("shop", ledger, behind)
    behind.flush()
    assert alerts.due(0)
    alerts.evaluate(0)
    assert not behind.incidents.open() and not alerts.due(5) and alerts.due(10)
    # Down for 20 of the last 60 minutes, because of the system.
    row = incident(1, datetime.now(timezone.utc) - timedelta(minutes=30))
    behind.put(replace(row, job="shop", operator="job 'shop', query 'q'", labels={"type": "SYSTEM"}))
    state(behind, "RESTARTING", 30)
    state(behind, "RUNNING", 10)
    behind.flush()
    alerts.evaluate(10)
    (alert,) = behind.incidents.open("")
    assert (alert.incident.type, alert.incident.severity.value) == ("unavailability", "CRITICAL")
    assert "availability below 90 % over 1 h, of type=SYSTEM" in alert.incident.what
    assert dict(alert.incident.labels) == {"type": "SYSTEM"}
    alerts.evaluate(20)
    assert behind.incidents.open("") == (alert,), "it is not reported again"
    behind.committed("q", 5)
    assert behind.incidents.open("") == (alert,), "an epoch does not resolve it"
    behind.flush()
    # The next driver finds it open, and does not report another one.
    after, ledger = started(tmp_path, registry, 0)
    (inherited,) = after.incidents.open("")
    assert inherited.incident.incident_id == alert.incident.incident_id
    Alerts("shop", ledger, after).evaluate(0)
    assert [one.incident.incident_id for one in after.incidents.open("")] == [alert.incident.incident_id]
    # One with another text is another rule, and the start resolves what this one has opened.
    last, ledger = started(tmp_path, read_registry(RULES.replace("90 %", "10 %"), "shop.yaml"), 0)
    assert not last.incidents.open("")
    last.flush()
    (resolved,) = [row for row in ledger.table(IncidentChangeRow).rows() if row.new == "RESOLVED"]
    assert (resolved.incident_id, resolved.cause) == (alert.incident.incident_id, NO_RULE)


def test_it_is_resolved_once_the_share_is_reached(tmp_path: Path) -> None:
    registry = read_registry("alerts: [{rule: availability below 90 % over 1 h, every: 10 s}]", "shop.yaml")
    behind, ledger = started(tmp_path, registry, 60)
    state(behind, "RESTARTING", 55)
    behind.flush()
    alerts = Alerts("shop", ledger, behind)
    alerts.evaluate(0)
    (alert,) = behind.incidents.open("")
    state(behind, "RUNNING", 54)
    behind.flush()
    alerts.evaluate(10)
    assert not behind.incidents.open("")
    entry = behind.incidents.entry(alert.incident.incident_id)
    assert entry is not None and entry.count == 1
