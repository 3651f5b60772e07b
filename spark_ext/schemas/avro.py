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

This is what Spark's own Avro source does, except for other unions, which are refused, and times of day. What the types
of Avro files become in Arrow is in `spark_ext.sources.files.avro`; `Walk` is for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pyspark.sql import types as T

Avro: TypeAlias = Any  # a schema as JSON: a name, a list or an object
_WIDER: Final[Mapping[frozenset[str], str]] = {
    frozenset({"int", "long"}): "long",
    frozenset({"float", "double"}): "double",
}
MOST_DIGITS: Final = 38  # of a decimal
MOST_PARTS: Final = 10_000  # of a type: records are repeated with each reference, so a short schema can have billions
MOST_LEVELS: Final = 100  # types within one another


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


D = TypeVar("D")


@dataclass(frozen=True)
class Target(Generic[D]):
    """What Avro's types become in another type system."""

    plain: Mapping[str, D]
    logical: Mapping[tuple[str, str], D]  # by type and logical type; others are passed over
    decimal: Callable[[int, int], D]
    array: Callable[[D, bool], D]  # of the elements' type, and whether they may be null; a map likewise
    map: Callable[[D, bool], D]
    record: Callable[[Sequence[tuple[str, D, bool]], str], D]  # of the fields, and a text for messages; may refuse them


class Walk(Generic[D]):
    """Through a schema whose names are defined where they first occur."""

    def __init__(self, target: Target[D]) -> None:
        self._target = target
        self._named: dict[str, Avro] = {}
        self._size = Size()

    def columns(self, record: Mapping[str, Any]) -> Iterator[tuple[str, D | Unsupported]]:
        """The type of each field of a record, or why it has none; the limits hold for each by itself."""
        name = self._name(record, "")
        for field in record["fields"]:
            self._size = Size()
            try:
                found, _ = self.of(field["type"], f".{field['name']}", (name,), name.rpartition(".")[0])
            except RecursionError:
                yield field["name"], Unsupported("it is nested too deeply")
            except Unsupported as problem:
                yield field["name"], problem
            else:
                yield field["name"], found

    def of(self, schema: Avro, path: str, within: tuple[str, ...], space: str = "") -> tuple[D, bool]:
        """Type, and whether it may be null."""
        self._size.add(path)
        if isinstance(schema, list):
            return self._union(schema, path, within, space)
        if isinstance(schema, str):
            return self._reference(schema, path, within, space)
        kind, logical = schema.get("type"), schema.get("logicalType")
        if isinstance(kind, (dict, list)):
            return self.of(kind, path, within, space)
        if kind in ("record", "error"):
            return self._record(schema, path, within, space), False
        if kind in ("enum", "fixed"):
            self._name(schema, space)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return self._decimal(schema, path), False
        if kind == "array":
            return self._target.array(*self.of(schema["items"], f"{path}.element", within, space)), False
        if kind == "map":
            return self._target.map(*self.of(schema["values"], f"{path}.value", within, space)), False
        if (kind, logical) in self._target.logical:
            return self._target.logical[str(kind), str(logical)], False
        plain = {"enum": "string", "fixed": "bytes"}.get(str(kind), str(kind))
        return self._reference(plain, path, within, space)

    def _name(self, schema: Mapping[str, Any], space: str) -> str:
        name = str(schema.get("name", ""))
        space = schema.get("namespace", space)
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = schema
        return full

    def _decimal(self, schema: Mapping[str, Any], path: str) -> D:
        digits, scale = schema.get("precision", 0), schema.get("scale", 0)
        if digits > MOST_DIGITS:
            raise Unsupported(f"{place(path)} is a decimal of {digits} digits, more than {MOST_DIGITS}")
        if not 0 <= scale <= digits or not digits:
            raise Unsupported(f"{place(path)} is a decimal of precision {digits} and scale {scale}")
        return self._target.decimal(digits, scale)

    def _record(self, schema: Mapping[str, Any], path: str, within: tuple[str, ...], space: str) -> D:
        name = self._name(schema, space)
        if name in within:
            raise Unsupported(f"{place(path)} contains itself: the record {name}")
        space, within = name.rpartition(".")[0], (*within, name)
        # The fields one after the other: a name may stand for the type of an earlier one.
        fields = [
            (field["name"], *self.of(field["type"], f"{path}.{field['name']}", within, space))
            for field in schema["fields"]
        ]
        return self._target.record(fields, f"{place(path)} is the record {name}")

    def _reference(self, name: str, path: str, within: tuple[str, ...], space: str) -> tuple[D, bool]:
        if name in self._target.plain:
            return self._target.plain[name], name == "null"
        if name == "null":
            raise Unsupported(f"{place(path)} is always null")
        for full in (name if "." in name or not space else f"{space}.{name}", name):
            if full in within:
                raise Unsupported(f"{place(path)} contains itself: the record {full}")
            if full in self._named:
                return self.of(self._named[full], path, within, full.rpartition(".")[0])
        raise Unsupported(f"{place(path)} has the unknown type {name}")

    def _union(self, schema: list[Avro], path: str, within: tuple[str, ...], space: str) -> tuple[D, bool]:
        others = [one for one in schema if one != "null"]
        if len(others) == 2 and all(isinstance(one, str) for one in others):
            others = [_WIDER[frozenset(others)]] if frozenset(others) in _WIDER else others
        if not others:
            return self._reference("null", path, within, space)
        if len(others) > 1:
            raise Unsupported(f"{place(path)} is a union of {len(others)} types")
        return self.of(others[0], path, within, space)[0], len(schema) > len(others) or "null" in schema


def place(path: str) -> str:
    """A path with a dot before each name, for messages."""
    return f"'{path.removeprefix('.')}'" if path else "the schema"


def _struct(fields: Sequence[tuple[str, T.DataType, bool]], what: str) -> T.DataType:
    if not fields:
        raise Unsupported(f"{what}, which has no fields")
    if len({name.lower() for name, _, _ in fields}) < len(fields):
        raise Unsupported(f"{what}, which has names that differ in case only")
    return T.StructType([T.StructField(*field) for field in fields])


_SPARK: Final = Target[T.DataType](
    {
        "boolean": T.BooleanType(),
        "int": T.IntegerType(),
        "long": T.LongType(),
        "float": T.FloatType(),
        "double": T.DoubleType(),
        "string": T.StringType(),
        "bytes": T.BinaryType(),
    },
    {
        ("int", "date"): T.DateType(),
        ("long", "timestamp-millis"): T.TimestampType(),
        ("long", "timestamp-micros"): T.TimestampType(),
        ("long", "local-timestamp-millis"): T.TimestampNTZType(),
        ("long", "local-timestamp-micros"): T.TimestampNTZType(),
    },
    T.DecimalType,
    T.ArrayType,
    lambda value, nullable: T.MapType(T.StringType(), value, nullable),
    _struct,
)


def spark_type(schema: Avro) -> T.DataType:
    """The type of a schema."""
    try:
        return Walk(_SPARK).of(schema, "", ())[0]
    except RecursionError:
        raise Unsupported("it is nested too deeply") from None
