"""What an incident is, and how its state changes: frozen values that the ledger, listeners and views share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from math import isfinite
from typing import Any, Final


class Severity(str, Enum):
    """How serious an incident is, from the least to the most."""

    INFO = "INFO"
    """Worth knowing; nobody has to do anything."""
    WARNING = "WARNING"
    """The job continues; somebody should look at it."""
    ERROR = "ERROR"
    """Something has failed; the job recovers by itself or has stopped."""
    CRITICAL = "CRITICAL"
    """Somebody has to act now."""

    @property
    def rank(self) -> int:
        """Its place in the order, from 0."""
        return list(Severity).index(self)


class IncidentState(str, Enum):
    """The state of an incident."""

    OPEN = "OPEN"
    RESOLVED = "RESOLVED"


class Resolution(str, Enum):
    """What resolves incidents of a type."""

    EPOCH = "epoch"
    """The next committed epoch of the query, or its end; for an incident of the whole job, that of any query."""
    AT_ONCE = "at once"
    """Nothing has to happen: the incident is information."""
    REPORT = "report"
    """It is resolved by a report from its reporter."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """An incident as it was last noticed."""

    incident_id: str
    type: str
    severity: Severity
    operator: str
    """Where: `job 'shop', query 'load'`."""
    query: str = ""
    """Uid of the query; "" for the whole job."""
    at: datetime
    """When it was noticed, UTC."""
    what: str
    """What happened."""
    action: str
    """What is done about it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str
    """Equal for incidents of one type and operator that are the same."""
    parent: str | None = None
    """Id of the incident during whose recovery it happened."""


@dataclass(frozen=True, kw_only=True)
class IncidentChange:
    """A step in the life of an incident: it was opened, resolved or opened again, or was counted once more."""

    incident: Incident
    old: IncidentState | None
    """None: it is new."""
    new: IncidentState
    """The same as `old` if it has only been counted."""
    cause: str
    """Why: `epoch 12 was committed`. "" for a new one."""
    at: datetime
    """When, UTC."""
    count: int
    """How often it has happened so far."""

    @property
    def counted(self) -> bool:
        """Whether nothing but the count has changed; listeners are not notified of it."""
        return self.old is self.new

    @property
    def query(self) -> str:
        """Uid of the query; "" for the whole job."""
        return self.incident.query


class EventKind(str, Enum):
    """What a lifecycle event is about."""

    STATE = "state"
    """The job or a query has entered an execution state, or is in it for another reason."""
    SOURCE = "source"
    """A source was opened, runs, or has finished: OPENED, RUNNING, FINISHED."""
    CHECKPOINT = "checkpoint"
    """A step of a checkpoint or savepoint: TRIGGERED, COMPLETED, FAILED and others."""
    JOB = "job"
    """A start or an end, a step of a restore, a query that was reset, renamed, removed or rescaled."""
    INCIDENT = "incident"
    """An incident was opened or resolved. Only in the stream of the REST server: listeners have `changed`."""
    LATENCY = "latency"
    """A latency marker has passed the commit of a query; with the setting `latency`. Only for listeners."""
    EPOCH = "epoch"
    """A query has committed an epoch. Only for listeners."""


@dataclass(frozen=True, kw_only=True)
class LifecycleEvent:
    """A fact in the life of a job, as a row of its ledger has it."""

    event_id: str
    """Identifies the fact: the same for listeners and in the stream, however often it is read."""
    kind: EventKind
    at: datetime
    """When it happened, UTC. What is noticed late, such as a lack of slots, happened before its event comes."""
    query: str = ""
    """Uid of the query; "" for the whole job."""
    source: str = ""
    """Uid of the source; "" if it is about no source."""
    old: str | None = None
    """What it was before, in this start of the job; None: nothing, or not known. Equal to `new` if only the cause has
    changed."""
    new: str
    cause: str = ""
    """Why; "" if there is nothing to say."""
    incident: str | None = None
    """Id of the incident to which the state belongs, or which has changed; None: none."""
    incarnation: int
    """Number of the job's start that has recorded it."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further facts by name; see "Lifecycle events" in docs/notifications.md."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, the time as ISO 8601 in UTC."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**found, "kind": self.kind.value, "at": self.at.isoformat(), "details": dict(self.details)}


def _unmeasured(name: str, value: float, label: str, counts: bool) -> None:
    """Without metrics of the job nothing is reported."""


@dataclass(frozen=True, kw_only=True)
class MetricsContext:
    """What is known of the job when a listener is called. Each field may be None: unknown, or of no meaning here.

    `count` and `gauge` report metrics of the listener's own among those of the job. They do nothing for a job that is
    not measured, and after its end.
    """

    job: str | None = None
    incarnation: int | None = None
    """Number of the job's start."""
    query: str | None = None
    """Uid of the incident's query."""
    epoch: int | None = None
    """The query's newest committed epoch."""
    rows: int | None = None
    """Rows that the query has read since the job's start."""
    lag: int | None = None
    """Rows that the query had still to read when its newest epoch was planned, as its sources know."""
    reports: Callable[[str, float, str, bool], None] = field(default=_unmeasured, repr=False, compare=False)
    """Takes name, value, label, and whether it is a counter's; for `count` and `gauge`."""

    def count(self, name: str, by: float = 1.0, *, label: str = "") -> None:
        """Add to the series `name`, `label` of the counter `spark_ext_listener_counter_total`.

        Raises:
            ValueError: the name is not one of a metric, or the number is negative or not finite.
        """
        if by < 0:
            raise ValueError(f"a counter does not decrease: {name!r} by {by!r}")
        self._report(name, by, label, counts=True)

    def gauge(self, name: str, value: float, *, label: str = "") -> None:
        """Set the series `name`, `label` of the gauge `spark_ext_listener_gauge`.

        Raises:
            ValueError: the name is not one of a metric, or the number is not finite.
        """
        self._report(name, value, label, counts=False)

    @property
    def known(self) -> dict[str, Any]:
        """The facts that are known, by name."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "reports"}
        return {name: value for name, value in found.items() if value is not None}

    def _report(self, name: str, value: float, label: str, *, counts: bool) -> None:
        if not _METRIC.fullmatch(name) or not isfinite(value) or len(label) > LONGEST_LABEL:
            raise ValueError(
                f"{name!r}, {value!r}, {label[:50]!r}: a name has up to 64 of a-z, 0-9 and _, a value is finite, and a "
                f"label has up to {LONGEST_LABEL} characters"
            )
        self.reports(name, float(value), label, counts)


Notice = tuple[IncidentChange | LifecycleEvent, MetricsContext]
LONGEST_LABEL: Final = 200
_METRIC: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_QUERY: Final = re.compile(r"query '([^']+)'")
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")


def query_in(operator: str) -> str:
    """The uid of the query that a text such as `job 'shop', query 'load'` names; "" if it names none."""
    match = _QUERY.search(operator)
    return match[1] if match is not None else ""


def fingerprint_of(text: str, labels: Mapping[str, str] | None = None) -> str:
    """What tells one incident from another of the same type and operator.

    Numbers in the text make no difference, so that counters, ids and times do not. Neither do further lines.

    Args:
        text: what happened.
        labels: of the incident.
    """
    parts = [_VARYING.sub("0", text.partition("\n")[0])]
    parts += [f"{name}={value}" for name, value in sorted((labels or {}).items())]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
