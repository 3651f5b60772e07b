"""What is read: a table or a query, its columns in Spark's types, its key, and the identity of its rows.

A row version is identified by the transaction that wrote it (`xmin`), as a 64-bit number that does not wrap around. The
rows of a view, foreign table or query have none: there a row is identified by its text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark

from spark_ext.clients.postgres.connection import columns as named_columns
from spark_ext.clients.postgres.problems import describe
from spark_ext.errors import refused
from spark_ext.sources.postgres.key import Key
from spark_ext.sources.postgres.key import literal as literal
from spark_ext.sources.postgres.key import quoted as quoted

if TYPE_CHECKING:
    import psycopg


# A 32-bit xmin is at most 2^32 behind the next id; ids below 3 are reserved by PostgreSQL.
_NEXT = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"
XID = f"({_NEXT} - (({_NEXT} - greatest(t.xmin::text::bigint, 3)) & 4294967295))"
"""The transaction that wrote a row of `t`, 64 bits."""

HASH_COLUMN = "_spark_ext_hash"  # an additional column of the rows read: 64 bits that identify the row's version
NO_LIST_COLUMN = "_spark_ext_no_list"
"""An additional column of rows with arrays: the name of one whose value is not a plain list; else null."""

_PLAIN: dict[str, spark.DataType] = {  # names in `pg_type` of types that are read natively; all others are read as text
    "bool": spark.BooleanType(),
    "int2": spark.ShortType(),
    "int4": spark.IntegerType(),
    "int8": spark.LongType(),
    "float4": spark.FloatType(),
    "float8": spark.DoubleType(),
    **dict.fromkeys(("text", "varchar", "bpchar", "name"), spark.StringType()),
    "bytea": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampNTZType(),
    "timestamptz": spark.TimestampType(),
}

_CHAR = '"char"'  # a type of one byte; by statistics of it the server cannot estimate what is greater than a constant
INTEGERS = ("int2", "int4", "int8")
_ELEMENTS = ("bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar")
"""Types whose arrays are read as arrays."""


@dataclass(frozen=True)
class ReadColumn:
    """A column of the table or query."""

    name: str
    kind: str  # name in `pg_type`, of an enumeration with its schema; of the element for an array
    is_array: bool
    spark: spark.DataType
    as_text: bool  # whether PostgreSQL sends it as text


@dataclass(frozen=True)
class Relation:
    """The table or query to read."""

    source: str  # SQL after FROM: a quoted name, or a query in parentheses
    columns: tuple[ReadColumn, ...]
    key: Key
    has_xid: bool
    rows: float  # number of rows by the server's statistics; -1: unknown
    width: int  # approximate size of a row, bytes
    table: tuple[str, str] | None  # schema and name, if it is a table
    selected: tuple[str, ...] = ()  # the names of the columns to read; empty: all
    where: str | None = None  # the condition of the rows to read, as SQL; None: all
    partitioned: bool = False  # whether it is a table whose rows are in partitions
    unique: tuple[tuple[str, ...], ...] = ()  # the columns of unique indexes without nulls, of a table

    @property
    def chosen(self) -> tuple[ReadColumn, ...]:
        """The columns to read."""
        known = {column.name: column for column in self.columns}
        return tuple(known[name] for name in self.selected) if self.selected else self.columns

    @property
    def spark_schema(self) -> spark.StructType:
        """The columns to read; all nullable."""
        return spark.StructType([spark.StructField(column.name, column.spark) for column in self.chosen])


def hash_of(key: Key, has_xid: bool) -> str:
    """SQL of 64 bits that change when the row does."""
    return f"hashtextextended({key.text}, t.xmin::text::bigint)" if has_xid else "hashtextextended((t.*)::text, 0)"


_FACTS = """
SELECT c.relkind::text, c.reltuples::float8, n.nspname, c.relname,
  (SELECT coalesce(sum(s.avg_width), 0)::int FROM pg_stats s WHERE s.schemaname = n.nspname AND s.tablename = c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""

# The columns of unique indexes without nulls; those of one column first, and of these the primary key.
_KEYS = """
SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_index i
  CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary HAVING bool_and(a.attnotnull)
ORDER BY count(*) > 1, NOT i.indisprimary, array_agg(a.attname ORDER BY k.place)
"""


_ENUMS = """
SELECT y.oid::bigint, quote_ident(n.nspname) || '.' || quote_ident(y.typname)
FROM pg_type y JOIN pg_namespace n ON n.oid = y.typnamespace WHERE y.typtype = 'e' AND y.oid = ANY(%s::oid[])
"""


def look_up(
    connection: psycopg.Connection[Any],
    source: str,
    is_table: bool,
    key: str | None,
    who: str,
    selected: tuple[str, ...] = (),
    where: str | None = None,
) -> Relation:
    """The table or query, from the catalog; without a key, the table's primary key."""
    found = _of_table(connection, source, key, who) if is_table else _of_query(connection, source, key, who)
    names = [column.name for column in found.columns]
    for name in selected:
        if name not in names:
            what = f"column '{name}' does not exist; the columns are: {', '.join(names)}"
            raise refused(what, who, "correct the option 'columns'")
    if where is not None:
        _check_condition(connection, source, where, who)
    return replace(found, selected=selected, where=where)


def _check_condition(connection: psycopg.Connection[Any], source: str, where: str, who: str) -> None:
    """Have the server parse a condition: alone, so that its brackets are its own, and as a part of another one."""
    import psycopg

    for condition in (f"({where}\n)", where):
        try:
            # In binary format, in which the client sends one statement only.
            connection.execute(f"EXPLAIN SELECT FROM {source} t WHERE {condition}", binary=True)
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as problem:
            what = f"the server does not take the option 'where' for a condition of {source}: {describe(problem)}"
            do = "correct the option 'where': a condition as in SQL, such as \"region\" = 'EU'"
            raise refused(what, who, do) from None


def _of_table(connection: psycopg.Connection[Any], source: str, key: str | None, who: str) -> Relation:
    facts = connection.execute(_FACTS, (source,)).fetchone()
    if facts is None:
        raise refused(f"table {source} does not exist", who, "correct the option 'table' (names are taken as written)")
    kind, rows, schema, name, width = facts
    unique = [tuple(row[0]) for row in connection.execute(_KEYS, (source,)).fetchall()]
    has_xid = kind in ("r", "m", "p")
    columns = _columns(connection, source)
    if key is None and not unique:
        what = f"{source} has no primary key by which it could be divided"
        raise refused(what, who, "name a unique column, or several with commas, in the option 'key'")
    names = unique[0] if key is None else _named(key, columns)
    found = _relation(columns, source, names, has_xid, rows, width or 64, (schema, name), who)
    if has_xid and not any(set(index) <= set(names) for index in unique):
        what = f"column '{names[0]}' of {source} is" if len(names) == 1 else f"columns '{key}' of {source} are"
        raise refused(
            f"{what} not unique and not null",
            who,
            "add a unique index and NOT NULL, or name another key; it has: "
            + (" or ".join(", ".join(index) for index in unique) or "none"),
        )
    return replace(found, partitioned=kind == "p", unique=tuple(unique))


def _named(key: str, columns: Collection[str]) -> tuple[str, ...]:
    """The columns of the option: one, whose name may have a comma, or several."""
    return (key,) if key in columns else named_columns(key) or (key,)


def _of_query(connection: psycopg.Connection[Any], source: str, key: str | None, who: str) -> Relation:
    if key is None:
        raise refused("a query needs the option 'key'", who, "name a column of it that is unique and not null")
    plan = connection.execute(f"EXPLAIN (FORMAT JSON) SELECT * FROM {source} t").fetchone()
    top = plan[0][0]["Plan"] if plan else {}
    rows, width = float(top.get("Plan Rows", -1)), int(top.get("Plan Width", 64))
    columns = _columns(connection, source)
    return _relation(columns, source, _named(key, columns), False, rows, width, None, who)


def _columns(connection: psycopg.Connection[Any], source: str) -> dict[str, tuple[ReadColumn, str]]:
    """By name, with the type as SQL writes it."""
    cursor = connection.execute(f"SELECT * FROM {source} t LIMIT 0")
    described = cursor.description or ()
    enums = dict(connection.execute(_ENUMS, ([found.type_code for found in described],)).fetchall())
    out = {}
    for found in described:
        info = connection.adapters.types.get(found.type_code)
        is_array = info is not None and info.array_oid == found.type_code
        enum = enums.get(found.type_code)
        column = _column(found.name, info.name if info else enum or "", is_array, found.precision, found.scale)
        # With its schema and in quotes: bit, char and bpchar alone mean other types, which cut values off.
        simple = info is not None and not is_array
        out[found.name] = (column, "pg_catalog." + quoted(column.kind.strip('"')) if simple else enum or "text")
    return out


def _column(name: str, kind: str, is_array: bool, precision: int | None, scale: int | None) -> ReadColumn:
    if is_array and kind in _ELEMENTS:
        return ReadColumn(name, kind, True, spark.ArrayType(_PLAIN[kind]), False)
    if not is_array and kind in _PLAIN:
        return ReadColumn(name, kind, False, _PLAIN[kind], False)
    if not is_array and kind == "numeric":
        fits = precision is not None and scale is not None and 0 <= scale <= precision <= 38
        decimal = spark.DecimalType(precision, scale) if fits else spark.DecimalType(38, 18)  # type: ignore[arg-type]
        return ReadColumn(name, kind, False, decimal, True)
    return ReadColumn(name, kind, is_array, spark.StringType(), True)


def _relation(
    columns: dict[str, tuple[ReadColumn, str]],
    source: str,
    names: tuple[str, ...],
    has_xid: bool,
    rows: float,
    width: int,
    table: tuple[str, str] | None,
    who: str,
) -> Relation:
    for name in names:
        if name not in columns:
            what = f"key column '{name}' does not exist; the columns are: {', '.join(columns)}"
            raise refused(what, who, "correct the option 'key'")
        column, _ = columns[name]
        if column.is_array or not column.kind:
            do = "name other columns as the key, or read a query that casts the column, such as to text"
            raise refused(f"column '{name}' is an array or has a type of an extension, which has no ranges", who, do)
    if len(set(names)) < len(names):
        raise refused(f"the key '{', '.join(names)}' has a column twice", who, "correct the option 'key'")
    every = tuple(found for found, _ in columns.values())
    found = [columns[name] for name in names]
    key = Key(names, tuple(sql_type for _, sql_type in found), tuple(column.kind for column, _ in found))
    return Relation(source, every, key, has_xid, rows, max(width, 8), table)


def check_increasing(connection: psycopg.Connection[Any], relation: Relation, column: str, who: str) -> None:
    """Refuse a column by which a table cannot be followed."""
    import psycopg

    kinds = {one.name: one.kind for one in relation.columns}
    if column not in kinds:
        raise refused(f"column '{column}' does not exist", who, "correct the option 'incremental_column'")
    try:
        connection.execute(f"EXPLAIN SELECT FROM {relation.source} t ORDER BY t.{quoted(column)}")
        ordered = kinds[column] != _CHAR
    except psycopg.errors.UndefinedFunction:
        ordered = False
    if not ordered:
        what = f"column '{column}' cannot increase: its type is not one that the server orders"
        raise refused(what, who, "name another column in the option 'incremental_column', or use incremental=xmin")


def check_declared(declared: spark.StructType, relation: Relation, who: str) -> None:
    """Refuse a declared schema that does not match the columns. Any column may be declared as string."""
    from spark_ext.schemas.arrow import arrow_type
    from spark_ext.schemas.columns import fits

    known = {column.name: column for column in relation.chosen}
    for field in declared.fields:
        column = known.get(field.name)
        if column is None:
            what = f"column '{field.name}' does not exist; the columns are: {', '.join(known)}"
            raise refused(what, who, "correct .schema(...)")
        found, wanted = arrow_type(column.spark), arrow_type(field.dataType)
        # A decimal is parsed from text, value by value.
        by_value = isinstance(field.dataType, spark.DecimalType) and column.kind in ("numeric", *INTEGERS)
        if not (isinstance(field.dataType, spark.StringType) or by_value or fits(found, wanted)):
            has, given = column.spark.simpleString(), field.dataType.simpleString()
            raise refused(
                f"column '{field.name}' is {has}, but declared as {given}", who, "declare its own type, or string"
            )
