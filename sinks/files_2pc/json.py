"""Rows as lines of JSON. Arrow turns simple columns into text, all rows at once; Python turns nested ones.

Timestamps as `2013-01-31T05:15:00.123456Z`; decimals as strings, because most readers take a JSON number for a double;
binary values in base64; NaN and infinities as strings.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import timezone
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as spark

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]

_TO_ESCAPE: Final = r'[\x00-\x1f"\\]'

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_lines(table: pa.Table, schema: spark.StructType) -> bytes:
    """The rows, one object per line with all fields."""
    import pyarrow.compute as pc

    pieces: list[pa.Array | pa.Scalar] = []
    for number, field in enumerate(schema.fields):
        name = _encode(field.name)
        pieces.append(_scalar(f"{'{' if number == 0 else ','}{name}:"))
        column = table.column(field.name).combine_chunks()
        pieces.append(pc.fill_null(_texts(column, field.dataType), _scalar("null")))
    lines = pc.binary_join_element_wise(*pieces, _scalar("}\n"), _scalar(""))
    offsets, data = lines.buffers()[1:]
    first, last = (memoryview(offsets).cast("q")[lines.offset + at] for at in (0, len(lines)))
    return memoryview(data)[first:last].tobytes() if data is not None else b""


def _texts(column: pa.Array, kind: spark.DataType) -> pa.Array:
    """A column as JSON values; null stays null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_string()
    if isinstance(kind, (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType, spark.BooleanType)):
        return column.cast(text)
    if isinstance(kind, (spark.FloatType, spark.DoubleType)) and pc.all(pc.is_finite(column)).as_py() is not False:
        texts = column.cast(text)
        # Readers take -0 for a whole number, which has no sign.
        return pc.if_else(pc.equal(texts, _scalar("-0")), _scalar("-0.0"), texts)
    if isinstance(kind, (spark.DecimalType, spark.DateType)):
        # Arrow writes small decimals with an exponent, which Spark's readers accept.
        return _quoted(column.cast(text))
    if isinstance(kind, spark.TimestampType):
        return _quoted(pc.strftime(column.cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%SZ").cast(text))
    if isinstance(kind, spark.TimestampNTZType):
        return _quoted(pc.strftime(column, "%Y-%m-%dT%H:%M:%S").cast(text))
    if (
        isinstance(kind, (spark.StringType, spark.CharType, spark.VarcharType))
        and pc.any(pc.match_substring_regex(column, _TO_ESCAPE)).as_py() is not True
    ):
        return _quoted(column.cast(text))
    convert = converter(kind) or _same
    return pa.array(
        [None if value is None else _encode(convert(value)) for value in column.to_pylist()], pa.large_string()
    )


def _quoted(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(_scalar('"'), texts, _scalar('"'), _scalar(""))


def _scalar(text: str) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(text, pa.large_string())


def converter(kind: spark.DataType) -> Convert | None:
    """Converts values of a type to JSON; None if no conversion is needed."""
    made = _convert_value(kind)
    return None if made is None else (lambda value: None if value is None else made(value))


def _convert_value(kind: spark.DataType) -> Convert | None:
    if isinstance(kind, spark.DecimalType):
        return lambda value: format(value, "f")
    if isinstance(kind, spark.BinaryType):
        return lambda value: base64.b64encode(value).decode()
    if isinstance(kind, spark.DateType):
        return lambda value: value.isoformat()
    if isinstance(kind, spark.TimestampType):
        return lambda value: (
            value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        )
    if isinstance(kind, spark.TimestampNTZType):
        return lambda value: value.isoformat(timespec="microseconds")
    if isinstance(kind, (spark.FloatType, spark.DoubleType)):
        return _finite
    if isinstance(kind, spark.ArrayType):
        element = converter(kind.elementType)
        return None if element is None else (lambda value: [element(item) for item in value])
    if isinstance(kind, spark.MapType):
        inner = converter(kind.valueType) or _same
        return lambda value: {key: inner(item) for key, item in value}
    if isinstance(kind, spark.StructType):
        fields = [(field.name, converter(field.dataType) or _same) for field in kind.fields]
        return lambda value: {name: convert(value[name]) for name, convert in fields}
    return None


def _same(value: Any) -> Any:
    return value


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
