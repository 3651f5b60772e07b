"""The sink's own record in the target's database: committed epochs, the incarnation that may commit, and decisions.

It is in the schema `spark_ext` of the same database, so that one transaction moves the rows and records the epoch. Its
row in `sinks` is locked (`FOR UPDATE`) by every commit and claim: that lock is the fence. Its holder has seen the
newest incarnation, and no newer one can claim before this transaction has ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from spark_ext.errors import NOTHING_VISIBLE, FencedError, StorageError, refused
from spark_ext.model.commits import FenceMark, not_the_target
from spark_ext.sinks.postgres_2pc.table import LOCK, Table, now
from spark_ext.sinks.postgres_2pc.types import means_the_same

if TYPE_CHECKING:
    import psycopg

    from spark_ext.sinks.contract import Claim, Epoch

SCHEMA = "spark_ext"  # The schema of the record and the staging tables, and of nothing else
_TABLES = """
CREATE SCHEMA IF NOT EXISTS spark_ext;
CREATE TABLE IF NOT EXISTS spark_ext.sinks (
  sink text, target text, job text, job_id text, incarnation bigint NOT NULL DEFAULT 0, start_id bigint,
  target_oid bigint, claimed_at timestamptz, PRIMARY KEY (sink, target));
COMMENT ON TABLE spark_ext.sinks IS 'spark-ext: who may commit to a target under a sink uid';
CREATE TABLE IF NOT EXISTS spark_ext.epochs (
  sink text, target text, application text, epoch bigint NOT NULL, incarnation bigint NOT NULL,
  rows bigint NOT NULL, bad_rows bigint, committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (sink, target, application)) WITH (fillfactor = 50);
COMMENT ON TABLE spark_ext.epochs IS 'spark-ext: the last epoch committed by each query';
CREATE TABLE IF NOT EXISTS spark_ext.decided (
  gid text PRIMARY KEY, sink text NOT NULL, target text NOT NULL, epoch bigint NOT NULL,
  decided_at timestamptz NOT NULL DEFAULT clock_timestamp());
COMMENT ON TABLE spark_ext.decided IS 'spark-ext: prepared transactions that have to be committed';
CREATE TABLE IF NOT EXISTS spark_ext.parts (gid text PRIMARY KEY);
COMMENT ON TABLE spark_ext.parts IS 'spark-ext: a row of each prepared transaction, to tell that it was committed';
"""


@dataclass(frozen=True)
class Identity:
    """One sink in one table."""

    sink: str
    target: str  # `schema.table`

    @property
    def mark(self) -> str:
        """Twelve characters at the beginning of the names of this sink's objects; SQL names are short."""
        return hashlib.sha256(f"{self.sink}\0{self.target}".encode()).hexdigest()[:12]


@dataclass(frozen=True)
class SinkRow:
    """The sink's row: who may commit."""

    mark: FenceMark  # The newest start that has claimed the target
    job_id: str | None  # The job that owns the uid in this target
    oid: int | None  # The table's oid at that claim; None: not claimed, or the user has deleted the number

    def check_table(self, oid: int, who: str) -> None:
        """Check that the table is the one that was claimed."""
        if self.oid is not None and self.oid != oid:
            raise not_the_target(
                f"the table's oid was {self.oid} when it was claimed and is {oid} now (if it was moved there with its "
                f"rows, as by pg_restore: UPDATE {SCHEMA}.sinks SET target_oid = NULL)",
                who,
            )


def ensure(connection: psycopg.Connection[Any]) -> None:
    """Create the schema and its tables if they do not exist."""
    if connection.execute("SELECT to_regclass('spark_ext.parts') IS NOT NULL").fetchone() == (True,):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        connection.execute(_TABLES)


def lock(connection: psycopg.Connection[Any], identity: Identity) -> SinkRow:
    """Lock the sink's row until the transaction ends, and read it; it is created if it does not exist."""
    held = read_row(connection, identity, "FOR UPDATE")
    if held is None:
        key = (identity.sink, identity.target)
        connection.execute("INSERT INTO spark_ext.sinks (sink, target) VALUES (%s, %s) ON CONFLICT DO NOTHING", key)
        held = read_row(connection, identity, "FOR UPDATE")
        assert held is not None
    return held


def read_row(
    connection: psycopg.Connection[Any], identity: Identity, locking: Literal["", "FOR UPDATE"] = ""
) -> SinkRow | None:
    """The sink's row, or None."""
    found = connection.execute(
        "SELECT incarnation, start_id, job_id, target_oid FROM spark_ext.sinks WHERE sink = %s AND target = %s "
        + locking,
        (identity.sink, identity.target),
    ).fetchone()
    return None if found is None else SinkRow(FenceMark(int(found[0]), int(found[1] or 0)), found[2], found[3])


def begin(connection: psycopg.Connection[Any], lock_timeout: int) -> None:
    """Begin a transaction with a time limit for locks, ms; the server ends it if this process freezes."""
    # A snapshot per statement, whatever the database's default: what is read after the lock is current.
    connection.execute(
        f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {int(lock_timeout)}; "
        "SET LOCAL idle_in_transaction_session_timeout = 60000; "
        # Spark will record that the epoch is safe: from then on the server must not lose it in a crash.
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
    )


def application(mark: str, incarnation: int) -> str:
    """`application_name` of a sink's connections."""
    return f"spark_ext:{mark}:{incarnation}"


def refuse_older(held: FenceMark, mark: FenceMark, who: str) -> None:
    """Check the fence."""
    mark.check(held, who)
    if held.incarnation > mark.incarnation:
        raise FencedError.by(held.incarnation, mark.incarnation, "the table", who)


def refuse_changed(
    connection: psycopg.Connection[Any], table: Table, columns: Sequence[str], held: SinkRow | None, who: str
) -> None:
    """Check, behind the rows, that the table is still the one for which they were made.

    Rows are written by name, and a statement that has waited for a lock on the table looks the name up again: another
    table may have got it, or a column another type that can read the same bytes of a binary COPY. From then
    on the transaction holds the lock, so that name and types stay.

    Without the sink's row nobody has claimed the table, so that it may be any of this name.
    """
    oid, types = now(connection, table.name)
    if held is not None:
        claimed = held if held.oid is not None else replace(held, oid=table.oid)
        claimed.check_table(oid, who)
    there = [(one, *types.get(one.name, ("missing", ""))) for one in table.chosen(columns)]
    changed = [(one, shown) for one, shown, kind in there if not means_the_same(one, shown, kind)]
    if changed:
        raise StorageError(
            "types of columns were changed while rows were written: "
            + ", ".join(f"'{one.name}' was {one.shown} and is {shown}" for one, shown in changed),
            operator=who,
            kept=NOTHING_VISIBLE,
            do="nothing: the epoch will be retried with the new types, and refused if its rows do not fit them",
        )


def refuse_fenced(connection: psycopg.Connection[Any], identity: Identity, mark: FenceMark, who: str) -> SinkRow | None:
    """Check the fence without a lock: enough for what is not visible yet. Returns the sink's row, or None."""
    held = read_row(connection, identity)
    if held is not None:
        refuse_older(held.mark, mark, who)
    return held


def refuse_other_owner(owner: str | None, identity: Identity, claim: Claim, who: str) -> None:
    """Check that the uid belongs to this job."""
    if owner is not None and owner != claim.job_id:
        mine = f"sink = '{identity.sink}' AND target = '{identity.target}'"
        raise refused(
            f"the table holds epochs that another job wrote under the sink uid '{claim.sink}', "
            f"or this job '{claim.job}' before its state was deleted",
            who,
            "give this sink another uid; or, if the state was deleted, restore it, or, to write the output again, "
            f"empty the table, and delete this sink's rows: DELETE FROM {SCHEMA}.epochs WHERE {mine}; "
            f"DELETE FROM {SCHEMA}.sinks WHERE {mine}",
            kept="the table is unchanged; nothing was started",
        )


def refuse_claim(
    connection: psycopg.Connection[Any], identity: Identity, held: SinkRow, claim: Claim, who: str
) -> dict[str, int]:
    """Refuse a start by what the sink's row and epochs say; returns the epochs, see `Claim.known`."""
    refuse_other_owner(held.job_id, identity, claim, who)
    refuse_older(held.mark, claim.mark, who)
    found = claim.known(known(connection, identity))
    claim.check_state(found, held.mark, who)
    return found


def claimed(connection: psycopg.Connection[Any], identity: Identity, claim: Claim, oid: int) -> None:
    """Record the start that may commit from now on; the row is locked."""
    connection.execute(
        "UPDATE spark_ext.sinks SET job = %s, job_id = %s, incarnation = %s, start_id = %s, "
        "target_oid = %s, claimed_at = clock_timestamp() WHERE sink = %s AND target = %s",
        (claim.job, claim.job_id, claim.incarnation, claim.start or None, oid, identity.sink, identity.target),
    )


def known(connection: psycopg.Connection[Any], identity: Identity) -> dict[str, int]:
    """The last committed epochs by `Epoch.application`."""
    found = connection.execute(
        "SELECT application, epoch FROM spark_ext.epochs WHERE sink = %s AND target = %s",
        (identity.sink, identity.target),
    ).fetchall()
    return {application: int(epoch) for application, epoch in found}


def last(connection: psycopg.Connection[Any], identity: Identity, epoch: Epoch) -> int:
    """The last committed epoch of the same query and lineage; -1: none. A separate statement, after the lock."""
    found = connection.execute(
        "SELECT epoch FROM spark_ext.epochs WHERE sink = %s AND target = %s AND application = %s",
        (identity.sink, identity.target, epoch.application),
    ).fetchone()
    return -1 if found is None else int(found[0])


def committed(
    connection: psycopg.Connection[Any], identity: Identity, epoch: Epoch, rows: int, mark: int | None
) -> None:
    """Record the epoch, with the mark of its bad rows; part of the transaction that moves its rows."""
    connection.execute(
        "INSERT INTO spark_ext.epochs AS e (sink, target, application, epoch, incarnation, rows, bad_rows) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (sink, target, application) DO UPDATE SET "
        "epoch = excluded.epoch, incarnation = excluded.incarnation, rows = excluded.rows, "
        "bad_rows = excluded.bad_rows, committed_at = excluded.committed_at",
        (identity.sink, identity.target, epoch.application, epoch.number, epoch.incarnation, rows, mark),
    )


def mark(connection: psycopg.Connection[Any], identity: Identity, epoch: Epoch) -> int | None:
    """The mark of the epoch's bad rows; None if it has none, or is not the last one."""
    found = connection.execute(
        "SELECT bad_rows FROM spark_ext.epochs WHERE sink = %s AND target = %s AND application = %s AND epoch = %s",
        (identity.sink, identity.target, epoch.application, epoch.number),
    ).fetchone()
    return None if found is None or found[0] is None else int(found[0])


def decide(connection: psycopg.Connection[Any], identity: Identity, epoch: Epoch, gids: Sequence[str]) -> None:
    """Record that prepared transactions will be committed; in the same transaction as `committed`."""
    connection.execute(
        "INSERT INTO spark_ext.decided (gid, sink, target, epoch) SELECT g, %s, %s, %s FROM unnest(%s::text[]) g",
        (identity.sink, identity.target, epoch.number, list(gids)),
    )


def decided(connection: psycopg.Connection[Any], identity: Identity) -> list[str]:
    """Prepared transactions that were decided on and are not known to be committed."""
    found = connection.execute(
        "SELECT gid FROM spark_ext.decided WHERE sink = %s AND target = %s ORDER BY epoch, gid",
        (identity.sink, identity.target),
    ).fetchall()
    return [row[0] for row in found]
