"""The target table: its name, its columns, and making it when it is absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_ext.clients.postgres.names import Name
from spark_ext.errors import ConfigurationError
from spark_ext.sinks.postgres_2pc.types import Column, check, new_type

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql
    from pyspark.sql.types import StructType

LOCK = 0x5350_4B45
"""Advisory lock under which this package's own schema and new tables are made, one process at a time."""

_COLUMNS = """
SELECT a.attname, CASE WHEN b.typtype = 'e' THEN 'enum' ELSE b.typname END,
  format_type(a.atttypid, a.atttypmod), e.typname, coalesce(e.oid, 0)::bigint,
  CASE WHEN a.atttypmod = -1 THEN t.typtypmod ELSE a.atttypmod END,
  (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' AND t.typdefault IS NULL,
  NOT (a.attnotnull OR t.typnotnull), a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


@dataclass(frozen=True)
class Table:
    """A table that is there."""

    name: Name
    """With its schema."""
    columns: tuple[Column, ...]
    only_insert: str | None = None
    """Why COPY does not do, but INSERT does: COPY refuses row-level security, and passes rules over."""

    def chosen(self, names: Sequence[str]) -> tuple[Column, ...]:
        """Columns by name, in that order."""
        known = {column.name: column for column in self.columns}
        return tuple(known[name] for name in names)


def look_up(connection: psycopg.Connection[Any], name: Name, who: str) -> Table | None:
    """The table as the catalog has it now; None when there is none.

    Raises:
        ConfigurationError: it is a view or something else that rows cannot be copied into.
    """
    found = connection.execute(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, CASE WHEN row_security_active(c.oid) THEN 'row-level security' "
        "WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid AND ev_type = '3') THEN 'a rule on INSERT' END "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        (name.identifier.as_string(connection),),
    ).fetchone()
    if found is None:
        return None
    oid, schema, table, kind, only_insert = found
    if _char(kind) not in ("r", "p"):
        raise ConfigurationError(
            f"'{name}' is not a table (its kind in pg_class is '{_char(kind)}')",
            operator=who,
            kept="nothing was written",
            do="name a plain or partitioned table in the option 'table'",
        )
    columns = [Column(*row) for row in connection.execute(_COLUMNS, (oid,)).fetchall()]
    return Table(Name(schema, table), tuple(columns), only_insert)


def _char(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def create(connection: psycopg.Connection[Any], name: Name, schema: StructType, key: Sequence[str], who: str) -> None:
    """Make the table if it is not there; with a key it is the primary key."""
    from psycopg import sql

    columns = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(new_type(field.dataType, field.name, who)))
        for field in schema.fields
    ]
    if key:
        columns.append(sql.SQL("PRIMARY KEY ({})").format(names(key)))
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(name.identifier, sql.SQL(", ").join(columns))
        )


def names(columns: Sequence[str]) -> sql.Composed:
    """Column names, quoted, with commas."""
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, columns))


def usable(
    connection: psycopg.Connection[Any],
    name: Name,
    schema: StructType,
    key: Sequence[str],
    who: str,
    *,
    make: bool,
) -> Table:
    """The table for these rows; made if it is absent and may be.

    Raises:
        ConfigurationError: it is absent, or does not take the rows, or has no unique index on the key.
    """
    table = look_up(connection, name, who)
    if table is None:
        if not make:
            raise missing(name, who)
        create(connection, name, schema, key, who)
        table = look_up(connection, name, who)
        assert table is not None
    check(schema, table.columns, who)
    if key and not _is_unique(connection, table.name, key):
        raise ConfigurationError(
            f"the table has no primary key and no unique index on exactly ({', '.join(key)})",
            operator=who,
            kept="nothing was written",
            do=f"CREATE UNIQUE INDEX ON {table.name} ({', '.join(key)}), or correct the option 'key'",
        )
    return table


def missing(name: Name, who: str) -> ConfigurationError:
    """The refusal of a table that is not there."""
    return ConfigurationError(
        f"there is no table '{name}'",
        operator=who,
        kept="nothing was written",
        do="create it, correct the option 'table' (names are taken as written, also in case), or set create_table=true",
    )


def _is_unique(connection: psycopg.Connection[Any], name: Name, key: Sequence[str]) -> bool:
    """Whether ON CONFLICT finds an index for the key: unique, whole, not deferred, on plain columns."""
    return (
        connection.execute(
            "SELECT 1 FROM pg_index i WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid "
            "AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = %s "
            "AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute a "
            "WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) = %s::text[]",
            (name.identifier.as_string(connection), len(key), sorted(key)),
        ).fetchone()
        is not None
    )
