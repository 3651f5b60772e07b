"""Where the time of a job went, as the page shows it: intervals, with the incident that each is due to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_ext.ledger.incidents import standings
from spark_ext.views.downtime import Downtime, downtime
from spark_ext.views.incidents import merged
from spark_ext.views.timeline import Timeline, timeline

if TYPE_CHECKING:
    from spark_ext.views.page.epochs import Epochs
    from spark_ext.views.page.facts import Facts

INTERVALS: Final = 30_000  # intervals of all queries together; each shows its newest ones
LEAST: Final = 20  # intervals of a query that are shown however many queries there are

PERIODS: Final = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
"""Periods for which availability is shown, in addition to the whole life of the job."""


def stamp(at: datetime | None) -> int | None:
    """A time as ms since 1970 UTC."""
    return None if at is None else round(at.timestamp() * 1000)


def timeline_of(facts: Facts, running: frozenset[int]) -> Timeline:
    """The timeline of a job; `running` are the incarnations whose driver runs, or may run."""
    # The epochs of a driver that was lost say how long it lived. As arrays: there may be very many.
    beats = dict(facts.beats)
    for number, at in last_commits(facts.epochs).items():
        beats[number] = max(at, beats.get(number, at))
    return timeline(facts.states, facts.jobs, (), facts.checkpoints, alive=running, beats=beats)


def last_commits(epochs: Epochs) -> dict[int, datetime]:
    """When each incarnation has committed its last epoch."""
    numbers, place = np.unique(epochs.incarnation, return_inverse=True)
    last = np.zeros(len(numbers), np.int64)
    np.maximum.at(last, place, epochs.at)
    return {
        int(number): datetime.fromtimestamp(ms / 1000, timezone.utc)
        for number, ms in zip(numbers, last.tolist(), strict=True)
    }


def history(
    found: Timeline, incidents: Sequence[Mapping[str, Any]], hosts: Mapping[int, str], last: datetime, now: datetime
) -> dict[str, Any]:
    """Intervals and sums until `last`, when the job ended or was last alive; its availability and downtime until `now`.

    `incidents` has a row for each occurrence. A job that has read its input to the end has no availability.
    """
    divided = downtime(found, incidents, last)
    whole_life = downtime(found.until(now), incidents, now)
    intervals = _intervals(found, divided)
    since = divided.pieces[0].since if divided.pieces else last
    until = divided.pieces[-1].until if divided.pieces else last
    return {
        "since": stamp(since),
        "until": stamp(until),
        "wall_s": round(divided.wall, 3),
        "down_s": round(sum(piece.seconds for piece in whole_life.pieces if piece.down), 3),
        "states_s": {name: round(seconds, 3) for name, seconds in divided.by_state().items()},
        "incidents_s": {
            name: {state: round(seconds, 3) for state, seconds in states.items()}
            for name, states in divided.by_incident().items()
        },
        "availability": None
        if found.has_end
        else {
            **{name: round(whole_life.availability(now - period, now), 6) for name, period in PERIODS.items()},
            "all": round(whole_life.availability(since, now), 6),
        },
        "spans": [
            {
                "number": span.number,
                "since": stamp(span.since),
                "until": stamp(span.until),
                "outcome": span.outcome,
                "host": hosts.get(span.number, ""),
            }
            for span in found.spans
        ],
        "intervals": intervals,
    }


def _intervals(found: Timeline, divided: Downtime) -> dict[str, list[list[Any]]]:
    """Per operator [state, since, until, reason, incident], in order. An interval without an end has None."""
    parts = [part for span in found.spans for part in span.intervals]
    reasons = {(part.operator, part.state, part.since): part.reason for part in (*parts, *found.gaps)}
    open_ = {part.operator for part in parts if part.until is None}
    by_operator: dict[str, list[list[Any]]] = defaultdict(list)
    for piece in (*divided.pieces, *divided.queries):
        own = by_operator[piece.operator]
        reason = reasons.get((piece.operator, piece.state, piece.since))
        if reason is None:  # the rest of an interval that another incident has taken over
            reason = own[-1][3] if own and own[-1][0] == piece.state else ""
        own.append([piece.state, stamp(piece.since), stamp(piece.until), reason, piece.incident])
    for operator in open_ & by_operator.keys():
        by_operator[operator][-1][2] = None
    most = max(LEAST, INTERVALS // max(1, len(by_operator)))
    return {operator: own[-most:] for operator, own in sorted(by_operator.items())}


def whole(rows: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Incidents, each once, oldest first, with what has become of them; see `views.incidents.merged`."""
    return merged(rows, standings(changes))
