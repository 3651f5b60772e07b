"""What `spark-ext check --notify` hands to the listeners of incidents, and what it remembers; and `notify-test`.

Nothing is written into the ledger: who checks has no fence, and a driver may start at any moment. Without a file to
remember what was notified, each check notifies again, with the same id of the incident: a receiver can tell by that.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_ext.commands.output import FAILED, print_text
from spark_ext.errors import refused
from spark_ext.incidents.dispatch import Dispatcher
from spark_ext.incidents.loading import listeners_of
from spark_ext.incidents.registry import ANY, load
from spark_ext.incidents.types import (
    Incident,
    IncidentChange,
    IncidentState,
    LifecycleEvent,
    MetricsContext,
    Severity,
    query_in,
)
from spark_ext.ledger.incidents import Notified
from spark_ext.storage import LocalFolder

if TYPE_CHECKING:
    from spark_ext.incidents.registry import ListenerEntry, Registry
    from spark_ext.views.check import Finding, Health

WITHIN: Final = 60.0  # how long listeners may take in all, s
NOTHING_IS_DONE: Final = "none: found by spark-ext check"
GONE: Final = "no longer found by a later check"
JOB: Final = "notify-test"  # the job of a sample incident
Known = dict[str, dict[str, dict[str, Any]]]  # by state directory and incident id, what was notified


def notified(
    registry: Registry, read: Mapping[str, Health], now: datetime, remember: Path | None, storage: Mapping[str, str]
) -> None:
    """Notify the listeners of a file of what the file `remember` does not know yet; without it, of each finding.

    What drivers with the same listeners have notified them of is left out.
    """
    known = {} if remember is None else _read(remember)
    told = {state: Notified(state, registry.listeners_id, storage).states() for state in read}
    changes, after = steps(read, known, now, told)
    if changes:
        jobs = {change.incident.incident_id: read[state] for state, change in changes}
        dispatcher = Dispatcher.of(registry, listeners_of(registry), lambda change: _context(jobs, change))
        assert dispatcher is not None  # there are listeners
        for _, change in changes:
            dispatcher.put(change)
        dispatcher.close(WITHIN)
        missed = sorted(name for name, one in dispatcher.figures.items() if one.dropped or one.failed or one.late)
        if missed:
            print_text(f"could not notify of everything: {', '.join(missed)}; the next check will retry", error=True)
            return  # and remembers nothing of this one
    if remember is not None and after != known:
        _write(remember, after)


def steps(
    read: Mapping[str, Health], known: Known, now: datetime, told: Mapping[str, Mapping[str, str]]
) -> tuple[list[tuple[str, IncidentChange]], Known]:
    """The changes that listeners are notified of, each with its state directory; and what is known after them. Pure.

    An open incident of a job whose driver runs is left to that: it has notified its own listeners. `told` has the
    states by state directory and incident id that drivers have notified the same listeners of.
    """
    changes: list[tuple[str, IncidentChange]] = []
    after = {state: dict(findings) for state, findings in known.items()}
    for state, found in read.items():
        before = after.get(state, {})
        own = told[state]
        present = {
            one.incident_id: one
            for one in found.findings
            if not (one.recorded and found.runs is not False) and own.get(one.incident_id) != IncidentState.OPEN.value
        }
        for incident_id, finding in present.items():
            if incident_id not in before:
                incident = _incident(incident_id, _plain(finding), now)
                changes.append((state, _change(incident, None, IncidentState.OPEN, "", now)))
        # One that was left to the driver meanwhile is not over.
        still = {one.incident_id for one in found.findings}
        for incident_id, plain in before.items():
            if incident_id not in still and own.get(incident_id) != IncidentState.RESOLVED.value:
                incident = _incident(incident_id, plain, now)
                changes.append((state, _change(incident, IncidentState.OPEN, IncidentState.RESOLVED, GONE, now)))
        kept = {incident_id: plain for incident_id, plain in before.items() if incident_id in still}
        after[state] = kept | {one: _plain(finding) for one, finding in present.items() if one not in kept}
        if not after[state]:
            del after[state]
    return changes, after


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "type": finding.type,
        "severity": finding.severity.value,
        "operator": finding.operator,
        "what": finding.notice or finding.what,
        "labels": dict(finding.labels),
        "fingerprint": finding.fingerprint,
    }


def _incident(incident_id: str, plain: Mapping[str, Any], now: datetime) -> Incident:
    return Incident(
        incident_id=incident_id,
        type=plain["type"],
        severity=Severity(plain["severity"]),
        operator=plain["operator"],
        query=query_in(plain["operator"]),
        at=now,
        what=plain["what"],
        action=NOTHING_IS_DONE,
        labels=plain["labels"],
        fingerprint=plain["fingerprint"],
    )


def _change(
    incident: Incident, old: IncidentState | None, new: IncidentState, cause: str, now: datetime
) -> IncidentChange:
    return IncidentChange(incident=incident, old=old, new=new, cause=cause, at=now, count=1)


def _context(jobs: Mapping[str, Health], change: IncidentChange | LifecycleEvent) -> MetricsContext:
    assert isinstance(change, IncidentChange)  # no driver runs here, so nothing tells events
    found = jobs[change.incident.incident_id]
    return MetricsContext(job=found.job, incarnation=found.incarnation, query=change.incident.query or None)


def _read(path: Path) -> Known:
    try:
        found: Known = json.loads(path.read_text(encoding="utf-8"))
        for findings in found.values():
            for incident_id, plain in findings.items():
                _incident(incident_id, plain, datetime.min)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise refused(
            f"{path} cannot be read: {type(problem).__name__}: {problem}",
            "check, --remember",
            "name a file that this command has written, or one that does not exist",
            kept="no listener was notified",
        ) from None
    return found


def _write(path: Path, known: Known) -> None:
    try:
        LocalFolder(path.parent, make=False).write(path.name, json.dumps(known, indent=2) + "\n")
    except OSError as problem:
        raise refused(
            f"{path} cannot be written: {problem.strerror}",
            "check, --remember",
            "name a file in a folder that can be written",
            kept="listeners were notified, and will be notified again",
        ) from None


def notify_test(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The jobs' incident file, with listeners.", show_default=False)
    ],
) -> None:
    """Send a sample incident to each listener of an incident file: exit code 0 if all have taken it, 1 if not.

    The incident is opened and resolved, so that it stays open nowhere. Its type and severity are ones that the listener
    is configured for.
    """
    registry = load(str(file))
    if not registry.listeners:
        raise refused(f"{file} has no listeners", "notify-test", "add one under 'listeners'", kept="nothing was sent")
    context = MetricsContext(job=JOB)
    dispatcher = Dispatcher.of(registry, listeners_of(registry), lambda change: context)
    assert dispatcher is not None  # there are listeners
    now = datetime.now(timezone.utc)
    for entry, outlet in zip(registry.listeners, dispatcher.outlets, strict=True):
        for change in _sample(entry, registry, now):
            outlet.put(change)
    dispatcher.close(WITHIN)
    for name, figures in dispatcher.figures.items():
        print_text(f"{name}: {'ok' if figures.delivered == 2 else 'NOT NOTIFIED'}")
    if any(figures.delivered != 2 for figures in dispatcher.figures.values()):
        raise typer.Exit(FAILED)


def _sample(entry: ListenerEntry, registry: Registry, now: datetime) -> tuple[IncidentChange, IncidentChange]:
    """An incident that a listener is configured for, opened and resolved."""
    type_ = next((name for name in entry.types if name != ANY), "failure")
    incident = Incident(
        incident_id=uuid.uuid4().hex,
        type=type_,
        severity=max(entry.severity, registry.of(type_).severity, key=lambda one: one.rank),
        operator=f"job '{JOB}'",
        at=now,
        what="a test of the notifications by spark-ext notify-test: nothing has happened",
        action="none",
        labels={"test": "true"},
        fingerprint=JOB,
    )
    opened = _change(incident, None, IncidentState.OPEN, "", now)
    return opened, _change(incident, IncidentState.OPEN, IncidentState.RESOLVED, "the test is over", now)
