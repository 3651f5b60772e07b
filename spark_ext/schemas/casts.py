"""Casts that never change a value: those of Arrow, with decimals that are checked for their size."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
from pyarrow import types

Values = TypeVar("Values", pa.Array, pa.ChunkedArray)

WIDEST = 76
"""Most digits of Arrow's decimals."""


def cast(values: Values, kind: pa.DataType) -> Values:
    """Values as another type; those that have it already are returned as they are.

    Arrow brings a decimal of 128 bits to another scale without noticing that it overflows: 4447143252387525393675 as
    decimal(38,18) is 23472482415325368651.13. With 256 bits there is room, and what does not fit afterwards is noticed.

    Raises:
        pa.ArrowInvalid: a value does not fit.
        pa.ArrowNotImplementedError: there is no such cast.
    """
    if values.type == kind:
        return values
    wide = widened(kind)
    if wide == kind or types.is_dictionary(values.type):
        return values.cast(kind)
    return values.cast(wide).cast(kind)


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
