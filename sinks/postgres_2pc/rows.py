"""Copies rows into a table by one COPY; a row that PostgreSQL refuses is reported with its number, column and value."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.clients.postgres.problems import describe, place_in_copy, to_error
from spark_ext.errors import NOTHING_VISIBLE, DataError, SparkExtError
from spark_ext.sinks.postgres_2pc.copy import HEADER, TRAILER, ValueMisfit, encode
from spark_ext.sinks.postgres_2pc.table import names
from spark_ext.sinks.postgres_2pc.types import Column

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_REMEMBERED = 32 * 1024**2
"""Bytes of rows that are kept after sending, to show the one that the server refuses; it is never further behind."""

_SHOWN = 200
"""Maximum number of characters of a value in a message."""


@dataclass(frozen=True)
class RowErrors:
    """Errors of rows: the operator that they name, and whether they may show values."""

    who: str
    redact: bool

    def refused(self, row: int, column: str | None, value: object, reason: str) -> DataError:
        """The error of a row; `value` is shown unless values must not appear in messages."""
        where = f"row {row}" + (f", column '{column}'" if column else "")
        shown = "" if self.redact or value is _UNKNOWN else f", value {_short(value)}"
        return DataError(
            f"{where}{shown}: {reason}",
            operator=self.who,
            kept=NOTHING_VISIBLE,
            do="correct the row in the query, or the column's type or constraint in the table",
        )

    def of(self, error: BaseException) -> SparkExtError:
        """An error of the client as one of this package's."""
        return to_error(error, self.who, NOTHING_VISIBLE, redact=self.redact)


_UNKNOWN = object()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _row(batch: pa.RecordBatch, at: int) -> Any:
    """A row's values by name, to be shown."""
    try:
        return batch.slice(at, 1).to_pylist()[0]
    except (OverflowError, ValueError):
        return _UNKNOWN  # a time that Python does not support


class _Recent:
    """The batches sent last, each with the number of its first row."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, pa.RecordBatch]] = deque()
        self._bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append((self.rows, batch))
        self._bytes += batch.nbytes
        self.rows += batch.num_rows
        while self._bytes > _REMEMBERED and len(self._batches) > 1:
            self._bytes -= self._batches.popleft()[1].nbytes

    def value(self, row: int, column: str | None) -> object:
        """A value by the number of its row; the whole row without a column."""
        for first, batch in self._batches:
            if first <= row < first + batch.num_rows:
                found = _row(batch, row - first)
                return found if column is None or found is _UNKNOWN else found.get(column, _UNKNOWN)
        return _UNKNOWN


def copy_in(
    connection: psycopg.Connection[Any],
    into: sql.Identifier,
    columns: Sequence[Column],
    batches: Iterable[pa.RecordBatch],
    errors: RowErrors,
) -> int:
    """Copy rows into a table, in the connection's transaction.

    Args:
        connection: to the database.
        into: the table.
        columns: of the table; those of the batches, in their order.
        batches: rows in the Arrow types of `schemas.arrow`.
        errors: for errors.

    Returns:
        The number of rows.

    Raises:
        DataError: a row does not fit; names it.
        SparkExtError: the server failed.
    """
    import psycopg
    from psycopg import sql

    statement = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT binary)").format(
        into, names([column.name for column in columns])
    )
    recent = _Recent()
    try:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(HEADER)
            for batch in batches:
                start = recent.rows
                recent.add(batch)
                try:
                    for piece in encode(batch, columns):
                        copy.write(piece)
                except ValueMisfit as misfit:
                    row = start + misfit.row
                    raise errors.refused(
                        row + 1, misfit.column, recent.value(row, misfit.column), misfit.reason
                    ) from None
            copy.write(TRAILER)
    except psycopg.Error as error:
        found = errors.of(error)
        place = place_in_copy(error)
        if isinstance(found, DataError) and place is not None:
            row, column = place
            raise errors.refused(
                row, column, recent.value(row - 1, column), describe(error, redact=errors.redact)
            ) from None
        raise found from None
    return recent.rows


def cast(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches in exactly this schema; empty ones are dropped."""
    for batch in batches:
        if batch.num_rows:
            if batch.schema.equals(schema):
                yield batch
            else:
                columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def keyed(batches: Iterable[pa.RecordBatch], key: Sequence[str], errors: RowErrors) -> Iterator[pa.RecordBatch]:
    """Batches without nulls in the key: a null equals no other, so such a row would be added again by every epoch.

    Raises:
        DataError: names the first row with a null in its key.
    """
    rows = 0
    for batch in batches:
        for name in key:
            column = batch.column(name)
            if column.null_count:
                at = pc.index(column.is_null(), True).as_py()
                raise errors.refused(rows + at + 1, name, _row(batch, at), "the key of an upsert may not be null")
        rows += batch.num_rows
        yield batch


def packed(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """A few rows as bytes, for a commit message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> list[pa.RecordBatch]:
    """The rows in a commit message."""
    with pa.ipc.open_stream(data) as reader:
        return list(reader)
