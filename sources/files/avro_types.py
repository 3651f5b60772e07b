"""The types of Avro in Arrow. Pure.

Logical types are taken out of the schema with which rows are decoded, but for decimals: numbers of days and of
milliseconds become Arrow's dates and timestamps without a Python object, which has no years beyond 9999.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from spark_ext.schemas.avro import MOST_PARTS

_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}

_WIDER: dict[frozenset[str], pa.DataType] = {
    frozenset({"int", "long"}): pa.int64(),
    frozenset({"float", "double"}): pa.float64(),
}
"""Unions of types of which one holds the values of both, as in Spark."""


class UnsupportedError(Exception):
    """A type that has no counterpart."""


class Columns(NamedTuple):
    """The columns of a file."""

    schema: pa.Schema
    """Of those that can be read."""
    others: dict[str, str]
    """Why the others cannot be."""


def columns_of(schema: Any) -> Columns:
    """The columns of an Avro schema."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        kind = schema.get("type") if isinstance(schema, dict) else schema
        raise ValueError(f"its rows are not records but of the type {kind!r}")
    fields, others = [], {}
    types = _Types()
    types.name(schema, None)
    space = _space(schema, None)
    for field in schema["fields"]:
        types.parts = 0
        try:
            fields.append(pa.field(field["name"], types.of(field["type"], space)))
        except UnsupportedError as problem:
            others[field["name"]] = str(problem)
        except RecursionError:
            others[field["name"]] = "types nested too deeply"
    return Columns(pa.schema(fields), others)


def _space(schema: dict[str, Any], outer: str | None) -> str | None:
    name = str(schema.get("name", ""))
    return name.rpartition(".")[0] if "." in name else schema.get("namespace", outer)


class _Types:
    """Types, with those that were given names so far."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[pa.DataType, int] | None] = {}
        self.parts = 0

    def name(self, schema: dict[str, Any], outer: str | None, kind: tuple[pa.DataType, int] | None = None) -> None:
        """Note a named type and its parts; without `kind` it is still open, and may only be meant by a recursion."""
        name, space = str(schema.get("name", "")), _space(schema, outer)
        self._named[name if "." in name or not space else f"{space}.{name}"] = kind

    def _add(self, parts: int) -> None:
        self.parts += parts
        if self.parts > MOST_PARTS:
            raise UnsupportedError(f"more than {MOST_PARTS} parts")

    def of(self, schema: Any, space: str | None) -> pa.DataType:
        """The type of a part of a schema."""
        before = self.parts
        self._add(1)
        if isinstance(schema, list):
            return self._union(schema, space)
        if isinstance(schema, str):
            return self._of_name(schema, space)
        kind, logical = schema.get("type"), schema.get("logicalType")
        if isinstance(kind, (dict, list)):
            return self.of(kind, space)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            found = self._decimal(schema)
        elif kind == "record":
            self.name(schema, space)
            inner = _space(schema, space)
            # The fields one after the other: a name may stand for the type of an earlier one.
            found = pa.struct([pa.field(one["name"], self.of(one["type"], inner)) for one in schema["fields"]])
        elif kind == "array":
            found = pa.list_(pa.field("element", self.of(schema["items"], space)))
        elif kind == "map":
            found = pa.map_(pa.string(), self.of(schema["values"], space))
        elif kind == "enum":
            found = pa.string()
        elif kind == "fixed":
            found = pa.binary()
        else:
            found = _LOGICAL.get((str(kind), str(logical))) or self._of_name(str(kind), space)
        if kind in ("record", "enum", "fixed"):
            self.name(schema, space, (found, self.parts - before))
        return found

    def _of_name(self, name: str, space: str | None) -> pa.DataType:
        if name in _PLAIN:
            return _PLAIN[name]
        for full in (name, f"{space}.{name}"):
            if full in self._named:
                if (known := self._named[full]) is None:
                    raise UnsupportedError(f"the type '{name}', which contains itself")
                self._add(known[1])
                return known[0]
        raise UnsupportedError(f"the type '{name}', which is not known")

    def _union(self, parts: list[Any], space: str | None) -> pa.DataType:
        others = [part for part in parts if part != "null"]
        if len(others) == 1:
            return self.of(others[0], space)
        if not others:
            return pa.null()
        wider = _WIDER.get(frozenset(part for part in others if isinstance(part, str)))
        if wider is None or not all(isinstance(part, str) for part in others):
            raise UnsupportedError(f"a union of {len(others)} types")
        return wider

    @staticmethod
    def _decimal(schema: dict[str, Any]) -> pa.DataType:
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise UnsupportedError(f"a decimal of precision {precision} and scale {scale}")
        return pa.decimal128(precision, scale)


def decoding(schema: Any) -> Any:
    """The schema with which rows are decoded: as numbers, text and bytes, and decimals as such."""
    if isinstance(schema, list):
        return [decoding(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: value for name, value in schema.items() if name != "logicalType" or value == "decimal"}
    for name in ("type", "items", "values"):
        if name in out:
            out[name] = decoding(out[name])
    if isinstance(out.get("fields"), list):
        # Defaults are for readers with another schema.
        out["fields"] = [
            {name: decoding(value) if name == "type" else value for name, value in field.items() if name != "default"}
            for field in out["fields"]
        ]
    return out
