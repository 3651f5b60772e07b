"""Copies rows into a table by one COPY; a row that PostgreSQL refuses is reported with its number, column and value."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.bad_rows.sift import sift
from spark_ext.clients.postgres.problems import describe, place_in_copy, sqlstate, to_error
from spark_ext.errors import NOTHING_VISIBLE, DataError, SparkExtError
from spark_ext.sinks.postgres_2pc.copy import HEADER, TRAILER, ValueMisfit, encode
from spark_ext.sinks.postgres_2pc.table import names
from spark_ext.sinks.postgres_2pc.types import Column

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_REMEMBERED = 32 * 1024**2  # Bytes of sent rows that are kept, to show the one that the server refuses
_SHOWN = 200  # Maximum number of characters of a value in a message


@dataclass(frozen=True)
class RowErrors:
    """Errors of rows: the operator that they name, and whether they may show values."""

    who: str
    redact: bool
    numbered: bool = True  # Whether they say the row's number; not where each row is tried by itself

    def refused(self, row: int, column: str | None, value: object, reason: str) -> DataError:
        """The error of a row; `value` is shown unless values must not appear in messages."""
        where = [f"row {row}"] if self.numbered else []
        where += [f"column '{column}'"] if column else []
        where += [] if self.redact or value is _UNKNOWN or not (column or self.numbered) else [f"value {_short(value)}"]
        return of_a_row(
            DataError(
                f"{', '.join(where)}: {reason}" if where else reason,
                operator=self.who,
                kept=NOTHING_VISIBLE,
                do="correct the row in the query, or the column's type or constraint in the table; "
                "on_bad_row=quarantine puts such rows aside",
            )
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
    """Copy rows into a table, in the connection's transaction."""
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
        if isinstance(found, DataError) and is_of_a_row(error):
            of_a_row(found)
        place = place_in_copy(error)
        if isinstance(found, DataError) and place is not None:
            row, column = place
            raise errors.refused(
                row, column, recent.value(row - 1, column), describe(error, redact=errors.redact)
            ) from None
        raise found from None
    return recent.rows


# Classes of SQLSTATE that say that a row is wrong: data, integrity constraint, WITH CHECK OPTION, a limit such as the
# size of an index entry, and RAISE in a trigger.
_OF_A_ROW = ("22", "23", "44", "54", "P0")


def is_of_a_row(error: BaseException) -> bool:
    """Whether the server, or this sink before it asked the server, has refused a row rather than the statement."""
    return bool(getattr(error, "of_a_row", False)) or sqlstate(error).startswith(_OF_A_ROW)


def of_a_row(error: DataError) -> DataError:
    """The same error, known to be one of a row."""
    error.__dict__["of_a_row"] = True
    return error


AT_ONCE = 16 * 1024**2  # Bytes of rows that are tried by one COPY, where rows may be put aside
Bad = Callable[[pa.RecordBatch, DataError], object]  # Takes a row that was refused, as a batch of its own, and why


class _Refused(Exception):
    def __init__(self, error: DataError) -> None:
        super().__init__(str(error))
        self.error = error


def copy_sifted(
    connection: psycopg.Connection[Any],
    into: sql.Identifier,
    columns: Sequence[Column],
    batches: Iterable[pa.RecordBatch],
    errors: RowErrors,
    bad: Bad,
) -> int:
    """Like `copy_in`, each part behind a savepoint, without the rows that do not fit: `bad` takes them."""
    alone = replace(errors, numbered=False)

    def tried(rows: Sequence[pa.RecordBatch]) -> int:
        with connection.transaction():
            return copy_in(connection, into, columns, rows, alone)

    def one(rows: pa.RecordBatch) -> pa.RecordBatch:
        try:
            tried([rows])
        except DataError as error:
            if not is_of_a_row(error):
                raise
            raise _Refused(error) from None
        return rows

    def collect(_: int, row: pa.RecordBatch, problem: Exception) -> None:
        assert isinstance(problem, _Refused)
        bad(row, problem.error)

    total = 0
    for group in _groups(batches):
        try:
            total += tried(group)
        except DataError as error:
            if not is_of_a_row(error):
                raise
            total += sum(rows.num_rows for batch in group for rows in sift(batch, one, _Refused, collect))
    return total


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held


class NullKey(ValueError):
    """A row of an upsert has a null in its key."""


def refuse_null_keys(batch: pa.RecordBatch, key: Sequence[str]) -> None:
    """Check the key of an upsert."""
    for name in key:
        if batch.column(name).null_count:
            raise NullKey(f"column '{name}': the key of an upsert may not be null")


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
    """Batches without nulls in the key: a null equals no other, so such a row would be added again by every epoch."""
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
