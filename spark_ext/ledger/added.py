"""What is added to a table of the ledger while somebody follows it: each look reads only what is new."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Generic

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.delta.tail import Tail
from spark_ext.ledger.columns import R, arrow_schema
from spark_ext.ledger.tables import CHECKPOINT_EVERY, LedgerTable

CLOCKS: Final = timedelta(minutes=10)
"""By how much the clocks of two drivers may differ: rows that are so much older may be new."""


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
            self._newest = newest if self._newest is None else max(newest, self._newest)
