"""Bad rows on their way into a file: compressed as they come, so that many of them take little memory."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

from spark_ext.bad_rows.row import COLLECTED, BadRow, table_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

ROWS: Final = 1_000
"""Rows that are kept as objects until they are compressed."""

METADATA: Final = b"spark_ext.table"
"""Under this key a file says in which table its rows belong; see `table_in_file`."""


class Buffer:
    """A file of Parquet in memory, begun with the first row.

    Args:
        channel: in which they were read; None for those of a sink.
    """

    def __init__(self, table: str, channel: str | None = None) -> None:
        self._table, self._channel = table, channel
        self._rows: list[BadRow] = []
        self._out = BytesIO()
        self._writer: ParquetWriter | None = None

    def add(self, row: BadRow) -> None:
        """Take a row."""
        self._rows.append(row)
        if len(self._rows) >= ROWS:
            self._compress()

    def copy(self, rows: pa.Table) -> None:
        """Take the rows of another file, behind those that were added before."""
        self._compress()
        self._into().write_table(rows.select(COLLECTED.names).cast(COLLECTED))

    def _compress(self) -> None:
        if self._rows:
            self._into().write_table(table_of(self._channel, self._rows))
            self._rows.clear()

    def _into(self) -> ParquetWriter:
        if self._writer is None:
            from pyarrow.parquet import ParquetWriter  # half of what it takes to import all of this

            about = {METADATA: self._table.encode()}
            self._writer = ParquetWriter(self._out, COLLECTED.with_metadata(about), compression="zstd")
        return self._writer

    def content(self) -> bytes:
        """The file with all rows; nothing can be added any more."""
        self._compress()
        self._into().close()
        return self._out.getvalue()


def rows_in(content: bytes) -> pa.Table:
    """The rows of a file.

    Not by a file of Python's: Arrow's threads would still release it when the interpreter ends, and hang or abort.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    return ParquetFile(pa.BufferReader(content)).read()
