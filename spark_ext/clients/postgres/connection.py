"""Where the server is, and connections to it that are kept over epochs.

What an option does not say, libpq's own means do: `PGHOST`, `PGUSER`, `PGPASSWORD`, `~/.pgpass`, `PGSERVICE`. They
count where the connection is made: on the driver and on every executor.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field

from spark_ext.clients.postgres.problems import problem
from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.options import Milliseconds, Options

if TYPE_CHECKING:
    import psycopg

_NOTHING = "nothing was read or written"


class ConnectionOptions(Options):
    """How to reach the server; each falls back on libpq's environment variables and files."""

    dsn: str | None = Field(default=None, repr=False)
    """An address, `postgresql://user@host/db`, or libpq's `key=value` form. Never shown; the others overrule it."""

    host: str | None = None
    """Name or address of the server, or the folder of its socket."""

    port: int | None = Field(default=None, gt=0, lt=65536)
    """Its port."""

    dbname: str | None = None
    """The database."""

    user: str | None = None
    """The role."""

    password: str | None = Field(default=None, repr=False)
    """Better kept in `PGPASSWORD`, `~/.pgpass` or a service file on driver and executors. Never shown or stored."""

    service: str | None = None
    """A section of libpq's service file."""

    sslmode: str | None = None
    """`disable`, `prefer`, `require`, `verify-ca` or `verify-full`; libpq's default is `prefer`."""

    connect_timeout: Milliseconds = 10_000
    """How long a connection may take, ms; at least two seconds."""


@dataclass(frozen=True)
class Server:
    """A database on a server, as some operator reaches it."""

    conninfo: str = field(repr=False)
    """libpq's connection string; holds the password if one was given."""
    name: str
    """host:port/database, for messages."""

    @classmethod
    def of(cls, options: ConnectionOptions, who: str) -> Server:
        """The server that options name.

        Raises:
            EnvironmentProblem: psycopg is not installed.
            ConfigurationError: the option `dsn` is not a connection string; its text is not shown.
        """
        psycopg = load("psycopg", who)
        given = {
            name: value
            for name in ("host", "port", "dbname", "user", "password", "service", "sslmode")
            if (value := getattr(options, name)) is not None
        }
        keep_alive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        try:
            parsed: Mapping[str, Any] = psycopg.conninfo.conninfo_to_dict(options.dsn or "")
            settings = {**keep_alive, **parsed, **given}
            settings.setdefault("connect_timeout", max(2, options.connect_timeout // 1000))
            conninfo = psycopg.conninfo.make_conninfo(**settings)
            if not all(port.isdigit() for port in str(settings.get("port", 0)).split(",") if port):
                raise psycopg.ProgrammingError("port")
            if options.dsn and "://" in options.dsn and _torn(parsed):
                raise psycopg.ProgrammingError("password")
        except psycopg.Error:
            raise ConfigurationError(
                "the option 'dsn' is not a connection string of PostgreSQL",
                operator=who,
                kept=_NOTHING,
                do="give 'postgresql://user@host:5432/database' or 'host=... dbname=...', with special characters "
                "percent-encoded in the first and quoted in the second",
            ) from None
        return cls(conninfo, _shown({**parsed, **given}))

    @property
    def here(self) -> tuple[object, ...]:
        """What tells connections of this process apart: also what libpq takes from the environment."""
        return (os.getpid(), self.conninfo, *sorted(item for item in os.environ.items() if item[0].startswith("PG")))

    def connect(self, application: str) -> psycopg.Connection[Any]:
        """A new connection, in autocommit.

        Raises:
            psycopg.Error: it cannot be made.
        """
        import psycopg

        # Server-side preparation would outlive what it was made for: staging tables come and go.
        return psycopg.connect(self.conninfo, application_name=application, autocommit=True, prepare_threshold=None)


def _torn(parsed: Mapping[str, Any]) -> bool:
    """Whether a password with `@` or `/` in it, not encoded, has fallen apart: its end is in host or database then."""
    # A host that begins with it is an abstract socket.
    return "@" in str(parsed.get("host", ""))[1:] or "@" in str(parsed.get("dbname", ""))


def _shown(settings: Mapping[str, Any]) -> str:
    service = settings.get("service") or os.environ.get("PGSERVICE")
    if service and not settings.get("host"):
        return f"service {service}"
    host = settings.get("host") or settings.get("hostaddr") or os.environ.get("PGHOST") or "local socket"
    port = settings.get("port") or os.environ.get("PGPORT") or "5432"
    name = settings.get("dbname") or os.environ.get("PGDATABASE") or settings.get("user") or "default"
    return f"{host}:{port}/{name}"


def load(module: str, who: str) -> Any:
    """Import a client library.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as missing:
        raise EnvironmentProblem(
            f"the package for PostgreSQL is not installed: {missing}",
            operator=who,
            kept=_NOTHING,
            do="pip install 'spark-ext[postgres]' for the Python of driver and executors",
        ) from None


_MOST_KEPT = 4
"""Idle connections that a thread keeps."""


class _Kept(threading.local):
    """Connections of this thread by server and application: operators are built anew for each epoch."""

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
    """A connection in autocommit, kept for the next use if it is left idle and well.

    Args:
        server: where to.
        application: `application_name`, by which a later start of the job finds the connections of an earlier one.
        who: operator and target, for errors.
        begin: what to do first with a new connection.

    Raises:
        SparkExtError: the connection cannot be made.
    """
    import psycopg

    fresh = False
    key = (*server.here, application)
    connection = _kept.connections.pop(key, None)
    if connection is not None and not _lives(connection):
        connection = None
    if connection is None:
        try:
            connection = server.connect(application)
        except psycopg.Error as error:
            raise problem(error, who, "nothing of this step was written") from None
        fresh = True
    try:
        if fresh:
            begin(connection)
        yield connection
    except BaseException:
        # Whatever state it is in: closing it rolls back on the server.
        connection.close()
        raise
    if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        connection.close()
    else:
        _kept.connections[key] = connection
        while len(_kept.connections) > _MOST_KEPT:
            # The one that has been idle for longest: a process may serve many operators, one after the other.
            _kept.connections.pop(next(iter(_kept.connections))).close()


def _lives(connection: psycopg.Connection[Any]) -> bool:
    """One round trip; a server that was restarted meanwhile is noticed here."""
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
