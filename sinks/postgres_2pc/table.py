"""The target table: its name, its columns, what is done about those that it lacks, and its creation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from spark_ext.clients.postgres.connection import LONGEST, Name
from spark_ext.errors import ConfigurationError, refused
from spark_ext.sinks.postgres_2pc.types import Column, check, new_type

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql


_SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})


def renamed(schema: StructType, names: Mapping[str, str], who: str) -> StructType:
    """The rows' columns under their names in the table."""
    if not names:
        return schema
    for name in names:
        if name not in schema.names:
            what = f"the option 'column_map' renames a column '{name}' that the query does not have; it has: "
            raise refused(what + ", ".join(schema.names), who, "correct the option, or add the column to the query")
    fields = [StructField(names.get(one.name, one.name), one.dataType, one.nullable, one.metadata) for one in schema]
    every = [field.name for field in fields]
    for name in every:
        if every.count(name) > 1:
            what = f"with the option 'column_map' two columns of the query have the name '{name}' in the table"
            raise refused(what, who, "rename the other one too, or drop it in the query")
    return StructType(fields)


def lacking(schema: StructType, columns: Sequence[Column], who: str) -> list[StructField]:
    """The columns of the rows that the table lacks, and that can be added."""
    known = {column.name for column in columns}
    lower = {column.name.lower(): column.name for column in columns}
    out = [field for field in schema.fields if field.name not in known]
    for field in out:
        name = field.name
        new_type(field.dataType, name, who)
        why = None
        if name.lower() in lower:
            why = f"the table has a column '{lower[name.lower()]}', which differs only in case"
        elif name in _SYSTEM:
            why = "PostgreSQL has this name for a column of its own"
        elif len(name.encode()) > LONGEST:
            why = f"names in PostgreSQL have at most {LONGEST} bytes"
        if why is not None:
            do = "rename the column in the query or with the option 'column_map', or drop it"
            raise refused(f"column '{name}' cannot be added to the table: {why}", who, do)
    return out


def add(connection: psycopg.Connection[Any], name: Name, fields: Sequence[StructField], who: str) -> None:
    """Add columns to a table, as nullable ones, unless it has them."""
    from psycopg import sql

    if fields:
        parts = [
            sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(
                sql.Identifier(field.name), sql.SQL(new_type(field.dataType, field.name, who))
            )
            for field in fields
        ]
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(name.identifier, sql.SQL(", ").join(parts)))


LOCK = 0x5350_4B45  # Advisory lock: one process at a time creates this package's schema and new tables
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
    """An existing table."""

    name: Name  # With its schema
    columns: tuple[Column, ...]
    oid: int = 0  # Its number in the catalog: a table that was dropped and created again has another one
    # Why COPY is impossible: row-level security, which it refuses, or rules, which it ignores.
    only_insert: str | None = None

    def chosen(self, names: Sequence[str]) -> tuple[Column, ...]:
        """Columns by name, in that order."""
        known = {column.name: column for column in self.columns}
        return tuple(known[name] for name in names)


def look_up(connection: psycopg.Connection[Any], name: Name, who: str) -> Table | None:
    """The table as it is in the catalog now; None if it does not exist."""
    found = connection.execute(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, CASE WHEN row_security_active(c.oid) THEN 'row-level security' "
        "WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid AND ev_type = '3') THEN 'a rule on INSERT' END, "
        "(SELECT min(p.relpersistence::text || p.oid::regclass::text) FROM pg_class p WHERE p.relpersistence <> 'p' "
        "AND p.oid IN (SELECT c.oid UNION ALL SELECT relid FROM pg_partition_tree(c.oid))) "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        (name.identifier.as_string(connection),),
    ).fetchone()
    if found is None:
        return None
    oid, schema, table, kind, only_insert, lost = found
    if _char(kind) not in ("r", "p"):
        what = f"'{name}' is not a table (its kind in pg_class is '{_char(kind)}')"
        raise refused(what, who, "name a plain or partitioned table in the option 'table'")
    if lost is not None:
        raise _emptied(name, lost, who)
    columns = [Column(*row) for row in connection.execute(_COLUMNS, (oid,)).fetchall()]
    return Table(Name(schema, table), tuple(columns), int(oid), only_insert)


_NOW = """
SELECT coalesce(t.oid, 0)::bigint, (SELECT json_object_agg(a.attname, json_build_array(
    format_type(a.atttypid, a.atttypmod), CASE WHEN b.typtype = 'e' THEN 'enum' ELSE b.typname END))
  FROM pg_attribute a
  JOIN pg_type o ON o.oid = a.atttypid
  JOIN pg_type b ON b.oid = CASE WHEN o.typtype = 'd' THEN o.typbasetype ELSE o.oid END
  WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM (SELECT to_regclass(%s)::oid AS oid) t
"""


def now(connection: psycopg.Connection[Any], name: Name) -> tuple[int, dict[str, tuple[str, str]]]:
    """What a name stands for at this moment: the table's oid, and of its columns what `shown` and `kind` would be.

    One query. 0 if the table does not exist.
    """
    found = connection.execute(_NOW, (name.identifier.as_string(connection),)).fetchone()
    if found is None:
        return 0, {}
    return int(found[0]), {column: (shown, kind) for column, (shown, kind) in (found[1] or {}).items()}


def possible(connection: psycopg.Connection[Any], name: Name) -> list[Name]:
    """The names with schemas under which a table of this name may have been found while it existed.

    A table that exists is found by `look_up`: in whichever schema of `search_path` it is, not in the first one.
    """
    if name.schema is not None:
        return [name]
    found = connection.execute("SELECT unnest(current_schemas(false))::text").fetchall()
    return [Name(schema, name.table) for (schema,) in found]


def _emptied(name: Name, lost: str, who: str) -> ConfigurationError:
    """The refusal of a table, or of a partition, whose committed rows the server may lose."""
    unlogged, which = lost[0] == "u", lost[1:]
    kind = "unlogged" if unlogged else "temporary"
    return refused(
        f"the table '{name}' is {kind}"
        if which.rpartition(".")[2].strip('"') == name.table
        else f"the partition '{which}' of the table '{name}' is {kind}",
        who,
        f"ALTER TABLE {which} SET LOGGED: the server empties an unlogged table after a crash, and its record says that "
        "the rows are committed"
        if unlogged
        else "name a permanent table: the server drops a temporary one when its connection ends",
    )


def _char(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def create(connection: psycopg.Connection[Any], name: Name, schema: StructType, key: Sequence[str], who: str) -> None:
    """Create the table if it does not exist; a key becomes its primary key."""
    from psycopg import sql

    lacking(schema, (), who)
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(new_type(field.dataType, field.name, who)))
        for field in schema.fields
    ]
    if key:
        columns.append(sql.SQL("PRIMARY KEY ({})").format(names(key)))
    statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(name.identifier, sql.SQL(", ").join(columns))
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        connection.execute(statement)


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
    grow: bool = False,
) -> Table:
    """The table for these rows; created if it does not exist and `make` is set, with new columns if `grow` is."""
    table = look_up(connection, name, who)
    if table is None:
        if not make:
            raise missing(name, who)
        create(connection, name, schema, key, who)
        table = look_up(connection, name, who)
        assert table is not None
    if grow and (new := lacking(schema, table.columns, who)):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            add(connection, table.name, new, who)
        table = look_up(connection, name, who)
        assert table is not None
    check(schema, table.columns, who)
    if key and not _is_unique(connection, table.name, key):
        raise refused(
            f"the table has no primary key and no unique index on exactly ({', '.join(key)})",
            who,
            f"CREATE UNIQUE INDEX ON {table.name} ({', '.join(key)}), or correct the option 'key'",
        )
    return table


def missing(name: Name, who: str) -> ConfigurationError:
    """The refusal of a table that does not exist."""
    do = "create it, correct the option 'table' (names are case-sensitive), or set create_table=true"
    return refused(f"table '{name}' does not exist", who, do)


def _is_unique(connection: psycopg.Connection[Any], name: Name, key: Sequence[str]) -> bool:
    """Whether ON CONFLICT finds an index for the key: unique, not partial, not deferrable, on plain columns."""
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
