"""Avro schemas as Spark's types, and the values that fastavro gives as those that Arrow takes. Pure.

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

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T

Avro: TypeAlias = Any
"""A schema as JSON: a name, a list or an object."""

Convert: TypeAlias = Callable[[Any], Any] | None
"""Converts a value that is not null; None: it stays as it is."""

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
_MOST_DIGITS: Final = 38


class Unsupported(Exception):
    """A type that has no form in Spark; the text names its place."""


def spark_type(schema: Avro) -> tuple[T.DataType, Convert]:
    """The type of a schema, and the conversion of its values.

    Args:
        schema: self-contained, as JSON.

    Raises:
        Unsupported: a part of it has no form in Spark.
    """
    kind, _, convert = _Walk().of(schema, "", ())
    return kind, convert


def resolved(schema: Avro) -> Convert:
    """The conversion of values that were written with another schema and resolved to this one.

    fastavro gives a default as it is in the schema, and a number without the logical type that only this schema has.

    Raises:
        Unsupported: a part of the schema has no form in Spark.
    """
    return _Walk(resolved=True).of(schema, "", ())[2]


class _Walk:
    """Through a schema whose names are defined where they first occur.

    Args:
        resolved: whether values may be written with another schema.
    """

    def __init__(self, *, resolved: bool = False) -> None:
        self._named: dict[str, Avro] = {}
        self._resolved = resolved

    def of(self, schema: Avro, path: str, within: tuple[str, ...], space: str = "") -> tuple[T.DataType, bool, Convert]:
        """Type, whether it may be null, and conversion."""
        if isinstance(schema, list):
            return self._union(schema, path, within, space)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema], False, _OTHERS.get(schema) if self._resolved else None
            if schema == "null":
                raise Unsupported(f"{_at(path)} is always null")
            return self._reference(schema, path, within, space)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, path, within, space)
        if kind in ("record", "error"):
            return self._record(schema, path, within, space)
        if kind in ("enum", "fixed"):
            self._named[_full(schema, space)] = schema
        if kind == "enum":
            return T.StringType(), False, None
        if kind == "array":
            item, null, convert = self.of(schema["items"], f"{path}.element", within, space)
            return T.ArrayType(item, null), False, convert and (lambda value: [_of(convert, one) for one in value])
        if kind == "map":
            item, null, convert = self.of(schema["values"], f"{path}.value", within, space)
            # Arrow takes a map as pairs.
            return (
                T.MapType(T.StringType(), item, null),
                False,
                lambda value: [(key, _of(convert, one)) for key, one in value.items()],
            )
        return self._primitive(kind, schema, path, within, space)

    def _primitive(
        self, kind: str, schema: Mapping[str, Any], path: str, within: tuple[str, ...], space: str
    ) -> tuple[T.DataType, bool, Convert]:
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            digits, scale = schema["precision"], schema.get("scale", 0)
            if digits > _MOST_DIGITS:
                raise Unsupported(f"{_at(path)} is a decimal of {digits} digits, more than {_MOST_DIGITS}")
            return T.DecimalType(digits, scale), False, _decimals(scale) if self._resolved else None
        if kind == "fixed":
            return T.BinaryType(), False, _bytes if self._resolved or logical == "uuid" else None
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, str(logical)], False, _MOMENTS[str(logical)] if self._resolved else None
        if (kind, logical) == ("string", "uuid"):
            return T.StringType(), False, str
        if (kind, logical) == ("int", "time-millis"):
            return T.IntegerType(), False, lambda value: value if isinstance(value, int) else _of_day(value) // 1000
        if (kind, logical) == ("long", "time-micros"):
            return T.LongType(), False, lambda value: value if isinstance(value, int) else _of_day(value)
        return self.of(kind, path, within, space)

    def _record(
        self, schema: Mapping[str, Any], path: str, within: tuple[str, ...], space: str
    ) -> tuple[T.DataType, bool, Convert]:
        name = _full(schema, space)
        if name in within:
            raise Unsupported(f"{_at(path)} contains itself: the record {name}")
        self._named[name] = schema
        space = name.rpartition(".")[0]
        fields, converts = [], dict[str, Convert]()
        for field in schema["fields"]:
            kind, null, convert = self.of(field["type"], f"{path}.{field['name']}", (*within, name), space)
            fields.append(T.StructField(field["name"], kind, null))
            converts[field["name"]] = convert
        if not fields:
            raise Unsupported(f"{_at(path)} is a record without fields: {name}")
        if len({field.name.lower() for field in fields}) < len(fields):
            raise Unsupported(f"{_at(path)} is a record with names that differ in case only: {name}")
        defaults = {field["name"]: field["default"] for field in schema["fields"] if "default" in field}
        if self._resolved and defaults:
            # A record that is a default itself may leave out what has one.
            return (
                T.StructType(fields),
                False,
                lambda value: {
                    key: _of(one, value[key] if key in value else defaults[key]) for key, one in converts.items()
                },
            )
        if all(convert is None for convert in converts.values()):
            return T.StructType(fields), False, None
        return T.StructType(fields), False, lambda value: {key: _of(converts[key], one) for key, one in value.items()}

    def _reference(self, name: str, path: str, within: tuple[str, ...], space: str) -> tuple[T.DataType, bool, Convert]:
        for full in (name if "." in name or not space else f"{space}.{name}", name):
            if full in within:
                raise Unsupported(f"{_at(path)} contains itself: the record {full}")
            if full in self._named:
                return self.of(self._named[full], path, within, full.rpartition(".")[0])
        raise Unsupported(f"{_at(path)} has the unknown type {name}")

    def _union(
        self, schema: list[Avro], path: str, within: tuple[str, ...], space: str
    ) -> tuple[T.DataType, bool, Convert]:
        others = [one for one in schema if one != "null"]
        if len(others) == 2 and all(isinstance(one, str) for one in others):
            others = [_WIDER[frozenset(others)]] if frozenset(others) in _WIDER else others
        if len(others) != 1:
            raise Unsupported(f"{_at(path)} is a union of {len(others)} types")
        kind, _, convert = self.of(others[0], path, within, space)
        return kind, len(schema) > len(others) or "null" in schema, convert


def _full(schema: Mapping[str, Any], space: str) -> str:
    name: str = schema["name"]
    space = schema.get("namespace", space)
    return name if "." in name or not space else f"{space}.{name}"


def _of(convert: Convert, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _bytes(value: Any) -> Any:
    """Bytes, of a default in the schema too, whose characters stand for one byte each; of a uuid its 16."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value.encode("iso-8859-1") if isinstance(value, str) else value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID) else value


_OTHERS: Final[Mapping[str, Callable[[Any], Any]]] = {"bytes": _bytes, "string": _text}


def _decimals(scale: int) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, (str, bytes)):
            number = int.from_bytes(_bytes(value), "big", signed=True)
            return decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=2 * _MOST_DIGITS))
        return value

    return convert


def _moments(epoch: datetime.date, unit: str) -> Callable[[Any], Any]:
    one = datetime.timedelta(**{unit: 1})
    return lambda value: epoch + value * one if isinstance(value, int) else value


_UTC: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MOMENTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "date": _moments(datetime.date(1970, 1, 1), "days"),
    "timestamp-millis": _moments(_UTC, "milliseconds"),
    "timestamp-micros": _moments(_UTC, "microseconds"),
    "local-timestamp-millis": _moments(_UTC.replace(tzinfo=None), "milliseconds"),
    "local-timestamp-micros": _moments(_UTC.replace(tzinfo=None), "microseconds"),
}


def _of_day(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _at(path: str) -> str:
    return f"'{path.removeprefix('.')}'" if path else "the schema"
