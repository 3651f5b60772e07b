"""Connection options, and connections that are kept across epochs.

Unset options fall back to libpq's defaults: `PGHOST`, `PGUSER`, `PGPASSWORD`, `~/.pgpass`, `PGSERVICE`, in the process
that connects: the driver and every executor.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from spark_ext import masking
from spark_ext.clients.library import load
from spark_ext.clients.postgres.problems import translated
from spark_ext.errors import refused
from spark_ext.options import Milliseconds, Options, passwords_in

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_PART = r'"((?:[^"]|"")+)"|([^."\s]+)'
_NAME = re.compile(rf"(?:(?:{_PART})\.)?(?:{_PART})")
_COLUMN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^,]*?))\s*(?:,|$)')
LONGEST = 63  # bytes of a name; the server cuts longer ones off


def columns(text: str) -> tuple[str, ...]:
    """`a, "B, c"` as `("a", "B, c")`; unquoted names are taken as they are."""
    found = (quoted.replace('""', '"') or plain for quoted, plain in _COLUMN.findall(text))
    return tuple(name for name in found if name)


def _column(text: str) -> str:
    found = _COLUMN.fullmatch(text)
    return found[1].replace('""', '"') if found is not None and found[1] else text


ColumnNames = Annotated[  # Columns, comma-separated, with special names in double quotes
    tuple[str, ...], BeforeValidator(lambda value: columns(value) if isinstance(value, str) else value)
]

ColumnName = Annotated[str, AfterValidator(_column)]  # one column; a special name may be in double quotes


@dataclass(frozen=True)
class Name:
    """A table's name as the user wrote it: `table` or `schema.table`, with special names in double quotes."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> Name:
        """Parse a name; unquoted parts are taken as they are, not folded to lower case."""
        found = _NAME.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a table's name such as 'orders' or 'shop.orders'")
        schema, table = (
            (quoted.replace('""', '"') if quoted else plain)
            for quoted, plain in ((found[1], found[2]), (found[3], found[4]))
        )
        for part in (schema, table):
            if part and len(part.encode()) > LONGEST:
                raise ValueError(f"{part!r} is too long: names in PostgreSQL have at most {LONGEST} bytes")
        return cls(schema, table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def identifier(self) -> sql.Identifier:
        """Quoted, for statements."""
        from psycopg import sql

        return sql.Identifier(self.schema, self.table) if self.schema else sql.Identifier(self.table)


class ConnectionOptions(Options):
    """Connection options; each one that is unset falls back to libpq's environment variables and files."""

    dsn: str | None = Field(default=None, repr=False)
    """Connection string: `postgresql://user@host/db` or libpq's `key=value` form. Never shown; the options below
    override it."""
    host: str | None = None
    """Host name or address of the server, or the directory of its socket."""
    port: int | None = Field(default=None, gt=0, lt=65536)
    """Port of the server."""
    dbname: str | None = None
    """Name of the database."""
    user: str | None = None
    """Name of the role."""
    password: str | None = Field(default=None, repr=False)
    """Password; preferably kept in `PGPASSWORD`, `~/.pgpass` or a service file on the driver and the executors. Never
    shown or stored."""
    service: str | None = None
    """Name of a section of libpq's service file."""
    sslmode: str | None = None
    """`disable`, `prefer`, `require`, `verify-ca` or `verify-full`; libpq's default is `prefer`."""
    connect_timeout: Milliseconds = 10_000
    """Time limit for connecting, ms; at least two seconds."""

    def identity(self) -> dict[str, str]:
        """With the server and the database, however they are given."""
        return {**super().identity(), "server": Server.of(self, self.uid).name}


@dataclass(frozen=True)
class Server:
    """A database on a server."""

    conninfo: str = field(repr=False)  # libpq's connection string; contains the password if one was given
    name: str  # host:port/database, for messages

    @classmethod
    def of(cls, options: ConnectionOptions, who: str) -> Server:
        """The server of the options."""
        psycopg = load("psycopg", "postgres", who)
        given = {
            name: value
            for name in ("host", "port", "dbname", "user", "password", "service", "sslmode")
            if (value := getattr(options, name)) is not None
        }
        keep_alive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        try:
            parsed: Mapping[str, Any] = psycopg.conninfo.conninfo_to_dict(options.dsn or "")
            # All texts are exchanged as UTF-8, whatever the address, the environment, database and role prefer.
            settings = {**keep_alive, **parsed, **given, "client_encoding": "UTF8"}
            settings.setdefault("connect_timeout", max(2, options.connect_timeout // 1000))
            conninfo = psycopg.conninfo.make_conninfo(**settings)
            if not all(port.isdigit() for port in str(settings.get("port", 0)).split(",") if port):
                raise psycopg.ProgrammingError("port")
            if options.dsn and "://" in options.dsn and _torn(parsed):
                raise psycopg.ProgrammingError("password")
        except psycopg.Error:
            raise refused(
                "the option 'dsn' is not a connection string of PostgreSQL",
                who,
                "use 'postgresql://user@host:5432/database' or 'host=... dbname=...', with special characters "
                "percent-encoded in the first and quoted in the second",
            ) from None
        masking.remember(str(settings.get("password", "")), os.environ.get("PGPASSWORD", ""))
        masking.remember(*passwords_in(f"{settings.get('options', '')} {os.environ.get('PGOPTIONS', '')}"))
        return cls(conninfo, _shown({**parsed, **given}))

    @property
    def here(self) -> tuple[object, ...]:
        """The key of this process's connections to the server, including libpq's environment variables."""
        return (os.getpid(), self.conninfo, *sorted(item for item in os.environ.items() if item[0].startswith("PG")))

    def connect(self, application: str) -> psycopg.Connection[Any]:
        """A new connection, in autocommit mode."""
        import psycopg

        # Statements prepared on the server would outlive the staging tables that they refer to.
        return psycopg.connect(self.conninfo, application_name=application, autocommit=True, prepare_threshold=None)


def _torn(parsed: Mapping[str, Any]) -> bool:
    """Whether an unencoded `@` or `/` in a password has split it: its end is then part of the host or the database."""
    # A host that begins with `@` is an abstract socket.
    return "@" in str(parsed.get("host", ""))[1:] or "@" in str(parsed.get("dbname", ""))


def _shown(settings: Mapping[str, Any]) -> str:
    service = settings.get("service") or os.environ.get("PGSERVICE")
    if service and not settings.get("host"):
        return f"service {service}"
    host = settings.get("host") or settings.get("hostaddr") or os.environ.get("PGHOST") or "local socket"
    port = settings.get("port") or os.environ.get("PGPORT") or "5432"
    name = settings.get("dbname") or os.environ.get("PGDATABASE") or settings.get("user") or "default"
    return f"{host}:{port}/{name}"


MOST_KEPT = 4  # maximum number of idle connections that are kept


class _Kept(threading.local):
    """Connections of this thread by server and application: operators are created again for each epoch."""

    def __init__(self) -> None:
        self.connections: dict[tuple[object, ...], psycopg.Connection[Any]] = {}


_kept = _Kept()


@contextlib.contextmanager
def session(
    server: Server,
    application: str,
    who: str,
    begin: Callable[[psycopg.Connection[Any]], None] = lambda connection: None,
) -> Iterator[psycopg.Connection[Any]]:
    """A connection in autocommit mode, kept for the next use if it is idle afterwards and no error occurred."""
    import psycopg

    fresh = False
    key = (*server.here, application)
    connection = _kept.connections.pop(key, None)
    if connection is not None and not _lives(connection):
        connection = None
    if connection is None:
        with translated(who, "nothing of this step was written"):
            connection = server.connect(application)
        fresh = True
    try:
        if fresh:
            begin(connection)
        yield connection
    except BaseException:
        # Whatever its state: closing it rolls back on the server.
        connection.close()
        raise
    if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        connection.close()
    else:
        _kept.connections[key] = connection
        while len(_kept.connections) > MOST_KEPT:
            # The one that has been idle longest: a process may serve many operators, one after the other.
            _kept.connections.pop(next(iter(_kept.connections))).close()


def _lives(connection: psycopg.Connection[Any]) -> bool:
    """Whether the connection still works, by one round trip: the server may have been restarted."""
    import psycopg

    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        connection.close()
        return False
    return True


def forget() -> None:
    """Close this thread's kept connections."""
    while _kept.connections:
        _kept.connections.popitem()[1].close()
