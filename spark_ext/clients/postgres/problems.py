"""What an error of PostgreSQL means for a job: by its SQLSTATE, whichever client reported it. Pure.

Errors that a retry may not meet again are transient: a lost connection, a full disk, a lock, a server that is starting.
All others occur again in every attempt: values and constraints (`DataError`), names, privileges and passwords
(`ConfigurationError`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from spark_ext.errors import DataError, SparkExtError, StorageError, refused

_DATA = ("20", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0", "XX001", "XX002")
"""Classes: CASE in a function, cardinality, data, integrity constraint, a row that its own trigger changed, functions
(three), WITH CHECK OPTION, a limit of the server such as the size of an index entry, RAISE in a trigger; and damaged
pages and indexes."""

_CONFIGURATION = ("0A", "0L", "0P", "28", "3D", "3F", "42", "53400")
"""Classes: not supported, grants, roles, authorization, database, schema, names and privileges; and a limit that the
server's configuration sets, such as temp_file_limit."""

_TRANSIENT = ("08", "25", "40", "53", "55", "57", "58", "XX", "F0")
"""Classes: connection, transaction state, rollback, resources, locks, operator intervention, system."""

_LOCKED = "55P03"
_CANCELLED = "57014"
_CLIENTS_DATA = ("DataError", "ArrowInvalid")
"""Classes of errors that a client raises itself, without a SQLSTATE: a text with a zero byte, a value of no type."""

_CLIENTS_MISUSE = ("ProgrammingError", "NotSupportedError")
"""Likewise, of psycopg: a statement that it refuses. ADBC uses these for connections in a wrong state as well."""

_REFUSED = re.compile(  # messages of a refused connection, for which clients report no SQLSTATE
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist|"
    r"database .* does not exist|permission denied|not permitted to log in|definition of service .* not found|"
    r"server certificate|requires SSL|invalid (sslmode|port|integer)"
)

_ROW_IN_COPY = re.compile(r"COPY (?P<table>.+), line (?P<line>\d+)(?:, column (?P<column>\"?[^:\"\n]+\"?))?")


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE of an error of psycopg or ADBC; "" if it has none."""
    return str(getattr(error, "sqlstate", None) or "")


def place_in_copy(error: BaseException) -> tuple[int, str | None] | None:
    """The row (from 1) and the column in which a COPY failed; None if the server does not report them."""
    context = getattr(getattr(error, "diag", None), "context", None) or str(error)
    found = _ROW_IN_COPY.search(context)
    return None if found is None else (int(found["line"]), found["column"] and found["column"].strip('" '))


def describe(error: BaseException, *, redact: bool = False) -> str:
    """The server's message on one line; with `redact` without the detail, which shows values of rows."""
    diag = getattr(error, "diag", None)
    primary = getattr(diag, "message_primary", None)
    if primary is None:
        # A failed connection: the client's own message, for all addresses that it tried; or ADBC's, with the statement.
        message = re.sub(r"\bQuery was: .*?(?=SQLSTATE: \w+$|$)", "", " ".join(str(error).split()))
        return message.strip() or type(error).__name__
    state = sqlstate(error)
    if redact:
        # Some primary messages contain the value as well: invalid input syntax for type integer: "secret".
        if state.startswith(("22", "P0")):
            primary = re.sub(r': ".*"$|: .*$| with byte sequence( 0x\w\w)+', "", primary)
        return f"{primary} (SQLSTATE {state})"
    parts = (primary, getattr(diag, "message_detail", None), getattr(diag, "message_hint", None))
    return " - ".join(part for part in parts if part) + f" (SQLSTATE {state})"


def to_error(error: BaseException, who: str, kept: str, *, redact: bool = False) -> SparkExtError:
    """An error of psycopg or ADBC as one of this package's; `redact` omits values of rows."""
    state, message = sqlstate(error), describe(error, redact=redact)
    kind = "" if state else type(error).__name__
    if state.startswith(_DATA) or kind in _CLIENTS_DATA:
        what = f"{'PostgreSQL' if state else 'The client of PostgreSQL'} refused the rows: {message}"
        do = "correct the rows in the query, or the table's types and constraints; then start the job again"
        return DataError(what, operator=who, kept=kept, do=do)
    if state.startswith(_CONFIGURATION) or _is_misuse(error) or (not state and _REFUSED.search(message)):
        do = "check the server, database, role, password and table, and the role's privileges on them"
        return refused(f"PostgreSQL refused: {message}", who, do, kept=kept)
    if state == _LOCKED:
        return StorageError(
            f"a lock on the table was not granted in time: {message}",
            operator=who,
            kept=kept,
            do="let the statement end that holds or awaits a lock, such as ALTER TABLE (see pg_locks and "
            "pg_stat_activity); the epoch will be retried",
        )
    if state == _CANCELLED:
        return StorageError(
            f"PostgreSQL cancelled a statement, which took longer than statement_timeout allows, or was ended by "
            f"someone: {message}",
            operator=who,
            kept=kept,
            do="raise the option 'statement_timeout', or the setting of the role or the database if the option is not "
            "given (0: without a limit); or make epochs smaller; the epoch will be retried",
        )
    if state and not state.startswith(_TRANSIENT):
        what = f"PostgreSQL failed: {message}"
        return SparkExtError(what, operator=who, kept=kept, do="see the server's log; the epoch will be retried")
    do = "check that the server is running and has space and connections left; the epoch will be retried"
    return StorageError(f"PostgreSQL is unavailable: {message}", operator=who, kept=kept, do=do)


def _is_misuse(error: BaseException) -> bool:
    return not sqlstate(error) and type(error).__name__ in _CLIENTS_MISUSE and _module(error) == "psycopg"


@contextmanager
def translated(who: str, kept: str, *, redact: bool = False) -> Iterator[None]:
    """Convert errors of psycopg and ADBC inside the block."""
    try:
        yield
    except SparkExtError:
        raise
    except Exception as error:
        if not _is_clients(error):
            raise
        # Not chained: a client's error may contain values, or the address that it was given.
        raise to_error(error, who, kept, redact=redact) from None


def _is_clients(error: Exception) -> bool:
    return _module(error) in ("psycopg", "adbc_driver_manager")


def _module(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
