"""Seconds of downtime by class: those of earlier starts from the ledger, those of this one from its rows.

A counter that begins with the past stays correct across restarts of the driver: the time without a driver is counted by
the start that ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from spark_ext.ledger.columns import from_json_many
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.metrics.catalogue import NONE
from spark_ext.metrics.tally import class_of
from spark_ext.views.downtime import LATE, UNKNOWN, UP, Piece, blamed, downtime
from spark_ext.views.status import rows_of, status_of
from spark_ext.views.timeline import JOB

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

_BLAMED: Final = ("failure", "driver_lost")
"""Types of incidents that may be to blame."""


@dataclass(frozen=True)
class Past:
    """What the ledger says of the time before this start."""

    started: datetime
    """When this start was made."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Downtime by class until then."""
    cause: Mapping[str, Any] | None = None
    """The incident that is to blame for the time just before this start, if that was downtime."""


def read_past(ledger: Ledger, number: int, newer: Iterable[IncidentRow]) -> Past:
    """Read the ledger.

    Args:
        ledger: the job's.
        number: of this start.
        newer: incidents that may not be in the ledger yet.

    Raises:
        StateError, StorageError: a table cannot be read.
    """
    timeline = status_of(ledger).timeline
    started = next(span.since for span in timeline.spans if span.number == number)
    rows = [
        row
        for row in rows_of(ledger, IncidentRow, "incident_id", "at", "operator", "type", "labels", "evidence")
        if row["type"] in _BLAMED
    ]
    for name in ("labels", "evidence"):
        for row, value in zip(rows, from_json_many([row[name] for row in rows]), strict=True):
            row[name] = value
    known = {row["incident_id"]: row for row in [*rows, *map(_values, newer)]}
    pieces = downtime(timeline, list(known.values()), started).pieces
    return past_of([piece for piece in pieces if piece.since < started], known, started)


def past_of(pieces: Sequence[Piece], incidents: Mapping[str, Mapping[str, Any]], started: datetime) -> Past:
    """What pieces say of the time before a start.

    Args:
        pieces: of the job, in order, up to this start.
        incidents: by id.
        started: when it was made.
    """
    cut = [
        Piece(piece.operator, piece.state, piece.since, min(piece.until, started), piece.incident) for piece in pieces
    ]
    classes = {name: class_of(row["labels"]) for name, row in incidents.items()}
    cause = incidents.get(cut[-1].incident) if cut and cut[-1].down and cut[-1].until == started else None
    return Past(started, _by_class(cut, classes), cause)


class DowntimeMeter:
    """Measures the downtime of a running job. For one thread at a time."""

    def __init__(self) -> None:
        self._past: Past | None = None
        self._states: list[tuple[datetime, str]] = []
        self._failures: list[Mapping[str, Any]] = []
        self._classes: dict[str, str] = {}
        self._before = UNKNOWN
        self._over: dict[str, float] = defaultdict(float)
        self._shown: dict[str, float] = {}

    def begin(self, past: Past) -> None:
        """Take what was before; until then nothing is known."""
        self._past = past
        self._over.update(past.seconds)
        if past.cause is not None:
            self._before = past.cause["incident_id"]
            self._classes[self._before] = class_of(past.cause["labels"])
        self._states.insert(0, (past.started, "CREATED"))
        self._fold()

    def take(self, row: Any) -> None:
        """Take a row of this start."""
        if isinstance(row, IncidentRow) and row.type in _BLAMED:
            self._failures.append(_values(row))
            self._classes[row.incident_id] = class_of(row.labels)
        elif isinstance(row, ExecutionStateRow) and row.operator == JOB:
            self._states.append((row.since, row.state))
            if self._past is not None:
                self._fold()

    def seconds(self, now: datetime) -> dict[str, float]:
        """Downtime by class, s; nothing before the past is known.

        Args:
            now: UTC.
        """
        if self._past is None:
            return {}
        total = dict(self._over)
        for name, value in _by_class(self._pieces(self._states, now), self._classes).items():
            total[name] = total.get(name, 0.0) + value
        # What is to blame may become known late; a counter does not decrease for that.
        for name, value in total.items():
            self._shown[name] = max(value, self._shown.get(name, 0.0))
        return dict(self._shown)

    def _pieces(self, states: Sequence[tuple[datetime, str]], until: datetime) -> list[Piece]:
        bounds = [*(since for since, _ in states), until]
        pieces = [
            Piece(JOB, state, since, end)
            for (_, state), (since, end) in zip(states, pairwise(bounds), strict=True)
            if since < end
        ]
        return blamed(pieces, self._failures, self._before)

    def _fold(self) -> None:
        """What was before the newest time when the job ran does not change any more."""
        ups = [at for at, (_, state) in enumerate(self._states) if state in UP]
        if not ups:
            return
        since, state = self._states[ups[-1]]
        for name, value in _by_class(self._pieces(self._states[: ups[-1]], since), self._classes).items():
            self._over[name] += value
        self._states = [(since, state), *self._states[ups[-1] + 1 :]]
        self._before = UNKNOWN
        # Of the failures those stay that the next state may be due to.
        self._failures = [row for row in self._failures if row["at"] >= since - 2 * LATE - timedelta(seconds=1)]
        kept = {row["incident_id"] for row in self._failures}
        self._classes = {name: kind for name, kind in self._classes.items() if name in kept}


def _by_class(pieces: Iterable[Piece], classes: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for piece in pieces:
        if piece.down:
            found[classes.get(piece.incident, NONE)] += piece.seconds
    return dict(found)


def _values(row: IncidentRow) -> dict[str, Any]:
    return {
        "incident_id": row.incident_id,
        "at": row.at,
        "operator": row.operator,
        "type": str(row.type),
        "labels": row.labels,
        "evidence": row.evidence,
    }
