"""Parses the column lists that sources give as text; Spark's own parser needs a running JVM."""

from __future__ import annotations

import re

from pyspark.sql import types as T

_NAMES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "byte": T.ByteType(),
    "smallint": T.ShortType(),
    "short": T.ShortType(),
    "int": T.IntegerType(),
    "integer": T.IntegerType(),
    "bigint": T.LongType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "real": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}


def columns(text: str) -> T.StructType:
    """`"id bigint, tags array<string> not null"` as a schema."""
    fields = []
    for part in _parts(text):
        match = re.fullmatch(r"`?(\w+)`?\s*[:\s]\s*(.+?)(\s+not\s+null)?", part, re.IGNORECASE)
        if match is None:
            raise ValueError(f"not a column: {part!r}")
        fields.append(T.StructField(match[1], _type(match[2]), nullable=match[3] is None))
    return T.StructType(fields)


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()] if current.strip() else parts


def _type(text: str) -> T.DataType:
    name = text.strip().lower()
    if name in _NAMES:
        return _NAMES[name]
    inner = text[text.find("<") + 1 : text.rfind(">")]
    if name.startswith("array<"):
        return T.ArrayType(_type(inner))
    if name.startswith("map<"):
        key, value = _parts(inner)
        return T.MapType(_type(key), _type(value))
    if name.startswith("struct<"):
        return columns(inner)
    if match := re.fullmatch(r"(?:decimal|dec|numeric)\((\d+)(?:,\s*(\d+))?\)", name):
        return T.DecimalType(int(match[1]), int(match[2] or 0))
    if name in ("decimal", "dec", "numeric"):
        return T.DecimalType(10, 0)
    raise ValueError(f"not a type: {text!r}")
