"""Which types each file format can hold, so that a reader gets back what was written. Pure functions.

What a format cannot hold is refused at the start, by the column's full name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as spark

from spark_ext.errors import ConfigurationError

_SIMPLE: Final = (
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

_BAD_IN_PARQUET: Final = frozenset(" ,;{}()\n\t=")
"""Characters in column names that older Parquet readers refuse."""


def check(schema: spark.StructType, kind: str, partition_by: Sequence[str], who: str) -> None:
    """Refuse a schema that files of a kind cannot hold.

    Args:
        schema: the rows'.
        kind: `parquet`, `csv` or `json`.
        partition_by: the partition columns.
        who: the sink, for messages.

    Raises:
        ConfigurationError: names the column and its type.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    seen: dict[str, str] = {}
    for name in schema.fieldNames():
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise _refused(
                f"columns '{other}' and '{name}' differ in case only", who, "rename one of them in the query"
            )
    for name in partition_by:
        if name not in kinds:
            told = f"partition column '{name}' is not a column of the query; it has: {', '.join(kinds)}"
            raise _refused(told, who, "correct the option 'partition_by'")
        if not isinstance(kinds[name], _SIMPLE):
            told = f"partition column '{name}' has the type {kinds[name].simpleString()}, which has no place in a path"
            raise _refused(told, who, "partition by a column of a simple type")
    kept = [field for field in schema.fields if field.name not in partition_by]
    if not kept:
        raise _refused("no column is left for the files", who, "leave at least one column out of 'partition_by'")
    for field in kept:
        found = _misfit(field.name, field.dataType, kind)
        if found:
            raise _refused(found, who, "cast it, drop it in the query, or choose another format")
    if kind == "csv" and len(kept) == 1 and kept[0].nullable:
        told = f"column '{kept[0].name}' is alone in its file and may be null: readers of csv pass over empty lines"
        raise _refused(told, who, "add a column, make it not nullable (coalesce), or choose another format")


def _misfit(path: str, kind: spark.DataType, form: str) -> str | None:
    """What is wrong with a column, nested ones included."""
    told = f"column '{path}' has the type {kind.simpleString()}, which {form} does not hold"
    if form == "parquet" and _BAD_IN_PARQUET.intersection(path):
        return f"column name '{path}' has a character that readers of parquet refuse (one of ' ,;{{}}()=' or a tab)"
    if isinstance(kind, spark.StringType) and not kind.isUTF8BinaryCollation():
        return f"column '{path}' has a collation, which {form} does not hold"
    if isinstance(kind, _SIMPLE):
        return None
    if isinstance(kind, spark.BinaryType):
        return told if form == "csv" else None
    if form == "csv":
        return told
    if isinstance(kind, spark.ArrayType):
        return _misfit(f"{path}.element", kind.elementType, form)
    if isinstance(kind, spark.MapType):
        if form == "json" and not isinstance(kind.keyType, spark.StringType):
            return f"{told}: its keys have to be texts"
        return _misfit(f"{path}.key", kind.keyType, form) or _misfit(f"{path}.value", kind.valueType, form)
    if isinstance(kind, spark.StructType):
        if not kind.fields:
            return told
        wrong = (_misfit(f"{path}.{field.name}", field.dataType, form) for field in kind.fields)
        return next(filter(None, wrong), None)
    return told


def _refused(what: str, who: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, operator=who, kept="nothing was written", do=do)
