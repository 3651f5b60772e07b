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

_DATA = ("21", "22", "23", "44", "P0")
"""Classes: cardinality, data, integrity constraint, WITH CHECK OPTION, RAISE in a trigger."""

_CONFIGURATION = ("0A", "0L", "0P", "28", "3D", "3F", "42")
"""Classes: not supported, grants, roles, authorization, database, schema, names and privileges."""

_TRANSIENT = ("08", "25", "40", "53", "54", "55", "57", "58", "XX", "F0")
"""Classes: connection, transaction state, rollback, resources, limits, locks, operator intervention, system."""

_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist|"
    r"database .* does not exist|permission denied|not permitted to log in|definition of service .* not found|"
    r"server certificate|requires SSL|invalid (sslmode|port|integer)",
)
"""Messages of a refused connection, for which clients report no SQLSTATE."""

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
        # A failed connection: the client's own message, for all addresses that it tried.
        return " ".join(str(error).split()) or type(error).__name__
    state = sqlstate(error)
    if redact:
        # Some primary messages contain the value as well: invalid input syntax for type integer: "secret".
        primary = re.sub(r': ".*"$|: .*$', "", primary) if state.startswith(("22", "P0")) else primary
        return f"{primary} (SQLSTATE {state})"
    parts = (primary, getattr(diag, "message_detail", None), getattr(diag, "message_hint", None))
    return " - ".join(part for part in parts if part) + f" (SQLSTATE {state})"


def to_error(error: BaseException, who: str, kept: str, *, redact: bool = False) -> SparkExtError:
    """The error as one of this package's.

    Args:
        error: as psycopg or ADBC raised it.
        who: operator and target.
        kept: what is safe.
        redact: whether to omit values of rows.
    """
    state, message = sqlstate(error), describe(error, redact=redact)
    if state.startswith(_DATA):
        return DataError(
            f"PostgreSQL refused the rows: {message}",
            operator=who,
            kept=kept,
            do="correct the rows in the query, or the table's types and constraints; then start the job again",
        )
    if state.startswith(_CONFIGURATION) or (not state and _REFUSED.search(message)):
        return refused(
            f"PostgreSQL refused: {message}",
            who,
            "check the server, database, role, password and table, and the role's privileges on them",
            kept=kept,
        )
    if state and not state.startswith(_TRANSIENT):
        return SparkExtError(
            f"PostgreSQL failed: {message}",
            operator=who,
            kept=kept,
            do="see the server's log; the epoch will be retried",
        )
    return StorageError(
        f"PostgreSQL is unavailable: {message}",
        operator=who,
        kept=kept,
        do="check that the server is running and has space and connections left; the epoch will be retried",
    )


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
    return type(error).__module__.partition(".")[0] in ("psycopg", "adbc_driver_manager")
