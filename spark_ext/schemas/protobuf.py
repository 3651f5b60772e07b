"""Protobuf messages as Spark's types, and their values as those that Arrow takes. Pure.

| Protobuf | Spark |
|---|---|
| bool, float, double, string, bytes | the same |
| int32, sint32, sfixed32 | int |
| int64, sint64, sfixed64, uint32, fixed32 | long |
| uint64, fixed64 | decimal(20, 0) |
| enum | string: the name, or the number of one that the schema does not have |
| message | struct, nullable |
| repeated, map | array, map |
| google.protobuf.Timestamp | timestamp |
| wrappers, such as google.protobuf.Int64Value | the value, nullable |

A field that tells whether it is set (`optional`, `oneof`, messages) is null if it is not; any other has its default.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import types as T

from spark_ext.schemas.avro import Size, Unsupported, place

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

Get: TypeAlias = Callable[[Any], Any]  # a value of a message as one that Arrow takes
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def spark_type(message: Descriptor) -> tuple[T.StructType, Callable[[Message], dict[str, Any]]]:
    """The type of a message, and the conversion of its values."""
    return _message(message, "", (), Size())


def _message(
    message: Descriptor, path: str, within: tuple[str, ...], size: Size
) -> tuple[T.StructType, Callable[[Message], dict[str, Any]]]:
    from google.protobuf.unknown_fields import UnknownFieldSet

    if message.full_name in within:
        raise Unsupported(f"{place(path)} contains itself: the message {message.full_name}")
    if not message.fields:
        raise Unsupported(f"{place(path)} is a message without fields: {message.full_name}")
    if len({field.name.lower() for field in message.fields}) < len(message.fields):
        raise Unsupported(f"{place(path)} is a message with names that differ in case only: {message.full_name}")
    inner = (*within, message.full_name)
    fields, gets = [], dict[str, Get]()
    for field in message.fields:
        kind, null, get = _field(field, f"{path}.{field.name}", inner, size)
        fields.append(T.StructField(field.name, kind, null))
        gets[field.name] = get
    known = message.fields_by_number

    def convert(value: Message) -> dict[str, Any]:
        for one in UnknownFieldSet(value):
            if one.field_number in known:  # it would be taken for a field that is not set
                raise ValueError(f"'{known[one.field_number].name}' is not of its type, or no symbol of its enum")
        return {name: get(value) for name, get in gets.items()}

    return T.StructType(fields), convert


def _field(field: FieldDescriptor, path: str, within: tuple[str, ...], size: Size) -> tuple[T.DataType, bool, Get]:
    size.add(path)
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, key_get = _value(field.message_type.fields_by_name["key"], path, within, size)
        item_field = field.message_type.fields_by_name["value"]
        item, item_get = _value(item_field, f"{path}.value", within, size)
        return T.MapType(key, item, False), False, lambda value: _pairs(getattr(value, name), key_get, item_get)
    kind, get = _value(field, path, within, size)
    if _is_repeated(field):
        return T.ArrayType(kind, False), False, lambda value: [get(one) for one in getattr(value, name)]
    if field.has_presence:
        return kind, True, lambda value: get(getattr(value, name)) if value.HasField(name) else None
    return kind, False, lambda value: get(getattr(value, name))


def _is_repeated(field: FieldDescriptor) -> bool:
    """Before version 6.31 a descriptor has a label instead."""
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _pairs(entries: Any, key_get: Get, get: Get) -> list[tuple[Any, Any]]:
    return [(key_get(key), get(entries[key])) for key in entries]


def _value(field: FieldDescriptor, path: str, within: tuple[str, ...], size: Size) -> tuple[T.DataType, Get]:
    message, enum = field.message_type, field.enum_type
    if message is not None:
        if message.full_name == "google.protobuf.Timestamp":
            return T.TimestampType(), _instant
        if message.full_name in _WRAPPERS:
            kind, get = _value(message.fields_by_name["value"], path, within, size)
            return kind, lambda value: get(value.value)
        return _message(message, path, within, size)
    if enum is not None:
        names = {number: one.name for number, one in enum.values_by_number.items()}
        return T.StringType(), lambda number: names.get(number, str(number))
    return _scalar(field)


def _scalar(field: FieldDescriptor) -> tuple[T.DataType, Get]:
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return T.DecimalType(20, 0), Decimal
    if field.type == field.TYPE_BYTES:
        return T.BinaryType(), _as_it_is
    if field.type == field.TYPE_STRING:
        return T.StringType(), _text
    kinds: dict[int, T.DataType] = {
        field.CPPTYPE_INT32: T.IntegerType(),
        field.CPPTYPE_INT64: T.LongType(),
        field.CPPTYPE_UINT32: T.LongType(),
        field.CPPTYPE_DOUBLE: T.DoubleType(),
        field.CPPTYPE_FLOAT: T.FloatType(),
        field.CPPTYPE_BOOL: T.BooleanType(),
    }
    return kinds[field.cpp_type], _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    """The library gives bytes if a text of syntax 2 is not UTF-8."""
    return value.decode() if isinstance(value, bytes) else value


def _instant(value: Any) -> datetime.datetime:
    """To microseconds, as Spark has them; those below are cut off."""
    if not 0 <= value.nanos < 1_000_000_000:
        raise ValueError(f"a time has {value.nanos} nanoseconds")
    return _EPOCH + datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)


def indexes(message: Descriptor) -> tuple[int, ...]:
    """The place of a message in its file, by which the framing of a registry names it."""
    return tuple(_places(message))[::-1]


def _places(message: Descriptor | None) -> Iterator[int]:
    while message is not None:
        outer = message.containing_type
        beside = outer.nested_types if outer is not None else list(message.file.message_types_by_name.values())
        yield [one.full_name for one in beside].index(message.full_name)
        message = outer
