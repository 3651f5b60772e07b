"""Checks of the columns that a sink of files is given, whatever the format of the files. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as spark

from spark_ext.errors import refused

SIMPLE: Final = (
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
"""Types whose values have a plain text form, and can therefore be part of a path."""


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
