"""Writes the rows of one incarnation to the ledger: each commit is fenced."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.ledger.identity import FIRST_LINEAGE, Incarnation, job_row
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import Row

if TYPE_CHECKING:
    from spark_ext.ledger.ledger import Ledger


class LedgerWriter:
    """Adds rows for one incarnation; each commit is fenced. Safe for several threads.

    Args:
        ledger: the job's.
        incarnation: as returned by `start_incarnation`.
    """

    def __init__(self, ledger: Ledger, incarnation: Incarnation) -> None:
        self.ledger = ledger
        self.incarnation = incarnation
        self._lock = threading.Lock()
        self._written: list[Row] = []

    def append(self, rows: Row | Sequence[Row]) -> None:
        """Add rows to their tables, one commit per table.

        The table of the last row is written last: once that row is visible, so are all others. If a table fails, the
        ones before it have been written; a call with the same row objects adds only the missing rows.

        Raises:
            FencedError: a newer incarnation owns the ledger.
            StorageError: not all rows were added; call again.
            StateError: a table is gone or cannot be written.
        """
        with self._lock:
            given = [rows] if isinstance(rows, Row) else list(rows)
            written = {id(row) for row in self._written}  # the list keeps them alive, so ids are not reused
            groups: dict[type[Row], list[Row]] = {}
            for row in given:
                if id(row) not in written:
                    groups.setdefault(type(row), []).append(row)
            last = {type(row): number for number, row in enumerate(given)}
            for row_type, group in sorted(groups.items(), key=lambda it: last[it[0]]):
                self.ledger.table(row_type).append(group, self.incarnation.fence)
                self._written.extend(group)
            # What another call has to add again stays known.
            done = {id(row) for row in given}
            self._written = [row for row in self._written if id(row) not in done]

    def new_lineage(self, query: str, reason: str) -> int:
        """Start a new lineage, of a query or of the whole job ("").

        Returns:
            Its number.

        Raises:
            FencedError, StorageError, StateError: as in `append`.
        """
        lineage = max((row.lineage for row in self.ledger.jobs()), default=FIRST_LINEAGE) + 1
        at = datetime.now(timezone.utc)
        self.append(job_row(self.incarnation, "reset", at, lineage=lineage, query=query, reason=reason))
        return lineage

    def end(self, reason: str) -> None:
        """Record that the incarnation has ended regularly.

        Raises:
            FencedError, StorageError, StateError: as in `append`; the incarnation has ended nevertheless.
        """
        try:
            lineage = max((row.lineage for row in self.ledger.jobs()), default=self.incarnation.lineage)
            at = datetime.now(timezone.utc)
            self.append(job_row(self.incarnation, "ended", at, lineage=lineage, reason=reason))
        finally:
            forget(self.ledger.uri, self.incarnation.number)
