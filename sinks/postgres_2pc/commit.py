"""Phase two, on the driver: one transaction that holds the fence, moves the rows and records the epoch.

With prepared transactions the same transaction records the decision to commit them; then each is committed. That second
step is not atomic over several of them, but it cannot be undone: the next commit or claim finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.rows import dict_row

from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.sift import json_of, text_of
from spark_ext.clients.postgres.problems import describe
from spark_ext.errors import NOTHING_VISIBLE, DataError, PreparedLostError, StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.sinks.contract import CommitOutcome, Epoch
from spark_ext.sinks.postgres_2pc import record
from spark_ext.sinks.postgres_2pc.prepare import Fence, InDoubt, Inline, Part, Staged, drop, give_up, pending, roll_back
from spark_ext.sinks.postgres_2pc.rows import RowErrors, copy_in, copy_sifted, is_of_a_row, unpacked
from spark_ext.sinks.postgres_2pc.statements import Statements
from spark_ext.sinks.postgres_2pc.table import Table, names

PIECE: Final = 1_024  # Rows that are tried at a time


@dataclass(frozen=True)
class Committer:
    """Commits epochs of one sink to one table through one connection."""

    connection: psycopg.Connection[Any]
    identity: record.Identity
    table: Table
    columns: tuple[str, ...]
    upsert: Upsert | None
    errors: RowErrors
    lock_timeout: int  # Time limit for a lock, ms
    fence: Fence
    statements: Statements
    aside: Aside | None = None  # Takes the rows that the table refuses; None: one of them is an error

    def commit(self, epoch: Epoch, parts: Sequence[Part]) -> CommitOutcome:
        """Commit the epoch exactly once."""
        record.begin(self.connection, self.lock_timeout)
        held = record.lock(self.connection, self.identity)
        record.refuse_older(held.mark, epoch.mark, self.errors.who)
        last = record.last(self.connection, self.identity, epoch)
        epoch.check_target(held.mark, last, self.errors.who)
        if epoch.start:
            held.check_table(self.table.oid, self.errors.who)
        if epoch.is_held(last):
            self.connection.execute("ROLLBACK")
            self.finish()
            self._discard(parts)
            return CommitOutcome.ALREADY_COMMITTED
        if not epoch.start:
            # Nobody has claimed the table before.
            self.statements.set_up(self.connection, self.identity, self.errors.who)
        self.statements.run(self.connection, "pre_sql", self.statements.pre, self.errors.who)
        refused = self._move_sifted(parts) if self.aside is not None else self._move(parts)
        claimed = held if epoch.start else None
        record.refuse_changed(self.connection, self.table, self.columns, claimed, self.errors.who)
        self.statements.run(self.connection, "post_sql", self.statements.post, self.errors.who)
        rows = sum(part.rows for part in parts) - refused
        # The transaction is still open: without this file nothing is committed.
        mark = None if self.aside is None else self.aside.keep()
        if not epoch.early:
            record.committed(self.connection, self.identity, epoch, rows, mark)
        in_doubt = [part.gid for part in parts if isinstance(part, InDoubt)]
        if in_doubt:
            self._all_there(in_doubt)
            record.decide(self.connection, self.identity, epoch, in_doubt)
        reach(FailPoint.POSTGRES_BEFORE_COMMIT)
        self.connection.execute("COMMIT")
        reach(FailPoint.POSTGRES_RECORDED)
        if in_doubt:
            self.finish()
            self._forget_attempts(epoch)
        reach(FailPoint.POSTGRES_COMMITTED)
        return CommitOutcome.COMMITTED

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _move_sifted(self, parts: Sequence[Part]) -> int:
        """All rows at once, as without bad rows; if one is refused, without those that are. Returns how many are."""
        # What is checked at the end of the transaction would be found too late.
        self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        try:
            with self.connection.transaction():
                return self._move(parts)
        except (psycopg.Error, DataError) as error:
            if not is_of_a_row(error):
                raise
        assert self.aside is not None
        refused = Sifting(self, self.aside).move(parts)
        drop(self.connection, [part.table for part in parts if isinstance(part, Staged)])
        return refused

    def _move(self, parts: Sequence[Part]) -> int:
        staged = [part for part in parts if isinstance(part, Staged)]
        inline, sources = _inline(parts), [sql.Identifier(record.SCHEMA, part.table) for part in staged]
        copied = self.upsert is None and self.table.only_insert is None
        if inline:
            into = self.table.name.identifier if copied else self.temporary()
            copy_in(self.connection, into, self.table.chosen(self.columns), inline, self.errors)
            sources += [] if copied else [into]
        if sources:
            self._insert_checked(sources, staged, exact=copied)
        drop(self.connection, [part.table for part in staged])
        return 0

    def _insert_checked(self, sources: Sequence[sql.Identifier], staged: Sequence[Staged], *, exact: bool) -> None:
        """Insert, and check that the staging tables still had all rows."""
        try:
            inserted = self.connection.execute(self.insert(self.union(sources))).rowcount
        except psycopg.errors.UndefinedTable as gone:
            raise self._lost(describe(gone)) from None
        # Counting costs a scan; a trigger of the table may drop rows, an upsert merges some.
        if not exact or inserted != sum(part.rows for part in staged):
            self.count(staged)

    def temporary(self) -> sql.Identifier:
        """A new table for rows, empty, until the end of the transaction."""
        create = sql.SQL("CREATE TEMP TABLE spark_ext_rows ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
        self.connection.execute(create.format(names(self.columns), self.table.name.identifier))
        return sql.Identifier("pg_temp", "spark_ext_rows")

    def union(self, sources: Sequence[sql.Identifier]) -> sql.Composed:
        """The query of all rows in these tables."""
        select, columns = sql.SQL("SELECT {} FROM {}"), names(self.columns)
        return sql.SQL(" UNION ALL ").join(select.format(columns, source) for source in sources)

    def insert(self, rows: sql.Composed) -> sql.Composed:
        """The statement that inserts the rows of a query, or merges them into the table."""
        columns = names(self.columns)
        into = sql.SQL("INSERT INTO {} AS t ({}) ").format(self.table.name.identifier, columns)
        if self.upsert is None:
            return into + rows
        key, latest = names(self.upsert.key), self.upsert.newest_by
        if latest is not None:
            rows = sql.SQL("SELECT DISTINCT ON ({}) {} FROM ({}) s ORDER BY {}, {} DESC NULLS LAST").format(
                key, columns, rows, key, sql.Identifier(latest)
            )
        others = [name for name in self.columns if name not in self.upsert.key]
        if not others:
            return into + rows + sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(key)
        changes = sql.SQL(", ").join(
            sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in others
        )
        made = into + rows + sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(key, changes)
        if latest is not None:
            # A row that arrives late does not replace a newer one.
            made += sql.SQL(" WHERE t.{0} IS NULL OR excluded.{0} >= t.{0}").format(sql.Identifier(latest))
        return made

    def count(self, staged: Sequence[Staged]) -> None:
        """Check the number of rows: an unlogged table is empty after a crash of the server."""
        for part in staged:
            query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(record.SCHEMA, part.table))
            found = self.connection.execute(query).fetchone()
            rows = 0 if found is None else found[0]
            if rows != part.rows:
                raise self._lost(f"staging table '{part.table}' has {rows} of {part.rows} rows")

    def _all_there(self, gids: Sequence[str]) -> None:
        there = {gid for gid, _ in pending(self.connection, self.identity.mark)}
        lost = [gid for gid in gids if gid not in there]
        if lost:
            raise self._lost(f"{len(lost)} of {len(gids)} prepared transactions are missing, such as '{lost[0]}'")

    def _lost(self, what: str) -> PreparedLostError:
        return PreparedLostError(
            f"what the tasks had prepared is lost: {what}; the server was restarted after a crash, "
            "or someone removed it",
            operator=self.errors.who,
            kept=NOTHING_VISIBLE,
            do="nothing: the epoch will be retried from its source",
        )

    # -- prepared transactions ----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Commit the prepared transactions that any incarnation has decided on. Idempotent, also concurrently."""
        decided = record.decided(self.connection, self.identity)
        if not decided:
            return
        for gid in decided:
            self._commit_prepared(gid)
        with self.connection.transaction():
            self.connection.execute("DELETE FROM spark_ext.decided WHERE gid = ANY(%s)", (decided,))
            self.connection.execute("DELETE FROM spark_ext.parts WHERE gid = ANY(%s)", (decided,))

    def _commit_prepared(self, gid: str) -> None:
        try:
            self.connection.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(gid)))
        except psycopg.errors.UndefinedObject:
            # It is already committed, as its own row shows, or it and the decision have been deleted since.
            settled = self.connection.execute(
                "SELECT EXISTS (SELECT FROM spark_ext.parts WHERE gid = %s) "
                "OR NOT EXISTS (SELECT FROM spark_ext.decided WHERE gid = %s)",
                (gid, gid),
            ).fetchone()
            if settled != (True,):
                raise StateError(
                    f"the prepared transaction '{gid}' was decided on, but was removed without a commit",
                    operator=self.errors.who,
                    kept="the other parts of its epoch are committed",
                    do="find out who ran ROLLBACK PREPARED on it; the rows of that task are missing in the table. Add "
                    f"them by hand and DELETE FROM spark_ext.decided WHERE gid = '{gid}'",
                ) from None
        reach(FailPoint.POSTGRES_PART_COMMITTED)

    def _forget_attempts(self, epoch: Epoch) -> None:
        """Roll back what failed attempts up to this epoch, and older incarnations, prepared: it holds locks."""
        left = [
            gid
            for gid, origin in pending(self.connection, self.identity.mark)
            if origin.incarnation < epoch.incarnation
            or (origin.incarnation == epoch.incarnation and origin.epoch <= epoch.number)
        ]
        give_up(self.connection, self.identity, left, self.fence)

    def _discard(self, parts: Sequence[Part]) -> None:
        drop(self.connection, [part.table for part in parts if isinstance(part, Staged)])
        for part in parts:
            if isinstance(part, InDoubt):
                roll_back(self.connection, part.gid)


def _inline(parts: Sequence[Part]) -> list[pa.RecordBatch]:
    """The rows in the commit messages."""
    return [batch for part in parts if isinstance(part, Inline) and part.rows for batch in unpacked(part.data)]


@dataclass(frozen=True)
class Aside:
    """What takes the rows that a commit refuses."""

    add: Callable[[BadRow], object]
    keep: Callable[[], int | None]
    redact: bool  # Whether reasons omit values; the row itself is in the table

    def batch(self, row: pa.RecordBatch, problem: DataError) -> None:
        """Take a row that was refused before it was in a table of the server."""
        self.add(BadRow(None, problem.what, text_of(row)))


@dataclass(frozen=True)
class Upsert:
    """How rows replace existing ones."""

    key: tuple[str, ...]
    newest_by: str | None = None


class Sifting:
    """Moves an epoch's rows without those that the table refuses, once all of them together were refused.

    Ranges of rows are tried behind savepoints, and halved where one is refused, down to single rows. All of it is part
    of the epoch's transaction: what was found, also of constraints whose answer depends on other rows, holds for the
    rows that become visible, and no other attempt at the epoch can find something else once this one is committed.
    """

    def __init__(self, committer: Committer, aside: Aside) -> None:
        self._committer, self._aside = committer, aside
        self._connection = committer.connection
        self._refused = 0
        # No column of the rows has this name.
        self._number = "spark_ext_row"
        while self._number in committer.columns:
            self._number += "_"

    def move(self, parts: Sequence[Part]) -> int:
        """Insert all rows that the table takes; the others are put aside."""
        staged = [part for part in parts if isinstance(part, Staged)]
        self._committer.count(staged)
        # So that an attempt that is repeated meets the rows in the same order.
        self._connection.execute("SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL synchronize_seqscans = off")
        total = self._gather(parts, staged)
        self._refuse_repeated_keys()
        left = [(low, min(low + PIECE - 1, total)) for low in range(1, total + 1, PIECE)][::-1]
        while left:
            low, high = left.pop()
            if self._insert(low, high):
                continue
            middle = (low + high) // 2
            left += [(middle + 1, high), (low, middle)]
        return self._refused

    def _gather(self, parts: Sequence[Part], staged: Sequence[Staged]) -> int:
        """All rows in one temporary table, numbered from 1; returns their number."""
        committer, connection = self._committer, self._connection
        few, kinds = committer.temporary(), committer.table.chosen(committer.columns)
        copy_sifted(connection, few, kinds, _inline(parts), committer.errors, self._misfit)
        rows = committer.union([few, *(sql.Identifier(record.SCHEMA, part.table) for part in staged)])
        latest = committer.upsert.newest_by if committer.upsert is not None else None
        # Of rows with one key the greatest comes last, and replaces those before it.
        order = sql.SQL("ORDER BY {} NULLS FIRST").format(sql.Identifier(latest)) if latest else sql.SQL("")
        number = sql.Identifier(self._number)
        numbered = (
            "CREATE TEMP TABLE spark_ext_tried ON COMMIT DROP AS SELECT row_number() OVER ({}) AS {}, r.* FROM ({}) r"
        )
        connection.execute(sql.SQL(numbered).format(order, number, rows))
        connection.execute(sql.SQL("CREATE UNIQUE INDEX ON spark_ext_tried ({})").format(number))
        connection.execute("ANALYZE spark_ext_tried")
        found = connection.execute("SELECT count(*) FROM spark_ext_tried").fetchone()
        return 0 if found is None else int(found[0])

    def _misfit(self, row: pa.RecordBatch, problem: DataError) -> None:
        self._refused += 1
        self._aside.batch(row, problem)

    def _refuse_repeated_keys(self) -> None:
        """Tried one by one they would replace each other, in an order that nobody has asked for."""
        upsert = self._committer.upsert
        if upsert is None or upsert.newest_by is not None:
            return
        query = sql.SQL("SELECT 1 FROM spark_ext_tried GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(
            names(upsert.key)
        )
        if self._connection.execute(query).fetchone() is not None:
            raise DataError(
                "several rows of the epoch have the same key",
                operator=self._committer.errors.who,
                kept=NOTHING_VISIBLE,
                do="name a column with the option 'newest_by' that says which one counts, or aggregate in the query",
            )

    def _insert(self, low: int, high: int) -> bool:
        """Insert a range; False if one of several rows is refused. A single one is put aside."""
        number = sql.Identifier(self._number)
        rows = sql.SQL("SELECT {} FROM pg_temp.spark_ext_tried WHERE {} BETWEEN {} AND {} ORDER BY {}").format(
            names(self._committer.columns), number, sql.Literal(low), sql.Literal(high), number
        )
        try:
            with self._connection.transaction():
                self._connection.execute(self._committer.insert(rows))
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            if low < high:
                return False
            self._put_aside(rows, error)
        return True

    def _put_aside(self, row: sql.Composed, error: psycopg.Error) -> None:
        found: Any
        try:
            with self._connection.cursor(row_factory=dict_row) as cursor:
                found = cursor.execute(row).fetchone()
            text = json_of(found)
        except psycopg.DataError:  # a time that Python does not have
            as_json = sql.SQL("SELECT row_to_json(r.*)::text FROM ({}) r").format(row)
            found = self._connection.execute(as_json).fetchone()
            text = found[0]
        self._refused += 1
        self._aside.add(BadRow(None, describe(error, redact=self._aside.redact), text))
