"""What the ledger remembers of each query of a job, read once per start.

Every answer is about a query under its present name and in its present lineage; see `spark_ext.model.lineages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.ledger.identity import FIRST_LINEAGE, lineages
from spark_ext.ledger.ledger import contiguous
from spark_ext.ledger.schema import CheckpointRow, DefinitionRow, EpochRow, FinishedRow, JobRow
from spark_ext.model.definitions import QueryDefinition
from spark_ext.model.lifecycle import FinalStep
from spark_ext.model.lineages import LineageEvent, Lineages

if TYPE_CHECKING:
    from spark_ext.ledger.ledger import Ledger


@dataclass(frozen=True)
class FinalSteps:
    """How far a query's final checkpoint has progressed."""

    checkpoint_id: int
    passed: frozenset[str]  # the statuses recorded


@dataclass(frozen=True)
class QueryMemory:
    """What is remembered of one query."""

    query: str
    lineage: int
    definition: QueryDefinition | None = None  # with which it was last started; None: it never was
    sources: frozenset[str] = frozenset()  # uids of sources that have finished channels in it
    last_epoch: tuple[str, int] | None = None  # Spark's query id and newest epoch in `epochs`; None: it has none
    query_id: str | None = None  # Spark's id, by whatever row has it; None: unknown
    committed: int = -1  # newest committed epoch, as epochs, flags and checkpoints say; -1: none
    flagged: Mapping[str, int] = field(default_factory=dict)  # per source, the largest s so that all of 1..s are
    flags: frozenset[tuple[str, str]] = frozenset()  # kind and source of all flags that are not a channel's
    final: FinalSteps | None = None  # how far its final checkpoint has progressed; None: none was completed
    removed: bool = False  # whether it was abandoned on purpose, and not started since
    left_out: bool = False  # its lineage began with a restore in place that did not put its output back

    @property
    def finished(self) -> bool:
        """Whether all steps of its final checkpoint were taken."""
        return self.final is not None and FinalStep.CLOSED.value in self.final.passed

    @property
    def input_done(self) -> bool:
        """Whether its final checkpoint is recorded, so that it is never started again."""
        return self.final is not None

    @property
    def uids(self) -> frozenset[str]:
        """The operators whose state is this query's."""
        return self.sources | (self.definition.uids if self.definition is not None else frozenset())


@dataclass(frozen=True)
class JobMemory:
    """A snapshot of the ledger, as a start needs it. Pure; `read` makes it."""

    lineages: Lineages
    definitions: Sequence[DefinitionRow]  # oldest first
    finished: pa.Table
    epochs: pa.Table
    steps: pa.Table  # the table `checkpoints` without its metadata
    cuts: Sequence[CheckpointRow]  # completed final checkpoints and the newest periodic one, oldest first
    removed: Mapping[str, int]  # queries that were abandoned on purpose, and in which incarnation
    left_out: frozenset[tuple[str, int]] = frozenset()  # by a restore in place, with the lineage that began then

    @classmethod
    def read(cls, ledger: Ledger) -> JobMemory:
        """Read the ledger."""
        jobs = ledger.table(JobRow).rows()
        checkpoints = ledger.table(CheckpointRow)
        steps = checkpoints.read(["checkpoint_id", "kind", "query", "epoch", "status", "lineage", "incarnation"])
        return cls(
            lineages(jobs),
            sorted(ledger.table(DefinitionRow).rows(), key=lambda row: (row.incarnation, row.at)),
            ledger.table(FinishedRow).read(["kind", "query", "source", "sequence", "epoch", "lineage"]),
            ledger.table(EpochRow).read(["query", "query_id", "epoch", "lineage"]),
            steps,
            sorted(
                checkpoints.rows([("status", "=", "COMPLETED"), ("checkpoint_id", "in", _telling(steps))]),
                key=lambda row: row.checkpoint_id,
            ),
            {row.query: row.incarnation for row in jobs if row.event == "removed"},
            frozenset((row.query, row.lineage) for row in jobs if row.event == "left_out"),
        )

    @property
    def begun(self) -> dict[str, int]:
        """By query, the incarnation in which it was first started, under whatever name."""
        first: dict[str, int] = {}
        for row in self.definitions:
            first.setdefault(row.query, row.incarnation)
        found = {}
        for query in {*first, *self.names}:
            under = [first[name] for name in self.lineages.names(query, self.lineage(query)) if name in first]
            if under:
                found[query] = min(under)
        return found

    @property
    def names(self) -> frozenset[str]:
        """The names of all queries that have a history, or were started, in their present lineage."""
        return frozenset(name for name in self.used if self.knows(name))

    @property
    def used(self) -> frozenset[str]:
        """All names under which a row of any lineage may have been written."""
        seen: set[str] = {row.query for row in self.definitions}
        for table in (self.finished, self.epochs, self.steps):
            seen.update(pc.unique(table["query"]).to_pylist())
        seen.update(*map(_queries, self.cuts))
        for event in self.lineages.events:
            seen |= {event.query, event.renamed_from or ""}
        return frozenset(seen - {""})

    @property
    def ever(self) -> frozenset[str]:
        """The names of all queries that were ever started, without former names of others."""
        seen = {row.query for row in self.definitions} | set(pc.unique(self.epochs["query"]).to_pylist())
        seen |= set(pc.unique(self.finished["query"]).to_pylist())
        given_away = {event.renamed_from for event in self.lineages.events}
        return frozenset(seen - (given_away - self.names)) | self.names

    def knows(self, query: str) -> bool:
        """Whether there is anything of a query in its present lineage."""
        found = self.of(query)
        return found.definition is not None or found.committed >= 0 or bool(found.flags) or found.final is not None

    def lineage(self, query: str) -> int:
        """The query's lineage; that of one which was never started is the newest."""
        given = self.lineages.of(query)
        if given is not None:
            return given
        begun = [row.lineage for row in self.definitions if row.query == query]
        if begun:
            return min(begun)
        known = any(
            pc.any(pc.equal(table["query"], query)).as_py() for table in (self.finished, self.epochs, self.steps)
        )
        return FIRST_LINEAGE if known or any(query in _queries(cut) for cut in self.cuts) else self.lineages.newest

    def of(self, query: str) -> QueryMemory:
        """What is remembered of a query."""
        if query not in self._found:
            self._found[query] = self._look(query)
        return self._found[query]

    @cached_property
    def _found(self) -> dict[str, QueryMemory]:
        return {}

    def _look(self, query: str) -> QueryMemory:
        lineage = self.lineage(query)
        names = self.lineages.names(query, lineage)
        flags, epochs, steps = (
            table.filter(_of(table, names, lineage)) for table in (self.finished, self.epochs, self.steps)
        )
        cut = self._cut(query, names, lineage)
        defined = [row for row in self.definitions if row.query in names and row.lineage == lineage]
        last = _last_epoch(epochs)
        marks = [last[1] if last else -1, _max(flags["epoch"]), -1 if cut is None else _number(cut.get("epoch"))]
        marks.append(_max(steps.filter(pc.equal(steps["status"], "COMPLETED"))["epoch"]))
        channels = flags.filter(pc.equal(flags["kind"], "channel"))
        others = flags.filter(pc.not_equal(flags["kind"], "channel"))
        definition = QueryDefinition.from_json(defined[-1].definition) if defined else None
        started = max((row.incarnation for row in defined), default=-1)
        return QueryMemory(
            query,
            lineage,
            definition,
            frozenset(pc.unique(flags["source"]).to_pylist()) - {""},
            last,
            last[0] if last else (None if cut is None else cut.get("query_id")),
            max(marks),
            _flagged(channels),
            frozenset(zip(others["kind"].to_pylist(), others["source"].to_pylist(), strict=True)),
            _final(steps),
            self.removed.get(query, -1) > started,
            (query, lineage) in self.left_out,
        )

    @property
    def next_checkpoint_id(self) -> int:
        """One more than the greatest checkpoint id so far."""
        return _max(self.steps["checkpoint_id"], 0) + 1

    def with_renamed(self, query: str, old: str, incarnation: int) -> JobMemory:
        """The memory as it is once a query has been renamed; see `LedgerWriter.renamed`."""
        events = (
            LineageEvent(query, self.lineage(old), incarnation, old),
            LineageEvent(old, self.lineages.newest + 1, incarnation),
        )
        return replace(self, lineages=Lineages((*self.lineages.events, *events)))

    def _cut(self, query: str, names: Sequence[str], lineage: int) -> Mapping[str, Any] | None:
        """The query's part of the newest checkpoint that has one and belongs to its present history."""
        spans = self.lineages.spans(query)
        for cut in reversed(self.cuts):
            for name, part in _queries(cut).items():
                if cut.kind == "final":
                    mine = cut.query == name and name in names and cut.lineage == lineage
                else:
                    mine = any(span.holds(name, cut.incarnation) for span in spans)
                if mine:
                    return part
        return None


def _telling(steps: pa.Table) -> list[int]:
    """Ids of the checkpoints whose metadata is read: all final ones, and the newest periodic one."""
    done = steps.filter(pc.equal(steps["status"], "COMPLETED"))
    final = pc.equal(done["kind"], "final")
    newest = _max(done.filter(pc.invert(final))["checkpoint_id"])
    return [*({newest} - {-1}), *pc.unique(done.filter(final)["checkpoint_id"]).to_pylist()]


def _queries(cut: CheckpointRow) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = (cut.metadata or {}).get("queries", {})
    return found


def _of(table: pa.Table, names: Sequence[str], lineage: int) -> pa.ChunkedArray:
    named = pc.is_in(table["query"], value_set=pa.array(names, pa.string()))
    return pc.and_(named, pc.equal(table["lineage"], lineage))


def _last_epoch(epochs: pa.Table) -> tuple[str, int] | None:
    if not epochs.num_rows:
        return None
    epoch = pc.max(epochs["epoch"])
    return str(epochs["query_id"][pc.index(epochs["epoch"], epoch).as_py()].as_py()), int(epoch.as_py())


def _flagged(channels: pa.Table) -> dict[str, int]:
    found = {}
    for source in pc.unique(channels["source"]).to_pylist():
        found[str(source)] = contiguous(channels.filter(pc.equal(channels["source"], source))["sequence"].to_numpy())
    return found


def _final(steps: pa.Table) -> FinalSteps | None:
    final = steps.filter(pc.equal(steps["kind"], "final"))
    newest = _max(final.filter(pc.equal(final["status"], "COMPLETED"))["checkpoint_id"])
    if newest < 0:
        return None
    return FinalSteps(newest, frozenset(final.filter(pc.equal(final["checkpoint_id"], newest))["status"].to_pylist()))


def _max(column: pa.ChunkedArray, default: int = -1) -> int:
    found = pc.max(column).as_py()
    return default if found is None else int(found)


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1
