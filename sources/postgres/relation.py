"""What is read: a table or a query, its columns in Spark's types, its key, and the identity of its rows.

A row version is identified by the transaction that wrote it (`xmin`), as a 64-bit number that does not wrap around. The
rows of a view, foreign table or query have none: there a row is identified by its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark

from spark_ext.errors import refused

if TYPE_CHECKING:
    import psycopg

# A 32-bit xmin is at most 2^32 behind the next id; ids below 3 are reserved by PostgreSQL.
_NEXT = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"
XID = f"({_NEXT} - (({_NEXT} - greatest(t.xmin::text::bigint, 3)) & 4294967295))"
"""The transaction that wrote a row of `t`, 64 bits."""

HASH_COLUMN = "_spark_ext_hash"
"""An additional column of the rows read: 64 bits that identify the row's version."""

NO_LIST_COLUMN = "_spark_ext_no_list"
"""An additional column of rows with arrays: the name of one whose value is not a plain list; else null."""

_PLAIN: dict[str, spark.DataType] = {
    "bool": spark.BooleanType(),
    "int2": spark.ShortType(),
    "int4": spark.IntegerType(),
    "int8": spark.LongType(),
    "float4": spark.FloatType(),
    "float8": spark.DoubleType(),
    "text": spark.StringType(),
    "varchar": spark.StringType(),
    "bpchar": spark.StringType(),
    "name": spark.StringType(),
    "bytea": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampNTZType(),
    "timestamptz": spark.TimestampType(),
}
"""Names in `pg_type` of types that are read natively; all others are read as text."""

INTEGERS = ("int2", "int4", "int8")

_ELEMENTS = ("bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar")
"""Types whose arrays are read as arrays."""


@dataclass(frozen=True)
class ReadColumn:
    """A column of the table or query."""

    name: str
    kind: str
    """Name in `pg_type`; of the element for an array."""
    is_array: bool
    spark: spark.DataType
    as_text: bool
    """Whether PostgreSQL sends it as text."""


@dataclass(frozen=True)
class Relation:
    """The table or query to read."""

    source: str
    """SQL after FROM: a quoted name, or a query in parentheses."""
    columns: tuple[ReadColumn, ...]
    key: str
    key_kind: str
    """Name of the key's type in `pg_type`."""
    key_type: str
    """The same, for casts."""
    has_xid: bool
    rows: float
    """Number of rows by the server's statistics; -1: unknown."""
    width: int
    """Approximate size of a row, bytes."""
    table: tuple[str, str] | None
    """Schema and name, if it is a table."""

    @property
    def spark_schema(self) -> spark.StructType:
        """Its columns; all nullable."""
        return spark.StructType([spark.StructField(column.name, column.spark) for column in self.columns])

    @property
    def quoted_key(self) -> str:
        """For statements."""
        return quoted(self.key)

    def bound(self, text: str) -> str:
        """A value of the key as SQL."""
        return f"{literal(text)}::{self.key_type}"


def xid_of() -> str:
    """SQL of the transaction that wrote a row of `t`, 64 bits."""
    return XID


def hash_of(key: str, has_xid: bool) -> str:
    """SQL of 64 bits that change when the row does."""
    return (
        f"hashtextextended(t.{quoted(key)}::text, t.xmin::text::bigint)" if has_xid else "hashtextextended(t::text, 0)"
    )


def quoted(name: str) -> str:
    """An identifier for a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a literal for a statement, whatever the server's setting for backslashes."""
    plain = "'" + text.replace("'", "''") + "'"
    return "E" + plain.replace("\\", "\\\\") if "\\" in plain else plain


_FACTS = """
SELECT c.relkind::text, c.reltuples::float8, n.nspname, c.relname,
  (SELECT coalesce(sum(s.avg_width), 0)::int FROM pg_stats s WHERE s.schemaname = n.nspname AND s.tablename = c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""

_KEYS = """
SELECT a.attname FROM pg_index i
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL
  AND i.indexprs IS NULL AND a.attnotnull ORDER BY NOT i.indisprimary, a.attname
"""


def look_up(connection: psycopg.Connection[Any], source: str, is_table: bool, key: str | None, who: str) -> Relation:
    """The table or query, from the catalog.

    Raises:
        ConfigurationError: there is no such table or no usable key.
    """
    if not is_table:
        return _of_query(connection, source, key, who)
    facts = connection.execute(_FACTS, (source,)).fetchone()
    if facts is None:
        raise refused(f"there is no table {source}", who, "correct the option 'table' (names are taken as written)")
    kind, rows, schema, name, width = facts
    unique = [row[0] for row in connection.execute(_KEYS, (source,)).fetchall()]
    has_xid = kind in ("r", "m", "p")
    if key is None:
        if not unique:
            raise refused(
                f"{source} has no primary key of one column by which it could be divided",
                who,
                "name a unique column in the option 'key'",
            )
        key = unique[0]
    columns = _columns(connection, source)
    if has_xid and key in columns and key not in unique:
        raise refused(
            f"column '{key}' of {source} is not unique and not null",
            who,
            f"add a unique index and NOT NULL, or name another key; it has: {', '.join(unique) or 'none'}",
        )
    return _relation(columns, source, key, has_xid, rows, width or 64, (schema, name), who)


def _of_query(connection: psycopg.Connection[Any], source: str, key: str | None, who: str) -> Relation:
    if key is None:
        raise refused("a query needs the option 'key'", who, "name a column of it that is unique and not null")
    plan = connection.execute(f"EXPLAIN (FORMAT JSON) SELECT * FROM {source} t").fetchone()
    top = plan[0][0]["Plan"] if plan else {}
    rows, width = float(top.get("Plan Rows", -1)), int(top.get("Plan Width", 64))
    return _relation(_columns(connection, source), source, key, False, rows, width, None, who)


def _columns(connection: psycopg.Connection[Any], source: str) -> dict[str, tuple[ReadColumn, str]]:
    """By name, with the type as SQL writes it."""
    cursor = connection.execute(f"SELECT * FROM {source} t LIMIT 0")
    out = {}
    for found in cursor.description or ():
        info = connection.adapters.types.get(found.type_code)
        is_array = info is not None and info.array_oid == found.type_code
        column = _column(found.name, info.name if info else "", is_array, found.precision, found.scale)
        # With its schema and in quotes: bit, char and bpchar alone mean other types, which cut values off.
        simple = info is not None and not is_array
        out[found.name] = (column, "pg_catalog." + quoted(column.kind.strip('"')) if simple else "text")
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
    key: str,
    has_xid: bool,
    rows: float,
    width: int,
    table: tuple[str, str] | None,
    who: str,
) -> Relation:
    if key not in columns:
        raise refused(
            f"there is no key column '{key}'; there are: {', '.join(columns)}", who, "correct the option 'key'"
        )
    column, sql_type = columns[key]
    if column.is_array or not column.kind:
        raise refused(f"column '{key}' has a type without ranges", who, "name a column of a simple type as the key")
    every = tuple(found for found, _ in columns.values())
    return Relation(source, every, key, column.kind, sql_type, has_xid, rows, max(width, 8), table)


def check_declared(declared: spark.StructType, relation: Relation, who: str) -> None:
    """Refuse a declared schema that does not match the columns. Any column may be declared as string.

    Raises:
        ConfigurationError: a column is missing, or its values do not all fit the declared type.
    """
    from spark_ext.schemas.arrow import arrow_type
    from spark_ext.schemas.columns import fits

    known = {column.name: column for column in relation.columns}
    for field in declared.fields:
        column = known.get(field.name)
        if column is None:
            raise refused(
                f"there is no column '{field.name}'; there are: {', '.join(known)}", who, "correct .schema(...)"
            )
        found, wanted = arrow_type(column.spark), arrow_type(field.dataType)
        # A decimal is parsed from text, value by value.
        by_value = isinstance(field.dataType, spark.DecimalType) and column.kind in ("numeric", *INTEGERS)
        if not (isinstance(field.dataType, spark.StringType) or by_value or fits(found, wanted)):
            has, given = column.spark.simpleString(), field.dataType.simpleString()
            raise refused(
                f"column '{field.name}' is {has}, but declared as {given}",
                who,
                "declare its own type, or string",
            )
