"""A schema with every type that Spark stores in tables, and rows of it: extreme values, nested values, and nulls.

A sink that cannot store all types leaves some out of its `SinkTarget.types`, with `without`.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

UTC = datetime.timezone.utc

EVERY_TYPE = T.StructType(
    [
        T.StructField("byte", T.ByteType()),
        T.StructField("short", T.ShortType()),
        T.StructField("int", T.IntegerType()),
        T.StructField("long", T.LongType(), False),
        T.StructField("float", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("small", T.DecimalType(7, 2)),
        T.StructField("medium", T.DecimalType(18, 6)),
        T.StructField("large", T.DecimalType(38, 18)),
        T.StructField("text", T.StringType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("bool", T.BooleanType()),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("list", T.ArrayType(T.ArrayType(T.IntegerType(), False))),
        T.StructField("map", T.MapType(T.StringType(), T.StructType([T.StructField("x", T.DoubleType())]))),
        T.StructField(
            "nested",
            T.StructType(
                [
                    T.StructField("a", T.LongType(), False),
                    T.StructField("b", T.StructType([T.StructField("c", T.DecimalType(20, 4))])),
                    T.StructField("times", T.ArrayType(T.TimestampType())),
                ]
            ),
        ),
    ]
)


def without(*names: str) -> T.StructType:
    """The schema without some of its columns.

    Raises:
        ValueError: no such column.
    """
    unknown = set(names) - set(EVERY_TYPE.fieldNames())
    if unknown:
        raise ValueError(
            f"not columns of EVERY_TYPE: {sorted(unknown)}; the columns are: {', '.join(EVERY_TYPE.fieldNames())}"
        )
    return T.StructType([field for field in EVERY_TYPE.fields if field.name not in names])


def moment(year: int, micro: int = 123_456) -> datetime.datetime:
    """The last day of January of a year, to the microsecond, UTC."""
    return datetime.datetime(year, 1, 31, 5, 15, 0, micro, UTC)


def row(number: int) -> dict[str, Any]:
    """A row without nulls, in which `long` is the number, from 1 to 399."""
    return {
        "byte": number % 100,
        "short": -number,
        "int": number * 1000,
        "long": number,
        "float": number / 4,
        "double": -number / 3,
        "small": Decimal(number).scaleb(-2),
        "medium": Decimal(-number).scaleb(-6),
        "large": Decimal(number * 10**20 + 1).scaleb(-18),
        "text": f"ä{number}€\U0001f600" * 9,
        "bytes": bytes([number % 256]),
        "bool": number % 2 == 0,
        "day": datetime.date(1500 + number, 1, 31),
        "at": moment(1500 + number),
        "local": moment(1500 + number).replace(tzinfo=None),
        "list": [[number], [], None],
        "map": {"k": {"x": float(number)}, "none": None},
        "nested": {"a": number, "b": {"c": Decimal(number).scaleb(-4)}, "times": [moment(2000), None]},
    }


def empty(number: int) -> dict[str, Any]:
    """A row of nulls, except for `long`, which is not nullable."""
    return {**dict.fromkeys(EVERY_TYPE.fieldNames()), "long": number}
