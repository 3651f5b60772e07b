"""The rows of a `delta` exchange: one Parquet file per task and epoch, in which a run is a row group of one partition.

The table does not have the file before the epoch's entry is committed. A reader fetches the footer and the row groups
of its runs alone.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import RESET, StateError
from spark_ext.exchange.contract import ExchangeReader, ExchangeWriter
from spark_ext.exchange.distribution import BUFFER, collected, cut_out, segment_name
from spark_ext.exchange.entries import Run, Segment
from spark_ext.exchange.positions import Piece
from spark_ext.schemas.arrow import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile
    from pyspark.sql.types import StructType

    from spark_ext.model.commits import Task
    from spark_ext.storage import Location

_NAME: Final = re.compile(r"data/(?:i|entry-)(\d+)-[\w-]+\.parquet")


class DeltaWriter(ExchangeWriter):
    """See the module."""

    def __init__(self, location: Location, buffer: int = BUFFER) -> None:
        self._location, self._buffer = location, buffer

    def write(
        self, batches: Iterator[tuple[pa.RecordBatch, Sequence[int] | None]], task: Task, partitions: int
    ) -> Segment | None:
        """See `ExchangeWriter.write`."""
        name = segment_name(task, "parquet")
        file: _File | None = None
        try:
            for partition, together in collected(batches, task, partitions, self._buffer):
                file = file or _File(self._location, f"data/{name}", together[0].schema)
                file.write(partition, together)
            return None if file is None else Segment(name, file.close(), tuple(file.runs))
        except BaseException:
            if file is not None:
                file.drop()
            raise


class _File:
    """A segment while it is written."""

    def __init__(self, location: Location, path: str, schema: pa.Schema) -> None:
        from pyarrow.parquet import ParquetWriter

        self.runs: list[Run] = []
        self._stream: Any = location.folder.open_output(path)
        # With its Arrow schema, so that readers get the types that were written; no reader skips row groups by
        # statistics.
        options = {"compression": "snappy", "write_statistics": False, "store_schema": True}
        self._writer: Any = ParquetWriter(self._stream, schema, **options)

    def write(self, partition: int, together: list[pa.RecordBatch]) -> None:
        """Write a run, as one row group."""
        import pyarrow as pa

        rows = pa.Table.from_batches(together)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.runs.append(Run(partition, len(self.runs), 1, rows.num_rows))

    def close(self) -> int:
        """Finish the file; its size, bytes."""
        self._writer.close()
        size = int(self._stream.tell())
        self._stream.close()
        return size

    def drop(self) -> None:
        """Close what is open after an error, whatever state it is in."""
        with contextlib.suppress(OSError, ValueError):
            self._writer.close()
        # On a full disk the close above fails, and the garbage collector would try again, with a warning.
        self._writer.is_open = False
        with contextlib.suppress(OSError, ValueError):
            self._stream.close()


def write_marker(location: Location, rows: StructType, writer: str) -> tuple[str, int]:
    """Write a file without rows, which stands in the table for an entry that has none; its path and size."""
    path = f"data/entry-{writer if writer.isdigit() else 0}-{secrets.token_hex(8)}.parquet"
    file = _File(location, path, arrow_schema(rows, nullable=True))
    return path, file.close()


class DeltaReader(ExchangeReader):
    """See the module."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """See `ExchangeReader.read`."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        local = self._location.local is not None
        with self._location.folder.open_input(f"data/{piece.segment}") as source:
            try:
                with ParquetFile(source, pre_buffer=not local) as file:
                    yield from _batches(file, piece)
            except (pa.ArrowInvalid, OSError) as problem:
                # For a damaged page Arrow raises an OSError without a number; so does a store that does not answer.
                if isinstance(problem, OSError) and (problem.errno or not local):
                    raise
                raise StateError(
                    f"the file of rows {piece.segment} is damaged, as a power failure may leave the newest files: "
                    f"{problem}",
                    operator=f"the reader of the exchange at {self._location.uri}",
                    kept="nothing of this epoch was committed",
                    do="restore the file from a backup or, without one, reset the query that writes the exchange "
                    f"with {RESET}",
                ) from None


def _batches(file: ParquetFile, piece: Piece) -> Iterator[pa.RecordBatch]:
    skip = piece.skip
    groups: list[int] = []
    for number in range(piece.first, piece.first + piece.batches):
        rows = file.metadata.row_group(number).num_rows
        if not groups and skip >= rows:
            skip -= rows
        else:
            groups.append(number)
    yield from cut_out(file.iter_batches(row_groups=groups), skip, piece.rows)


def incarnation_of(path: str) -> int | None:
    """The incarnation that has written a file; None for a file that is none of an exchange's."""
    match = _NAME.fullmatch(path)
    return int(match[1]) if match else None
