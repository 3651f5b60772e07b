"""Where the time of a job went: which seconds it was down, and which incident each of them belongs to. Pure.

    downtime(timeline, incidents, now) -> Downtime

Time is divided among the whole life of the job, from its first start: each second belongs to one state of the job, and
the seconds of all states add up to the wall time. A second in which the job neither ran nor was stopped on request
belongs to one incident: the failure that began it, or that of the driver that was lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from spark_ext.views.incidents import query_of
from spark_ext.views.timeline import DOWN, JOB, STOPPED, Interval, Span, Timeline

UP: Final = frozenset({"RUNNING", "FINISHING", "FINISHED", "CANCELED", STOPPED})
"""States of a job that are no downtime: it ran, had ended, or was stopped on request."""

LATE: Final = timedelta(seconds=2)
"""By how much an incident may be recorded after the state that it led to."""

UNKNOWN: Final = ""
"""The incident of seconds for which none was recorded, as before the first start of a job has come to run."""


@dataclass(frozen=True)
class Piece:
    """A period in which the job, or one query, was in one state."""

    operator: str
    """The query's uid; empty: the job."""
    state: str
    since: datetime
    until: datetime
    incident: str = UNKNOWN
    """The id of the incident that it belongs to, if it is downtime."""

    @property
    def seconds(self) -> float:
        """Its length, s."""
        return (self.until - self.since).total_seconds()

    @property
    def down(self) -> bool:
        """Whether it is downtime."""
        return self.state not in UP


@dataclass(frozen=True)
class Downtime:
    """Where the time of a job went."""

    pieces: tuple[Piece, ...]
    """Of the job, in order, without gaps and overlaps, from its first start on."""
    queries: tuple[Piece, ...]
    """Of its queries, while a driver ran."""

    @property
    def wall(self) -> float:
        """From the first start to the end or to now, s."""
        return sum(piece.seconds for piece in self.pieces)

    def by_state(self) -> dict[str, float]:
        """Seconds of the job in each state; they add up to `wall`."""
        return _summed((piece.state, piece.seconds) for piece in self.pieces)

    def by_incident(self) -> dict[str, dict[str, float]]:
        """For each incident that cost time, the seconds by state: of the job, or of a query while the job ran."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for piece in (*self.pieces, *self.queries):
            if piece.down and piece.incident != UNKNOWN:
                states = found[piece.incident]
                name = piece.state if piece.operator == JOB else f"{piece.state} of {piece.operator}"
                states[name] = states.get(name, 0.0) + piece.seconds
        return dict(found)

    def availability(self, since: datetime, until: datetime) -> float:
        """The share of a period in which the job was not down; a period in which it did not exist does not count."""
        whole = down = 0.0
        for piece in self.pieces:
            begin, end = max(piece.since, since), min(piece.until, until)
            if begin < end:
                whole += (end - begin).total_seconds()
                down += (end - begin).total_seconds() if piece.down else 0.0
        return 1.0 if whole == 0.0 else 1.0 - down / whole


def downtime(timeline: Timeline, incidents: Sequence[Mapping[str, Any]], now: datetime) -> Downtime:
    """Divide the time of a job.

    Args:
        timeline: of the job.
        incidents: its rows of `incidents`, with `labels` and `evidence` as values.
        now: UTC; until then counts what has not ended.
    """
    failures = sorted(
        (row for row in incidents if row["type"] in ("failure", "driver_lost")), key=lambda row: row["at"]
    )
    pieces: list[Piece] = []
    for span in timeline.spans:
        pieces += _job(span, now)
        pieces += [
            Piece(JOB, gap.state, gap.since, gap.until or now) for gap in timeline.gaps if gap.since == span.until
        ]
    merged = _blamed(_contiguous(pieces), failures)
    queries = [
        Piece(part.operator, part.state, part.since, part.until or now)
        for span in timeline.spans
        for part in span.intervals
        if part.operator != JOB
    ]
    return Downtime(tuple(merged), tuple(_blamed_query(piece, failures) for piece in queries))


def _job(span: Span, now: datetime) -> list[Piece]:
    """The states of the job while one driver ran, from its start to its end."""
    end = span.until or now
    own: list[Interval] = [part for part in span.of(JOB) if part.since < end]
    states = [(span.since, "CREATED"), *((part.since, part.state) for part in own)]
    bounds = [*(since for since, _ in states), end]
    return [
        Piece(JOB, state, since, until)
        for (_, state), (since, until) in zip(states, pairwise(bounds), strict=True)
        if since < until
    ]


def _contiguous(pieces: Iterable[Piece]) -> list[Piece]:
    """In order, each from where the one before it ends. Clocks of two drivers may differ, and a takeover overlaps."""
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.since, piece.until)):
        since = found[-1].until if found else piece.since
        if piece.until > since:
            found.append(Piece(piece.operator, piece.state, since, piece.until))
    return found


def _blamed(pieces: Sequence[Piece], failures: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """The pieces with the incident of each one that is downtime.

    What is being recovered from is blamed until the job runs again; a failure during recovery is to blame from then on.
    """
    found: list[Piece] = []
    blamed = UNKNOWN
    for piece in pieces:
        if not piece.down:
            blamed = UNKNOWN
            found.append(piece)
            continue
        begins = [row for row in failures if piece.since - LATE <= _began(row) < piece.until]
        earlier = [row for row in begins if _began(row) <= piece.since + LATE]
        if earlier and (blamed == UNKNOWN or piece.state == DOWN):
            blamed = earlier[-1]["incident_id"]
        since = piece.since
        for row in begins:
            if row not in earlier and _began(row) > since:
                found.append(Piece(JOB, piece.state, since, _began(row), blamed))
                since, blamed = _began(row), row["incident_id"]
        found.append(Piece(JOB, piece.state, since, piece.until, blamed))
    return found


def _blamed_query(piece: Piece, failures: Sequence[Mapping[str, Any]]) -> Piece:
    if not piece.down or piece.state == "CREATED":
        return piece
    own = [row for row in failures if query_of(row) == piece.operator and _began(row) <= piece.since + LATE]
    return Piece(piece.operator, piece.state, piece.since, piece.until, own[-1]["incident_id"] if own else UNKNOWN)


def _began(row: Mapping[str, Any]) -> datetime:
    """When what an incident is about began: a driver that was lost is found by the next start."""
    evidence = row.get("evidence") or {}
    if row["type"] == "driver_lost" and "last_seen" in evidence:
        return datetime.fromisoformat(evidence["last_seen"])
    at: datetime = row["at"]
    return at


def _summed(given: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, seconds in given:
        found[name] += seconds
    return dict(found)
