"""Seconds of downtime by class: those of earlier starts from the ledger, those of this one from its rows.

A counter that begins with the past stays correct across restarts of the driver: the time without a driver is counted by
the start that ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from spark_ext.ledger.columns import from_json_many
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.metrics.state_time import Key, seconds_before
from spark_ext.views.downtime import BEGIN, LATE, UNKNOWN, UP, Period, blamed, by_class, downtime, period_of
from spark_ext.views.incidents import class_of
from spark_ext.views.recorded import rows_of
from spark_ext.views.status import status_of
from spark_ext.views.timeline import JOB, Interval

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

KNOWN: Final = 1_000  # incidents of this start that are remembered with their class: a state names a recent one
_COLUMNS: Final = ("incident_id", "at", "operator", "type", "labels", "evidence")


@dataclass(frozen=True)
class Past:
    """What the ledger says of the time before this start."""

    started: datetime  # when this start was made
    seconds: Mapping[str, float] = field(default_factory=dict)  # downtime by class until then
    cause: Mapping[str, Any] | None = None  # of the downtime just before this start, if any
    states: Mapping[Key, float] = field(default_factory=dict)  # seconds in each state until then


def read_past(ledger: Ledger, number: int, newer: Iterable[IncidentRow]) -> Past:
    """Read the ledger; `newer` incidents may not be in it yet."""
    timeline = status_of(ledger).timeline
    started = next(span.since for span in timeline.spans if span.number == number)
    rows = rows_of(ledger, IncidentRow, *_COLUMNS)
    for name in ("labels", "evidence"):
        for row, value in zip(rows, from_json_many([row[name] for row in rows], IncidentRow, name), strict=True):
            row[name] = value
    rows += map(_values, newer)  # an incident that has happened twice has two
    found = downtime(timeline, rows, started)
    known = {row["incident_id"]: row for row in rows}
    past = past_of([piece for piece in found.pieces if piece.since < started], known, started)
    return replace(past, states=seconds_before(found, timeline, number, started))


def past_of(pieces: Sequence[Period], incidents: Mapping[str, Mapping[str, Any]], started: datetime) -> Past:
    """What a job's pieces up to a start, in order, say of the time before it."""
    cut = [replace(piece, until=min(piece.until, started)) for piece in pieces]
    classes = {name: class_of(row["labels"]) for name, row in incidents.items()}
    cause = incidents.get(cut[-1].incident) if cut and cut[-1].down and cut[-1].until == started else None
    return Past(started, by_class(cut, classes), cause)


class DowntimeMeter:
    """Measures the downtime of a running job. For one thread at a time."""

    def __init__(self) -> None:
        self._past: Past | None = None
        self._states: list[Period] = []  # since when each state lasts; its end is the next one's beginning
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
        self._enter(Period(JOB, "CREATED", past.started, past.started))
        self._fold()

    def take(self, row: Any) -> None:
        """Take a row of this start."""
        if isinstance(row, IncidentRow):
            self._classes[row.incident_id] = class_of(row.labels)
            if len(self._classes) > KNOWN:
                del self._classes[next(iter(self._classes))]
            if row.type in BEGIN:
                self._failures.append(_values(row))
        elif isinstance(row, ExecutionStateRow) and row.operator == JOB:
            begun = Interval(JOB, row.state, row.since, None, row.reason, row.incident)
            self._enter(period_of(begun, row.since))
            if self._past is not None:
                self._fold()

    def seconds(self, now: datetime) -> dict[str, float]:
        """Downtime by class, s; nothing before the past is known."""
        if self._past is None:
            return {}
        total = dict(self._over)
        for name, value in by_class(self._pieces(self._states, now), self._classes).items():
            total[name] = total.get(name, 0.0) + value
        # What is to blame may become known late; a counter does not decrease for that.
        for name, value in total.items():
            self._shown[name] = max(value, self._shown.get(name, 0.0))
        return dict(self._shown)

    def _enter(self, begun: Period) -> None:
        self._states.append(begun)
        # That a state was entered may be recorded late, as a stall is, which is noticed after a while.
        self._states.sort(key=lambda piece: piece.since)

    def _pieces(self, states: Sequence[Period], until: datetime) -> list[Period]:
        bounds = [*(piece.since for piece in states), until]
        pieces = [replace(piece, until=end) for piece, end in zip(states, bounds[1:], strict=True) if piece.since < end]
        return blamed(pieces, self._failures, self._before)

    def _fold(self) -> None:
        """What was before the newest time when the job ran does not change any more."""
        ups = [at for at, piece in enumerate(self._states) if piece.state in UP and piece.incident == UNKNOWN]
        if not ups or not ups[-1]:
            return
        since = self._states[ups[-1]].since
        for name, value in by_class(self._pieces(self._states[: ups[-1]], since), self._classes).items():
            self._over[name] += value
        self._states = self._states[ups[-1] :]
        self._before = UNKNOWN
        # Of the failures those stay that the next state may be due to.
        self._failures = [row for row in self._failures if row["at"] >= since - 2 * LATE - timedelta(seconds=1)]


def _values(row: IncidentRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _COLUMNS} | {"type": str(row.type)}
