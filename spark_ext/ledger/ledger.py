"""The ledger of a job: its tables, and what the rest of the project asks of them.

What is not in the ledger, or in Spark's own logs, did not happen. A row may occur twice (see `schema`), so every answer
here treats rows as a set.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow.compute as pc

from spark_ext.ledger.columns import R
from spark_ext.ledger.identity import in_order
from spark_ext.ledger.schema import ROWS, ControlEventRow, ControlTransitionRow, JobRow, Row
from spark_ext.ledger.tables import LedgerTable
from spark_ext.storage import child

FINAL = ("acknowledged", "rejected", "failed", "expired")  # statuses behind which nothing more comes of a control event
FOLDER = "ledger"  # the tables' folder in the state directory


class Ledger:
    """The tables of one job, by path or URI of its state directory. Reading creates nothing."""

    FIRST: ClassVar[frozenset[str]] = frozenset(
        {"jobs", "checkpoints", "finished", "epochs", "control_events", "execution_states", "incidents"}
    )  # tables of every version of the ledger; the others came with start ids

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self.uri = str(uri).rstrip("/")
        self.storage_options = dict(storage_options or {})  # of the object store; secret
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

    def jobs(self) -> list[JobRow]:
        """Starts, ends and resets, oldest first."""
        return in_order(self.table(JobRow).rows())

    def newest_incarnation(self) -> int | None:
        """The newest incarnation's number; None when the job has never been started."""
        return self._greatest(JobRow, "incarnation")

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
