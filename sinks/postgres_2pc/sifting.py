"""Moves an epoch's rows without those that the table refuses, once all of them together were refused.

Ranges of rows are tried behind savepoints, and halved where one is refused, down to single rows. All of it is part of
the epoch's transaction: what was found, also of constraints whose answer depends on other rows, holds for the rows that
become visible, and no other attempt at the epoch can find something else once this one is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.sift import text_of
from spark_ext.clients.postgres.problems import describe
from spark_ext.errors import NOTHING_VISIBLE, DataError
from spark_ext.sinks.postgres_2pc import record
from spark_ext.sinks.postgres_2pc.prepare import Inline, Part, Staged
from spark_ext.sinks.postgres_2pc.rows import copy_sifted, is_of_a_row, unpacked
from spark_ext.sinks.postgres_2pc.table import names

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql

    from spark_ext.sinks.postgres_2pc.rows import RowErrors
    from spark_ext.sinks.postgres_2pc.table import Table

PIECE: Final = 1_024
"""Rows that are tried at a time."""


@dataclass(frozen=True)
class Aside:
    """What takes the rows that a commit refuses."""

    add: Callable[[BadRow], object]
    keep: Callable[[], int | None]
    redact: bool
    """Whether reasons omit values; the row itself is in the table."""

    def batch(self, row: pa.RecordBatch, problem: DataError) -> None:
        """Take a row that was refused before it was in a table of the server."""
        self.add(BadRow(None, problem.what, text_of(row)))


@dataclass(frozen=True)
class Upsert:
    """How rows replace existing ones."""

    key: tuple[str, ...]
    latest_by: str | None = None


class Inserts(Protocol):
    """The part of an epoch's commit that is used here."""

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """In the epoch's transaction."""

    @property
    def table(self) -> Table:
        """The target."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows."""

    @property
    def upsert(self) -> Upsert | None:
        """How rows replace existing ones; None: they do not."""

    @property
    def errors(self) -> RowErrors:
        """For errors."""

    def count(self, staged: Sequence[Staged]) -> None:
        """Check that staging tables still have their rows."""

    def insert(self, rows: sql.Composed) -> sql.Composed:
        """The statement that inserts the rows of a query."""


class Sifting:
    """One commit."""

    def __init__(self, committer: Inserts, aside: Aside) -> None:
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
        from psycopg import sql

        committer, connection = self._committer, self._connection
        columns = names(committer.columns)
        few = sql.Identifier("pg_temp", "spark_ext_rows")
        connection.execute(
            sql.SQL("CREATE TEMP TABLE spark_ext_rows ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                columns, committer.table.name.identifier
            )
        )
        inline = [batch for part in parts if isinstance(part, Inline) and part.rows for batch in unpacked(part.data)]
        kinds = committer.table.chosen(committer.columns)
        copy_sifted(connection, few, kinds, inline, committer.errors, self._misfit)
        sources = [few, *(sql.Identifier(record.SCHEMA, part.table) for part in staged)]
        rows = sql.SQL(" UNION ALL ").join(sql.SQL("SELECT {} FROM {}").format(columns, source) for source in sources)
        latest = committer.upsert.latest_by if committer.upsert is not None else None
        # Of rows with one key the greatest comes last, and replaces those before it.
        order = sql.SQL("ORDER BY {} NULLS FIRST").format(sql.Identifier(latest)) if latest else sql.SQL("")
        connection.execute(
            sql.SQL(
                "CREATE TEMP TABLE spark_ext_tried ON COMMIT DROP AS "
                "SELECT row_number() OVER ({}) AS {}, r.* FROM ({}) r"
            ).format(order, sql.Identifier(self._number), rows)
        )
        connection.execute(sql.SQL("CREATE UNIQUE INDEX ON spark_ext_tried ({})").format(sql.Identifier(self._number)))
        connection.execute("ANALYZE spark_ext_tried")
        found = connection.execute("SELECT count(*) FROM spark_ext_tried").fetchone()
        return 0 if found is None else int(found[0])

    def _misfit(self, row: pa.RecordBatch, problem: DataError) -> None:
        self._refused += 1
        self._aside.batch(row, problem)

    def _refuse_repeated_keys(self) -> None:
        """Tried one by one they would replace each other, in an order that nobody has asked for."""
        from psycopg import sql

        upsert = self._committer.upsert
        if upsert is None or upsert.latest_by is not None:
            return
        query = sql.SQL("SELECT 1 FROM spark_ext_tried GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(
            names(upsert.key)
        )
        if self._connection.execute(query).fetchone() is not None:
            raise DataError(
                "several rows of the epoch have the same key",
                operator=self._committer.errors.who,
                kept=NOTHING_VISIBLE,
                do="name a column with the option 'latest_by' that says which one counts, or aggregate in the query",
            )

    def _insert(self, low: int, high: int) -> bool:
        """Insert a range; False if one of several rows is refused. A single one is put aside."""
        import psycopg
        from psycopg import sql

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
        from psycopg import sql

        found: Any = self._connection.execute(
            sql.SQL("SELECT row_to_json(r.*)::text FROM ({}) r").format(row)
        ).fetchone()
        self._refused += 1
        self._aside.add(BadRow(None, describe(error, redact=self._aside.redact), found[0]))
