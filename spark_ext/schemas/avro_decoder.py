"""Avro's binary encoding as values that Arrow takes, resolved from a writer's schema to the reader's. Pure.

Every number, index and length is checked: damaged bytes are no value. Logical types are the reader's. Where only the
writer has one, the number, text or bytes stay what they are; where both do, the moment or number stays the same,
whatever the units and scales.
"""

from __future__ import annotations

import decimal
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

from spark_ext.schemas.avro import MOST_DIGITS, Avro


class Damaged(ValueError):
    """Bytes that are no value; the text says why."""


class SchemaResolutionError(ValueError):
    """A value that the reader's schema cannot have; the text says why."""


class _Content:
    """Bytes, and what has been read of them."""

    __slots__ = ("at", "data", "errors", "left")

    def __init__(self, data: bytes, at: int, errors: str) -> None:
        self.data, self.at, self.errors = data, at, errors
        self.left = len(data)  # how many items are allowed: each has a byte at least

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0:
            raise Damaged(f"a length is {size}")
        if end > len(self.data):
            raise EOFError("it ends within a value")
        found = self.data[self.at : end]
        self.at = end
        return found

    def read_long(self) -> int:
        data, at, value, shift = self.data, self.at, 0, 0
        try:
            while (byte := data[at]) > 0x7F and shift < 70:
                value |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
        except IndexError:
            raise EOFError("it ends within a number") from None
        value |= byte << shift
        if value >> 64:
            raise Damaged("a number has more than 64 bits")
        self.at = at + 1
        return value >> 1 ^ -(value & 1)

    def read_int(self) -> int:
        value = self.read_long()
        if not -(2**31) <= value < 2**31:
            raise Damaged(f"an int is {value}")
        return value

    def read_boolean(self) -> bool:
        (byte,) = self.take(1)
        if byte > 1:
            raise Damaged(f"a boolean is {byte}")
        return byte == 1

    def read_float(self) -> float:
        (value,) = struct.unpack("<f", self.take(4))
        return float(value)

    def read_double(self) -> float:
        (value,) = struct.unpack("<d", self.take(8))
        return float(value)

    def read_bytes(self) -> bytes:
        return self.take(self.read_long())

    def read_string(self) -> str:
        return self.take(self.read_long()).decode(errors=self.errors)

    def index(self, count: int) -> int:
        found = self.read_long()
        if not 0 <= found < count:
            raise Damaged(f"an index is {found}, and there are {count}")
        return found

    def items(self) -> Iterator[None]:
        while count := self.read_long():
            size = self.read_long() if count < 0 else None
            end = self.at + (size or 0)
            self.left -= abs(count)
            if self.left < 0:
                raise Damaged("it has more items than bytes")
            yield from repeat(None, abs(count))
            if size is not None and self.at != end:
                raise Damaged(f"a block does not have its {size} bytes")


_Read: TypeAlias = Callable[[_Content], Any]

_READS: Final[Mapping[str, _Read]] = {
    "null": lambda _: None,
    "boolean": _Content.read_boolean,
    "int": _Content.read_int,
    "long": _Content.read_long,
    "float": _Content.read_float,
    "double": _Content.read_double,
    "bytes": _Content.read_bytes,
    "string": _Content.read_string,
}
_PROMOTED: Final[Mapping[str, Sequence[str]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NAMED: Final = ("record", "error", "enum", "fixed")


def decoder(writer: Avro, reader: Avro, errors: str = "strict") -> Callable[[bytes, int], tuple[Any, int]]:
    """What decodes the value that begins at a byte, and says where it ends; `spark_type` has a type for `reader`."""
    # It raises Damaged, SchemaResolutionError, EOFError, UnicodeDecodeError or OverflowError for what is no such value,
    # and RecursionError for what is nested too deeply.
    read = _Resolution(writer, reader).of(writer, reader)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        content = _Content(data, at, errors)
        return read(content), content.at

    return decode


class _Resolution:
    def __init__(self, writer: Avro, reader: Avro) -> None:
        self._names: dict[str, Avro] = {}
        self._wanted: dict[str, Avro] = {}
        _collect(writer, self._names)
        _collect(reader, self._wanted)
        self._known: dict[tuple[object, object], _Read] = {}

    def of(self, writer: Avro, reader: Avro) -> _Read:
        """What reads a value; without a reader, what passes it over."""
        writer, reader = _resolved(writer, self._names), _resolved(reader, self._wanted)
        key = writer if isinstance(writer, str) else id(writer), reader if isinstance(reader, str) else id(reader)
        if key not in self._known:
            self._known[key] = lambda content: self._known[key](content)  # for a record that contains itself
            self._known[key] = self._made(writer, reader)
        return self._known[key]

    def _made(self, writer: Avro, reader: Avro) -> _Read:
        if isinstance(writer, list):
            branches = [self.of(one, reader) for one in writer]
            return lambda content: branches[content.index(len(branches))](content)
        kind = _kind(writer)
        if isinstance(reader, list):
            fits = [one for one in reader if _takes(_kind(_resolved(one, self._wanted)), kind)]
            return self.of(writer, fits[0]) if fits else _mismatch(f"{kind} is none of {len(reader)} types")
        if reader is None:
            return self._plain(kind, writer, None)
        wanted = _kind(reader)
        if not _takes(wanted, kind) or (kind in _NAMED and not _same_name(writer, reader)):
            return _mismatch(f"{_shown(writer)} is not {_shown(reader)}")
        read = self._plain(wanted if {kind, wanted} == {"string", "bytes"} else kind, writer, reader)
        try:
            convert = _conversion(kind, writer, reader)
        except SchemaResolutionError as problem:
            return _mismatch(str(problem))
        return read if convert is None else lambda content: convert(read(content))

    def _plain(self, kind: str, writer: Avro, reader: Avro) -> _Read:
        if kind in _READS:
            return _READS[kind]
        if kind in ("record", "error"):
            return self._record(writer, reader)
        if kind == "enum":
            return _enum(writer["symbols"], writer if reader is None else reader)
        if kind == "fixed":
            size = writer["size"]
            if reader is not None and reader["size"] != size:
                return _mismatch(f"{_shown(writer)} has {size} bytes, and in the schema {reader['size']}")
            return lambda content: content.take(size)
        part = "items" if kind == "array" else "values"
        one = self.of(writer[part], reader and reader[part])
        if kind == "array":
            return lambda content: [one(content) for _ in content.items()]
        # Arrow takes a map as pairs.
        return lambda content: list({content.read_string(): one(content) for _ in content.items()}.items())

    def _record(self, writer: Avro, reader: Avro) -> _Read:
        fields = {} if reader is None else {one["name"]: one for one in reader["fields"]}
        own = {one["name"] for one in writer["fields"]}
        aliases = {alias: name for name, one in fields.items() if name not in own for alias in one.get("aliases", ())}
        steps: list[tuple[str | None, _Read]] = []
        for one in writer["fields"]:
            name = one["name"] if one["name"] in fields else aliases.get(one["name"])
            there = fields.pop(name, None)
            steps.append((there and name, self.of(one["type"], there and there["type"])))
        for name, one in fields.items():
            if "default" not in one:
                return _mismatch(f"No default value for field {name} in {reader['name']}")
        rest = {name: self._default(one["type"], one["default"]) for name, one in fields.items()}

        def read(content: _Content) -> dict[str, Any]:
            found = {name: one(content) for name, one in steps}
            found.pop(None, None)
            return {**rest, **found}

        return read

    def _default(self, schema: Avro, value: Any) -> Any:
        """A value as a schema has it, in JSON: bytes are characters of one byte each."""
        schema = _resolved(schema, self._wanted)
        if isinstance(schema, list):
            schema = _resolved(next(one for one in schema if one != "null"), self._wanted)
        kind = _kind(schema)
        if value is None or kind == "enum":
            return value
        if kind in ("record", "error"):
            given = {one["name"]: one.get("default") for one in schema["fields"]} | value
            return {one["name"]: self._default(one["type"], given[one["name"]]) for one in schema["fields"]}
        if kind == "array":
            return [self._default(schema["items"], one) for one in value]
        if kind == "map":
            return [(key, self._default(schema["values"], one)) for key, one in value.items()]
        convert = _conversion(kind, schema, schema)
        plain = value.encode("iso-8859-1") if kind in ("bytes", "fixed") else value
        return plain if convert is None else convert(plain)


def _collect(schema: Avro, names: dict[str, Avro]) -> None:
    if isinstance(schema, list):
        for one in schema:
            _collect(one, names)
    elif isinstance(schema, dict):
        if schema["type"] in _NAMED:
            names[schema["name"]] = schema
        for one in (schema["type"], schema.get("items"), schema.get("values"), *schema.get("fields", ())):
            if isinstance(one, (dict, list)):
                _collect(one, names)


def _resolved(schema: Avro, names: Mapping[str, Avro]) -> Avro:
    """What a name stands for, or a schema around a schema."""
    while True:
        if isinstance(schema, str) and schema in names:
            return names[schema]
        if not isinstance(schema, dict) or (isinstance(schema["type"], str) and schema["type"] not in names):
            return schema
        schema = schema["type"]


def _kind(schema: Avro) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _logical(schema: Avro) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _shown(schema: Avro) -> str:
    return f"{_kind(schema)} {schema['name']}" if _kind(schema) in _NAMED else _kind(schema)


def _takes(wanted: str, kind: str) -> bool:
    return wanted == kind or wanted in _PROMOTED.get(kind, ())


def _same_name(writer: Avro, reader: Avro) -> bool:
    full, short = writer["name"], writer["name"].rpartition(".")[2]
    return short == reader["name"].rpartition(".")[2] or not {full, short}.isdisjoint(reader.get("aliases", ()))


def _mismatch(what: str) -> _Read:
    def read(_: _Content) -> Any:
        raise SchemaResolutionError(what)

    return read


def _enum(symbols: Sequence[str], reader: Avro) -> _Read:
    found = [one if one in reader["symbols"] else reader.get("default") for one in symbols]

    def read(content: _Content) -> str:
        index = content.index(len(found))
        if (symbol := found[index]) is None:
            raise SchemaResolutionError(f"{symbols[index]} is not a symbol of {_shown(reader)}")
        return symbol

    return read


_NANOS: Final = {
    f"{place}timestamp-{unit}": nanos
    for place in ("", "local-")
    for unit, nanos in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1))
}
_UUID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DAY: Final = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}


def _conversion(kind: str, writer: Avro, reader: Avro) -> Callable[[Any], Any] | None:
    """Of a value without its logical type to one with the reader's; None: it stays as it is."""
    wanted, given, logical = _kind(reader), _logical(writer), _logical(reader)
    if logical == "decimal" and wanted in ("bytes", "fixed"):
        return _decimals((writer if given == "decimal" else reader).get("scale", 0))
    if given == "uuid" and kind == wanted == "string":
        return _uuid
    if kind in ("int", "long") and wanted in ("float", "double"):
        return _exactly("<f" if wanted == "float" else "<d")
    if logical is None or (wanted, logical) not in _OF_TIME:
        return None
    if given is not None and (kind, given) in _OF_TIME and _OF_TIME[kind, given] != _OF_TIME[wanted, logical]:
        raise SchemaResolutionError(f"{given} is not {logical}")
    if logical == "date":
        return None
    if logical in _DAY:
        return _of_day(_DAY[logical] // _DAY.get(given or "", _DAY[logical]), _DAY[logical])
    if logical.endswith("nanos"):  # a long to Spark
        return lambda value: value * _NANOS.get(given or "", 1)
    return _micros(_NANOS.get(given or "", _NANOS[logical]))


_OF_TIME: Final = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time",
    ("long", "time-micros"): "time",
    **{("long", name): "timestamp" for name in _NANOS},
}


def _uuid(value: str) -> str:
    if not _UUID.fullmatch(value):
        raise Damaged(f"{value[:50]!r} is no UUID")
    return value


def _decimals(scale: int) -> Callable[[bytes], decimal.Decimal]:
    def convert(value: bytes) -> decimal.Decimal:
        number = int.from_bytes(value, "big", signed=True)
        if number.bit_length() > 4 * MOST_DIGITS:
            raise Damaged(f"a decimal has more than {MOST_DIGITS} digits")
        return decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=2 * MOST_DIGITS))

    return convert


def _exactly(form: str) -> Callable[[int], float]:
    def convert(value: int) -> float:
        (found,) = struct.unpack(form, struct.pack(form, value))
        if found != value:
            raise SchemaResolutionError(f"{value} has more digits than the type of the schema")
        return float(found)

    return convert


def _of_day(factor: int, day: int) -> Callable[[int], int]:
    def convert(value: int) -> int:
        if not 0 <= value * factor < day:
            raise Damaged(f"a time of day is {value}")
        return value * factor

    return convert


def _micros(nanos: int) -> Callable[[int], int]:
    def convert(value: int) -> int:
        micros, rest = divmod(value * nanos, 1000)
        if rest:
            raise SchemaResolutionError(f"{value} has nanoseconds")
        return micros

    return convert
