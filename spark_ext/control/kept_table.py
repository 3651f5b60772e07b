"""A table of the ledger that is kept in memory, and brought up to date by reading only the files that are new.

Rows come, are compacted and expire; all of that shows in which files a version has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ext.delta.failures import guarded
from spark_ext.ledger.columns import R, arrow_schema
from spark_ext.storage import Location

if TYPE_CHECKING:
    from spark_ext.ledger.tables import LedgerTable

MANY = 256
"""Pieces beyond which they are put together: Arrow's functions cost something per piece."""


class KeptTable(Generic[R]):
    """All rows of a table, as Arrow. For one thread at a time."""

    def __init__(self, table: LedgerTable[R]) -> None:
        self._table = table
        self._empty = arrow_schema(table.row_type).empty_table()
        self._files: dict[str, pa.Table] = {}
        self._version: int | None = None
        self.rows: pa.Table = self._empty
        """As last seen, in no order; a row may be there twice."""

    def poll(self) -> bool:
        """See the newest version. On a local path that costs one `stat` when nothing has changed.

        Returns:
            Whether rows may have come or gone.
        """
        self._table.refresh()
        if self._table.version == self._version:
            return False
        with self._table.opened() as handle:
            version = None if handle is None else handle.version()
            there = [] if handle is None else pa.table(handle.get_add_actions().select(["path"]))["path"].to_pylist()
        with guarded(self._table.errors, "reading the table"):
            self._take(there)
        self._version = version
        return True

    def _take(self, there: list[str]) -> None:
        new = [path for path in there if path not in self._files]
        if not new and len(there) == len(self._files):
            return
        read = _Reader(self._table.uri, self._table.storage_options)
        schema = self._empty.schema
        fresh = {path: read(path).select(schema.names).cast(schema) for path in new}
        if len(there) == len(self._files) + len(new):
            rows = pa.concat_tables([self.rows, *fresh.values()])
        else:
            kept = (self._files[path] if path in self._files else fresh[path] for path in there)
            rows = pa.concat_tables([self._empty, *kept])
        self._files = {path: self._files[path] if path in self._files else fresh[path] for path in there}
        self.rows = rows.combine_chunks() if rows.column(0).num_chunks > MANY else rows


class _Reader:
    """Reads data files of a Delta table by the paths in its log."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None) -> None:
        self._location = Location.of(uri, storage_options or {})

    def __call__(self, path: str) -> pa.Table:
        with self._location.folder.open_input(unquote(path)) as file, pq.ParquetFile(file) as parquet:
            return parquet.read()
