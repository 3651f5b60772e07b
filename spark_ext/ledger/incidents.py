"""Incidents as rows of the ledger: what is written of them, what is known of each, and what a new start takes over."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.delta.tail import Tail
from spark_ext.incidents.book import IncidentEntry
from spark_ext.incidents.types import Incident, IncidentChange, IncidentState, Severity, query_in
from spark_ext.ledger.columns import R, arrow_schema
from spark_ext.ledger.schema import IncidentChangeRow, IncidentRow
from spark_ext.ledger.tables import CHECKPOINT_EVERY, LedgerTable
from spark_ext.storage import Location

if TYPE_CHECKING:
    from spark_ext.incidents.book import RecordedOccurrence
    from spark_ext.ledger.ledger import Ledger
    from spark_ext.model.lineages import Lineages


_SAME: Final = ("incident_id", "at", "operator", "type", "action", "parent", "fingerprint")
"""Columns that an incident has as well; none of them may be large."""


NOTIFIED: Final = "notified.json"  # in the state directory
MOST_NOTIFIED: Final = 1_000  # incidents that it has


class Notified:
    """The incidents that drivers have notified their listeners of, so that `spark-ext check` does not repeat it.

    `listeners` identifies them: with others, it begins empty. Failures of the storage are ignored: what is not known
    is notified again. For one thread at a time.
    """

    def __init__(self, state: str, listeners: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._folder = Location.of(state, storage_options or {}).folder
        self._listeners = listeners
        self._states: dict[str, str] | None = None

    def states(self) -> Mapping[str, str]:
        """The last state of each incident that listeners were notified of, by id."""
        if self._states is None:
            self._states = {}
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                found = json.loads(self._folder.find(NOTIFIED) or b"{}")
                if found.get("listeners") == self._listeners:
                    self._states = {str(one): str(state) for one, state in found["incidents"].items()}
        return self._states

    def take(self, change: IncidentChange) -> None:
        """Listeners were notified of a change."""
        one = change.incident.incident_id
        states = {**{known: state for known, state in self.states().items() if known != one}, one: change.new.value}
        self._states = dict([*states.items()][-MOST_NOTIFIED:])
        with suppress(OSError):
            self._folder.write(NOTIFIED, json.dumps({"listeners": self._listeners, "incidents": self._states}))


@dataclass(frozen=True)
class Standing:
    """What the changes of an incident say of it."""

    state: IncidentState
    since: datetime  # when it came into that state
    count: int
    cause: str = ""  # why it is in that state
    what: str | None = None  # what happened when it happened last; None: what its newest row says


def incident_row(noted: RecordedOccurrence, job: str, incarnation: int, evidence: Any) -> IncidentRow:
    """The row of an occurrence."""
    one = noted.incident
    same = {name: getattr(one, name) for name in ("what", *_SAME)}
    labels = dict(one.labels)
    return IncidentRow(
        job=job, incarnation=incarnation, labels=labels, evidence=evidence, severity=one.severity.value, **same
    )


def change_row(change: IncidentChange, incarnation: int) -> IncidentChangeRow:
    """The row of a change."""
    return IncidentChangeRow(
        incident_id=change.incident.incident_id,
        at=change.at,
        old="" if change.old is None else change.old.value,
        new=change.new.value,
        cause=change.cause,
        incarnation=incarnation,
        count=change.count,
        what=None if change.old is None else change.incident.what or None,
    )


def standings(changes: Iterable[Mapping[str, Any]]) -> dict[str, Standing]:
    """What is known of each incident; `changes` come in any order, and twice perhaps. Pure."""
    found: dict[str, Standing] = {}
    known = {state.value: state for state in IncidentState}
    # Clocks of two drivers may differ. Of two changes of one moment the later one has a greater count, or is the end.
    order = {"": 0, IncidentState.RESOLVED.value: 1, IncidentState.OPEN.value: 2}
    for row in sorted(changes, key=lambda row: (row["incarnation"], row["at"], row["count"], order.get(row["old"], 3))):
        state = known.get(row["new"])
        if state is None:  # of a later release
            continue
        before = found.get(row["incident_id"])
        count = max(row["count"], 0 if before is None else before.count)
        what = row.get("what") or (None if before is None else before.what)
        if before is not None and before.state is state:
            found[row["incident_id"]] = Standing(state, before.since, count, before.cause, what)
        else:
            found[row["incident_id"]] = Standing(state, row["at"], count, row["cause"], what)
    return found


def remembered(ledger: Ledger, newer_than: datetime) -> tuple[list[IncidentEntry], dict[str, int]]:
    """The incidents that earlier starts have left open, and the newer ones that may happen again.

    With them, by id of an open one, the incarnation in which it happened last.
    """
    changes = ledger.table(IncidentChangeRow).read().to_pylist()
    if not changes:
        return [], {}
    table = ledger.table(IncidentRow)
    rows = table.read(["incarnation", "severity", *_SAME]).to_pylist()
    found, incarnations = entries(rows, standings(changes), newer_than)
    if incarnations:  # only of these somebody is notified again; their texts may be large
        open_ = table.read(["incident_id", "at", "what"], [("incident_id", "in", sorted(incarnations))]).to_pylist()
        texts = {row["incident_id"]: row["what"].partition("\n")[0] for row in sorted(open_, key=lambda row: row["at"])}
        known = (replace(one.incident, what=texts.get(one.incident.incident_id, "")) for one in found)
        found = [replace(one, incident=incident) for one, incident in zip(found, known, strict=True)]
    return found, incarnations


def entries(
    rows: Sequence[Mapping[str, Any]], known: Mapping[str, Standing], newer_than: datetime
) -> tuple[list[IncidentEntry], dict[str, int]]:
    """As `remembered`, from rows. Pure."""
    last: dict[str, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        last[row["incident_id"]] = row
    found, incarnations = [], {}
    for incident_id, row in last.items():
        standing = known.get(incident_id)
        if standing is None:
            # Its first change was lost with its driver: nobody knows that it is open.
            continue
        is_open = standing.state is IncidentState.OPEN
        if not is_open and max(row["at"], standing.since) < newer_than:
            continue
        same = {name: row[name] for name in _SAME}
        incident = Incident(severity=Severity(row["severity"]), query=query_in(row["operator"]), what="", **same)
        found.append(
            IncidentEntry(incident, standing.state, standing.count, standing.count, standing.since, inherited=True)
        )
        if is_open:
            incarnations[incident_id] = row["incarnation"]
    return found, incarnations


def heirs(
    open_: Iterable[IncidentEntry], incarnations: Mapping[str, int], lineages: Lineages, queries: Collection[str]
) -> dict[str, str | None]:
    """Which query continues the history that an open incident belongs to: by id the uid; None: no query does. Pure.

    A query that was renamed keeps its incidents; one that was reset, removed or restored from a savepoint has none of
    those before. Incidents of the whole job are left out.
    """
    found: dict[str, str | None] = {}
    spans = {query: lineages.spans(query) for query in queries}
    for entry in open_:
        one = entry.incident
        if not one.query or one.incident_id not in incarnations:
            continue
        incarnation = incarnations[one.incident_id]
        found[one.incident_id] = next(
            (query for query, parts in spans.items() if any(part.holds(one.query, incarnation) for part in parts)), None
        )
    return found


CLOCKS: Final = timedelta(minutes=10)  # by which those of two drivers may differ: older rows may be new


class Added(Generic[R]):
    """Follows a table. For one thread.

    On a local path a look reads the newest entries of the log and the small files that they name. Elsewhere it reads
    the rows that are not older than the newest one that is known, and `CLOCKS` before: some of these were given before.
    """

    def __init__(self, table: LedgerTable[R], time: str) -> None:
        self._table = table
        self._time = time
        self._tail = None if table.log is None else Tail(table.log, arrow_schema(table.row_type))
        self._version: int | None = None
        self._newest: datetime | None = None

    def everything(self) -> pa.Table:
        """All rows; from here on `rows` returns those that are added."""
        return self._read(None)

    def rows(self) -> pa.Table:
        """The rows that were added since the last call."""
        if self._tail is not None and self._version is not None:
            found = self._tail.after(self._version, CHECKPOINT_EVERY)
            if found is not None:
                self._version = found[0]
                self._see(found[1])
                return found[1]
        self._table.refresh()
        if self._table.version == self._version:
            return arrow_schema(self._table.row_type).empty_table()
        return self._read(None if self._newest is None else self._newest - CLOCKS)

    def _read(self, since: datetime | None) -> pa.Table:
        found = self._table.read(where=[] if since is None else [(self._time, ">=", since)])
        self._version = self._table.version
        self._see(found)
        return found

    def _see(self, rows: pa.Table) -> None:
        newest = pc.max(rows[self._time]).as_py()
        if newest is not None:
            self._newest = max(newest, self._newest or newest)
