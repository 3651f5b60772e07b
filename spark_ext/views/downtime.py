"""Where the time of a job went: which seconds it was down, and which incident each of them belongs to. Pure.

Time is divided among the whole life of the job, from its first start: each second belongs to one state of the job, and
the seconds of all states add up to the wall time. A second of downtime belongs to one incident: the failure that began
it, a driver that was lost, a lack of slots, a stall, or what held up a stop. A start that somebody asked for is no
downtime as long as nothing holds it up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from spark_ext.incidents.registry import AlertRule
from spark_ext.views.incidents import query_of
from spark_ext.views.timeline import DOWN, JOB, STOPPED, Interval, Span, Timeline

UP: Final = frozenset({"RUNNING", "PAUSED", "FINISHING", "FINISHED", "SUSPENDED", "CANCELED", STOPPED})
"""States of a job that are no downtime without an incident: it ran, had ended, or was paused or stopped on request."""

CREATED: Final = "CREATED"
SCHEDULING: Final = "SCHEDULING"
STARTING: Final = frozenset({CREATED, SCHEDULING, "DEPLOYING", "RESTORING"})
"""States of a start, which are downtime only if it was not asked for, or something holds it up."""

DRIVER_LOST: Final = "driver_lost"
BEGIN: Final = frozenset({"failure", DRIVER_LOST, "stop_blocked"})  # incidents that begin downtime, or take it over
LATE: Final = timedelta(seconds=2)  # by how much an incident may be recorded after the state that it led to
UNKNOWN: Final = ""  # the incident of seconds for which none was recorded


@dataclass(frozen=True)
class Period:
    """A period in which the job, or one query, was in one state."""

    operator: str  # "": the job
    state: str
    since: datetime
    until: datetime
    incident: str = UNKNOWN  # the id of the incident that it belongs to, if it is downtime

    @property
    def seconds(self) -> float:
        """Its length, s."""
        return (self.until - self.since).total_seconds()

    @property
    def down(self) -> bool:
        """Whether it is downtime."""
        return self.incident != UNKNOWN or (self.state not in UP and self.state not in STARTING)


@dataclass(frozen=True)
class Downtime:
    """Where the time of a job went."""

    pieces: tuple[Period, ...]  # of the job, in order, without gaps and overlaps, from its first start on
    queries: tuple[Period, ...]  # of its queries, while a driver ran

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
        return self.share(since, until)[0]

    def share(
        self, since: datetime, until: datetime, counts: Callable[[Period], bool] = lambda piece: True
    ) -> tuple[float, float]:
        """The same, with the downtime in the period, s; both by the downtime that counts."""
        whole = down = 0.0
        for piece in self.pieces:
            seconds = (min(piece.until, until) - max(piece.since, since)).total_seconds()
            if seconds > 0:
                whole += seconds
                down += seconds if piece.down and counts(piece) else 0.0
        return 1.0 if whole == 0.0 else 1.0 - down / whole, down


def downtime(timeline: Timeline, incidents: Sequence[Mapping[str, Any]], now: datetime) -> Downtime:
    """Divide the time of a job; what has not ended counts until `now`."""
    failures = sorted((row for row in incidents if row["type"] in BEGIN), key=lambda row: row["at"])
    pieces: list[Period] = []
    by_query: dict[str, list[Period]] = defaultdict(list)
    of_query: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in failures:
        of_query[query_of(row)].append(row)
    for span in timeline.spans:
        pieces += _job(span, now)
        pieces += [
            Period(JOB, gap.state, gap.since, gap.until or now) for gap in timeline.gaps if gap.since == span.until
        ]
        for part in span.intervals:
            if part.operator != JOB:
                own = Period(part.operator, part.state, part.since, part.until or now, part.incident or UNKNOWN)
                by_query[part.operator].append(own)
    queries = [piece for query, own in sorted(by_query.items()) for piece in blamed(own, of_query[query])]
    return Downtime(tuple(blamed(_contiguous(pieces), failures)), tuple(queries))


def _job(span: Span, now: datetime) -> list[Period]:
    """The states of the job while one driver ran, from its start to its end."""
    end = span.until or now
    own: list[Interval] = [part for part in span.of(JOB) if part.since < end]
    states = [(span.since, CREATED, UNKNOWN), *((part.since, part.state, part.incident or UNKNOWN) for part in own)]
    bounds = [*(since for since, _, _ in states), end]
    return [
        Period(JOB, state, since, until, incident)
        for (_, state, incident), (since, until) in zip(states, pairwise(bounds), strict=True)
        if since < until
    ]


def _contiguous(pieces: Iterable[Period]) -> list[Period]:
    """In order, each from where the one before it ends. Clocks of two drivers may differ, and a takeover overlaps."""
    found: list[Period] = []
    for piece in sorted(pieces, key=lambda piece: (piece.since, piece.until)):
        since = found[-1].until if found else piece.since
        if piece.until > since:
            found.append(replace(piece, since=since))
    return found


def blamed(pieces: Sequence[Period], failures: Sequence[Mapping[str, Any]], before: str = UNKNOWN) -> list[Period]:
    """The pieces, of a job or a query in order, with the incident of each one that is downtime.

    What is being recovered from is blamed until the job runs again; a failure during recovery is to blame from then on.
    Failures are incidents of the types `BEGIN`, in order; `before` is to blame for downtime before the pieces.
    """
    found: list[Period] = []
    to_blame, started = before, None
    for piece in pieces:
        if piece.state == CREATED:
            started = piece.since
        # Waiting for a slot during a recovery is part of that, as starting executors and reading state are.
        recorded = piece.incident != UNKNOWN and not (piece.state == SCHEDULING and to_blame != UNKNOWN)
        if not recorded and piece.state in UP:
            to_blame = UNKNOWN
            found.append(piece)
            continue
        begins = [row for row in failures if piece.since - LATE <= _began(row) < piece.until]
        # A failure of a former start that the job has recovered from does not hold up this one.
        begins = [row for row in begins if started is None or row["type"] == DRIVER_LOST or _began(row) >= started]
        earlier = [row for row in begins if _began(row) <= piece.since + LATE and row["type"] != "stop_blocked"]
        if recorded:
            to_blame = piece.incident
            # Which of them it was is recorded; only what holds up a stop takes over within a state.
            begins = [row for row in begins if row["type"] == "stop_blocked"]
        elif earlier and (to_blame == UNKNOWN or piece.state == DOWN):
            to_blame = earlier[-1]["incident_id"]
        since = piece.since
        for row in begins:
            if row not in earlier and _began(row) > since:
                found.append(replace(piece, since=since, until=_began(row), incident=to_blame))
                since, to_blame = _began(row), row["incident_id"]
        found.append(replace(piece, since=since, incident=to_blame))
    return found


def _began(row: Mapping[str, Any]) -> datetime:
    """When what an incident is about began: a driver that was lost is found by the next start."""
    evidence = row.get("evidence") or {}
    for name in ("last_seen", "since"):
        if name in evidence and row["type"] in (DRIVER_LOST, "stop_blocked"):
            return datetime.fromisoformat(evidence[name])
    at: datetime = row["at"]
    return at


def _summed(given: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, seconds in given:
        found[name] += seconds
    return dict(found)


@dataclass(frozen=True)
class Availability:
    """What a rule finds."""

    share: float  # availability of the job in the period, counting only downtime with the rule's labels: 0 to 1
    down: float  # downtime with these labels, s
    low: bool


def availability(
    rule: AlertRule, found: Downtime, incidents: Sequence[Mapping[str, Any]], now: datetime
) -> Availability:
    """Evaluate a rule for the period that ends now.

    Time in which the job did not exist does not count. Downtime that belongs to no incident counts for a rule without
    labels alone.
    """
    since = now - timedelta(milliseconds=rule.over)
    labels = {row["incident_id"]: row["labels"] or {} for row in incidents}
    share, down = found.share(since, now, lambda piece: _has(labels.get(piece.incident, {}), rule.labels))
    return Availability(share, down, share < rule.below)


def _has(labels: Mapping[str, Any], wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(str(labels.get(name)) in values for name, values in wanted.items())
