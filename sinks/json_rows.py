"""Rows as JSON: one line per row, the same on every machine and in every attempt. Pure functions.

| Spark | JSON |
|---|---|
| byte, short, int, long, boolean, string | number, boolean, string |
| float, double | number; the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, for which JSON has no numbers |
| decimal | string with all digits, so that no reader rounds it |
| binary | string, Base64 |
| date, timestamp, timestamp_ntz | string, ISO 8601 with microseconds; timestamps in UTC, with a `Z` |
| struct, array | object, array |
| map | object if its keys are strings; else an array of `{"key": ..., "value": ...}` |
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import types as spark

from spark_ext.errors import DataError, refused
from spark_ext.schemas.arrow import arrow_type

ToJson: TypeAlias = Callable[[Any], Any] | None  # From a value of `to_pylist`; None: no conversion is needed
_DO = "cast, rename or drop the column in the query"

_AS_THEY_ARE = (
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.BooleanType,
    spark.StringType,
    spark.CharType,
    spark.VarcharType,
    spark.NullType,
)


def check_types(schema: spark.StructType, who: str) -> None:
    """Refuse types without a JSON form, before any row moves."""
    _of_fields(schema, "", who)


class JsonRows:
    """Converts rows of a schema to lines."""

    def __init__(self, schema: spark.StructType, who: str) -> None:
        self._who = who
        self._names = schema.names
        self._converters = _of_fields(schema, "", who)
        # Spark sends times in the session's zone, in which the first and last hours of all years can be out of range.
        self._types = [arrow_type(field.dataType) for field in schema.fields]
        # One encoder for all rows: `json.dumps` would check its arguments again for each row.
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

    def lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        """The rows of a batch, without line ends."""
        columns = [
            self._column(name, convert, column if column.type == kind else column.cast(kind))
            for name, convert, kind, column in zip(
                self._names, self._converters, self._types, batch.columns, strict=True
            )
        ]
        if not columns:
            yield from ("{}" for _ in range(batch.num_rows))
        for values in zip(*columns, strict=True):
            yield self._encode(dict(zip(self._names, values, strict=True)))

    def _column(self, name: str, convert: ToJson, column: pa.Array) -> list[Any]:
        try:
            values: list[Any] = column.to_pylist()
        except (OverflowError, ValueError) as problem:
            raise DataError(
                f"column '{name}' has a date or time outside the years 1 to 9999, which ISO 8601 cannot represent",
                operator=self._who,
                kept="nothing of this epoch was sent",
                do=f"filter or clip '{name}' in the query, or cast it to a number",
            ) from problem
        return values if convert is None else [None if value is None else convert(value) for value in values]


def _of_fields(schema: spark.StructType, path: str, who: str) -> list[ToJson]:
    seen: set[str] = set()
    for field in schema.fields:
        if field.name in seen:
            raise refused(f"column '{path}{field.name}' occurs twice; a JSON object has each name once", who, _DO)
        seen.add(field.name)
    return [converter(field.dataType, f"{path}{field.name}", who) for field in schema.fields]


def converter(kind: spark.DataType, path: str, who: str) -> ToJson:
    """The conversion of a type's values to JSON; the caller handles nulls."""
    if isinstance(kind, _AS_THEY_ARE):
        return None
    if isinstance(kind, (spark.FloatType, spark.DoubleType)):
        return _number
    if isinstance(kind, spark.DecimalType):
        return _decimal
    if isinstance(kind, spark.BinaryType):
        return _bytes
    if isinstance(kind, spark.DateType):
        return datetime.date.isoformat
    if isinstance(kind, spark.TimestampType):
        return _instant
    if isinstance(kind, spark.TimestampNTZType):
        return _local
    if isinstance(kind, spark.StructType):
        return _struct(kind, path, who)
    if isinstance(kind, spark.ArrayType):
        return _array(converter(kind.elementType, f"{path}.element", who))
    if isinstance(kind, spark.MapType):
        return _map(kind, path, who)
    raise refused(f"column '{path}' has the type {kind.simpleString()}, which has no JSON form here", who, _DO)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _instant(value: datetime.datetime) -> str:
    return _local(value.astimezone(datetime.timezone.utc).replace(tzinfo=None)) + "Z"


def _local(value: datetime.datetime) -> str:
    return value.isoformat(timespec="microseconds")


def _struct(kind: spark.StructType, path: str, who: str) -> ToJson:
    fields = list(zip(kind.names, _of_fields(kind, f"{path}.", who), strict=True))
    if all(convert is None for _, convert in fields):
        return None
    return lambda value: {name: converted(convert, value[name]) for name, convert in fields}


def _array(convert: ToJson) -> ToJson:
    return None if convert is None else lambda value: [converted(convert, element) for element in value]


def _map(kind: spark.MapType, path: str, who: str) -> ToJson:
    key = converter(kind.keyType, f"{path}.key", who)
    item = converter(kind.valueType, f"{path}.value", who)
    if isinstance(kind.keyType, (spark.StringType, spark.CharType, spark.VarcharType)):
        return lambda value: {name: converted(item, one) for name, one in value}
    return lambda value: [{"key": converted(key, name), "value": converted(item, one)} for name, one in value]


def converted(convert: ToJson, value: Any) -> Any:
    """A value as JSON."""
    return value if convert is None or value is None else convert(value)
