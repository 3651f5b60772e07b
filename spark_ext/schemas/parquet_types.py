"""Spark's types as Delta and Parquet store them: what a reader would see differently is refused by full name. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import types as spark

from spark_ext.errors import refused

SIMPLE: Final = (  # types whose values have a plain text form, and can therefore be part of a path
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.BooleanType,
    spark.StringType,
    spark.CharType,
    spark.VarcharType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")  # which Delta rejects because old Parquet readers do
_STORED = (*SIMPLE, spark.BinaryType, spark.ArrayType, spark.MapType)


def check_input(schema: spark.StructType, partition_by: Sequence[str], who: str) -> None:
    """Refuse a schema that cannot be stored in any table."""
    check_names(schema, who)
    for path, kind in _walk(schema, ""):
        reason = _unstorable(kind)
        if reason:
            raise refused(
                f"column '{path}' has the type {kind.simpleString()}, which {reason}",
                who,
                f"cast '{path}' to a type that Delta stores, or drop it in the query",
            )
        bad = _BAD_NAME.search(path)
        if bad:
            raise refused(
                f"column name '{path}' contains {bad.group()!r}, which Delta does not allow",
                who,
                "rename the column in the query, for example with .alias()",
            )
    check_partitions(schema, partition_by, who)


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


def has_local_times(kind: spark.DataType, only_in_maps: bool = False) -> bool:
    """Whether a type is, or contains, `timestamp_ntz`, for which a table needs a feature."""
    # delta-rs does not find those in a map, `only_in_maps`.
    if only_in_maps:
        return any(isinstance(one, spark.MapType) and has_local_times(one) for _, one in _walk(kind, "c"))
    return any(isinstance(one, spark.TimestampNTZType) for _, one in _walk(kind, "c"))


def _unstorable(kind: spark.DataType) -> str | None:
    if isinstance(kind, spark.StringType):
        return None if kind.isUTF8BinaryCollation() else "has a collation that this sink does not write"
    if isinstance(kind, spark.StructType):
        return None if kind.fields else "has no fields, so Parquet cannot store it"
    if isinstance(kind, _STORED):
        return None
    if isinstance(kind, spark.VariantType):
        return "needs the table feature variantType, which this sink does not write"
    return "Delta does not store"


def table_schema(schema: spark.StructType) -> spark.StructType:
    """The schema of a new table for these rows."""
    # Everything is nullable, as with Spark's own writer, and Spark's column metadata (the watermark delay) is left out.
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
    """A table's schema in Spark's types, from the JSON in its log."""
    return spark.StructType.fromJson(json.loads(schema_json))


@dataclass(frozen=True)
class Fit:
    """How the schema of rows fits that of a table."""

    misfit: str | None = None  # what is wrong: column, expected type, given type; None if they fit
    new: tuple[spark.StructField, ...] = ()  # top-level columns that the table does not have


def fit(given: spark.StructType, table: spark.StructType, without_nulls: Collection[str] = ()) -> Fit:
    """Compare the schema of rows with that of a table. Columns match by exact name, in any order."""
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
        nullable = field.nullable and field.name not in without_nulls
        if wrong is None and nullable and not known[field.name].nullable:
            wrong = f"column '{field.name}' may be null in the query, but not in the table"
        if wrong:
            return Fit(wrong)
    names = {field.name for field in given.fields}
    for field in table.fields:
        if field.name not in names and not field.nullable:
            return Fit(f"column '{field.name}' may not be null in the table, and the query does not have it")
    return Fit(new=tuple(new))


def _compare(path: str, given: spark.DataType, table: spark.DataType) -> str | None:
    if isinstance(given, spark.StructType) and isinstance(table, spark.StructType):
        inner = fit(given, table)
        if inner.misfit:
            return f"in column '{path}': {inner.misfit}"
        what = "is not in the table, and a field inside a column cannot be added"
        return f"column '{path}.{inner.new[0].name}' {what}" if inner.new else None
    if isinstance(given, spark.ArrayType) and isinstance(table, spark.ArrayType):
        if given.containsNull and not table.containsNull:
            return f"elements of '{path}' may be null in the query, but not in the table"
        return _compare(f"{path}.element", given.elementType, table.elementType)
    if isinstance(given, spark.MapType) and isinstance(table, spark.MapType):
        if given.valueContainsNull and not table.valueContainsNull:
            return f"values of '{path}' may be null in the query, but not in the table"
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
    """Each entry of column metadata (full column name, key, value) in a table's schema."""
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


def check_names(kind: spark.DataType, who: str, path: str = "") -> None:
    """Refuse columns, and fields at any depth, that most readers cannot tell apart."""
    if isinstance(kind, spark.ArrayType):
        check_names(kind.elementType, who, f"{path}element.")
    elif isinstance(kind, spark.MapType):
        check_names(kind.keyType, who, f"{path}key.")
        check_names(kind.valueType, who, f"{path}value.")
    elif isinstance(kind, spark.StructType):
        seen: dict[str, str] = {}
        for field in kind.fields:
            name = f"{path}{field.name}"
            if (other := seen.setdefault(name.lower(), name)) is not name:
                what = f"columns '{other}' and '{name}' differ in case only"
                raise refused(what, who, "rename one of them in the query")
            check_names(field.dataType, who, f"{name}.")


def check_partitions(schema: spark.StructType, partition_by: Sequence[str], who: str) -> None:
    """Refuse partition columns that cannot be used."""
    kinds = {field.name: field.dataType for field in schema.fields}
    for name in partition_by:
        if name not in kinds:
            raise refused(
                f"partition column '{name}' is not a column of the query; it has: {', '.join(kinds)}",
                who,
                "correct the option 'partition_by'",
            )
        if not isinstance(kinds[name], SIMPLE):
            raise refused(
                f"partition column '{name}' has the type {kinds[name].simpleString()}, which a path cannot hold",
                who,
                "partition by a column of a simple type",
            )
    if set(kinds) <= set(partition_by):
        raise refused(
            "no column is left for the files: all are partition columns",
            who,
            "leave at least one column out of 'partition_by'",
        )
