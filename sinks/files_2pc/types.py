"""The types that each file format supports, so that a reader gets back what was written. Pure functions.

A type that a format does not support is refused at the start, with the column's full name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as spark

from spark_ext.errors import refused
from spark_ext.schemas.parquet_types import SIMPLE, check_names, check_partitions

_BAD_IN_PARQUET: Final = frozenset(" ,;{}()\n\t=")
"""Characters in column names that older Parquet readers refuse."""


_DIGITS: Final = frozenset("0123456789-")

_WITHOUT_QUOTES: Final[tuple[tuple[type[spark.DataType], frozenset[str]], ...]] = (
    (spark.BooleanType, frozenset("truefals")),
    (spark.DateType, _DIGITS),
    (spark.TimestampType, _DIGITS | frozenset(" :.Z")),
    (spark.TimestampNTZType, _DIGITS | frozenset(" :.")),
    (spark.NumericType, _DIGITS | frozenset("+.eEinfa")),
)
"""The characters that values of a type may have in CSV, where only strings are in quotes."""


def check(schema: spark.StructType, kind: str, partition_by: Sequence[str], who: str, sep: str = ",") -> None:
    """Refuse a schema that files of a kind, `parquet`, `csv` or `json`, do not support."""
    check_names(schema, who)
    check_partitions(schema, partition_by, who)
    kept = [field for field in schema.fields if field.name not in partition_by]
    for field in kept:
        found = _misfit(field.name, field.dataType, kind)
        if found:
            raise refused(found, who, "cast it, drop it in the query, or choose another format")
    if kind == "csv" and len(kept) == 1 and kept[0].nullable:
        what = f"column '{kept[0].name}' is the only one in its files and may be null: CSV readers skip empty lines"
        raise refused(what, who, "add a column, make it not nullable (coalesce), or choose another format")
    inside = next((field for field in kept if kind == "csv" and sep in _characters(field.dataType)), None)
    if inside is not None:
        what = (
            f"option 'sep': {sep!r} may be part of a value of column '{inside.name}' ({inside.dataType.simpleString()})"
        )
        raise refused(f"{what}, and only strings are in quotes", who, "choose another separator")


def _characters(kind: spark.DataType) -> frozenset[str]:
    """What values of a type may consist of outside of quotes."""
    return next((found for one, found in _WITHOUT_QUOTES if isinstance(kind, one)), frozenset())


def _misfit(path: str, kind: spark.DataType, form: str) -> str | None:
    """What is wrong with a column, nested ones included."""
    unsupported = f"column '{path}' has the type {kind.simpleString()}, which {form} does not support"
    if form == "parquet" and _BAD_IN_PARQUET.intersection(path):
        return f"column name '{path}' has a character that Parquet readers reject (one of ' ,;{{}}()=' or a tab)"
    if isinstance(kind, (*SIMPLE, spark.NullType)):
        return None
    if isinstance(kind, spark.BinaryType):
        return unsupported if form == "csv" else None
    if form == "csv":
        return unsupported
    if isinstance(kind, spark.ArrayType):
        return _misfit(f"{path}.element", kind.elementType, form)
    if isinstance(kind, spark.MapType):
        if form == "json" and not isinstance(kind.keyType, spark.StringType):
            return f"{unsupported}: its keys have to be strings"
        return _misfit(f"{path}.key", kind.keyType, form) or _misfit(f"{path}.value", kind.valueType, form)
    if isinstance(kind, spark.StructType):
        if not kind.fields:
            return unsupported
        wrong = (_misfit(f"{path}.{field.name}", field.dataType, form) for field in kind.fields)
        return next(filter(None, wrong), None)
    return unsupported
