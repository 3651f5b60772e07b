"""What an incident is, and how its state changes: frozen values that the ledger, listeners and views share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final


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


@dataclass(frozen=True, kw_only=True)
class MetricsContext:
    """What is known of the job when a listener is called. Each field may be None: unknown, or of no meaning here."""

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
