"""Reading on executors: Arrow by ADBC, in the planner's snapshot while it is held, and compared with the plan.

A replayed epoch may be read long after the snapshot was released. Then the current rows are read, and their number and
hash must be those of the plan: rows inserted since are recognised by their transaction, rows updated or deleted since
cannot be read again and are refused.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from spark_ext.bad_rows.sift import sift, text_of
from spark_ext.clients.library import load
from spark_ext.clients.postgres.connection import MOST_KEPT, Server
from spark_ext.clients.postgres.problems import to_error
from spark_ext.errors import NEW_QUERY, DataError, ReplayError, SparkExtError
from spark_ext.schemas.casts import cast
from spark_ext.sources.contract import BadRow
from spark_ext.sources.postgres.snapshot import APPLICATION

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection, Cursor


BATCH_BYTES = 4 * 1024**2  # approximate size of a batch
KEPT = "nothing of this epoch was committed"
_LEAST = {"date": -2_440_588, "timestamp": -210_866_803_200_000_000}
"""PostgreSQL's least date (days) and time (microseconds) since 1970. Infinity wraps around to a smaller number, as a
time after the year 294246 does."""


def read(
    server: Server,
    settings: str,
    statement: str,
    wanted: pa.Schema,
    end: Mapping[str, Any],
    who: str,
    bad: Callable[[BadRow], object] | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as counted at its end, in the declared types; `bad`, if given, takes those that do not fit.

    `settings` is the statement with which the transaction begins.
    """
    rows = digest = 0
    with arrow_session(server, f"{APPLICATION} reader", who, KEPT) as connection:
        held = _begin(connection, end["snapshot"])
        execute(connection, settings, fetch=True)
        with connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
            cursor.execute(statement)
            for batch in batches(cursor):
                first = rows
                rows += batch.num_rows
                if batch.num_rows:
                    digest ^= int(np.bitwise_xor.reduce(np.asarray(batch.column(batch.num_columns - 1))))
                    if bad is None:
                        yield _conform(batch, wanted, who)
                    else:
                        yield from _sifted(batch, wanted, who, first, bad)
    planned = end["rows"]
    if (rows, digest) != (planned, end["hash"]):
        raise ReplayError(
            f"rows were updated or deleted after the epoch was planned: {planned} were planned, {rows} were found"
            + (", some of them changed" if rows == planned else ""),
            operator=who,
            kept="all epochs before this one; nothing of this one was committed",
            do="keep rows unchanged while a query reads them: this epoch cannot be replayed. Read the table "
            + NEW_QUERY
            + ("" if held else " (the snapshot of the plan ended with the process that planned it)"),
        )


def _begin(connection: Connection, snapshot: str) -> bool:
    """Begin a transaction in the planner's snapshot, or in a new one if that has ended. Returns whether it existed."""
    execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        execute(connection, f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        return True
    except connection.Error:
        connection.rollback()
    execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    return False


def _sifted(
    batch: pa.RecordBatch, wanted: pa.Schema, who: str, first: int, bad: Callable[[BadRow], object]
) -> Iterator[pa.RecordBatch]:
    """The rows that fit. A bad one is named by its place in the range, in the key's order, and by its hash."""

    def collect(row: int, one: pa.RecordBatch, problem: Exception) -> None:
        position = {"row": first + row, "hash": one.column(one.num_columns - 1)[0].as_py()}
        values = pa.RecordBatch.from_arrays(one.columns[: len(wanted)], names=wanted.names)
        reason = problem.what if isinstance(problem, DataError) else str(problem)
        bad(BadRow(position, reason, text_of(values)))

    return sift(batch, lambda rows: _conform(rows, wanted, who), DataError, collect)


def _conform(batch: pa.RecordBatch, wanted: pa.Schema, who: str) -> pa.RecordBatch:
    _refuse_no_lists(batch, len(wanted), who)
    columns: list[Any] = []
    for index, field in enumerate(wanted):
        column = batch.column(index)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        _refuse_infinity(column, field.name, who)
        if column.type != field.type:
            try:
                column = cast(column, field.type)
            except pa.ArrowException as misfit:
                raise DataError(
                    f"column '{field.name}' has a value that is not a {field.type}: {misfit}",
                    operator=who,
                    kept=KEPT,
                    do=f"declare '{field.name}' as a wider type or as string with .schema(...), or load with "
                    "on_bad_row=quarantine",
                ) from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _refuse_no_lists(batch: pa.RecordBatch, declared: int, who: str) -> None:
    # By its place: a column of the user may have any name.
    names = [] if batch.num_columns < declared + 2 else batch.column(declared).drop_null()
    if len(names):
        raise DataError(
            f"column '{names[0]}' contains an array of several dimensions, or one whose first index is not 1, which "
            "Spark's array does not support",
            operator=who,
            kept=KEPT,
            do=f"declare '{names[0]}' as string with .schema(...), read a query that converts or excludes such rows, "
            "or load with on_bad_row=quarantine",
        )


def _refuse_infinity(column: pa.Array, name: str, who: str) -> None:
    kind = "date" if types.is_date32(column.type) else "timestamp" if types.is_timestamp(column.type) else None
    if kind is None or column.null_count == len(column):
        return
    numbers = column.drop_null().view(pa.int32() if kind == "date" else pa.int64())
    if np.asarray(numbers).min() < _LEAST[kind]:
        late = "" if kind == "date" else " or a time after the year 294246"
        raise DataError(
            f"column '{name}' contains infinity{late}, which Spark's {kind} does not support",
            operator=who,
            kept=KEPT,
            do=f"declare '{name}' as string with .schema(...), read a query that excludes such rows, or load with "
            "on_bad_row=quarantine",
        )


# -- connections of ADBC, kept by the process -------------------------------------------------------------------------


_kept: dict[tuple[object, ...], Connection] = {}  # idle connections of this process


@atexit.register
def _close() -> None:
    while _kept:
        _kept.popitem()[1].close()


@contextmanager
def arrow_session(server: Server, application: str, who: str, kept: str) -> Iterator[Connection]:
    """A connection outside of a transaction; it is rolled back and kept for the next use unless an error occurs."""
    connection = _connected(server, application, who, kept)
    try:
        yield connection
        connection.rollback()
    except BaseException as error:
        connection.close()
        if isinstance(error, Exception) and not isinstance(error, SparkExtError):
            # Whatever its type: in the middle of a stream the server's errors are raised as Arrow's.
            raise to_error(error, who, kept) from None
        raise
    while len(_kept) >= MOST_KEPT:
        _kept.pop(next(iter(_kept))).close()
    _kept[server.here] = connection


def _connected(server: Server, application: str, who: str, kept: str) -> Connection:
    """An idle connection if it still answers, else a new one."""
    dbapi = load("adbc_driver_postgresql.dbapi", "postgres", who)
    idle: Connection | None = _kept.pop(server.here, None)
    if idle is not None:
        try:
            execute(idle, "SELECT 1", fetch=True)
            idle.rollback()
            return idle
        except Exception:
            idle.close()
    try:
        made: Connection = dbapi.connect(f"{server.conninfo} application_name='{application}'")
        return made
    except Exception as error:
        raise to_error(error, who, kept) from None


def batches(cursor: Cursor) -> Iterator[pa.RecordBatch]:
    """The rows of the statement. Unlike those of `fetch_record_batch`, their errors have a SQLSTATE."""
    assert cursor._results is not None
    return iter(cursor._results.reader)


def execute(connection: Connection, statement: str, *, fetch: bool = False) -> None:
    """Execute a statement whose rows do not matter, even if they have to be fetched."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        if fetch:
            cursor.fetchall()
