"""Lifecycle events, made of rows of the ledger: by a running job for its listeners, by a server for its clients. Pure.

Each event is a fact that a row has, under an id that follows from the row's key. So both are told the same, and a row
that is there twice is one event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from spark_ext.incidents.types import EventKind, LifecycleEvent
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, FinishedRow, JobRow
from spark_ext.model.lifecycle import State
from spark_ext.views.incidents import query_of

if TYPE_CHECKING:
    from spark_ext.model.latency import Marker
    from spark_ext.views.page.facts import Facts

Row = Mapping[str, Any]
OPENED, RUNNING, FINISHED = "OPENED", "RUNNING", "FINISHED"  # states of a source
_ENTERS: Final = {State.DEPLOYING.value: OPENED, State.RUNNING.value: RUNNING}  # by the state of its query
_BEFORE: Final = {"FLAGGED": "COMPLETED", "ACKNOWLEDGED": "FLAGGED", "CLOSED": "ACKNOWLEDGED", "RELEASED": "COMPLETED"}


class EventMaker:
    """Makes events of rows, which come in their order. For one thread at a time.

    `sources` are the uids of a query's sources; those that have finished in its present lineage are left out.
    """

    def __init__(self, sources: Callable[[str], Collection[str]]) -> None:
        self._of_query = sources
        self._states: dict[str, tuple[int, datetime, str]] = {}  # by query, "" for the job: since when it is in which
        self._sources: dict[tuple[str, str], tuple[int, str]] = {}  # by query and source, with the incarnation
        self._finished: dict[tuple[str, str], int] = {}  # by query and source, the newest lineage with a flag
        self._lineages: dict[str, int] = {}  # since the newest reset of a query, or of all ("")
        self._makers: Mapping[str, Callable[[Row], Iterator[LifecycleEvent]]] = {
            ExecutionStateRow.table: self._state,
            FinishedRow.table: self._source_finished,
            CheckpointRow.table: _checkpoint,
            JobRow.table: self._job,
            EpochRow.table: _epoch,
        }

    def take(self, table: str, row: Row) -> list[LifecycleEvent]:
        """The events that follow from a row; none from one of another table."""
        maker = self._makers.get(table)
        return [] if maker is None else list(maker(row))

    def _state(self, row: Row) -> Iterator[LifecycleEvent]:
        query, number, state = row["operator"], row["incarnation"], row["state"]
        entered = number, row["since"], state
        before = self._states.get(query)
        if entered == before:
            return
        self._states[query] = entered
        old: str | None = State.CREATED.value
        if before is not None and before[0] == number:
            old = before[2]
        old = None if before is None and state == old else old
        given = {"query": query, "old": old, "cause": row["reason"] or "", "incident": row["incident"]}
        yield _made(EventKind.STATE, (query, *entered), row, row["since"], state, **given)
        entering = _ENTERS.get(state)
        if query and entering is not None:
            lineage = max(self._lineages.get(query, 0), self._lineages.get("", 0))
            for source in sorted(self._of_query(query)):
                if self._finished.get((query, source), -1) < lineage:
                    yield from self._source(row, query, source, row["since"], entering, row["reason"] or "")

    def _source(
        self, row: Row, query: str, source: str, at: datetime, new: str, cause: str, key: object = None, **details: Any
    ) -> Iterator[LifecycleEvent]:
        number = row["incarnation"]
        before = self._sources.get((query, source))
        if before == (number, new):
            return
        self._sources[query, source] = number, new
        old = before[1] if before is not None and before[0] == number else None
        given = {"query": query, "source": source, "old": old, "cause": cause, "details": details}
        yield _made(EventKind.SOURCE, (query, source, new, at if key is None else key), row, at, new, **given)

    def _source_finished(self, row: Row) -> Iterator[LifecycleEvent]:
        if row["kind"] != "source":
            return
        query, source, lineage = row["query"], row["source"], row["lineage"]
        if self._finished.get((query, source), -1) < lineage:
            self._finished[query, source] = lineage
            cause = "drained" if row["drained"] else "end of input"
            details = {"epoch": row["epoch"], "lineage": lineage}
            yield from self._source(row, query, source, row["at"], FINISHED, cause, lineage, **details)

    def _job(self, row: Row) -> Iterator[LifecycleEvent]:
        query, event, lineage = row["query"], row["event"], row["lineage"]
        if event in ("reset", "restored"):
            self._lineages[query] = lineage
        elif event == "renamed":
            kept = {key: found for key, found in self._finished.items() if key[0] == row["renamed_from"]}
            self._finished |= {(query, source): found for (_, source), found in kept.items()}
        details = _known(row, "lineage", "parent", "savepoint", "renamed_from")
        given = {"query": query, "cause": row["reason"] or "", "details": details}
        yield _made(EventKind.JOB, (row["incarnation"], event, query, row["at"]), row, row["at"], event, **given)


def _checkpoint(row: Row) -> Iterator[LifecycleEvent]:
    status, aligned = row["status"], row["mode"] == "aligned"
    old = _BEFORE.get(status, "TRIGGERED" if aligned and status != "TRIGGERED" else None)
    details = _known(row, "checkpoint_id", "kind", "mode", "epoch", "lineage", "rows_in_flight", "path")
    given = {"query": row["query"], "old": old, "cause": row["reason"] or "", "details": details}
    key = row["checkpoint_id"], row["query"], status, row["at"]
    yield _made(EventKind.CHECKPOINT, key, row, row["at"], status, **given)


def _epoch(row: Row) -> Iterator[LifecycleEvent]:
    details = _known(row, "epoch", "lineage", "input_rows", "late_rows", "lag_rows", "duration_ms")
    key = row["query"], row["lineage"], row["epoch"]
    yield _made(EventKind.EPOCH, key, row, row["committed_at"], "committed", query=row["query"], details=details)


def of_marker(marker: Marker, at: datetime, incarnation: int) -> LifecycleEvent:
    """The event of a marker that has passed a commit."""
    details = {"latency_ms": marker.ms, "hops": [[hop.query, hop.ms] for hop in marker.hops], "way": list(marker.way)}
    given = {"query": marker.query, "source": marker.source, "details": details}
    key = marker.query, marker.source, marker.way, marker.arrived_at
    return _made(EventKind.LATENCY, key, {"incarnation": incarnation}, at, "arrived", **given)


def _of_change(row: Row, incident: Row) -> LifecycleEvent:
    """The event of a change of an incident that is more than a greater count."""
    details = _known(incident, "type", "severity", "operator", "action", "labels", "parent")
    details |= {"what": incident["what"].partition("\n")[0], "count": row["count"]}
    given = {"query": query_of(incident), "old": row["old"] or None, "cause": row["cause"] or "", "details": details}
    key = row["incident_id"], row["old"], row["new"], row["at"]
    return _made(EventKind.INCIDENT, key, row, row["at"], row["new"], incident=row["incident_id"], **given)


def events_since(facts: Facts, since: datetime, sources: Callable[[str], Collection[str]]) -> dict[str, LifecycleEvent]:
    """The events from a time on, in their order, by id. A change of an incident whose row is not there yet is left out.

    What lies before is taken in where later events follow from it: states, flags of sources, and the rows of `jobs`.
    """
    maker = EventMaker(sources)
    known = {row["incident_id"]: row for row in facts.incidents}
    tables: list[tuple[str, str, Iterable[Row]]] = [
        (JobRow.table, "at", facts.jobs),
        (FinishedRow.table, "at", (row for row in facts.finished if row["kind"] == "source")),
        (ExecutionStateRow.table, "since", facts.states),
        (CheckpointRow.table, "at", (row for row in facts.checkpoints if row["at"] >= since)),
    ]
    # Of one moment a flag or a reset comes before the state in which it counts.
    rows = [(row[time], number, table, row) for number, (table, time, of) in enumerate(tables) for row in of]
    found = [event for _, _, table, row in sorted(rows, key=lambda one: one[:2]) for event in maker.take(table, row)]
    found += [
        _of_change(row, known[row["incident_id"]])
        for row in facts.changes
        if row["at"] >= since and row["old"] != row["new"] and row["incident_id"] in known
    ]
    return {event.event_id: event for event in sorted(found, key=lambda event: event.at) if event.at >= since}


def _known(row: Row, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row[name] not in (None, "")}


def _made(kind: EventKind, key: Sequence[object], row: Row, at: datetime, new: str, **given: Any) -> LifecycleEvent:
    """An event; `key` tells facts of a kind apart."""
    text = "\0".join(one.isoformat() if isinstance(one, datetime) else str(one) for one in (kind.value, *key))
    number = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return LifecycleEvent(event_id=number, kind=kind, at=at, new=new, incarnation=row["incarnation"], **given)
