"""A job's timeline: what each query did when, over all incarnations, made from the ledger's rows alone.

Pure: no clock, no Spark, no files. The time between an incarnation that was lost or has failed and the next is DOWN;
after one that was stopped on request it is STOPPED. No row of the ledger says so: no driver was running to write it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

JOB = ""  # the operator of rows that are about the job as a whole
DOWN = "DOWN"  # no driver was running: the previous incarnation was lost or had failed, the next had not been started
STOPPED = "STOPPED"  # no driver was running, on request: the last one was stopped, the next not started
REFUSED = "the start was refused"  # how an incarnation has ended that never ran
ENDED = frozenset({"FINISHED", "SUSPENDED", "FAILED", "CANCELED"})  # states that are never left within an incarnation
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Interval:
    """A period in which one operator was in one state."""

    operator: str  # "": the job
    state: str
    since: datetime
    until: datetime | None  # None: it has not ended. For a state that is never left: the same as `since`.
    reason: str = ""
    incident: str | None = None  # the id of the incident that its time belongs to, if that was recorded with it

    def seconds(self, now: datetime) -> float:
        """Its length, s; one that has not ended is measured until `now`."""
        return ((self.until or now) - self.since).total_seconds()


@dataclass(frozen=True)
class Final:
    """A query's final checkpoint: when each of its steps was recorded, in order."""

    query: str
    epoch: int | None
    steps: tuple[tuple[str, datetime], ...]


@dataclass(frozen=True)
class Span:
    """One incarnation: a driver's run of the job."""

    number: int
    since: datetime
    until: datetime | None  # None: it is running
    outcome: str  # how it ended, as the ledger records it; `lost`: its end is not recorded; empty: it is running
    intervals: tuple[Interval, ...]
    epochs: Mapping[str, int]  # committed, by query
    rows: Mapping[str, int]  # read, by query; epochs for which Spark reported no figures count as 0
    finals: tuple[Final, ...] = ()

    @property
    def operators(self) -> tuple[str, ...]:
        """The job first, then its queries by uid."""
        return tuple(sorted({interval.operator for interval in self.intervals} | set(self.epochs)))

    def of(self, operator: str) -> tuple[Interval, ...]:
        """The intervals of one operator, in order."""
        return tuple(interval for interval in self.intervals if interval.operator == operator)


@dataclass(frozen=True)
class Timeline:
    """All incarnations of a job in order, and the downtime between them."""

    spans: tuple[Span, ...]
    downs: tuple[Interval, ...] = ()  # periods without a driver that follow an incarnation that was lost or has failed
    stops: tuple[Interval, ...] = ()  # periods without a driver after a stop on request, or an end

    @property
    def gaps(self) -> tuple[Interval, ...]:
        """All periods without a driver between two incarnations."""
        return (*self.downs, *self.stops)

    @property
    def has_end(self) -> bool:
        """Whether its input has been read to the end, or to what was there: nobody waits for it to be available."""
        return bool(self.spans) and self.spans[-1].outcome in ("FINISHED", "SUSPENDED")

    def until(self, now: datetime) -> Timeline:
        """With the time since its last driver ended: a job that has failed or was lost is down until it is started."""
        return _with_gaps(self.spans, now)

    def seconds(self, now: datetime) -> dict[tuple[str, str], float]:
        """Cumulative time by (operator, state), s, over all incarnations; DOWN counts for the job."""
        total: dict[tuple[str, str], float] = defaultdict(float)
        for interval in (*(part for span in self.spans for part in span.intervals), *self.downs):
            total[interval.operator, interval.state] += interval.seconds(now)
        return dict(total)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values, times as ISO 8601 in UTC."""
        before: dict[datetime, float] = defaultdict(int)
        for down in self.downs:
            if down.until is not None:
                before[down.until] += (down.until - down.since).total_seconds()
        return [plain({**asdict(span), "down_before": before.get(span.since, 0)}) for span in self.spans]


def timeline(
    states: Iterable[Row],
    jobs: Iterable[Row],
    epochs: Iterable[Row] = (),
    checkpoints: Iterable[Row] = (),
    *,
    alive: frozenset[int] = frozenset(),
    beats: Mapping[int, datetime] | None = None,
) -> Timeline:
    """Make a timeline from the ledger's rows, which may be in any order.

    `alive` are incarnations whose driver is known to be running. Any other whose end is not recorded was lost, and is
    taken to have lasted until its last row of any kind.
    """
    started, ended = _starts_and_ends(jobs)
    by_run, epochs_of, checkpoints_of = (_by_incarnation(rows) for rows in (states, epochs, checkpoints))
    seen = _last_seen(by_run, epochs_of, checkpoints_of)
    spans = []
    for number in sorted(set(started) | set(by_run)):
        since = started.get(number) or min(row["since"] for row in by_run[number])
        until, outcome = ended.get(number, (None, ""))
        if until is None and number not in alive:
            until, outcome = max(since, seen.get(number, since), (beats or {}).get(number, since)), "lost"
        spans.append(
            Span(
                number,
                since,
                until,
                outcome,
                _intervals(by_run[number], until),
                *_counts(epochs_of[number]),
                _finals(checkpoints_of[number]),
            )
        )
    return _with_gaps(tuple(spans), None)


def job_state(states: Iterable[Row], jobs: Iterable[Row]) -> Row | None:
    """The row of the state in which a job is; None: CREATED.

    A start that was refused leaves it in the state before, which is FAILED if the driver was lost.
    """
    started, ended = _starts_and_ends(jobs)
    number = max(started)
    own = [row for row in states if row["operator"] == JOB]
    last = max(own, key=lambda row: (row["incarnation"], row["since"]), default=None)
    if last is None or last["incarnation"] == number:
        return last
    if number not in ended:
        return None
    return last if last["state"] in ENDED else {**last, "state": "FAILED"}


def _with_gaps(spans: tuple[Span, ...], now: datetime | None) -> Timeline:
    gaps = _gaps(spans, now)
    return Timeline(
        spans, tuple(gap for gap in gaps if gap.state == DOWN), tuple(gap for gap in gaps if gap.state == STOPPED)
    )


def _starts_and_ends(jobs: Iterable[Row]) -> tuple[dict[int, datetime], dict[int, tuple[datetime, str]]]:
    started: dict[int, datetime] = {}
    ended: dict[int, tuple[datetime, str]] = {}
    for row in jobs:
        if row["event"] == "started":
            started[row["incarnation"]] = row["at"]
        elif row["event"] == "ended":
            ended[row["incarnation"]] = (row["at"], row["reason"] or "ended")
    return started, ended


def _by_incarnation(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["incarnation"]].append(row)
    return found


def _last_seen(
    states: Mapping[int, list[Row]], epochs: Mapping[int, list[Row]], checkpoints: Mapping[int, list[Row]]
) -> dict[int, datetime]:
    seen: dict[int, datetime] = {}
    for time, of_runs in (("since", states), ("committed_at", epochs), ("at", checkpoints)):
        for number, rows in of_runs.items():
            last = max(row[time] for row in rows)
            seen[number] = max(last, seen.get(number, last))
    return seen


def _intervals(rows: Iterable[Row], end: datetime | None) -> tuple[Interval, ...]:
    by_operator: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["since"]):
        own = by_operator[row["operator"]]
        # A row may be there twice, if its writer was killed while writing it.
        if not own or (own[-1]["state"], own[-1]["since"]) != (row["state"], row["since"]):
            own.append(row)
    found = []
    for operator in sorted(by_operator):
        own = by_operator[operator]
        for row, following in zip(own, [*own[1:], None], strict=True):
            last = row["since"] if row["state"] in ENDED else end
            until = last if following is None else following["since"]
            incident = row.get("incident")
            found.append(Interval(operator, row["state"], row["since"], until, row["reason"] or "", incident))
    return tuple(found)


def _counts(epochs: Iterable[Row]) -> tuple[dict[str, int], dict[str, int]]:
    committed: dict[str, int] = defaultdict(int)
    rows: dict[str, int] = defaultdict(int)
    for row in {(row["query"], row["lineage"], row["epoch"]): row for row in epochs}.values():
        committed[row["query"]] += 1
        rows[row["query"]] += row["input_rows"] or 0
    return dict(committed), dict(rows)


def _finals(checkpoints: Iterable[Row]) -> tuple[Final, ...]:
    by_query: dict[str, list[Row]] = defaultdict(list)
    for row in checkpoints:
        if row["kind"] == "final":
            by_query[row["query"]].append(row)
    return tuple(
        Final(
            query,
            rows[0]["epoch"],
            # By status: the earliest row counts.
            tuple({row["status"]: (row["status"], row["at"]) for row in sorted(rows, key=_at, reverse=True)}.values())[
                ::-1
            ],
        )
        for query, rows in sorted(by_query.items())
    )


def _gaps(spans: Sequence[Span], now: datetime | None) -> list[Interval]:
    found: list[Interval] = []
    down = False
    ends = [after.since for after in spans[1:]] + ([] if now is None else [now])
    for before, end in zip(spans, ends, strict=False):
        if before.until is None or before.until >= end:
            continue
        if before.outcome == "lost":
            reason = f"incarnation {before.number} was lost"
        else:
            reason = f"incarnation {before.number} has ended: {before.outcome}"
        # A start that was refused after a stop on request leaves the job stopped.
        refused = before.outcome == REFUSED
        down = before.outcome == "lost" or before.outcome == "FAILED" or (refused and (down or not found))
        found.append(Interval(JOB, DOWN if down else STOPPED, before.until, end, reason))
    return found


def _at(row: Row) -> datetime:
    at: datetime = row["at"]
    return at


def plain(value: Any) -> Any:
    """Values as JSON has them, times as ISO 8601."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
