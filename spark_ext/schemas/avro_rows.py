"""Spark's types as Avro schemas, and values as fastavro takes them: the way back of `spark_ext.schemas.avro`. Pure.

| Spark | Avro |
|---|---|
| boolean, long, float, double, string, binary | the same |
| byte, short, int | int |
| decimal | bytes, decimal |
| date | int, date |
| timestamp | long, timestamp-micros |
| timestamp_ntz | long, local-timestamp-micros |
| array, map with strings as keys, struct | array, map, record |

Everything within the outermost type may be null, whatever Spark says of it: what Spark knows of that depends on the
plan, and changes from release to release. Names of records are those of Spark's own `to_avro`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T

from spark_ext.schemas.avro import Avro, Unsupported

Convert: TypeAlias = Callable[[Any], Any] | None  # converts a value that is not null; None: it stays as it is
OUTERMOST: Final = "topLevelRecord"  # the record's default name
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[tuple[tuple[type[T.DataType], Avro], ...]] = (
    (T.BooleanType, "boolean"),
    (T.ByteType, "int"),
    (T.ShortType, "int"),
    (T.IntegerType, "int"),
    (T.LongType, "long"),
    (T.FloatType, "float"),
    (T.DoubleType, "double"),
    (T.StringType, "string"),
    (T.CharType, "string"),
    (T.VarcharType, "string"),
    (T.BinaryType, "bytes"),
    (T.DateType, {"type": "int", "logicalType": "date"}),
    (T.TimestampType, {"type": "long", "logicalType": "timestamp-micros"}),
    (T.TimestampNTZType, {"type": "long", "logicalType": "local-timestamp-micros"}),
)
_WHOLE: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)  # from the narrowest to the widest
_TEXTS: Final = (T.StringType, T.CharType, T.VarcharType)


class Unfit(Exception):
    """A value that its schema does not allow; the text names its place."""


def avro_schema(kind: T.DataType, name: str = OUTERMOST) -> Avro:
    """The schema of a type, whose values are not null; the name of a record may have a namespace."""
    return _schema(kind, "", name)


def _schema(kind: T.DataType, path: str, name: str) -> Avro:
    if isinstance(kind, T.StructType):
        return _record(kind, path, name)
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": _nullable(kind.elementType, f"{path}.element", f"{name}.element")}
    if isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, _TEXTS):
            raise Unsupported(f"{_at(path)} is a map with keys of the type {kind.keyType.simpleString()}, not string")
        return {"type": "map", "values": _nullable(kind.valueType, f"{path}.value", f"{name}.value")}
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    for one, schema in _PLAIN:
        if type(kind) is one:
            return schema
    raise Unsupported(f"{_at(path)} has the type {kind.simpleString()}")


def _record(kind: T.StructType, path: str, name: str) -> Avro:
    if not kind.fields:
        raise Unsupported(f"{_at(path)} is a struct without fields")
    fields = []
    for field in kind.fields:
        place = f"{path}.{field.name}"
        if not _NAME.fullmatch(field.name):
            raise Unsupported(f"{_at(place)} has a name that Avro does not allow: letters, digits and underlines only")
        if [one.lower() for one in kind.names].count(field.name.lower()) > 1:
            raise Unsupported(f"{_at(place)} is there twice, or as another name that differs in case only")
        fields.append({"name": field.name, "type": _nullable(field.dataType, place, f"{name}.{field.name}")} | _NULL)
    return {"type": "record", "name": name, "fields": fields}


_NULL: Final[dict[str, Any]] = {"default": None}  # so that fields can be added and removed later


def _nullable(kind: T.DataType, path: str, name: str) -> Avro:
    return ["null", _schema(kind, path, name)]


def writer(kind: T.DataType, wanted: T.DataType) -> Convert:
    """What converts a column's values to those that fastavro writes; raises `Unfit` for a null that is not allowed."""
    return _writer(kind, wanted, "")


def _writer(kind: T.DataType, wanted: T.DataType, path: str) -> Convert:
    if isinstance(kind, T.StructType) and isinstance(wanted, T.StructType):
        return _fields(kind, wanted, path)
    if isinstance(kind, T.ArrayType) and isinstance(wanted, T.ArrayType):
        one = _inner(kind.elementType, wanted.elementType, wanted.containsNull, f"{path}.element")
        return one and (lambda values: [one(value) for value in values])
    if isinstance(kind, T.MapType) and isinstance(wanted, T.MapType):
        item = _inner(kind.valueType, wanted.valueType, wanted.valueContainsNull, f"{path}.value")
        # Arrow gives a map as pairs.
        return dict if item is None else lambda pairs: {key: item(value) for key, value in pairs}
    if not _fits(kind, wanted):
        raise Unsupported(f"{_at(path)} is {kind.simpleString()}, and in the schema {wanted.simpleString()}")
    if isinstance(kind, T.DecimalType) and isinstance(wanted, T.DecimalType):
        whole = wanted.precision - wanted.scale
        return None if kind.precision - kind.scale <= whole else _of_digits(whole, _at(path))
    return None


def _of_digits(whole: int, place: str) -> Callable[[Decimal], Decimal]:
    """With a check of the digits before the point: fastavro counts those of the value before it brings it to scale."""

    def checked(value: Decimal) -> Decimal:
        if value and value.adjusted() >= whole:
            raise Unfit(f"{place} is {value}, and the schema has {whole} digits before the point")
        return value

    return checked


def _fields(kind: T.StructType, wanted: T.StructType, path: str) -> Convert:
    inner: dict[str, Convert] = {}
    for field in kind.fields:
        if field.name not in wanted.names:
            raise Unsupported(f"{_at(f'{path}.{field.name}')} is not in the schema")
        there = wanted[field.name]
        inner[field.name] = _inner(field.dataType, there.dataType, there.nullable, f"{path}.{field.name}")
    for field in wanted.fields:
        if field.name not in kind.names and not field.nullable:
            raise Unsupported(f"{_at(f'{path}.{field.name}')} of the schema is not there, and must not be null")
    changed = {name: one for name, one in inner.items() if one is not None}
    if not changed:
        return None
    return lambda values: {**values, **{name: one(values[name]) for name, one in changed.items()}}


def _inner(kind: T.DataType, wanted: T.DataType, nullable: bool, path: str) -> Convert:
    """With the check for null, which fastavro lacks: a null boolean is false for it."""
    found = _writer(kind, wanted, path)
    if nullable:
        return found and (lambda value: None if value is None else found(value))
    return _present(found, _at(path))


def _present(found: Convert, place: str) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if value is None:
            raise Unfit(f"{place} is null, which the schema does not allow")
        return value if found is None else found(value)

    return checked


def _fits(kind: T.DataType, wanted: T.DataType) -> bool:
    if isinstance(kind, _TEXTS):
        return isinstance(wanted, _TEXTS)
    if isinstance(kind, _WHOLE):
        return isinstance(wanted, _WHOLE[[isinstance(kind, one) for one in _WHOLE].index(True) :])
    if isinstance(kind, T.FloatType):
        return isinstance(wanted, (T.FloatType, T.DoubleType))
    if isinstance(kind, T.DecimalType):
        # A value with more digits than the schema has is found when it is written.
        return isinstance(wanted, T.DecimalType) and kind.scale <= wanted.scale
    return type(kind) is type(wanted)


def check_same(value: Any, written: Any, path: str = "") -> None:
    """Compare a value with what was written of it, which may have further fields."""
    if isinstance(value, dict):
        for name, one in value.items():
            check_same(one, written[name], f"{path}.{name}")
    elif isinstance(value, (list, tuple)) and len(value) == len(written):
        for one, other in zip(value, written, strict=True):
            check_same(one, other, f"{path}.element")
    elif value != written and (value == value or written == written):  # NaN is not itself
        raise Unfit(f"{_at(path)} is {value}, and would be written as {written}")


def _at(path: str) -> str:
    return f"'{path.removeprefix('.')}'" if path else "it"
