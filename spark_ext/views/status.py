"""What a job's state directory says about the job: read with delta-rs alone, without Spark, while it runs or after.

status = read_status("out/flights/state")
print(status.state, status.query("daily").rows)
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_ext.errors import StateError
from spark_ext.ledger import Ledger
from spark_ext.ledger.incarnation import is_alive
from spark_ext.ledger.schema import (
    CheckpointRow,
    EpochRow,
    ExecutionStateRow,
    FinishedRow,
    IncidentRow,
    JobRow,
    Row,
)
from spark_ext.views.timeline import JOB, Timeline, timeline

NEW = "CREATED"
"""State of a query that has no row in `execution_states` yet."""

CLOSED = "CLOSED"
"""Last step of a final checkpoint."""


@dataclass(frozen=True)
class QueryStatus:
    """A query as the ledger has it."""

    uid: str
    state: str
    since: datetime | None
    reason: str
    finished: bool
    """Whether its final checkpoint is recorded: it is never started again."""
    last_epoch: int | None
    """The newest committed epoch that the ledger has; Spark's own log may be some epochs ahead while it runs."""
    committed_at: datetime | None
    epochs: int
    """In the ledger, over all incarnations; old ones expire."""
    rows: int
    channels_finished: Mapping[str, int]
    """Finished channels by source."""


@dataclass(frozen=True)
class JobStatus:
    """A job as its ledger has it."""

    job: str
    state_directory: str
    state: str
    incarnation: int
    lineage: int
    driver: str
    """`host, process id` of the newest incarnation."""
    alive: bool | None
    """Whether that driver runs; None: it is on another machine, where this one cannot look."""
    queries: tuple[QueryStatus, ...]
    incidents: tuple[Mapping[str, Any], ...]
    """The newest ones, newest first: `at`, `operator`, `type`, `what`, `action`."""
    timeline: Timeline

    @property
    def lost(self) -> bool:
        """Whether the ledger has no end of the newest incarnation although its driver is gone."""
        return self.alive is False and bool(self.timeline.spans) and self.timeline.spans[-1].outcome == "lost"

    def query(self, uid: str) -> QueryStatus:
        """One query.

        Raises:
            KeyError: the ledger knows no such query.
        """
        for query in self.queries:
            if query.uid == uid:
                return query
        raise KeyError(f"job '{self.job}' has no query '{uid}'; it has {[query.uid for query in self.queries]}")

    def to_json(self) -> dict[str, Any]:
        """Plain values, times as ISO 8601 in UTC."""
        return {
            "job": self.job,
            "state_directory": self.state_directory,
            "state": self.state,
            "incarnation": self.incarnation,
            "lineage": self.lineage,
            "driver": self.driver,
            "alive": self.alive,
            "lost": self.lost,
            "queries": [
                {
                    "uid": query.uid,
                    "state": query.state,
                    "since": _iso(query.since),
                    "reason": query.reason,
                    "finished": query.finished,
                    "last_epoch": query.last_epoch,
                    "committed_at": _iso(query.committed_at),
                    "epochs": query.epochs,
                    "rows": query.rows,
                    "channels_finished": dict(query.channels_finished),
                }
                for query in self.queries
            ],
            "incidents": [{**incident, "at": _iso(incident["at"])} for incident in self.incidents],
            "timeline": self.timeline.to_json(),
        }


def open_ledger(state: str, storage_options: Mapping[str, str] | None = None) -> Ledger:
    """The ledger of an existing job.

    Raises:
        StateError: there is no job in this directory.
    """
    ledger = Ledger(state, storage_options=dict(storage_options) if storage_options else None)
    if not ledger.table(JobRow).read(columns=["job"]).num_rows:
        raise StateError(
            f"'{state}' is no job's state directory: it has no ledger in which a job was ever started",
            operator="the state directory",
            kept="nothing was read or changed",
            do="give the directory that the job was made with: Job(spark, name, state=...)",
        )
    return ledger


def rows_of(ledger: Ledger, row_type: type[Row], *columns: str) -> list[dict[str, Any]]:
    """A table's rows as plain values, all columns or some; none when there is no table yet."""
    rows: list[dict[str, Any]] = ledger.table(row_type).read(columns=list(columns) or None).to_pylist()
    return rows


def read_status(state: str, storage_options: Mapping[str, str] | None = None, *, incidents: int = 5) -> JobStatus:
    """Read a job's status.

    Args:
        state: the job's state directory.
        storage_options: of an object store, as delta-rs names them.
        incidents: how many of the newest to keep.

    Raises:
        StateError: there is no job in this directory.
        StorageError: it cannot be read.
    """
    ledger = open_ledger(state, storage_options)
    jobs = rows_of(ledger, JobRow)
    states = rows_of(ledger, ExecutionStateRow)
    epochs = rows_of(ledger, EpochRow, "query", "epoch", "incarnation", "lineage", "input_rows", "committed_at")
    checkpoints = rows_of(ledger, CheckpointRow, "kind", "query", "epoch", "status", "lineage", "incarnation", "at")
    flags = rows_of(ledger, FinishedRow, "kind", "query", "source", "channel", "lineage")
    told = rows_of(ledger, IncidentRow, "at", "operator", "type", "what", "action")
    newest = max((row for row in jobs if row["event"] == "started"), key=lambda row: row["incarnation"])
    alive = driver_alive(newest)
    over = any(row["event"] == "ended" and row["incarnation"] == newest["incarnation"] for row in jobs)
    now_running = frozenset() if over or alive is False else frozenset({newest["incarnation"]})
    resets: dict[str, dict[str, Any]] = {}
    for row in sorted(jobs, key=lambda row: int(row["lineage"])):
        if row["event"] == "reset":
            resets[row["query"]] = row
    job_state = _newest_by(states, "operator").get(JOB)
    return JobStatus(
        job=newest["job"],
        state_directory=state,
        state=job_state["state"] if job_state else NEW,
        incarnation=newest["incarnation"],
        lineage=max(row["lineage"] for row in jobs),
        driver=f"{newest['host']}, process {newest['driver_pid']}",
        alive=False if over else alive,
        queries=_queries(states, epochs, checkpoints, flags, resets),
        incidents=tuple(sorted(told, key=lambda row: row["at"], reverse=True)[:incidents]),
        timeline=timeline(states, jobs, epochs, checkpoints, alive=now_running),
    )


def driver_alive(started: Mapping[str, Any]) -> bool | None:
    """Whether the driver of a `started` row of `jobs` runs; None when it is on another machine."""
    if started["host"] != socket.gethostname():
        return None
    return is_alive(started["driver_pid"], started["driver_started"])


def _queries(
    states: list[dict[str, Any]],
    epochs: list[dict[str, Any]],
    checkpoints: list[dict[str, Any]],
    flags: list[dict[str, Any]],
    resets: Mapping[str, dict[str, Any]],
) -> tuple[QueryStatus, ...]:
    """The queries by uid. What belongs to a lineage that was given up is history and does not count."""
    entered = _newest_by(states, "operator")
    entered.pop(JOB, None)

    def counts(row: Mapping[str, Any]) -> bool:
        return bool(row["lineage"] >= _lineage(resets, row["query"]))

    # A row may be in a table twice, when its writer was killed in the act: it counts once.
    committed = {(row["query"], row["epoch"]): row for row in epochs if counts(row)}
    final = {row["query"] for row in checkpoints if row["kind"] == "final" and counts(row)}
    channels = {
        (row["query"], row["source"], row["channel"]) for row in flags if row["kind"] == "channel" and counts(row)
    }
    found = []
    for uid in sorted(entered.keys() | {query for query, _ in committed}):
        own = [row for (query, _), row in committed.items() if query == uid]
        last = max(own, key=lambda row: int(row["epoch"]), default=None)
        state = entered.get(uid)
        reset = _reset(resets, uid)
        if state is None or (reset is not None and reset["at"] > state["since"]):
            state = {"state": NEW, "since": None, "reason": "" if reset is None else "reset"}
        found.append(
            QueryStatus(
                uid,
                state["state"],
                state["since"],
                state["reason"],
                uid in final,
                last["epoch"] if last else None,
                last["committed_at"] if last else None,
                len(own),
                sum(row["input_rows"] or 0 for row in own),
                dict(Counter(source for query, source, _ in channels if query == uid)),
            )
        )
    return tuple(found)


def _reset(resets: Mapping[str, dict[str, Any]], query: str) -> dict[str, Any] | None:
    """The last reset that a query was part of: its own, or one of the whole job ("")."""
    own = [resets[name] for name in (query, "") if name in resets]
    return max(own, key=lambda row: int(row["lineage"]), default=None)


def _lineage(resets: Mapping[str, dict[str, Any]], query: str) -> int:
    reset = _reset(resets, query)
    return 0 if reset is None else int(reset["lineage"])


def _newest_by(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in sorted(rows, key=lambda row: (row["incarnation"], row["since"]))}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
