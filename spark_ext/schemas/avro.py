"""Avro schemas as Spark's types. Pure.

| Avro | Spark |
|---|---|
| null with one other type | that type, nullable |
| boolean, int, long, float, double, string, bytes | the same |
| int and long, float and double in a union | long, double |
| enum, uuid | string |
| fixed | binary |
| decimal | decimal |
| date, timestamp-millis, timestamp-micros | date, timestamp |
| local-timestamp-millis, local-timestamp-micros | timestamp_ntz |
| time-millis, time-micros | int, long: since midnight |
| array, map, record | array, map of strings, struct |

This is what Spark's own Avro source does, except for other unions, which are refused, and times of day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T

Avro: TypeAlias = Any
"""A schema as JSON: a name, a list or an object."""

_PLAIN: Final[Mapping[str, T.DataType]] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "bytes": T.BinaryType(),
}
_LOGICAL: Final[Mapping[tuple[str, str], T.DataType]] = {
    ("int", "date"): T.DateType(),
    ("long", "timestamp-millis"): T.TimestampType(),
    ("long", "timestamp-micros"): T.TimestampType(),
    ("long", "local-timestamp-millis"): T.TimestampNTZType(),
    ("long", "local-timestamp-micros"): T.TimestampNTZType(),
}
_WIDER: Final[Mapping[frozenset[str], str]] = {
    frozenset({"int", "long"}): "long",
    frozenset({"float", "double"}): "double",
}
MOST_DIGITS: Final = 38
"""Of a decimal."""
MOST_PARTS: Final = 10_000
"""Of a type: records that refer to others are repeated with each reference, so a short schema can have billions."""
MOST_LEVELS: Final = 100
"""Of types within types."""


class Unsupported(Exception):
    """A type that has no form in Spark; the text names its place."""


class Size:
    """How large a type has become, part by part."""

    def __init__(self) -> None:
        self._parts = 0

    def add(self, path: str) -> None:
        """A part, at a path with a dot before each name."""
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise Unsupported(f"it has more than {MOST_PARTS} parts")
        if path.count(".") > MOST_LEVELS:
            raise Unsupported(f"{place(path[:80])} has more than {MOST_LEVELS} types within one another")


def spark_type(schema: Avro) -> T.DataType:
    """The type of a schema."""
    try:
        return _Walk().of(schema, "", ())[0]
    except RecursionError:
        raise Unsupported("it is nested too deeply") from None


class _Walk:
    """Through a schema whose names are defined where they first occur."""

    def __init__(self) -> None:
        self._named: dict[str, Avro] = {}
        self._size = Size()

    def of(self, schema: Avro, path: str, within: tuple[str, ...], space: str = "") -> tuple[T.DataType, bool]:
        """Type, and whether it may be null."""
        self._size.add(path)
        if isinstance(schema, list):
            return self._union(schema, path, within, space)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema], False
            if schema == "null":
                raise Unsupported(f"{place(path)} is always null")
            return self._reference(schema, path, within, space)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, path, within, space)
        if kind in ("record", "error"):
            return self._record(schema, path, within, space), False
        if kind in ("enum", "fixed"):
            self._named[_full(schema, space)] = schema
        if kind == "enum":
            return T.StringType(), False
        if kind == "array":
            return T.ArrayType(*self.of(schema["items"], f"{path}.element", within, space)), False
        if kind == "map":
            return T.MapType(T.StringType(), *self.of(schema["values"], f"{path}.value", within, space)), False
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            digits, scale = schema["precision"], schema.get("scale", 0)
            if digits > MOST_DIGITS:
                raise Unsupported(f"{place(path)} is a decimal of {digits} digits, more than {MOST_DIGITS}")
            return T.DecimalType(digits, scale), False
        if kind == "fixed":
            return T.BinaryType(), False
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, str(logical)], False
        return self.of(kind, path, within, space)

    def _record(self, schema: Mapping[str, Any], path: str, within: tuple[str, ...], space: str) -> T.DataType:
        name = _full(schema, space)
        if name in within:
            raise Unsupported(f"{place(path)} contains itself: the record {name}")
        self._named[name] = schema
        space = name.rpartition(".")[0]
        fields = [
            T.StructField(field["name"], *self.of(field["type"], f"{path}.{field['name']}", (*within, name), space))
            for field in schema["fields"]
        ]
        if not fields:
            raise Unsupported(f"{place(path)} is a record without fields: {name}")
        if len({field.name.lower() for field in fields}) < len(fields):
            raise Unsupported(f"{place(path)} is a record with names that differ in case only: {name}")
        return T.StructType(fields)

    def _reference(self, name: str, path: str, within: tuple[str, ...], space: str) -> tuple[T.DataType, bool]:
        for full in (name if "." in name or not space else f"{space}.{name}", name):
            if full in within:
                raise Unsupported(f"{place(path)} contains itself: the record {full}")
            if full in self._named:
                return self.of(self._named[full], path, within, full.rpartition(".")[0])
        raise Unsupported(f"{place(path)} has the unknown type {name}")

    def _union(self, schema: list[Avro], path: str, within: tuple[str, ...], space: str) -> tuple[T.DataType, bool]:
        others = [one for one in schema if one != "null"]
        if len(others) == 2 and all(isinstance(one, str) for one in others):
            others = [_WIDER[frozenset(others)]] if frozenset(others) in _WIDER else others
        if len(others) != 1:
            raise Unsupported(f"{place(path)} is a union of {len(others)} types")
        return self.of(others[0], path, within, space)[0], len(schema) > len(others) or "null" in schema


def _full(schema: Mapping[str, Any], space: str) -> str:
    name: str = schema["name"]
    space = schema.get("namespace", space)
    return name if "." in name or not space else f"{space}.{name}"


def place(path: str) -> str:
    """A path with a dot before each name, for messages."""
    return f"'{path.removeprefix('.')}'" if path else "the schema"
