"""Casts that keep values, rounded at most: those of Arrow, with decimals and floats that are checked for their size."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Values = TypeVar("Values", pa.Array, pa.ChunkedArray)

WIDEST = 76
"""Most digits of Arrow's decimals."""


def cast(values: Values, kind: pa.DataType) -> Values:
    """Values as another type; those that have it already are returned as they are.

    Arrow brings a decimal of 128 bits to another scale without noticing that it overflows: 4447143252387525393675 as
    decimal(38,18) is 23472482415325368651.13. With 256 bits there is room, and what does not fit afterwards is noticed.
    It also makes infinity of a double that is too large for a float, which is noticed here.

    Raises:
        pa.ArrowInvalid: a value does not fit.
        pa.ArrowNotImplementedError: there is no such cast.
    """
    if values.type == kind:
        return values
    wide = widened(kind)
    as_wide = values if wide == kind or types.is_dictionary(values.type) else values.cast(wide)
    found = as_wide.cast(kind)
    if isinstance(values, pa.ChunkedArray):  # the result may be in other chunks
        begin = 0
        for chunk in filter(len, values.chunks):
            _check_floats(chunk, pa.concat_arrays(found.slice(begin, len(chunk)).chunks))
            begin += len(chunk)
    else:
        _check_floats(values, found)
    return found


def widened(kind: pa.DataType) -> pa.DataType:
    """A type with decimals of 256 bits and the same scale, at any depth."""
    if types.is_decimal128(kind):
        return pa.decimal256(WIDEST, kind.scale)
    if types.is_struct(kind):
        return pa.struct([child.with_type(widened(child.type)) for child in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(widened(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(widened(kind.item_type)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(widened(kind.value_type)))
    return kind


def _check_floats(before: pa.Array, after: pa.Array) -> None:
    """Refuse a double that has become an infinite float, at any depth."""
    if before.type == after.type or types.is_null(before.type) or types.is_dictionary(before.type):
        return
    if types.is_struct(after.type) and types.is_struct(before.type):
        parts = dict(zip([field.name for field in before.type], before.flatten(), strict=True))
        for field, new in zip(after.type, after.flatten(), strict=True):
            if field.name in parts:  # one that is missing is null
                _check_floats(parts[field.name], new)
    elif types.is_map(after.type) and types.is_map(before.type):
        for part in ("keys", "items"):
            _check_floats(_inside(before, part), _inside(after, part))
    elif types.is_list(after.type) and _is_any_list(before.type):
        _check_floats(before.flatten(), after.flatten())
    elif types.is_floating(before.type) and types.is_floating(after.type):
        lost = pc.and_(pc.is_inf(after), pc.is_finite(before))
        if pc.any(lost).as_py():
            value = before.filter(lost)[0].as_py()
            raise pa.ArrowInvalid(f"{value!r} is too large for the type {after.type}")


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _inside(maps: pa.MapArray, part: str) -> pa.Array:
    """The keys or the items of maps, without those before and after a slice."""
    whole: pa.Array = getattr(maps, part)
    ends = maps.offsets
    return whole.slice(ends[0].as_py(), ends[-1].as_py() - ends[0].as_py())
