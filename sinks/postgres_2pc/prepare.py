"""Phase one, in tasks: rows into the commit message, a staging table, or a prepared transaction, named by origin."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from spark_ext.failpoints import FailPoint, reach
from spark_ext.sinks.postgres_2pc.record import SCHEMA, Identity, decided, refuse_changed, refuse_fenced
from spark_ext.sinks.postgres_2pc.rows import Bad, RowErrors, copy_in, copy_sifted, packed
from spark_ext.sinks.postgres_2pc.table import Table, names

if TYPE_CHECKING:
    import psycopg

    from spark_ext.model.commits import FenceMark
    from spark_ext.sinks.contract import Task


@dataclass(frozen=True)
class Inline:
    """A few rows: they are part of the commit message, and the driver copies them."""

    rows: int
    data: bytes


@dataclass(frozen=True)
class Staged:
    """Rows in an unlogged table of their own; it is empty after a crash of the server, so the rows are counted."""

    rows: int
    table: str


@dataclass(frozen=True)
class InDoubt:
    """Rows in the target, in a prepared transaction."""

    rows: int
    gid: str


Part: TypeAlias = Inline | Staged | InDoubt

# Opens another connection that holds the sink's row in a transaction: no decision can be made meanwhile.
Fence: TypeAlias = "Callable[[], AbstractContextManager[psycopg.Connection[Any]]]"
_STAGED = re.compile(r"s_([0-9a-f]{12})_(\d+)_(\d+)_(\d+)_(\d+)_[0-9a-f]{6}")
_GID = re.compile(r"spark_ext:([0-9a-f]{12}):(\d+):(\d+):(\d+):(\d+):[0-9a-f]{6}")


@dataclass(frozen=True)
class Origin:
    """The parts of the name of a staging table or a prepared transaction."""

    mark: str
    incarnation: int
    epoch: int
    partition: int
    attempt: int

    @classmethod
    def of(cls, name: str) -> Origin | None:
        """Parse a name; None if it is not one of this package."""
        found = _STAGED.fullmatch(name) or _GID.fullmatch(name)
        return None if found is None else cls(found[1], *(int(found[place]) for place in range(2, 6)))

    @classmethod
    def task(cls, identity: Identity, task: Task) -> Origin:
        """The origin of what a task creates."""
        return cls(identity.mark, task.incarnation, task.epoch, task.partition, task.attempt)

    def _parts(self) -> tuple[str, ...]:
        # Attempt numbers start again with each Spark application; the last part makes the name unique.
        numbers = map(str, (self.incarnation, self.epoch, self.partition, self.attempt))
        return (self.mark, *numbers, secrets.token_hex(3))

    def new_table(self) -> str:
        """A unique name of a staging table."""
        return "_".join(("s", *self._parts()))

    def new_gid(self) -> str:
        """A unique name of a prepared transaction."""
        return ":".join(("spark_ext", *self._parts()))


def gather(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, limit: int
) -> tuple[Inline | None, list[pa.RecordBatch]]:
    """The rows as part of the message if they are few; else the first batches, which more follow."""
    first: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        first.append(batch)
        size += batch.nbytes
        if size > limit:
            return None, first
    rows = sum(batch.num_rows for batch in first)
    return Inline(rows, packed(first, schema) if first else b""), first


def stage(
    connection: psycopg.Connection[Any],
    table: Table,
    columns: Sequence[str],
    batches: Iterator[pa.RecordBatch],
    origin: Origin,
    errors: RowErrors,
    lock_timeout: int,
    bad: Bad | None = None,
) -> Staged:
    """Copy rows into a new staging table, atomically. A row that does not fit is an error without `bad`."""
    from psycopg import sql

    name = origin.new_table()
    into = sql.Identifier(SCHEMA, name)
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = {int(lock_timeout)}")
        # The target's own types, so that a value that does not fit is found here, and its row is known.
        empty = sql.SQL("CREATE UNLOGGED TABLE {} WITH (autovacuum_enabled = false) AS SELECT {} FROM {} WITH NO DATA")
        connection.execute(empty.format(into, names(columns), table.name.identifier))
        chosen = table.chosen(columns)
        if bad is None:
            rows = copy_in(connection, into, chosen, batches, errors)
        else:
            rows = copy_sifted(connection, into, chosen, batches, errors, bad)
    reach(FailPoint.POSTGRES_STAGED)
    return Staged(rows, name)


def prepare(
    connection: psycopg.Connection[Any],
    identity: Identity,
    table: Table,
    columns: Sequence[str],
    batches: Iterator[pa.RecordBatch],
    origin: Origin,
    mark: FenceMark,
    errors: RowErrors,
) -> InDoubt:
    """Copy rows into the target and prepare the transaction, which survives this connection and the server."""
    from psycopg import sql

    gid = origin.new_gid()
    rows = copy_in(connection, table.name.identifier, table.chosen(columns), batches, errors)
    # Visible once the transaction is committed, by any process.
    connection.execute("INSERT INTO spark_ext.parts (gid) VALUES (%s)", (gid,))
    reach(FailPoint.POSTGRES_BEFORE_PREPARE)
    held = refuse_fenced(connection, identity, mark, errors.who)
    refuse_changed(connection, table, columns, held if mark.start else None, errors.who)
    connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))
    reach(FailPoint.POSTGRES_PREPARED)
    return InDoubt(rows, gid)


def make_way(connection: psycopg.Connection[Any], identity: Identity, origin: Origin, fence: Fence) -> None:
    """Roll back what would block a task: of failed attempts at the same partition, and of older incarnations."""
    place = (origin.incarnation, origin.epoch, origin.partition)
    blocking = [
        gid
        for gid, other in pending(connection, identity.mark)
        if other.incarnation < origin.incarnation or (other.incarnation, other.epoch, other.partition) == place
    ]
    give_up(connection, identity, blocking, fence)


def give_up(connection: psycopg.Connection[Any], identity: Identity, gids: Sequence[str], fence: Fence) -> None:
    """Roll back prepared transactions but those decided on; under the fence, lest one is decided on after the look."""
    if not gids:
        return
    with fence() as held:
        kept = set(decided(held, identity))
        reach(FailPoint.POSTGRES_GIVING_UP)
        for gid in gids:
            if gid not in kept:
                roll_back(connection, gid)


def pending(connection: psycopg.Connection[Any], mark: str) -> list[tuple[str, Origin]]:
    """A sink's prepared transactions in this database."""
    found = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE %s",
        (f"spark\\_ext:{mark}:%",),
    ).fetchall()
    return [(gid, origin) for (gid,) in found if (origin := Origin.of(gid)) is not None]


def staging_tables(connection: psycopg.Connection[Any], mark: str) -> list[tuple[str, Origin]]:
    """A sink's staging tables."""
    found = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname LIKE %s",
        (SCHEMA, f"s\\_{mark}\\_%"),
    ).fetchall()
    return [(name, origin) for (name,) in found if (origin := Origin.of(name)) is not None]


def roll_back(connection: psycopg.Connection[Any], gid: str) -> None:
    """Roll back a prepared transaction, if it exists."""
    import psycopg
    from psycopg import sql

    try:
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    except psycopg.errors.UndefinedObject:
        return


def drop(connection: psycopg.Connection[Any], tables: Sequence[str]) -> None:
    """Drop staging tables, if they exist."""
    from psycopg import sql

    for name in tables:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)))
