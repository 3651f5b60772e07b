"""Whether a job is healthy, by its ledger and heartbeat, for checks while no driver runs. Pure.

A driver evaluates the alert rules of its job, and notifies listeners. One that is gone does neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from spark_ext.incidents.registry import AlertRule, Registry, shipped
from spark_ext.incidents.types import IncidentState, Severity
from spark_ext.ledger.heartbeat import SILENT_AFTER, is_silent
from spark_ext.views.downtime import CREATED, Availability, availability, downtime
from spark_ext.views.incidents import severity_of
from spark_ext.views.timeline import DOWN, job_state, timeline

Row = Mapping[str, Any]
LOST_LABELS: Final = {"type": "SYSTEM", "origin": "spark"}  # of the loss of a driver, as the next start labels it


class ProblemKind(str, Enum):
    """What is wrong."""

    LOST = "driver_lost"  # the driver is gone, or has been silent for too long, and its end is not recorded
    FAILED = "failed"  # the job has failed, or its last start was refused, and nobody has started it since
    INCIDENT = "incident"  # a serious incident is open
    UNAVAILABLE = "unavailability"  # the job was available for too small a share of the time


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong with a job."""

    kind: ProblemKind
    type: str  # of the incident that it is
    severity: Severity
    what: str  # on one line
    operator: str
    incident_id: str  # that of the incident in the ledger; if it was not recorded, an id that is the same at each check
    recorded: bool = False  # whether the ledger has this incident
    labels: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    notice: str = ""  # `what` as notifications have it, which are read later: without ages; "": the same


@dataclass(frozen=True)
class Measured:
    """An alert rule, and what it finds."""

    rule: AlertRule
    found: Availability


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is still well."""

    max_silence: int = SILENT_AFTER  # how old the last heartbeat may be, ms
    severity: Severity = Severity.ERROR  # an open incident of this severity, or above, is something wrong
    rules: tuple[AlertRule, ...] = ()
    window: timedelta = timedelta(days=1)  # the period over which availability is shown


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What is read of a job that was started at least once. JSON columns are values."""

    jobs: Sequence[Row]
    states: Sequence[Row]
    occurrences: Sequence[Row] = ()  # rows of `incidents`, each once
    incidents: Sequence[Row] = ()  # each incident once, as `views.incidents.merged` gives them
    alive: bool | None = None  # whether the driver of the newest start runs; None: it is on another machine
    beats: Mapping[int, datetime] = field(default_factory=dict)  # last signs of drivers without a recorded end


@dataclass(frozen=True, kw_only=True)
class Health:
    """A job at one moment."""

    job: str
    job_id: str
    incarnation: int
    state: str  # of the job; DOWN if its driver is lost
    driver: str  # `process 4711 on node7`
    runs: bool | None  # whether its driver runs; None: it is on another machine, and writes no heartbeat
    last_alive: datetime | None  # last heartbeat, or row if it is lost and writes none; None: unknown, or ended
    ended: datetime | None
    availability: float | None  # since then, up to now: 0 to 1; None: it has an end, which it has reached
    since: datetime  # when the window of the limits began, or the first start if that was later
    measured: tuple[Measured, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def health(facts: JobFacts, limits: Limits, now: datetime, registry: Registry | None = None) -> Health:
    """Judge a job; the registry has the severities of types (None: those that ship with the package)."""
    newest = max((row for row in facts.jobs if row["event"] == "started"), key=lambda row: int(row["incarnation"]))
    number, operator = newest["incarnation"], f"job '{newest['job']}'"
    ended = next((row for row in facts.jobs if row["event"] == "ended" and row["incarnation"] == number), None)
    beat = None if ended is not None else facts.beats.get(number)
    silent = is_silent(beat, now, limits.max_silence)
    lost = ended is None and (facts.alive is False or silent)
    running = frozenset() if lost or ended is not None else frozenset({number})
    found = timeline(facts.states, facts.jobs, alive=running, beats=facts.beats).until(now)
    down = any(gap.state == DOWN and gap.until == now for gap in found.downs)
    kinds = registry or shipped()

    findings: list[Finding] = []
    occurrences = list(facts.occurrences)
    driver = f"process {newest['driver_pid']} on {newest['host']}"
    if lost:
        since = found.spans[-1].until or now
        findings.append(
            Finding(
                kind=ProblemKind.LOST,
                type="driver_lost",
                severity=kinds.of("driver_lost").severity,
                what=f"the driver is lost: no heartbeat since {since:%F %T} UTC ({_ago(since, now)}), {driver}",
                operator=operator,
                incident_id=made_id(newest["job_id"], "driver_lost", number),
                notice=f"the driver is lost: no heartbeat since {since:%F %T} UTC, {driver}",
                labels=LOST_LABELS,
            )
        )
        # As the next start will record it, so that rules by label count the time since.
        evidence = {"last_seen": since.isoformat()}
        lost_row = {"incident_id": findings[0].incident_id, "type": "driver_lost", "at": since, "operator": operator}
        occurrences.append({**lost_row, "labels": LOST_LABELS, "evidence": evidence})
    open_ = [row for row in facts.incidents if row.get("state") == IncidentState.OPEN.value]
    if down and not lost and ended is not None:
        findings.append(_failed(newest, ended, open_, kinds, operator, now))
    spent = downtime(found, occurrences, now)
    measured = tuple(Measured(rule, availability(rule, spent, occurrences, now)) for rule in limits.rules)
    findings += [_low(one, newest, open_, kinds, operator) for one in measured if one.found.low]
    listed = {finding.incident_id for finding in findings}
    findings += [
        _incident(row)
        for row in open_
        if severity_of(row).rank >= limits.severity.rank and row["incident_id"] not in listed
    ]
    return Health(
        job=newest["job"],
        job_id=newest["job_id"],
        incarnation=number,
        state=DOWN if lost else (job_state(facts.states, facts.jobs) or {"state": CREATED})["state"],
        driver=driver,
        runs=None if running and beat is None and facts.alive is None else bool(running),
        last_alive=beat,
        ended=None if ended is None else ended["at"],
        availability=None if found.has_end else spent.availability(now - limits.window, now),
        since=spent.since(now - limits.window),
        measured=measured,
        findings=tuple(findings),
    )


def made_id(job_id: str, *parts: object) -> str:
    """The id of a finding that is not in the ledger: equal at each look, different from that of another job."""
    return hashlib.sha256("\0".join([job_id, *map(str, parts)]).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def line(found: Health, now: datetime, limits: Limits, window: str) -> str:
    """One line about a job; `window` is that of the limits as text."""
    if found.ended is not None:
        seen = f"ended {_ago(found.ended, now)} ago"
    elif found.last_alive is not None:
        seen = f"last alive {_ago(found.last_alive, now)} ago"
    elif found.runs is None:
        seen = "by the ledger; its driver runs on another machine and writes no heartbeat"
    else:
        seen = "without a heartbeat"
    text = f"{'ok' if found.well else 'WRONG'}  {found.job}  {found.state}, {seen}"
    if found.availability is not None:
        period = window if found.since <= now - limits.window else _ago(found.since, now)
        text += f", available for {found.availability:.4%} of {period}"
    return "; ".join([text, *(finding.what for finding in found.findings)])


def _failed(newest: Row, ended: Row, open_: Iterable[Row], kinds: Registry, operator: str, now: datetime) -> Finding:
    failures = [row for row in open_ if row["type"] == "failure"]
    last = max(failures, key=lambda row: row["last"], default=None)
    about = "" if last is None else f": {_first(last['what'])}"
    how = "has FAILED" if ended["reason"] == "FAILED" else "was refused its last start"
    return Finding(
        kind=ProblemKind.FAILED,
        type="failure",
        severity=kinds.of("failure").severity if last is None else severity_of(last),
        what=f"the job {how}, {_ago(ended['at'], now)} ago{about}",
        operator=operator if last is None else last["operator"],
        incident_id=made_id(newest["job_id"], "failed", newest["incarnation"]) if last is None else last["incident_id"],
        recorded=last is not None,
        labels={} if last is None else _labels(last),
        notice=f"the job {how} at {ended['at']:%F %T} UTC{about}",
    )


def _low(one: Measured, newest: Row, open_: Iterable[Row], kinds: Registry, operator: str) -> Finding:
    rule = one.rule
    key = (rule.type, rule.fingerprint)
    known = next((row for row in open_ if (row["type"], row["fingerprint"]) == key), None)
    made = made_id(newest["job_id"], rule.type, rule.fingerprint)
    return Finding(
        kind=ProblemKind.UNAVAILABLE,
        type=rule.type,
        severity=kinds.of(rule.type).severity,
        what=f"available for {one.found.share:.4%} of the time, down for {one.found.down:,.0f} s: {rule.name}",
        operator=operator,
        incident_id=made if known is None else known["incident_id"],
        recorded=known is not None,
        labels={name: ",".join(values) for name, values in rule.labels.items()},
        fingerprint=rule.fingerprint,
    )


def _incident(row: Row) -> Finding:
    severity = severity_of(row)
    about = f"{row['operator']}: {_first(row['what'])}"
    return Finding(
        kind=ProblemKind.INCIDENT,
        type=row["type"],
        severity=severity,
        what=f"{row['incident_id'][:8]} {severity.value} {row['type']}, {about}",
        operator=row["operator"],
        incident_id=row["incident_id"],
        recorded=True,
        labels=_labels(row),
        fingerprint=row.get("fingerprint") or "",
    )


def _labels(row: Row) -> dict[str, str]:
    return {str(name): str(value) for name, value in (row["labels"] or {}).items()}


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _ago(at: datetime, now: datetime) -> str:
    seconds = max(0.0, (now - at).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
