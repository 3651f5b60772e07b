"""Reading on executors: Arrow by ADBC, in the planner's snapshot while that is held, and compared with the plan.

A replayed epoch may come long after the snapshot is gone. Then the rows are read as they are now, and their number and
hash have to be those of the plan: what was inserted since is told apart by its transaction, what was updated or deleted
since cannot be read again and is refused.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from spark_ext.clients.postgres.connection import Server, load
from spark_ext.clients.postgres.problems import problem
from spark_ext.errors import DataError, ReplayError, SparkExtError
from spark_ext.sources.postgres.snapshot import APPLICATION

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

BATCH_BYTES = 4 * 1024**2
"""About how large a batch is."""

_LEAST = {"date": -2_440_588, "timestamp": -210_866_803_200_000_000}
"""The least date (days) and time (microseconds) that PostgreSQL has, from 1970. Infinity comes out below: it wraps."""


@dataclass(frozen=True)
class Plan:
    """What the planner has found in a range."""

    rows: int
    hash: int
    snapshot: str


_connections: dict[tuple[object, ...], Connection] = {}
"""Idle connections of this process."""

_MOST_IDLE = 4


@atexit.register
def _close() -> None:
    while _connections:
        _connections.popitem()[1].close()


def _keep(server: Server, connection: Connection) -> None:
    while len(_connections) >= _MOST_IDLE:
        _connections.pop(next(iter(_connections))).close()
    _connections[server.here] = connection


def read(server: Server, statement: str, wanted: pa.Schema, plan: Plan, who: str) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in the declared types.

    Args:
        server: where from.
        statement: selects the declared columns in their order, and the hash.
        wanted: the declared columns as Spark takes them.
        plan: what they have to be.
        who: source and channel, for errors.

    Raises:
        ReplayError: the rows are no longer those that were planned.
        DataError: a value does not fit the declared type, or is infinite.
        SparkExtError: the server failed.
    """
    rows = digest = 0
    connection = _connected(server, who)
    held = _begin(connection, plan.snapshot, who)
    try:
        with connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
            cursor.execute(statement)
            for batch in cursor.fetch_record_batch():
                rows += batch.num_rows
                if batch.num_rows:
                    digest ^= int(np.bitwise_xor.reduce(np.asarray(batch.column(batch.num_columns - 1))))
                    yield _conform(batch, wanted, who)
        connection.rollback()
    except GeneratorExit:
        connection.close()
        raise
    except Exception as error:
        connection.close()
        if isinstance(error, SparkExtError):
            raise
        raise problem(error, who, "nothing of this epoch was committed") from None
    _keep(server, connection)
    if (rows, digest) != (plan.rows, plan.hash):
        raise ReplayError(
            f"rows have been updated or deleted since the epoch was planned: {plan.rows} were planned, {rows} are there"
            + (", of which some have changed" if rows == plan.rows else ""),
            operator=who,
            kept="all epochs before this one; nothing of this one was committed",
            do="the epoch cannot be repeated as it was. Keep rows unchanged while a query reads them, or start the job "
            "with a new state to read the table anew"
            + ("" if held else " (the snapshot of the plan ended with the process that planned it)"),
        )


def _connected(server: Server, who: str) -> Connection:
    """A connection inside no transaction; a kept one if it still answers."""
    dbapi = load("adbc_driver_postgresql.dbapi", who)
    kept: Connection | None = _connections.pop(server.here, None)
    if kept is not None:
        try:
            with kept.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
            kept.rollback()
            return kept
        except Exception:
            kept.close()
    try:
        made: Connection = dbapi.connect(f"{server.conninfo} application_name='{APPLICATION} reader'")
        return made
    except Exception as error:
        raise problem(error, who, "nothing of this epoch was committed") from None


def _begin(connection: Connection, snapshot: str, who: str) -> bool:
    """A transaction in the planner's snapshot; in one of its own if that is gone. Returns whether it was there."""
    try:
        _execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            _execute(connection, f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            return True
        except connection.Error:
            connection.rollback()
        _execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return False
    except connection.Error as error:
        connection.close()
        raise problem(error, who, "nothing of this epoch was committed") from None


def _execute(connection: Connection, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _conform(batch: pa.RecordBatch, wanted: pa.Schema, who: str) -> pa.RecordBatch:
    columns: list[Any] = []
    for index, field in enumerate(wanted):
        column = batch.column(index)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        _refuse_infinity(column, field.name, who)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as misfit:
                raise DataError(
                    f"column '{field.name}' has a value that is no {field.type}: {misfit}",
                    operator=who,
                    kept="nothing of this epoch was committed",
                    do=f"declare '{field.name}' as a wider type or as string with .schema(...)",
                ) from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _refuse_infinity(column: pa.Array, name: str, who: str) -> None:
    kind = "date" if types.is_date32(column.type) else "timestamp" if types.is_timestamp(column.type) else None
    if kind is None or column.null_count == len(column):
        return
    numbers = column.drop_null().view(pa.int32() if kind == "date" else pa.int64())
    if np.asarray(numbers).min() < _LEAST[kind]:
        raise DataError(
            f"column '{name}' holds infinity, which Spark's {kind} has not",
            operator=who,
            kept="nothing of this epoch was committed",
            do=f"declare '{name}' as string with .schema(...), or read a query that leaves such rows out",
        )
