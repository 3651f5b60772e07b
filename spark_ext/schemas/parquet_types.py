"""Spark's types as Delta and Parquet store them, and what an input may look like for a given table. Pure functions.

One rule for names and types: what a reader would see differently is refused here, by the column's full name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark

from spark_ext.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta refuses in column names, because old Parquet readers do."""

_PLAIN = (
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.BooleanType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.CharType,
    spark.VarcharType,
)

_NOT_A_PARTITION = (spark.BinaryType, spark.StructType, spark.ArrayType, spark.MapType)


def check_input(schema: spark.StructType, partition_by: Sequence[str], who: str) -> None:
    """Refuse a schema that cannot be stored, whatever the table looks like.

    Raises:
        ConfigurationError: names the column and its type.
    """
    seen: dict[str, str] = {}
    for field in schema.fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other is not field.name:
            raise _refused(
                f"columns '{other}' and '{field.name}' differ in case only", who, "rename one of them in the query"
            )
    for path, kind in _walk(schema, ""):
        reason = _unstorable(kind)
        if reason:
            raise _refused(
                f"column '{path}' has the type {kind.simpleString()}, which {reason}",
                who,
                f"cast '{path}' to a type that Delta stores, or drop it in the query",
            )
        bad = _BAD_NAME.search(path)
        if bad:
            raise _refused(
                f"column name '{path}' contains {bad.group()!r}, which Delta does not allow",
                who,
                "rename the column in the query, for example with .alias()",
            )
    kinds = {field.name: field.dataType for field in schema.fields}
    for name in partition_by:
        if name not in kinds:
            raise _refused(
                f"partition column '{name}' is not a column of the query; it has: {', '.join(kinds)}",
                who,
                "correct the option 'partition_by'",
            )
        if isinstance(kinds[name], _NOT_A_PARTITION):
            raise _refused(
                f"partition column '{name}' has the type {kinds[name].simpleString()}, "
                "which cannot be written in a path",
                who,
                "partition by a column of a simple type",
            )
    if set(kinds) <= set(partition_by):
        raise _refused(
            "no column is left for the files: all are partition columns",
            who,
            "leave at least one column out of 'partition_by'",
        )


def _refused(what: str, who: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, operator=who, kept="nothing was written to the table", do=do)


def _walk(kind: spark.DataType, path: str) -> Iterator[tuple[str, spark.DataType]]:
    """Every column and nested type with its full name."""
    if path:
        yield path, kind
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            yield from _walk(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, spark.ArrayType):
        yield from _walk(kind.elementType, f"{path}.element")
    elif isinstance(kind, spark.MapType):
        yield from _walk(kind.keyType, f"{path}.key")
        yield from _walk(kind.valueType, f"{path}.value")


def _unstorable(kind: spark.DataType) -> str | None:
    if isinstance(kind, spark.StringType) and not isinstance(kind, _PLAIN):
        return None if kind.isUTF8BinaryCollation() else "has a collation that this sink does not write"
    if isinstance(kind, spark.StructType):
        return None if kind.fields else "has no fields, so Parquet has no place for it"
    if isinstance(kind, (spark.ArrayType, spark.MapType, *_PLAIN)):
        return None
    if isinstance(kind, spark.VariantType):
        return "needs the table feature variantType, which this sink does not write"
    return "Delta does not store"


def arrow_type(kind: spark.DataType) -> pa.DataType:
    """The Arrow type whose Parquet form is what Delta asks for: timestamps are UTC microseconds."""
    import pyarrow as pa

    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in kind.fields])
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, spark.MapType):
        return pa.map_(arrow_type(kind.keyType), pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull))
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, (spark.StringType, spark.CharType, spark.VarcharType)):
        return pa.string()
    flat: dict[type[spark.DataType], pa.DataType] = {
        spark.ByteType: pa.int8(),
        spark.ShortType: pa.int16(),
        spark.IntegerType: pa.int32(),
        spark.LongType: pa.int64(),
        spark.FloatType: pa.float32(),
        spark.DoubleType: pa.float64(),
        spark.BooleanType: pa.bool_(),
        spark.BinaryType: pa.binary(),
        spark.DateType: pa.date32(),
        spark.TimestampType: pa.timestamp("us", "UTC"),
        spark.TimestampNTZType: pa.timestamp("us"),
    }
    return flat[type(kind)]


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """The Arrow form of the rows; every column nullable, as in the tables that the sink creates."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in schema.fields])


def table_schema(schema: spark.StructType) -> spark.StructType:
    """The schema of a table made for these rows.

    All is nullable, as Spark's own writer does it, and Spark's notes on columns (the watermark's delay) are left out.
    """
    made = _as_table(schema)
    assert isinstance(made, spark.StructType)
    return made


def _as_table(kind: spark.DataType) -> spark.DataType:
    if isinstance(kind, spark.StructType):
        return spark.StructType(
            [
                spark.StructField(
                    field.name,
                    _as_table(field.dataType),
                    True,
                    {"comment": field.metadata["comment"]} if "comment" in (field.metadata or {}) else {},
                )
                for field in kind.fields
            ]
        )
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(_as_table(kind.elementType), True)
    if isinstance(kind, spark.MapType):
        return spark.MapType(_as_table(kind.keyType), _as_table(kind.valueType), True)
    if isinstance(kind, (spark.CharType, spark.VarcharType)):
        return spark.StringType()
    return kind


def from_delta(schema_json: str) -> spark.StructType:
    """A table's schema, from its log, in Spark's types."""
    return spark.StructType.fromJson(json.loads(schema_json))


@dataclass(frozen=True)
class Fit:
    """How the rows' schema fits a table's."""

    misfit: str | None = None
    """What is wrong: column, expected type, given type; None when they fit."""
    new: tuple[spark.StructField, ...] = ()
    """Top-level columns that the table has not."""


def fit(given: spark.StructType, table: spark.StructType) -> Fit:
    """Compare the rows' schema with a table's. Columns match by exact name, in any order."""
    known = {field.name: field for field in table.fields}
    by_case = {name.lower(): name for name in known}
    new = []
    for field in given.fields:
        if field.name not in known:
            near = by_case.get(field.name.lower())
            if near:
                return Fit(f"column '{field.name}' is spelled '{near}' in the table")
            new.append(field)
            continue
        wrong = _compare(field.name, field.dataType, known[field.name].dataType)
        if wrong is None and field.nullable and not known[field.name].nullable:
            wrong = f"column '{field.name}' may be null in the query, and not in the table"
        if wrong:
            return Fit(wrong)
    names = {field.name for field in given.fields}
    for field in table.fields:
        if field.name not in names and not field.nullable:
            return Fit(f"column '{field.name}' may not be null in the table, and the query does not give it")
    return Fit(new=tuple(new))


def _compare(path: str, given: spark.DataType, table: spark.DataType) -> str | None:
    if isinstance(given, spark.StructType) and isinstance(table, spark.StructType):
        inner = fit(given, table)
        if inner.misfit:
            return f"in column '{path}': {inner.misfit}"
        if inner.new:
            return (
                f"column '{path}.{inner.new[0].name}' is not in the table, and a field inside a column cannot be added"
            )
        return None
    if isinstance(given, spark.ArrayType) and isinstance(table, spark.ArrayType):
        if given.containsNull and not table.containsNull:
            return f"elements of '{path}' may be null in the query, and not in the table"
        return _compare(f"{path}.element", given.elementType, table.elementType)
    if isinstance(given, spark.MapType) and isinstance(table, spark.MapType):
        if given.valueContainsNull and not table.valueContainsNull:
            return f"values of '{path}' may be null in the query, and not in the table"
        return _compare(f"{path}.key", given.keyType, table.keyType) or _compare(
            f"{path}.value", given.valueType, table.valueType
        )
    wanted = _as_table(given)
    if wanted != table:
        return (
            f"column '{path}' has the type {table.simpleString()} in the table, and {given.simpleString()} in the query"
        )
    return None


def field_notes(table: spark.StructType) -> Iterator[tuple[str, str, Any]]:
    """Each note (full column name, key, value) that the table's log keeps on a column."""
    stack: list[tuple[str, spark.DataType]] = [("", table)]
    while stack:
        path, kind = stack.pop()
        if isinstance(kind, spark.StructType):
            for field in kind.fields:
                name = f"{path}.{field.name}" if path else field.name
                for key, value in (field.metadata or {}).items():
                    yield name, key, value
                stack.append((name, field.dataType))
        elif isinstance(kind, spark.ArrayType):
            stack.append((f"{path}.element", kind.elementType))
        elif isinstance(kind, spark.MapType):
            stack += [(f"{path}.key", kind.keyType), (f"{path}.value", kind.valueType)]
