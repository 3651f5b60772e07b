"""Seconds by state, of a job and its queries: those of earlier starts from the ledger, those of this one from its rows.

Like downtime, a counter that begins with the past stays correct across restarts of the driver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from spark_ext.model.execution import HEALTHY
from spark_ext.model.lifecycle import State
from spark_ext.views.timeline import ENDED, JOB

if TYPE_CHECKING:
    from spark_ext.ledger.schema import ExecutionStateRow
    from spark_ext.views.downtime import Downtime
    from spark_ext.views.timeline import Timeline

UP: Final = frozenset(state.value for state in HEALTHY)
Key = tuple[str, str, bool]  # operator, state, and whether its time belongs to an incident


def seconds_before(found: Downtime, timeline: Timeline, number: int, started: datetime) -> dict[Key, float]:
    """Seconds until a start, by its number. Pure."""
    total: dict[Key, float] = defaultdict(float)
    for piece in found.pieces:
        if piece.since < started:
            total[JOB, piece.state, piece.down] += (min(piece.until, started) - piece.since).total_seconds()
    for span in timeline.spans:
        for part in span.intervals if span.number < number else ():
            if part.operator != JOB:
                total[part.operator, part.state, part.incident is not None] += part.seconds(started)
    return dict(total)


class StateMeter:
    """Measures the time in each state. For one thread at a time."""

    def __init__(self) -> None:
        self._begun = False
        self._total: dict[Key, float] = defaultdict(float)
        self._entered: dict[str, tuple[datetime, Key]] = {}
        self._shown: dict[tuple[str, str], float] = {}
        self._up = 0.0
        self._first: datetime | None = None  # when the job entered its first state

    def begin(self, started: datetime, past: Mapping[Key, float]) -> None:
        """Take what was before this start; until then nothing is known."""
        self._begun = True
        for key, seconds in past.items():
            self._total[key] += seconds
        # A start may have come far before its past is known.
        created = JOB, State.CREATED.value, False
        if self._first is None:
            self._entered[JOB] = started, created
        else:
            self._total[created] += max(0.0, (self._first - started).total_seconds())

    def take(self, row: ExecutionStateRow) -> None:
        """Take a row of this start."""
        before = self._entered.get(row.operator)
        if before is not None:
            self._total[before[1]] += max(0.0, (row.since - before[0]).total_seconds())
        elif row.operator == JOB:
            self._first = row.since
        self._entered[row.operator] = row.since, (row.operator, row.state, row.incident is not None)

    def seconds(self, now: datetime) -> tuple[dict[tuple[str, str], float], float]:
        """Seconds by operator and state; and those in which the job was up. A counter never decreases."""
        if not self._begun:
            return {}, 0.0
        total = dict(self._total)
        for since, key in self._entered.values():
            if key[0] == JOB or key[1] not in ENDED:
                total[key] = total.get(key, 0.0) + max(0.0, (now - since).total_seconds())
        found: dict[tuple[str, str], float] = defaultdict(float)
        up = 0.0
        for (operator, state, blamed), seconds in total.items():
            found[operator, state] += seconds
            up += seconds if operator == JOB and state in UP and not blamed else 0.0
        # That another state was entered may be noticed late.
        for name, value in found.items():
            self._shown[name] = max(value, self._shown.get(name, 0.0))
        self._up = max(up, self._up)
        return dict(self._shown), self._up
