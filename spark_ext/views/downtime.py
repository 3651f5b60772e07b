"""Where the time of a job went: which seconds it was down, and which incident each of them belongs to. Pure.

Time is divided among the whole life of the job, from its first start: each second belongs to one state of the job, and
the seconds of all states add up to the wall time. A second of downtime belongs to one incident: the failure that began
it, a driver that was lost, a lack of slots, a stall, or what held up a stop. A start or restart that somebody asked for
is no downtime as long as nothing holds it up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from spark_ext.incidents.registry import AlertRule
from spark_ext.model.execution import REQUESTED
from spark_ext.views.incidents import class_of, query_of
from spark_ext.views.timeline import DOWN, JOB, STOPPED, Interval, Span, Timeline

UP: Final = frozenset({"RUNNING", "PAUSED", "FINISHING", "FINISHED", "SUSPENDED", "CANCELED", STOPPED})
"""States of a job that are no downtime without an incident: it ran, had ended, or was paused or stopped on request."""

CREATED: Final = "CREATED"
SCHEDULING: Final = "SCHEDULING"
STARTING: Final = frozenset({CREATED, SCHEDULING, "DEPLOYING", "RESTORING"})
"""States of a start, which are downtime only if it was not asked for, or something holds it up."""

RECOVERING: Final = frozenset({"RESTARTING", "FAILING", "FAILED", DOWN})
"""States to which a failure leads. An incident that is recorded with any other state belongs to that state alone."""

DRIVER_LOST: Final = "driver_lost"
STOP_BLOCKED: Final = "stop_blocked"
BEGIN: Final = frozenset({"failure", DRIVER_LOST, STOP_BLOCKED})  # incidents that begin downtime, or take it over
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
    requested: bool = False  # whether somebody asked for it

    @property
    def seconds(self) -> float:
        """Its length, s."""
        return (self.until - self.since).total_seconds()

    @property
    def down(self) -> bool:
        """Whether it is downtime."""
        return self.incident != UNKNOWN or not (self.requested or self.state in UP or self.state in STARTING)


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

    def to_json(self, since: datetime, availability: float | None) -> dict[str, Any]:
        """Seconds by state and by incident, and the availability since then; None: the job has reached its end."""
        return {
            "wall_s": self.wall,
            "states_s": self.by_state(),
            "incidents_s": self.by_incident(),
            "since": since,
            "availability": availability,
        }

    def since(self, begin: datetime) -> datetime:
        """Where a period begins in which the job existed: at its first start, if that is after `begin`."""
        return max([begin, *(piece.since for piece in self.pieces[:1])])

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
    failures = [row for row in incidents if row["type"] in BEGIN]
    pieces: list[Period] = []
    by_query: dict[str, list[Period]] = defaultdict(list)
    of_query: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in failures:
        of_query[query_of(row)].append(row)
    gaps: dict[datetime, list[Period]] = defaultdict(list)
    for gap in timeline.gaps:
        gaps[gap.since].append(Period(JOB, gap.state, gap.since, gap.until or now))
    for span in timeline.spans:
        pieces += _job(span, now)
        pieces += gaps.get(span.until, []) if span.until is not None else []
        for part in span.intervals:
            if part.operator != JOB:
                by_query[part.operator].append(period_of(part, part.until or now))
    queries = [piece for query, own in sorted(by_query.items()) for piece in blamed(own, of_query[query])]
    return Downtime(tuple(blamed(_contiguous(pieces), failures)), tuple(queries))


def _job(span: Span, now: datetime) -> list[Period]:
    """The states of the job while one driver ran, from its start to its end."""
    end = span.until or now
    own = [Interval(JOB, CREATED, span.since, None), *(part for part in span.of(JOB) if part.since < end)]
    bounds = [*(part.since for part in own[1:]), end]
    return [period_of(part, until) for part, until in zip(own, bounds, strict=True) if part.since < until]


def period_of(part: Interval, until: datetime) -> Period:
    """An interval as it was recorded, until then."""
    incident = part.incident or UNKNOWN
    requested = incident == UNKNOWN and part.reason.startswith(REQUESTED)
    return Period(part.operator, part.state, part.since, until, incident, requested)


def _contiguous(pieces: Iterable[Period]) -> list[Period]:
    """In order, each from where the one before it ends. Clocks of two drivers may differ, and a takeover overlaps."""
    found: list[Period] = []
    for piece in sorted(pieces, key=lambda piece: (piece.since, piece.until)):
        since = found[-1].until if found else piece.since
        if piece.until > since:
            found.append(replace(piece, since=since))
    return found


def blamed(pieces: Sequence[Period], failures: Iterable[Mapping[str, Any]], before: str = UNKNOWN) -> list[Period]:
    """The pieces, of a job or a query in order, with the incident of each one that is downtime.

    What is being recovered from is blamed until the job runs again; a failure during recovery is to blame from then on.
    A wait for slots, a stall and what holds up a stop are blamed for themselves, and the failure again after them.
    Failures are incidents of the types `BEGIN`; `before` is to blame for downtime before the pieces.
    """
    known = sorted(failures, key=lambda row: (_began(row), row["at"]))
    times = [_began(row) for row in known]
    found: list[Period] = []
    to_blame, blocked, entered = before, UNKNOWN, ("", UNKNOWN)
    started = ran = datetime.min.replace(tzinfo=timezone.utc)  # since when this start lasts, and the job ran last
    for piece in pieces:
        recorded, stopped = piece.incident != UNKNOWN, piece.requested or piece.state == "FAILING"
        if piece.state == CREATED or piece.requested:
            started = piece.since
        if piece.state in UP or piece.requested:
            to_blame = UNKNOWN
        if piece.state in UP and not recorded:
            ran, entered = piece.since, (piece.state, UNKNOWN)
            found.append(piece)
            continue
        begins = known[bisect_left(times, piece.since - LATE) : bisect_left(times, piece.until)]
        stops = [row for row in begins if row["type"] == STOP_BLOCKED and (stopped or _began(row) > piece.since)]
        # Which failure it was is recorded, or it was none.
        begins = [] if recorded or piece.requested else [row for row in begins if row["type"] != STOP_BLOCKED]
        # What the job has recovered from does not hold up a later start. A driver is lost before the next start.
        after = {DRIVER_LOST: started if piece.state == DOWN else ran}
        begins = [row for row in begins if _began(row) >= after.get(row["type"], started)]
        if recorded and piece.state in RECOVERING:
            to_blame = piece.incident
        earlier = [row for row in begins if _began(row) <= piece.since + LATE]
        lost = [row for row in earlier if piece.state == DOWN and row["type"] == DRIVER_LOST]
        if lost or (earlier and to_blame == UNKNOWN):
            to_blame = (lost or earlier)[-1]["incident_id"]
        if (piece.state, piece.incident) != entered:
            entered, blocked = (piece.state, piece.incident), UNKNOWN
        since, blame = piece.since, blocked or (piece.incident if recorded else to_blame)
        for row in sorted([*stops, *(row for row in begins if row not in earlier)], key=_began):
            if _began(row) > since:
                found.append(replace(piece, since=since, until=_began(row), incident=blame))
                since = _began(row)
            blame = row["incident_id"]
            if row["type"] == STOP_BLOCKED:
                blocked = blame
            else:
                to_blame, blocked = blame, UNKNOWN
        found.append(replace(piece, since=since, incident=blame))
    return found


def _began(row: Mapping[str, Any]) -> datetime:
    """When what an incident is about began: a driver that was lost is found by the next start."""
    evidence = row.get("evidence") or {}
    for name in ("last_seen", "since"):
        if name in evidence and row["type"] in (DRIVER_LOST, STOP_BLOCKED):
            return datetime.fromisoformat(evidence[name])
    at: datetime = row["at"]
    return at


def by_class(pieces: Iterable[Period], classes: Mapping[str, str]) -> dict[str, float]:
    """Seconds of downtime in a job's pieces by the class of the incident that each belongs to, given by its id."""
    return _summed((classes.get(piece.incident, class_of(None)), piece.seconds) for piece in pieces if piece.down)


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
    """Whether an incident counts for a rule; one of a type of the user's counts as one of its base, too."""
    return all(
        str(labels.get(name)) in values or (name == "type" and labels.get("base") in values)
        for name, values in wanted.items()
    )
