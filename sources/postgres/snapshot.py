"""The planner's view of the database: a snapshot that it holds and exports, and what is certainly committed.

Two questions decide what an increment may read. *Which transactions have ended?* All below the oldest one in progress:
`pg_snapshot_xmin`. A transaction that commits later has a greater number, and so have its subtransactions, so nothing
is missed between two such marks. *Up to which value is an increasing column at rest?* Up to the greatest value seen,
once every transaction has ended that was open when it was seen: smaller values were drawn by one of these or earlier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_ext.clients.postgres.connection import Server
from spark_ext.clients.postgres.problems import translated
from spark_ext.errors import NOTHING_DONE, DataError, StorageError
from spark_ext.sources.postgres.relation import Relation, literal, quoted

if TYPE_CHECKING:
    import psycopg


APPLICATION = "spark_ext source"
"""`application_name` of planners and readers: they only read, so nothing has to wait for them."""

_OPEN = """
SELECT l.pid || ':' || l.virtualxid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.granted AND a.datname = current_database() AND l.pid <> pg_backend_pid()
  AND a.application_name NOT LIKE %s AND coalesce(a.backend_type, '') <> 'autovacuum worker'
UNION ALL SELECT 'gid:' || gid FROM pg_prepared_xacts WHERE database = current_database()
"""


_PREPARED = "gid:"
_ENDLESS = ("infinity", "Infinity", "NaN")
_WITH_END = ("date", "timestamp", "timestamptz", "float4", "float8", "numeric")
"""Types, by their names in `pg_type`, that have such values, greater than all others."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot."""

    id: str  # name by which other connections can use it while it is held
    least: int  # `pg_snapshot_xmin`: all transactions below it have ended
    next: int  # `pg_snapshot_xmax`: no transaction from it on had ended


class View:
    """The planner's connection. Each `take` takes a new snapshot and releases the previous one."""

    def __init__(self, server: Server, who: str, lock_timeout: int, statement_timeout: int | None = None) -> None:
        self._server, self.who = server, who
        self._settings = settings_of(lock_timeout, statement_timeout)
        self._connection: psycopg.Connection[Any] | None = None
        self._seen: Snapshot | None = None
        self._candidate: tuple[str, frozenset[str]] | None = None

    @property
    def held(self) -> Snapshot:
        """The current snapshot, taken if necessary."""
        return self._seen or self.take()

    def take(self) -> Snapshot:
        """Take and hold a new snapshot."""
        self.release()
        connection = self._open()
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; " + self._settings)
        found = connection.execute(
            "SELECT pg_export_snapshot(), pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint "
            "FROM pg_current_snapshot() s"
        ).fetchone()
        assert found is not None
        self._seen = Snapshot(*found)
        return self._seen

    def text_of(self, statement: str) -> str | None:
        """The only value of a statement in the held snapshot; None: no row, or a value that does not fit its type."""
        found = self.row_of(statement)
        return None if found is None else found[0]

    def row_of(self, statement: str) -> tuple[str, ...] | None:
        """The only row of a statement, as texts; None: no row, a null, or a value that does not fit its type."""
        import psycopg

        connection = self.connection
        if "\x00" in statement:
            return None
        try:
            # A savepoint: the snapshot is held on.
            with connection.transaction():
                found = connection.execute(statement).fetchone()
        except (psycopg.DataError, UnicodeError):
            return None
        return None if found is None or None in found else tuple(str(value) for value in found)

    def release(self) -> None:
        """Release the snapshot, so that the server can vacuum."""
        import psycopg

        self._seen = None
        if self._connection is not None and not self._connection.closed:
            try:
                self._connection.execute("ROLLBACK")
            except psycopg.OperationalError:
                # The server has ended the connection, and the snapshot with it.
                self._connection.close()

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            with translated(self.who, NOTHING_DONE):
                self._connection = self._server.connect(f"{APPLICATION} planner")
        return self._connection

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """Inside the held snapshot."""
        if self._seen is None:
            self.take()
        assert self._connection is not None
        return self._connection

    def lost(self) -> None:
        """After an error: reconnect at the next look."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._seen = self._candidate = None

    # -- an increasing column -----------------------------------------------------------------------------------------

    def at_rest(self, relation: Relation, column: str, mark: str | None, *, past: bool = False) -> str | None:
        """A value of the column, greater than `mark`, below which no more rows will appear; None: not yet.

        If there is one, the current snapshot sees all of these rows. With `past` it is less than the greatest value.
        """
        if self._candidate is None:
            self.take()
            greatest = self.greatest(relation, column, past=past)
            # Listed after the snapshot was taken: a transaction that drew a smaller value is listed, or has ended.
            self._candidate = None if greatest is None or greatest == mark else (greatest, self._transactions())
        if self._candidate is None:
            self.release()
            return None
        greatest, open_then = self._candidate
        if open_then:
            open_then = still_open(open_then, self._transactions())
            self._candidate = (greatest, open_then)
        if open_then:
            self.release()
            return None
        self._candidate = None
        self.take()
        return greatest

    def wait_until_at_rest(self, relation: Relation, column: str, seconds: float, *, past: bool) -> str | None:
        """The greatest value (with `past` the one before it), once no smaller one can appear; None: no values."""
        end = time.monotonic() + seconds
        while True:
            found = self.at_rest(relation, column, None, past=past)
            if found is not None or self._candidate is None:
                return found
            if time.monotonic() > end:
                raise StorageError(
                    f"transactions that could still add smaller values of '{column}' have been open for {seconds:g} s: "
                    f"{', '.join(sorted(self._candidate[1])[:5])} (pid:virtual id)",
                    operator=self.who,
                    kept=NOTHING_DONE,
                    do="end them (see pg_stat_activity); the query starts once they have ended",
                )
            time.sleep(0.05)

    def greatest(self, relation: Relation, column: str, *, past: bool = False) -> str | None:
        """The greatest value of a column as text, in the snapshot; with `past` the greatest but one."""
        value = self._text(greatest_of(relation.source, column))
        kind = next((one.kind for one in relation.columns if one.name == column), "")
        if value in _ENDLESS and kind in _WITH_END:
            what = f"the increasing column '{column}' contains {value}, and nothing that comes later is greater"
            do = "give such rows another value, exclude them in a view, or use incremental=xmin"
            raise DataError(what, operator=self.who, kept=NOTHING_DONE, do=do)
        if past and value is not None:
            return self._text(greatest_of(relation.source, column, f"t.{quoted(column)} < {literal(value)}"))
        return value

    def _text(self, expression: str) -> str | None:
        found = self.connection.execute(f"SELECT {expression}::text").fetchone()
        return None if found is None else found[0]

    def _transactions(self) -> frozenset[str]:
        found = self.connection.execute(_OPEN, (f"{APPLICATION}%",)).fetchall()
        return frozenset(row[0] for row in found)


def greatest_of(source: str, column: str, condition: str = "true") -> str:
    """SQL of the greatest value of a column; unlike `max` for each type that has an order."""
    name = f"t.{quoted(column)}"
    return f"(SELECT {name} FROM {source} t WHERE {name} IS NOT NULL AND {condition} ORDER BY {name} DESC LIMIT 1)"


def still_open(before: frozenset[str], now: frozenset[str]) -> frozenset[str]:
    """Which transactions are still open; one that has ended may persist as a prepared one: all of these are awaited."""
    left = before & now
    prepared = frozenset(name for name in now if name.startswith(_PREPARED))
    return left | prepared if any(not name.startswith(_PREPARED) for name in before - left) else left


# -- settings of a transaction that plans or reads: values have one text form -----------------------------------------
# Keys and positions are exchanged as text, and rows are compared by hashes of their text. Settings of the server, the
# database, the role or libpq's environment would otherwise give the planner and an executor different texts.


_FORMS = {
    # Only how dates are shown: whether 01/02 in a user's query is in January or February is left to the server.
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "quote_all_identifiers": "off",
}

_WITHOUT_END = ("idle_in_transaction_session_timeout", "transaction_timeout")
"""Settings that would end a held snapshot. Servers before 17 do not have all of them."""


def settings_of(lock_timeout: int, statement_timeout: int | None = None) -> str:
    """The statement with which a transaction begins; both limits in ms, 0: no limit, None: as the server has it."""
    limits = {"lock_timeout": lock_timeout}
    if statement_timeout is not None:
        limits["statement_timeout"] = statement_timeout
    forms = ", ".join(f"('{name}', '{value}')" for name, value in {**_FORMS, **limits}.items())
    endless = ", ".join(f"'{name}'" for name in _WITHOUT_END)
    return (
        f"SELECT set_config(name, value, true) FROM (VALUES {forms}) f(name, value) "
        f"UNION ALL SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ({endless})"
    )
