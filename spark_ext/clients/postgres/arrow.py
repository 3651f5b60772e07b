"""Connections of ADBC, by which executors read rows as Arrow batches; kept by the process for the next epoch."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_ext.clients.library import load
from spark_ext.clients.postgres.connection import MOST_KEPT, Server
from spark_ext.clients.postgres.problems import to_error
from spark_ext.errors import SparkExtError

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection, Cursor

_kept: dict[tuple[object, ...], Connection] = {}
"""Idle connections of this process."""


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
