"""Phase two, on the driver: one transaction that holds the fence, moves the rows and records the epoch.

With prepared transactions the same transaction records the decision to commit them; then each is committed. That second
step is not atomic over several of them, but it cannot be undone: the next commit or claim finishes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_ext.clients.postgres.problems import describe
from spark_ext.errors import NOTHING_VISIBLE, DataError, PreparedLostError, StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.sinks.contract import CommitOutcome, Epoch
from spark_ext.sinks.postgres_2pc import record
from spark_ext.sinks.postgres_2pc.prepare import Fence, InDoubt, Inline, Part, Staged, drop, give_up, pending, roll_back
from spark_ext.sinks.postgres_2pc.rows import RowErrors, copy_in, is_of_a_row, unpacked
from spark_ext.sinks.postgres_2pc.sifting import Aside, Sifting, Upsert
from spark_ext.sinks.postgres_2pc.statements import Statements
from spark_ext.sinks.postgres_2pc.table import Table, names

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql


@dataclass(frozen=True)
class Committer:
    """Commits epochs of one sink to one table through one connection."""

    connection: psycopg.Connection[Any]
    identity: record.Identity
    table: Table
    columns: tuple[str, ...]
    """The columns of the rows, in their order."""
    upsert: Upsert | None
    errors: RowErrors
    lock_timeout: int
    """Time limit for a lock, ms."""
    fence: Fence
    statements: Statements
    aside: Aside | None = None
    """Takes the rows that the table refuses; None: one of them is an error."""

    def commit(self, epoch: Epoch, parts: Sequence[Part]) -> CommitOutcome:
        """Commit the epoch exactly once."""
        begin(self.connection, self.lock_timeout)
        held = record.lock(self.connection, self.identity)
        record.refuse_older(held.mark, epoch.mark, self.errors.who)
        last = record.last(self.connection, self.identity, epoch)
        epoch.check_target(held.mark, last, self.errors.who)
        if epoch.start:
            held.check_table(self.table.oid, self.errors.who)
        if epoch.number <= last:
            self.connection.execute("ROLLBACK")
            self.finish()
            self._discard(parts)
            return CommitOutcome.ALREADY_COMMITTED
        if not epoch.start:
            # Nobody has claimed the table before.
            self.statements.set_up(self.connection, self.identity, self.errors.who)
        self.statements.before(self.connection, self.errors.who)
        refused = self._move_sifted(parts) if self.aside is not None else self._move(parts)
        claimed = held if epoch.start else None
        record.refuse_changed(self.connection, self.table, self.columns, claimed, self.errors.who)
        self.statements.after(self.connection, self.errors.who)
        rows = sum(part.rows for part in parts) - refused
        # The transaction is still open: without this file nothing is committed.
        mark = None if self.aside is None else self.aside.keep()
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
        import psycopg

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
        from psycopg import sql

        staged = [part for part in parts if isinstance(part, Staged)]
        inline = [batch for part in parts if isinstance(part, Inline) and part.rows for batch in unpacked(part.data)]
        sources = [sql.Identifier(record.SCHEMA, part.table) for part in staged]
        copied = self.upsert is None and self.table.only_insert is None
        if inline and copied:
            copy_in(self.connection, self.table.name.identifier, self.table.chosen(self.columns), inline, self.errors)
        elif inline:
            few = sql.Identifier("pg_temp", "spark_ext_rows")
            self.connection.execute(
                sql.SQL("CREATE TEMP TABLE spark_ext_rows ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                    names(self.columns), self.table.name.identifier
                )
            )
            copy_in(self.connection, few, self.table.chosen(self.columns), inline, self.errors)
            sources.append(few)
        if sources:
            self._insert_checked(sources, staged, exact=copied)
        drop(self.connection, [part.table for part in staged])
        return 0

    def _insert_checked(self, sources: Sequence[sql.Identifier], staged: Sequence[Staged], *, exact: bool) -> None:
        """Insert, and check that the staging tables still had all rows."""
        import psycopg

        try:
            inserted = self.connection.execute(self._insert(sources)).rowcount
        except psycopg.errors.UndefinedTable as gone:
            raise self._lost(describe(gone)) from None
        # Counting costs a scan; a trigger of the table may drop rows, an upsert merges some.
        if not exact or inserted != sum(part.rows for part in staged):
            self.count(staged)

    def _insert(self, sources: Sequence[sql.Identifier]) -> sql.Composed:
        from psycopg import sql

        columns = names(self.columns)
        return self.insert(
            sql.SQL(" UNION ALL ").join(sql.SQL("SELECT {} FROM {}").format(columns, source) for source in sources)
        )

    def insert(self, rows: sql.Composed) -> sql.Composed:
        """The statement that inserts the rows of a query, or merges them into the table."""
        from psycopg import sql

        columns = names(self.columns)
        into = sql.SQL("INSERT INTO {} AS t ({}) ").format(self.table.name.identifier, columns)
        if self.upsert is None:
            return into + rows
        key, latest = names(self.upsert.key), self.upsert.latest_by
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
        from psycopg import sql

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
        import psycopg
        from psycopg import sql

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
                    do="find out who ran ROLLBACK PREPARED on it; the rows of that task are missing in the table. "
                    "Add them by hand and "
                    f"DELETE FROM spark_ext.decided WHERE gid = '{gid}'",
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


def begin(connection: psycopg.Connection[Any], lock_timeout: int) -> None:
    """Begin a transaction with a time limit for locks, ms; the server ends it if this process freezes."""
    # A snapshot per statement, whatever the database's default: what is read after the lock is current.
    connection.execute(
        f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {int(lock_timeout)}; "
        "SET LOCAL idle_in_transaction_session_timeout = 60000; "
        # Spark will record that the epoch is safe: from then on the server must not lose it in a crash.
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
    )
