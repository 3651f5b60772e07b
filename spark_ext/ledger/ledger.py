"""The ledger of a job: its tables, and what the rest of the project asks of them.

What is not in the ledger, or in Spark's own logs, did not happen. A row may occur twice (see `schema`), so every answer
here treats rows as a set.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow.compute as pc

from spark_ext.ledger.columns import R
from spark_ext.ledger.identity import FIRST_LINEAGE, in_order, lineages
from spark_ext.ledger.schema import (
    ROWS,
    CheckpointRow,
    ControlEventRow,
    ControlTransitionRow,
    DefinitionRow,
    EpochRow,
    FinishedRow,
    JobRow,
    Row,
)
from spark_ext.ledger.tables import LedgerTable
from spark_ext.storage import child

FINAL = ("acknowledged", "rejected", "failed", "expired")
"""Statuses behind which nothing more comes of a control event."""

FOLDER = "ledger"
"""The tables' folder in the state directory."""


@dataclass(frozen=True)
class FinalSteps:
    """How far a query's final checkpoint has progressed."""

    checkpoint_id: int
    passed: frozenset[str]
    """The statuses recorded."""


class Ledger:
    """The tables of one job. Reading creates nothing.

    Args:
        uri: path or URI of the job's state directory.
    """

    FIRST: ClassVar[frozenset[str]] = frozenset(
        {"jobs", "checkpoints", "finished", "epochs", "control_events", "execution_states", "incidents"}
    )
    """Tables of every version of the ledger; the others came with start ids."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self.uri = str(uri).rstrip("/")
        self.storage_options = dict(storage_options or {})
        """Of the object store; secret."""
        self.folder = child(self.uri, FOLDER)
        self.tables: dict[str, LedgerTable[Any]] = {
            row_type.table: LedgerTable(child(self.folder, row_type.table), row_type, storage_options)
            for row_type in ROWS
        }

    def table(self, row_type: type[R]) -> LedgerTable[R]:
        """The table of a row type."""
        return cast(LedgerTable[R], self.tables[row_type.table])

    def lost(self, start_ids: Collection[int | None]) -> list[LedgerTable[Any]]:
        """Tables that were deleted: all of them are created, in order, before the first start is recorded."""
        there = {table.name for table in self.tables.values() if table.exists()}
        made = self.tables.keys() if any(start_ids) else self.FIRST if start_ids else {JobRow.table}
        return [table for table in self.tables.values() if there and table.name in made - there]

    # -- the job ------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[JobRow]:
        """Starts, ends and resets, oldest first."""
        return in_order(self.table(JobRow).rows())

    def newest_incarnation(self) -> int | None:
        """The newest incarnation's number; None when the job has never been started."""
        return self._greatest(JobRow, "incarnation")

    def lineage_of(self, query: str) -> int:
        """The query's lineage: that of its last reset or of the whole job's, else the one in which it began."""
        given = lineages(self.table(JobRow).rows([("event", "in", ["reset", "renamed", "restored"])])).of(query)
        if given is not None:
            return given
        begun = self.table(DefinitionRow).read(["lineage"], [("query", "=", query)])["lineage"]
        return int(pc.min(begun).as_py()) if len(begun) else FIRST_LINEAGE

    # -- what has finished --------------------------------------------------------------------------------------------

    def finished_flags(self, source: str | None = None, lineage: int | None = None) -> list[FinishedRow]:
        """Finished flags in the order of their sequence; of one source, of one lineage, or all."""
        where: list[tuple[str, str, object]] = []
        if source is not None:
            where.append(("source", "=", source))
        if lineage is not None:
            where.append(("lineage", "=", lineage))
        rows = self.table(FinishedRow).rows(where)
        return sorted(rows, key=lambda row: (row.query, row.source, row.lineage, row.sequence))

    def flagged(self, query: str, lineage: int) -> dict[str, int]:
        """Per source of a query, the largest s such that the flags of the finishes 1..s are in the ledger."""
        flags = self.table(FinishedRow).read(
            columns=["source", "sequence"],
            where=[("kind", "=", "channel"), ("query", "=", query), ("lineage", "=", lineage)],
        )
        return {
            str(source): contiguous(flags.filter(pc.equal(flags["source"], source))["sequence"].to_numpy())
            for source in pc.unique(flags["source"])
        }

    def finished_queries(self) -> dict[str, FinishedRow]:
        """Queries that have finished in their current lineage, by uid."""
        flags = self.table(FinishedRow).rows([("kind", "=", "query")])
        present = {query: self.lineage_of(query) for query in {row.query for row in flags}}
        return {row.query: row for row in flags if row.lineage == present[row.query]}

    # -- epochs and checkpoints ---------------------------------------------------------------------------------------

    def last_epochs(self) -> dict[str, tuple[str, int, int]]:
        """Per query, Spark's query id, the newest committed epoch and its lineage (the newest)."""
        epochs = self.table(EpochRow).read(columns=["query", "query_id", "epoch", "lineage"])
        last: dict[str, tuple[str, int, int]] = {}
        for query, query_id, epoch, lineage in zip(*(column.to_pylist() for column in epochs.columns), strict=True):
            before = last.get(query)
            if before is None or (lineage, epoch) > (before[2], before[1]):
                last[query] = (query_id, epoch, lineage)
        return last

    def last_epoch(self, query: str, lineage: int) -> tuple[str, int] | None:
        """Spark's query id and the newest committed epoch of a query in a lineage; None when it has none."""
        epochs = self.table(EpochRow).read(
            columns=["query_id", "epoch"], where=[("query", "=", query), ("lineage", "=", lineage)]
        )
        if epochs.num_rows == 0:
            return None
        epoch = pc.max(epochs["epoch"]).as_py()
        return epochs["query_id"][pc.index(epochs["epoch"], epoch).as_py()].as_py(), epoch

    def checkpoints(self, query: str | None = None) -> list[CheckpointRow]:
        """Checkpoint rows in order: of a query, of the whole job (""), or all."""
        rows = self.table(CheckpointRow).rows([] if query is None else [("query", "=", query)])
        return sorted(rows, key=lambda row: (row.checkpoint_id, row.at))

    def final_steps(self, query: str, lineage: int) -> FinalSteps | None:
        """How far the query's final checkpoint has progressed; None when none was completed."""
        rows = self.table(CheckpointRow).rows(
            [("kind", "=", "final"), ("query", "=", query), ("lineage", "=", lineage)]
        )
        begun = [row.checkpoint_id for row in rows if row.status == "COMPLETED"]
        if not begun:
            return None
        newest = max(begun)
        return FinalSteps(newest, frozenset(row.status for row in rows if row.checkpoint_id == newest))

    def next_checkpoint_id(self) -> int:
        """One more than the greatest checkpoint id so far."""
        return (self._greatest(CheckpointRow, "checkpoint_id") or 0) + 1

    # -- control ------------------------------------------------------------------------------------------------------

    def control_since(self, sequence: int) -> list[ControlEventRow]:
        """Rows of the control events after a sequence, in order."""
        rows = self.table(ControlEventRow).rows([("sequence", ">", sequence)])
        return sorted(rows, key=lambda row: (row.sequence, row.at))

    def newest_control_sequence(self) -> int:
        """The greatest control sequence so far; 0: none."""
        return self._greatest(ControlEventRow, "sequence") or 0

    def newest_transition(self) -> int:
        """The greatest control sequence that has had an outcome; 0: none."""
        return self._greatest(ControlTransitionRow, "sequence") or 0

    def open_control_events(self) -> list[ControlEventRow]:
        """Accepted events without a final outcome, in order."""
        table = self.table(ControlEventRow)
        events = table.read(["sequence", "event_id"], [("status", "=", "accepted")])
        over = self.table(ControlTransitionRow).read(["event_id"], [("query", "=", ""), ("status", "in", list(FINAL))])
        left = events.filter(pc.invert(pc.is_in(events["event_id"], over["event_id"].combine_chunks())))
        if not left.num_rows:
            return []
        first, ids = pc.min(left["sequence"]).as_py(), set(left["event_id"].to_pylist())
        rows = [row for row in self.control_since(first - 1) if row.event_id in ids]
        return list({row.event_id: row for row in rows}.values())

    def _greatest(self, row_type: type[Row], column: str) -> int | None:
        found: int | None = pc.max(self.table(row_type).read(columns=[column])[column]).as_py()
        return found


def contiguous(sequences: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """The largest s such that 1..s are all among the sequences."""
    distinct = np.unique(sequences)
    distinct = distinct[distinct > 0]
    return int(np.count_nonzero(distinct == np.arange(1, len(distinct) + 1)))
