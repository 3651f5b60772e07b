"""A job's status, from its state directory: read with delta-rs alone, without Spark, during a run or after it.

status = read_status("out/flights/state")
print(status.state, status.query("daily").rows)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from spark_ext.errors import StateError
from spark_ext.ledger import Ledger
from spark_ext.ledger.heartbeat import is_silent
from spark_ext.ledger.schema import JobRow
from spark_ext.model.lifecycle import State
from spark_ext.views.page.facts import (
    Facts,
    FactsReader,
    Resets,
    bad_rows_of,
    finished_channels,
    newest_states,
    rule_failures,
)
from spark_ext.views.page.figures import NONE, counts_of, exchange_of, figures_of, inboxes_of, query_lag, said_of
from spark_ext.views.page.graph import newest_definitions
from spark_ext.views.page.history import timeline_of, whole
from spark_ext.views.snapshot import InboxSnapshot, JobSnapshot, QuerySnapshot, SourceSnapshot
from spark_ext.views.timeline import JOB, job_state
from spark_ext.views.timeline_view import DisplayTimeline


@dataclass(frozen=True, kw_only=True)
class JobStatus(JobSnapshot):
    """A job as its ledger records it.

    The ledger is written up to a second or two behind a running job. Rows and epochs are those of all incarnations
    whose history has not expired.
    """

    driver: str  # `host, process id` of the newest incarnation
    alive: bool | None  # whether that driver is running; None: it is on another machine, so this one cannot tell
    heartbeat: datetime | None  # when that driver was last alive, by its heartbeat; None: it has ended, or writes none
    incidents: tuple[Mapping[str, Any], ...]
    """The five newest ones, newest first: `at`, when it happened last, `operator`, `type`, `what`, `first_what`,
    `action`, `count`, and `state`: OPEN or RESOLVED, None if that is not recorded."""
    timeline: DisplayTimeline
    damage: tuple[str, ...] = ()  # tables that are gone or damaged, and what was found; the rest is shown

    @property
    def lost(self) -> bool:
        """Whether the newest incarnation's driver is gone and its end is not recorded."""
        return self.alive is False and bool(self.timeline.spans) and self.timeline.spans[-1].outcome == "lost"

    @property
    def silent(self) -> bool:
        """Whether that driver cannot be asked from here, and has written no heartbeat for a minute."""
        return self.alive is not False and is_silent(self.heartbeat, self.at)

    def to_json(self) -> dict[str, Any]:
        """Plain values, times as ISO 8601 in UTC."""
        return {
            "job": self.job,
            "state_directory": self.state_directory,
            "state": self.state.value,
            "incarnation": self.incarnation,
            "lineage": self.lineage,
            "driver": self.driver,
            "alive": self.alive,
            "lost": self.lost,
            "heartbeat": _iso(self.heartbeat),
            "silent": self.silent,
            "queries": [_query_json(query) for query in self.queries],
            "incidents": [{**incident, "at": _iso(incident["at"])} for incident in self.incidents],
            "timeline": self.timeline.to_json(),
            "damage": list(self.damage),
        }


def _query_json(query: QuerySnapshot) -> dict[str, Any]:
    return {
        "uid": query.uid,
        "state": query.state.value,
        "since": _iso(query.since),
        "reason": query.reason,
        "finished": query.finished,
        "last_epoch": query.last_epoch,
        "committed_at": _iso(query.committed_at),
        "epochs": query.epochs,
        "rows": query.rows,
        "bad_rows": query.bad_rows,
        "rule_failures": dict(query.rule_failures),
        "late_rows": query.late_rows,
        "state_rows": query.state_rows,
        "lag_rows": query.lag_rows,
        "lag_at": _iso(query.lag_at),
        "watermark": _iso(query.watermark),
        "newest_row": _iso(query.newest_row),
        "channels_finished": query.channels_finished,
        "latencies": [one.to_json() for one in query.latencies],
        "exchange": None if query.exchange is None else query.exchange.to_json(),
        "inboxes": [one.to_json() for one in query.inboxes],
    }


def open_ledger(
    state: str, storage_options: Mapping[str, str] | None = None, damage: list[str] | None = None
) -> Ledger:
    """The ledger of an existing job; `damage` gets a line for each table that was deleted (None: it is an error)."""
    ledger = Ledger(state, storage_options=dict(storage_options) if storage_options else None)
    starts = ledger.table(JobRow).read(columns=["start_id"])["start_id"].to_pylist()
    for table in ledger.lost(starts):
        problem = table.errors.lost(
            "reading the ledger", f"'{table.name}' was created at the first start and is missing"
        )
        if damage is None or not starts:
            raise problem
        damage.append(f"{problem.operator}: {problem.what}")
    if not starts:
        raise StateError(
            f"'{state}' is not the state directory of a job: no job has been started in it",
            operator="the state directory",
            kept="nothing was read or changed",
            do="use the directory that the job was created with: Job(spark, name, state=...)",
        )
    return ledger


def read_status(
    state: str,
    storage_options: Mapping[str, str] | None = None,
    inboxes: Callable[[Facts], Mapping[str, tuple[InboxSnapshot, ...]]] = lambda facts: {},
) -> JobStatus:
    """Read a job's status; `inboxes` gives those of queries, by uid, in place of what the newest heartbeat has."""
    damage: list[str] = []
    facts = FactsReader(open_ledger(state, storage_options, damage), damage).read()
    found, read = status_from(facts), inboxes(facts)
    queries = tuple(replace(query, inboxes=read.get(query.uid, query.inboxes)) for query in found.queries)
    return replace(found, queries=queries, damage=tuple(damage))


def status_of(ledger: Ledger) -> JobStatus:
    """Like `read_status`, of a ledger with at least one start."""
    return status_from(FactsReader(ledger).read())


def status_from(facts: Facts) -> JobStatus:
    """The status from the facts of a ledger, which are read incrementally. Pure, except for the time."""
    newest, ended = facts.newest, facts.end
    number = newest["incarnation"]
    entered = job_state(facts.states, facts.jobs)
    state_now = _state(entered["state"]) if entered else State.CREATED
    queries = _queries(facts)
    found = timeline_of(facts, facts.running)
    counts = counts_of(facts.epochs)
    spans = tuple(
        replace(span, epochs=counts[span.number][0], rows=counts[span.number][1]) if span.number in counts else span
        for span in found.spans
    )
    return JobStatus(
        job=newest["job"],
        state_directory=facts.directory,
        state=state_now,
        incarnation=number,
        lineage=max(row["lineage"] for row in facts.jobs),
        started=newest["at"],
        ended=ended,
        at=datetime.now(timezone.utc),
        queries=queries,
        error=next((query.reason for query in queries if state_now is query.state is State.FAILED), ""),
        driver=f"{newest['host']}, process {newest['driver_pid']}",
        alive=False if ended is not None else facts.alive,
        heartbeat=None if ended is not None else facts.beats.get(number),
        incidents=_newest_incidents(facts),
        timeline=DisplayTimeline(spans, found.downs, found.stops),
    )


def _newest_incidents(facts: Facts) -> tuple[Mapping[str, Any], ...]:
    chosen = sorted(whole(facts.incidents, facts.changes), key=lambda row: row["last"], reverse=True)[:5]
    names = ("operator", "type", "what", "first_what", "action", "count", "state")
    return tuple({"at": row["last"], **{name: row[name] for name in names}} for row in chosen)


def _queries(facts: Facts) -> tuple[QuerySnapshot, ...]:
    """The queries by uid. Rows of a lineage that a reset has ended do not count."""
    entered = newest_states(facts.states)
    entered.pop(JOB, None)
    resets = Resets.of(facts.jobs)
    figures = figures_of(facts.epochs, resets.least)
    final = {row["query"] for row in facts.checkpoints if row["kind"] == "final" and resets.counts(row)}
    ended = {(row["query"], row["source"]) for row in facts.finished if row["kind"] == "source" and resets.counts(row)}
    bad, failures = bad_rows_of(facts, resets), rule_failures(facts, resets)
    sources: dict[str, list[SourceSnapshot]] = {}
    for (query, source), ends in sorted(finished_channels(facts, resets).items()):
        one = SourceSnapshot(
            uid=source, finished=(query, source) in ended, channels_finished=len(ends), channels_running=None
        )
        sources.setdefault(query, []).append(one)
    definitions = newest_definitions(facts.definitions, facts.jobs)
    found = []
    for uid in sorted(entered.keys() | figures.keys()):
        own = figures.get(uid, NONE)
        state = resets.state(uid, entered)
        lag = query_lag(said_of(facts.said, uid), own.lag, own.planned, finished=uid in final)
        found.append(
            QuerySnapshot(
                uid=uid,
                state=_state(state["state"]),
                reason=state["reason"],
                since=state["since"],
                finished=uid in final,
                epochs=own.epochs,
                last_epoch=own.last if own.epochs else None,
                last_epoch_ms=own.last_ms,
                committed_at=_moment(own.at) if own.epochs else None,
                rows=own.rows,
                bad_rows=bad[uid],
                rule_failures=failures.get(uid, {}),
                late_rows=own.late,
                state_rows=own.state,
                emits=not all(
                    one.startswith("dropDuplicates") for one in definitions.get(uid, {}).get("state") or [""]
                ),
                lag_rows=lag.rows,
                lag_at=_moment(lag.at),
                watermark=_moment(lag.watermark),
                newest_row=_moment(lag.newest_row),
                sources=tuple(sources.get(uid, ())),
                latencies=facts.latencies.get(uid, ()),
                exchange=exchange_of(said_of(facts.said, uid)),
                inboxes=inboxes_of(said_of(facts.said, uid)),
            )
        )
    return tuple(found)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, timezone.utc)


def _state(name: str) -> State:
    try:
        return State(name)
    except ValueError:
        raise StateError(
            f"the ledger has the state '{name}', which this release does not know",
            operator="the state directory",
            kept="nothing was changed",
            do="use a release that is at least as new as the one that runs the job",
        ) from None


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
