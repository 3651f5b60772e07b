"""A job's status, from its state directory: read with delta-rs alone, without Spark, during a run or after it.

status = read_status("out/flights/state")
print(status.state, status.query("daily").rows)
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from spark_ext.errors import StateError
from spark_ext.ledger import Ledger
from spark_ext.ledger.heartbeat import is_silent, last_beat
from spark_ext.ledger.incarnation import is_alive
from spark_ext.ledger.schema import (
    BadRowsRow,
    CheckpointRow,
    EpochRow,
    ExecutionStateRow,
    FinishedRow,
    IncidentRow,
    JobRow,
    LatencyRow,
    Row,
)
from spark_ext.model.lifecycle import State
from spark_ext.views.snapshot import JobSnapshot, LatencySnapshot, QuerySnapshot, SourceSnapshot
from spark_ext.views.timeline import JOB, timeline
from spark_ext.views.timeline_view import DisplayTimeline


@dataclass(frozen=True, kw_only=True)
class JobStatus(JobSnapshot):
    """A job as its ledger records it.

    The ledger is written up to a second or two behind a running job. Rows and epochs are those of all incarnations, as
    far as their history has not expired.
    """

    driver: str
    """`host, process id` of the newest incarnation."""
    alive: bool | None
    """Whether that driver is running; None: it is on another machine, so this one cannot tell."""
    heartbeat: datetime | None
    """When that driver was last alive, by its heartbeat; None: it has ended, or writes none."""
    incidents: tuple[Mapping[str, Any], ...]
    """The newest ones, newest first: `at`, `operator`, `type`, `what`, `action`."""
    timeline: DisplayTimeline

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
        "channels_finished": query.channels_finished,
        "latencies": [one.to_json() for one in query.latencies],
    }


def open_ledger(state: str, storage_options: Mapping[str, str] | None = None) -> Ledger:
    """The ledger of an existing job.

    Raises:
        StateError: there is no job in this directory.
    """
    ledger = Ledger(state, storage_options=dict(storage_options) if storage_options else None)
    if not ledger.table(JobRow).read(columns=["job"]).num_rows:
        raise StateError(
            f"'{state}' is not the state directory of a job: no job has been started in it",
            operator="the state directory",
            kept="nothing was read or changed",
            do="use the directory that the job was created with: Job(spark, name, state=...)",
        )
    return ledger


def rows_of(ledger: Ledger, row_type: type[Row], *columns: str) -> list[dict[str, Any]]:
    """A table's rows as plain values, with all columns or only these; none if the table does not exist yet."""
    rows: list[dict[str, Any]] = ledger.table(row_type).read(columns=list(columns) or None).to_pylist()
    return rows


def read_status(state: str, storage_options: Mapping[str, str] | None = None, *, incidents: int = 5) -> JobStatus:
    """Read a job's status.

    Args:
        state: the job's state directory.
        storage_options: of an object store, as delta-rs names them.
        incidents: how many of the newest to return.

    Raises:
        StateError: there is no job in this directory.
        StorageError: it cannot be read.
    """
    return status_of(open_ledger(state, storage_options), incidents=incidents)


def status_of(ledger: Ledger, *, incidents: int = 5) -> JobStatus:
    """Like `read_status`, through handles that are kept; the ledger has at least one start."""
    jobs = rows_of(ledger, JobRow)
    states = rows_of(ledger, ExecutionStateRow)
    epochs = rows_of(
        ledger, EpochRow, "query", "epoch", "incarnation", "lineage", "input_rows", "committed_at", "duration_ms"
    )
    checkpoints = rows_of(ledger, CheckpointRow, "kind", "query", "epoch", "status", "lineage", "incarnation", "at")
    flags = rows_of(ledger, FinishedRow, "kind", "query", "source", "channel", "lineage")
    recorded = rows_of(ledger, IncidentRow, "incident_id", "at", "operator", "type", "what", "action")
    newest = max((row for row in jobs if row["event"] == "started"), key=lambda row: row["incarnation"])
    alive = driver_alive(newest)
    number = newest["incarnation"]
    ended = next((row["at"] for row in jobs if row["event"] == "ended" and row["incarnation"] == number), None)
    running = frozenset() if ended is not None or alive is False else frozenset({number})
    resets: dict[str, dict[str, Any]] = {}
    for row in sorted(jobs, key=lambda row: int(row["lineage"])):
        if row["event"] == "reset":
            resets[row["query"]] = row
    job_state = _newest_by(states, "operator").get(JOB)
    state_now = _state(job_state["state"]) if job_state else State.CREATED
    measured = latencies_of(ledger, number)
    bad = bad_rows_of(ledger, resets)
    queries = tuple(
        replace(query, latencies=measured.get(query.uid, ()), bad_rows=bad.get(query.uid, 0))
        for query in _queries(states, epochs, checkpoints, flags, resets)
    )
    beats = beats_of(ledger, jobs)
    found = timeline(states, jobs, epochs, checkpoints, alive=running, beats=beats)
    return JobStatus(
        job=newest["job"],
        state_directory=ledger.uri,
        state=state_now,
        incarnation=number,
        lineage=max(row["lineage"] for row in jobs),
        started=newest["at"],
        ended=ended,
        at=datetime.now(timezone.utc),
        queries=queries,
        error=next((query.reason for query in queries if state_now is query.state is State.FAILED), ""),
        driver=f"{newest['host']}, process {newest['driver_pid']}",
        alive=False if ended is not None else alive,
        heartbeat=None if ended is not None else beats.get(number),
        incidents=_newest_incidents(recorded, incidents),
        timeline=DisplayTimeline(found.spans, found.downs, found.stops),
    )


def _newest_incidents(rows: list[dict[str, Any]], number: int) -> tuple[Mapping[str, Any], ...]:
    """The newest incidents, each once, as it was noticed last."""
    last = {row["incident_id"]: row for row in sorted(rows, key=lambda row: row["at"])}
    chosen = sorted(last.values(), key=lambda row: row["at"], reverse=True)[:number]
    return tuple({name: value for name, value in row.items() if name != "incident_id"} for row in chosen)


def latencies_of(ledger: Ledger, incarnation: int) -> dict[str, tuple[LatencySnapshot, ...]]:
    """The latencies that were recorded last in a start, by query; each by source and way.

    Args:
        ledger: the job's.
        incarnation: number of the start.
    """
    rows = ledger.table(LatencyRow).read(where=[("incarnation", "=", incarnation)])
    # There may be many: only the newest ones become Python's.
    keys = ("query", "source", "way")
    values = [name for name in rows.column_names if name not in keys]
    newest = rows.sort_by("markers").group_by(keys, use_threads=False).aggregate([(name, "last") for name in values])
    found: dict[str, tuple[LatencySnapshot, ...]] = {}
    for row in sorted(newest.to_pylist(), key=lambda row: (row["query"], row["source"], json.loads(row["way"]))):
        one = LatencySnapshot(
            source=row["source"],
            ms=row["latency_ms_last"],
            at=row["at_last"],
            hops=tuple((hop, ms) for hop, ms in json.loads(row["hops_last"])),
            way=tuple(json.loads(row["way"])),
            markers=row["markers_last"],
            p50_ms=row["p50_ms_last"],
            p95_ms=row["p95_ms_last"],
            p99_ms=row["p99_ms_last"],
        )
        found[row["query"]] = (*found.get(row["query"], ()), one)
    return found


def bad_rows_of(ledger: Ledger, resets: Mapping[str, dict[str, Any]]) -> Counter[str]:
    """How many bad rows were moved into their table, by query, without those of a lineage that a reset has ended."""
    found: Counter[str] = Counter()
    for row in rows_of(ledger, BadRowsRow, "query", "rows", "lineage"):
        if row["lineage"] >= _lineage(resets, row["query"]):
            found[row["query"]] += row["rows"]
    return found


def beats_of(ledger: Ledger, jobs: Sequence[Mapping[str, Any]]) -> dict[int, datetime]:
    """When incarnations without a recorded end were last alive: as the next start found, or by the heartbeat.

    Args:
        ledger: the job's.
        jobs: its rows of `jobs`.
    """
    found: dict[int, datetime] = {}
    for text in ledger.table(IncidentRow).read(["evidence"], [("type", "=", "driver_lost")])["evidence"].to_pylist():
        evidence = json.loads(text or "{}")
        found[evidence["incarnation"]] = datetime.fromisoformat(evidence["last_seen"])
    ended = {row["incarnation"] for row in jobs if row["event"] == "ended"} | found.keys()
    for row in jobs:
        if row["event"] == "started" and row["incarnation"] not in ended:
            beat = last_beat(ledger.uri, row["incarnation"], row["start_id"], ledger.storage_options)
            if beat is not None:
                found[row["incarnation"]] = beat
    return found


def driver_alive(started: Mapping[str, Any]) -> bool | None:
    """Whether the driver that wrote a `started` row of `jobs` is running; None: it is on another machine."""
    if started["host"] != socket.gethostname():
        return None
    return is_alive(started["driver_pid"], started["driver_started"])


def _queries(
    states: list[dict[str, Any]],
    epochs: list[dict[str, Any]],
    checkpoints: list[dict[str, Any]],
    flags: list[dict[str, Any]],
    resets: Mapping[str, dict[str, Any]],
) -> tuple[QuerySnapshot, ...]:
    """The queries by uid. Rows of a lineage that a reset has ended do not count."""
    entered = _newest_by(states, "operator")
    entered.pop(JOB, None)

    def counts(row: Mapping[str, Any]) -> bool:
        return bool(row["lineage"] >= _lineage(resets, row["query"]))

    # A row may be in a table twice, if its writer was killed while writing it: it counts once.
    committed = {(row["query"], row["epoch"]): row for row in epochs if counts(row)}
    final = {row["query"] for row in checkpoints if row["kind"] == "final" and counts(row)}
    # As sets: a flag may be there twice as well.
    channels = Counter(
        (query, source)
        for query, source, _ in {
            (row["query"], row["source"], row["channel"]) for row in flags if row["kind"] == "channel" and counts(row)
        }
    )
    ended = {(row["query"], row["source"]) for row in flags if row["kind"] == "source" and counts(row)}
    found = []
    for uid in sorted(entered.keys() | {query for query, _ in committed}):
        own = [row for (query, _), row in committed.items() if query == uid]
        last = max(own, key=lambda row: int(row["epoch"]), default=None)
        state = entered.get(uid)
        reset = _reset(resets, uid)
        if state is None or (reset is not None and reset["at"] > state["since"]):
            state = {"state": State.CREATED.value, "since": None, "reason": "" if reset is None else "reset"}
        found.append(
            QuerySnapshot(
                uid=uid,
                state=_state(state["state"]),
                reason=state["reason"],
                since=state["since"],
                finished=uid in final,
                epochs=len(own),
                last_epoch=last["epoch"] if last else None,
                last_epoch_ms=last["duration_ms"] if last else None,
                committed_at=last["committed_at"] if last else None,
                rows=sum(row["input_rows"] or 0 for row in own),
                state_rows=None,
                sources=tuple(
                    SourceSnapshot(
                        uid=source,
                        finished=(uid, source) in ended,
                        channels_finished=number,
                        channels_running=None,
                    )
                    for (query, source), number in sorted(channels.items())
                    if query == uid
                ),
            )
        )
    return tuple(found)


def _reset(resets: Mapping[str, dict[str, Any]], query: str) -> dict[str, Any] | None:
    """The newest reset of a query: its own, or one of the whole job ("")."""
    own = [resets[name] for name in (query, "") if name in resets]
    return max(own, key=lambda row: int(row["lineage"]), default=None)


def _lineage(resets: Mapping[str, dict[str, Any]], query: str) -> int:
    reset = _reset(resets, query)
    return 0 if reset is None else int(reset["lineage"])


def _newest_by(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in sorted(rows, key=lambda row: (row["incarnation"], row["since"]))}


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
