"""What is read from the ledger for the page: of each table only what is new, where its log says what that is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.delta.tail import Tail
from spark_ext.errors import StateError
from spark_ext.ledger.columns import arrow_schema, columns, from_json, from_json_many
from spark_ext.ledger.heartbeat import Vitals, read_beat
from spark_ext.ledger.schema import (
    BadRowsRow,
    CheckpointRow,
    DefinitionRow,
    EpochRow,
    ExchangeRow,
    ExecutionStateRow,
    FinishedRow,
    IncidentRow,
    JobRow,
    LatencyRow,
    Row,
)
from spark_ext.views.page.epochs import COLUMNS, Epochs
from spark_ext.views.recorded import beats_of, driver_alive, latencies_of

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.tables import LedgerTable
    from spark_ext.views.snapshot import LatencySnapshot

Rows = tuple[Mapping[str, Any], ...]
Ends = Mapping[str, tuple[int, bool]]
"""By channel the epoch in which it has finished, and whether it was drained."""
Channels = Mapping[tuple[str, str, int], Ends]
"""By query, source and lineage."""

CHANGES: Final = "incident_changes"
MOST_NEW: Final = 64  # commits that are read one by one; more are read with the whole table

CHECKPOINT_COLUMNS: Final = tuple(one.name for one in columns(CheckpointRow) if one.name != "metadata")
"""All but the metadata, which may be large."""

_OF_CHANNEL: Final = ("query", "source", "lineage", "channel", "epoch", "drained")
FINISHED_COLUMNS: Final = (*_OF_CHANNEL, "kind", "at", "incarnation")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the ledger has of a job. JSON columns are values; of offsets there are only the newest ones."""

    directory: str
    jobs: Rows = ()
    definitions: Rows = ()
    states: Rows = ()
    checkpoints: Rows = ()
    finished: Rows = ()  # of sources and queries; without sequence and position
    channels: Channels = field(default_factory=dict)  # that have finished
    exchanges: Rows = ()
    bad_rows: Rows = ()  # how many were moved into their table, or fail rules
    incidents: Rows = ()
    changes: Rows = ()
    epochs: Epochs = field(default_factory=Epochs)
    offsets: Mapping[str, Any] = field(default_factory=dict)  # by query: the offsets of its newest epoch
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by query: ms of its newest epoch, if known
    latencies: Mapping[str, tuple[LatencySnapshot, ...]] = field(default_factory=dict)  # of the newest start
    alive: bool | None = None  # whether the driver of the newest start runs; None: it is on another machine
    beats: Mapping[int, datetime] = field(default_factory=dict)  # when drivers without a recorded end were last alive
    said: Vitals = field(default_factory=dict)  # by query: of the newest start's last heartbeat; see `queries.history`

    @property
    def newest(self) -> Mapping[str, Any]:
        """The row of the newest start."""
        return max((row for row in self.jobs if row["event"] == "started"), key=lambda row: int(row["incarnation"]))

    @property
    def end(self) -> datetime | None:
        """When that start ended; None: it has not, or the end is not recorded."""
        number = self.newest["incarnation"]
        ends = (row["at"] for row in self.jobs if row["event"] == "ended" and row["incarnation"] == number)
        return next(ends, None)

    @property
    def running(self) -> frozenset[int]:
        """The newest start, if its driver runs or may run."""
        return frozenset() if self.end or self.alive is False else frozenset({self.newest["incarnation"]})


@dataclass(frozen=True)
class Resets:
    """Which rows of a query count: those of before a reset do not."""

    newest: Mapping[str, Mapping[str, Any]]  # by query, "" for the whole job

    @classmethod
    def of(cls, jobs: Rows) -> Resets:
        """The resets among the rows of `jobs`."""
        resets = sorted((row for row in jobs if row["event"] == "reset"), key=lambda row: int(row["lineage"]))
        return cls({row["query"]: row for row in resets})

    def of_query(self, query: str) -> Mapping[str, Any] | None:
        """The newest reset of a query: its own, or one of the whole job."""
        own = [self.newest[name] for name in (query, "") if name in self.newest]
        return max(own, key=lambda row: int(row["lineage"]), default=None)

    def least(self, query: str) -> int:
        """The first lineage of a query that counts."""
        reset = self.of_query(query)
        return 0 if reset is None else int(reset["lineage"])

    def counts(self, row: Mapping[str, Any]) -> bool:
        """Whether a row belongs to its query's present history."""
        return bool(row["lineage"] >= self.least(row["query"]))

    def state(self, query: str, entered: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """The state that a query has entered last; CREATED before its first start, and after a reset."""
        state, reset = entered.get(query), self.of_query(query)
        if state is None or (reset is not None and reset["at"] > state["since"]):
            return {"state": "CREATED", "since": None, "reason": "" if reset is None else "reset"}
        return state


def finished_channels(facts: Facts, resets: Resets) -> dict[tuple[str, str], Ends]:
    """The channels that have finished, by query and source."""
    found: dict[tuple[str, str], Ends] = {}
    for (query, source, lineage), ends in sorted(facts.channels.items()):
        if lineage >= resets.least(query):
            before = found.get((query, source))
            found[query, source] = ends if before is None else {**before, **ends}
    return found


def bad_rows_of(facts: Facts, resets: Resets) -> Counter[str]:
    """How many bad rows of each query were moved into their table."""
    found = Counter[str]()
    for query, rows, _ in _of_epochs(facts, resets):
        found[query] += rows
    return found


def rule_failures(facts: Facts, resets: Resets) -> dict[str, dict[str, int]]:
    """By query and rule, how many rows fail it; only rules that any row fails."""
    found = defaultdict[str, Counter[str]](Counter)
    for query, _, rules in _of_epochs(facts, resets):
        found[query].update(rules)
    return {query: dict(counts) for query, counts in found.items() if counts}


def _of_epochs(facts: Facts, resets: Resets) -> Iterator[tuple[str, int, Mapping[str, int]]]:
    """By query: the bad rows of an epoch of a source or sink, and those that fail rules.

    An epoch may have several rows: one is repeated after a lost answer, and the driver after a killed one has moved
    nothing, and writes what fails rules again.
    """
    rows, rules = dict[tuple[Any, ...], int](), dict[tuple[Any, ...], Mapping[str, int]]()
    for row in filter(resets.counts, facts.bad_rows):
        key = row["query"], row["source"], row["lineage"], row["epoch"]
        rows[key] = max(row["rows"], rows.get(key, 0))
        rules[key] = row["rules"] or rules.get(key, {})
    return ((key[0], rows[key], rules[key]) for key in rows)


def newest_states(states: Rows) -> dict[str, Mapping[str, Any]]:
    """The newest state of each operator."""
    return {row["operator"]: row for row in sorted(states, key=lambda row: (row["incarnation"], row["since"]))}


class FactsReader:
    """Reads a ledger again and again. For one thread at a time.

    `damage` gets a line for each damaged table, and the rest of the table is read; None: damage is an error.
    """

    def __init__(self, ledger: Ledger, damage: list[str] | None = None) -> None:
        self._ledger = ledger
        self._damage = damage
        self._versions: dict[str, int | None] = {}
        self._rows: dict[str, Rows] = {}
        self._epochs = _EpochReader(ledger)
        self._finished = _FinishedReader(ledger)
        self._measured_at: tuple[int, int] | None = None
        self._latencies: Mapping[str, tuple[LatencySnapshot, ...]] = {}
        self._facts: Facts | None = None

    def read(self) -> Facts:
        """What is there now; the same object as before if nothing has changed."""
        names = (*_READ, CHANGES)
        changed = any([self._changed(name) for name in names])  # each of them: not lazily
        with self._noted():
            changed |= self._epochs.read()
        with self._noted():
            changed |= self._finished.read()
        started = [row for row in self._rows[JobRow.table] if row["event"] == "started"]
        newest = max(started, key=lambda row: int(row["incarnation"]), default=None)
        with self._noted():
            changed |= newest is not None and self._measured(int(newest["incarnation"]))
        alive = None if newest is None else driver_alive(newest)
        before = self._facts
        if before is not None and not changed and alive == before.alive:
            self._facts = self._with_beat(before, newest)
            return self._facts
        jobs = self._rows[JobRow.table]
        found = Facts(
            directory=self._ledger.uri,
            jobs=jobs,
            definitions=self._rows[DefinitionRow.table],
            states=self._rows[ExecutionStateRow.table],
            checkpoints=self._rows[CheckpointRow.table],
            finished=self._finished.others,
            channels=self._finished.channels,
            exchanges=self._rows[ExchangeRow.table],
            bad_rows=self._rows[BadRowsRow.table],
            incidents=self._rows[IncidentRow.table],
            changes=self._rows[CHANGES],
            epochs=self._epochs.epochs,
            offsets=dict(self._epochs.offsets),
            parts=dict(self._epochs.parts),
            latencies=self._latencies,
            alive=alive,
            beats=beats_of(
                self._ledger,
                jobs,
                [
                    row["evidence"]
                    for row in self._rows[IncidentRow.table]
                    if row["type"] == "driver_lost" and row["evidence"]
                ],
            ),
        )
        self._facts = self._with_beat(found, newest)
        return self._facts

    def _with_beat(self, before: Facts, newest: Mapping[str, Any] | None) -> Facts:
        """The facts with the newest heartbeat, which is not part of the ledger."""
        if newest is None or any(
            row["event"] == "ended" and row["incarnation"] == newest["incarnation"] for row in before.jobs
        ):
            return before
        number = newest["incarnation"]
        beat = read_beat(self._ledger.uri, number, newest["start_id"], self._ledger.storage_options)
        if beat is None or (beat.at == before.beats.get(number) and beat.queries == before.said):
            return before
        return replace(before, beats={**before.beats, number: beat.at}, said=beat.queries)

    def _changed(self, name: str) -> bool:
        table = self._ledger.tables.get(name)
        if table is None:
            self._rows[name] = ()
            return False
        with self._noted():
            table.refresh()
            if name in self._rows and table.version == self._versions.get(name):
                return False
            self._take(table, name)
        self._rows.setdefault(name, ())
        return True

    def _take(self, table: LedgerTable[Any], name: str) -> None:
        wanted, version = _READ.get(name), table.version
        added = _added(table, self._versions.get(name), wanted)
        if added is None:
            self._rows[name], self._versions[name] = self._of(table.row_type, table.read(wanted)), version
        else:
            self._rows[name] = (*self._rows[name], *self._of(table.row_type, added[1]))
            self._versions[name] = added[0]

    def _of(self, row_type: type[Row], rows: pa.Table) -> Rows:
        found: list[dict[str, Any]] = rows.to_pylist()
        for one in columns(row_type):
            if one.json and found and one.name in found[0]:
                values: list[Any] = [None] * len(found)
                with self._noted():
                    values = from_json_many([row[one.name] for row in found], row_type, one.name)
                for row, value in zip(found, values, strict=True):
                    row[one.name] = value
        return tuple(found)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Damage is noted, if that is asked for, and what it concerns is left out."""
        try:
            yield
        except StateError as problem:
            if self._damage is None:
                raise
            if (line := f"{problem.operator}: {problem.what}") not in self._damage:
                self._damage.append(line)

    def _measured(self, incarnation: int) -> bool:
        """Whether there are other latencies than at the last look."""
        table = self._ledger.table(LatencyRow)
        table.refresh()
        if table.version is None or (table.version, incarnation) == self._measured_at:
            return False
        self._measured_at = table.version, incarnation
        self._latencies = latencies_of(self._ledger, incarnation)
        return True


_READ: Final[dict[str, tuple[str, ...] | None]] = {
    JobRow.table: None,
    DefinitionRow.table: None,
    ExecutionStateRow.table: None,
    CheckpointRow.table: CHECKPOINT_COLUMNS,
    ExchangeRow.table: ("exchange", "event", "query", "lineage"),
    IncidentRow.table: None,
    BadRowsRow.table: ("query", "source", "epoch", "rows", "rules", "lineage"),
}


def _added(
    table: LedgerTable[Any], version: int | None, names: Sequence[str] | None = None
) -> tuple[int, pa.Table] | None:
    """The newest version, and the rows that were added since; None if the whole table has to be read."""
    if version is None or table.log is None:
        return None
    schema = arrow_schema(table.row_type)
    chosen = schema if names is None else pa.schema([schema.field(name) for name in names])
    return Tail(table.log, chosen).after(version, MOST_NEW)


class _FinishedReader:
    """The flags. As there may be very many, only additions are read, and those of channels are kept by source."""

    def __init__(self, ledger: Ledger) -> None:
        self._table = ledger.table(FinishedRow)
        self._version: int | None = None
        self.channels: dict[tuple[str, str, int], Ends] = {}
        self.others: Rows = ()

    def read(self) -> bool:
        """Whether there are new ones."""
        self._table.refresh()
        version = self._table.version
        if version is None or version == self._version:
            return False
        found = _added(self._table, self._version, FINISHED_COLUMNS)
        if found is None:
            self.channels, self.others = {}, ()
            found = version, self._table.read(FINISHED_COLUMNS)
        self._version, rows = found
        kinds = pc.equal(rows["kind"], "channel")
        self.others = (*self.others, *rows.filter(pc.invert(kinds)).to_pylist())
        added = defaultdict[tuple[str, str, int], dict[str, tuple[int, bool]]](dict)
        columns = (rows.filter(kinds)[name].to_pylist() for name in _OF_CHANNEL)
        for query, source, lineage, channel, epoch, drained in zip(*columns, strict=True):
            added[query, source, lineage][channel] = epoch, drained
        # Copies: facts that were read before stay as they are.
        more = {key: {**self.channels.get(key, {}), **ends} for key, ends in added.items()}
        self.channels = {**self.channels, **more}
        return bool(rows.num_rows)


class _EpochReader:
    """The epochs. As there may be many, only additions are read, from the newest entries of the log."""

    def __init__(self, ledger: Ledger) -> None:
        self._table = ledger.table(EpochRow)
        names = (*COLUMNS, "offsets", "parts_ms")
        self._schema = pa.schema([arrow_schema(EpochRow).field(name) for name in names])
        self._known = self._schema.empty_table().select(COLUMNS)
        self._version: int | None = None
        self.epochs = Epochs()
        self.offsets: dict[str, Any] = {}
        self.parts: dict[str, Mapping[str, int]] = {}
        self._newest: dict[str, tuple[int, int]] = {}

    def read(self) -> bool:
        """Whether there are new ones."""
        self._table.refresh()
        version = self._table.version
        if version is None or version == self._version:
            return False
        added = _added(self._table, self._version, self._schema.names)
        if added is not None:
            self._version, rows = added
            if not rows.num_rows:
                return False
            self._known = pa.concat_tables([self._known, rows.select(COLUMNS)])
            self.epochs = Epochs.of(self._known)
            self._take_newest(rows)
            return True
        self._known = self._table.read(COLUMNS)
        self._version = version
        self.epochs = Epochs.of(self._known)
        newest = pa.TableGroupBy(self._known, "query").aggregate([("epoch", "max")])
        numbers = pc.unique(newest["epoch_max"]).to_pylist()
        if numbers:
            self._take_newest(self._table.read(self._schema.names, [("epoch", "in", numbers)]))
        return True

    def _take_newest(self, rows: pa.Table) -> None:
        columns = (rows[name].to_pylist() for name in ("query", "lineage", "epoch", "offsets", "parts_ms"))
        for query, lineage, epoch, offsets, parts in zip(*columns, strict=True):
            if (lineage, epoch) >= self._newest.get(query, (0, -1)):
                self._newest[query] = (lineage, epoch)
                if offsets is not None:
                    self.offsets[query] = from_json(offsets, EpochRow, "offsets")
                if parts is not None:
                    self.parts[query] = from_json(parts, EpochRow, "parts_ms")
