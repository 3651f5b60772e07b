"""Spark's types in PostgreSQL: the types of a new table's columns, and which types fit an existing column. Pure.

One rule, as in `delta_2pc`: a type fits if each of its values is also a value of the column. What depends on the single
value (the length of a string, the form of a UUID) is checked when the rows are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as spark

from spark_ext.errors import refused

# Number of decimal digits that all values of a type fit in.
_DIGITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 3,
    spark.ShortType: 5,
    spark.IntegerType: 10,
    spark.LongType: 19,
}
_NEW: dict[type[spark.DataType], str] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "smallint",
    spark.ShortType: "smallint",
    spark.IntegerType: "integer",
    spark.LongType: "bigint",
    spark.FloatType: "real",
    spark.DoubleType: "double precision",
    spark.StringType: "text",
    spark.CharType: "text",
    spark.VarcharType: "text",
    spark.BinaryType: "bytea",
    spark.DateType: "date",
    spark.TimestampType: "timestamp with time zone",
    spark.TimestampNTZType: "timestamp without time zone",
    spark.DayTimeIntervalType: "interval",
}

_TEXT = (spark.StringType, spark.CharType, spark.VarcharType)
_SMALL = (spark.ByteType, spark.ShortType)
_NESTED = (spark.StructType, spark.MapType, spark.ArrayType)

# The Spark types that fit a column's type, by its name in `pg_type`; `numeric`, arrays, and intervals of few digits or
# in documents are decided in code.
_TAKES: dict[str, tuple[type[spark.DataType], ...]] = {
    "bool": (spark.BooleanType,),
    "int2": _SMALL,
    "int4": (*_SMALL, spark.IntegerType),
    "int8": (*_SMALL, spark.IntegerType, spark.LongType),
    "float4": (*_SMALL, spark.FloatType),
    "float8": (*_SMALL, spark.IntegerType, spark.FloatType, spark.DoubleType),
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "citext": _TEXT,
    "xml": _TEXT,
    "enum": _TEXT,
    "json": (*_TEXT, *_NESTED),
    "jsonb": (*_TEXT, *_NESTED),
    "uuid": _TEXT,
    "bytea": (spark.BinaryType,),
    "date": (spark.DateType,),
    "timestamp": (spark.TimestampNTZType,),
    "timestamptz": (spark.TimestampType,),
    "interval": (spark.DayTimeIntervalType,),
}
# Binary COPY: texts.
_LIKE_TEXT: frozenset[str] = frozenset({"text", "varchar", "bpchar", "citext", "xml", "enum", "json"})
_FIX = "select, rename or cast the columns in the query, or alter the table"


@dataclass(frozen=True)
class Column:
    """A column of a table, from the catalog."""

    name: str
    kind: str  # Name in `pg_type`; for a domain that of the base type, for an enumeration `enum`
    shown: str  # As in SQL, such as `numeric(10,2)`
    element: str | None = None  # For an array: name of the element's type in `pg_type`
    element_oid: int = 0
    modifier: int = -1  # `atttypmod`: precision and scale of a numeric
    required: bool = False  # Not null, without a default
    nullable: bool = True
    generated: bool = False  # Computed by the server: it cannot be written

    @property
    def numeric(self) -> tuple[int, int] | None:
        """Precision and scale; None if the column has no limits."""
        if self.kind != "numeric" or self.modifier < 4:
            return None
        packed = self.modifier - 4
        scale = packed & 0x7FF
        return packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale


def means_the_same(column: Column, shown: str, kind: str) -> bool:
    """Whether the bytes of a value that was encoded for a column have their meaning in another type, too."""
    return shown == column.shown or {column.kind, kind} <= _LIKE_TEXT


def new_type(kind: spark.DataType, path: str, who: str, *, in_document: bool = False) -> str:
    """The type of a new column; an interval in a document (`jsonb`) has no form that all agree on."""
    if isinstance(kind, spark.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, spark.ArrayType) and not isinstance(kind.elementType, _NESTED):
        return new_type(kind.elementType, path, who, in_document=in_document) + "[]"
    if isinstance(kind, _NESTED):
        for inner_path, inner in _children(kind, path):
            new_type(inner, inner_path, who, in_document=True)
        return "jsonb"
    found = _NEW.get(type(kind))
    if found is None or (in_document and found == "interval"):
        what = f"column '{path}' has the type {kind.simpleString()}, which this sink does not support"
        raise refused(what, who, f"cast '{path}' to another type, or drop it in the query")
    return found


def _children(kind: spark.DataType, path: str) -> list[tuple[str, spark.DataType]]:
    if isinstance(kind, spark.StructType):
        return [(f"{path}.{field.name}", field.dataType) for field in kind.fields]
    if isinstance(kind, spark.MapType):
        return [(f"{path}.key", kind.keyType), (f"{path}.value", kind.valueType)]
    assert isinstance(kind, spark.ArrayType)
    return [(f"{path}.element", kind.elementType)]


def takes(column: Column, kind: spark.DataType) -> bool:
    """Whether every value of a Spark type fits the column, except for what depends on the single value."""
    if column.element is not None:
        inner = Column(column.name, column.element, column.shown, modifier=column.modifier)
        return isinstance(kind, spark.ArrayType) and takes(inner, kind.elementType)
    if column.kind == "numeric":
        if isinstance(kind, spark.DecimalType):
            digits, scale = kind.precision - kind.scale, kind.scale
        elif type(kind) in _DIGITS:
            digits, scale = _DIGITS[type(kind)], 0
        else:
            return False
        limit = column.numeric
        return limit is None or (scale <= limit[1] and digits <= limit[0] - limit[1])
    if column.kind == "interval" and column.modifier >= 0:
        return False  # the server would cut off or round
    if column.kind in ("json", "jsonb") and isinstance(kind, spark.ArrayType):
        return not isinstance(kind.elementType, spark.DayTimeIntervalType)
    return isinstance(kind, _TAKES.get(column.kind, ()))


def check(schema: spark.StructType, columns: Sequence[Column], who: str) -> None:
    """Refuse rows that do not fit the table; names the column and both types."""
    known = {column.name: column for column in columns}
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise refused(f"the table has no column '{field.name}'; it has: {', '.join(known)}", who, _FIX)
        if column.generated:
            raise refused(f"column '{field.name}' is GENERATED ALWAYS: only the server sets its values", who, _FIX)
        if not takes(column, field.dataType):
            kinds = f"{column.shown} in the table, and {field.dataType.simpleString()} in the query"
            raise refused(f"column '{field.name}' has the type {kinds}", who, _FIX)
    for column in columns:
        if column.required and column.name not in schema.names:
            what = f"column '{column.name}' may not be null in the table, and the query does not have it"
            raise refused(what, who, _FIX)
