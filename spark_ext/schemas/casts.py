"""Casts that keep values, rounded at most: those of Arrow, with a check of what Arrow would change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Values = TypeVar("Values", pa.Array, pa.ChunkedArray)

WIDEST = 76  # most digits of Arrow's decimals
_TICKS_OF_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}

MOST_SHOWN = 100  # characters of a value in a message


def cast(values: Values, kind: pa.DataType) -> Values:
    """Values as another type; those that have it already are returned as they are."""
    # Arrow brings a decimal of 128 bits to another scale without noticing that it overflows: 4447143252387525393675 as
    # decimal(38,18) is 23472482415325368651.13. With 256 bits there is room, and what does not fit afterwards is
    # noticed. What else Arrow changes is refused here: see `_changed`.
    if values.type == kind:
        return values
    if _has_views(values.type):
        raise pa.ArrowNotImplementedError(f"cannot cast {values.type}: Arrow's cast would lose lists")
    if types.is_dictionary(values.type):
        return cast(values.cast(values.type.value_type), kind)
    wide = widened(kind)
    found = (values if wide == kind else values.cast(wide)).cast(kind)
    if isinstance(values, pa.ChunkedArray):  # the result may be in other chunks
        begin = 0
        for chunk in filter(len, values.chunks):
            _check(chunk, pa.concat_arrays(found.slice(begin, len(chunk)).chunks))
            begin += len(chunk)
    else:
        _check(values, found)
    return found


def widened(kind: pa.DataType) -> pa.DataType:
    """A type with decimals of 256 bits and the same scale, at any depth."""
    return replaced(kind, lambda one: pa.decimal256(WIDEST, one.scale) if types.is_decimal128(one) else one)


def counted(kind: pa.DataType) -> pa.DataType:
    """A type with dates and times as numbers since 1970, at any depth; Python has none outside the years 1 to 9999."""

    def number(one: pa.DataType) -> pa.DataType:
        return pa.int32() if types.is_date32(one) else pa.int64() if types.is_timestamp(one) else one

    return replaced(kind, number)


def replaced(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with other simple types, at any depth."""
    if types.is_struct(kind):
        return pa.struct([child.with_type(replaced(child.type, change)) for child in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(replaced(kind.key_type, change))
        return pa.map_(key, kind.item_field.with_type(replaced(kind.item_type, change)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(replaced(kind.value_type, change)))
    return change(kind)


def _check(before: pa.Array, after: pa.Array) -> None:
    """Refuse a value that Arrow has changed, at any depth."""
    for old, new in leaves(before, after):
        if types.is_string_view(old.type):
            old = old.cast(pa.large_string())  # for which Arrow has functions
        changed = _changed(old, new)
        if changed is not None and pc.any(changed).as_py():
            value = str(old.filter(changed).cast(pa.string())[0])
            raise pa.ArrowInvalid(f"{value[:MOST_SHOWN]} does not fit the type {new.type}")


def leaves(before: pa.Array, after: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The values at any depth before and after a conversion, without those whose type is the same."""
    if types.is_dictionary(before.type):
        before = before.dictionary_decode()
    if before.type == after.type or types.is_null(before.type):
        return
    if types.is_struct(after.type) and types.is_struct(before.type):
        parts = dict(zip([field.name for field in before.type], before.flatten(), strict=True))
        for field, new in zip(after.type, after.flatten(), strict=True):
            if field.name in parts:  # one that is missing is null
                yield from leaves(parts[field.name], new)
    elif types.is_map(after.type) and types.is_map(before.type):
        for part in ("keys", "items"):
            yield from leaves(inside(before, part), inside(after, part))
    elif types.is_list(after.type) and is_list(before.type):
        yield from leaves(before.flatten(), after.flatten())
    else:
        yield before, after


def _changed(before: pa.Array, after: pa.Array) -> pa.Array | None:
    """Which values Arrow has changed without an error; None: none of these types."""
    old, new = before.type, after.type
    if is_text(old) and types.is_integer(new):  # 0xFFFFFFFF as int is -1
        return pc.and_(pc.less(after, 0), pc.match_substring_regex(before, "^[ \\t]*0[xX]"))
    if is_text(old) and types.is_decimal(new):
        return _overflowing(before, new.scale)
    if types.is_floating(old) and types.is_floating(new):  # a double that is too large for a float is infinite
        return pc.and_(pc.is_inf(after), pc.is_finite(before))
    if types.is_time(new):  # a moment would lose its date
        ticks = after.cast(pa.int32() if types.is_time32(new) else pa.int64()).cast(pa.int64())
        outside = pc.or_(pc.less(ticks, 0), pc.greater_equal(ticks, _TICKS_OF_A_DAY[new.unit]))
        return before.is_valid() if types.is_timestamp(old) else outside
    if (types.is_timestamp(old) and types.is_date(new)) or (
        types.is_boolean(new) and (types.is_integer(old) or types.is_floating(old))
    ):
        return pc.not_equal(after.cast(old), before)
    return None


def _overflowing(texts: pa.Array, scale: int) -> pa.Array:
    """Texts whose digits overflow the 256 bits in which they are parsed: 2^256 would be 0."""
    suspect = pc.or_(pc.greater(pc.binary_length(texts), 38), pc.match_substring(texts, "e", ignore_case=True))
    if not pc.any(suspect).as_py():
        return suspect
    return pa.array([_overflows(text, scale) for text in texts.to_pylist()], pa.bool_())


def _overflows(text: str | None, scale: int) -> bool:
    try:
        number = Decimal(text or "0")
    except InvalidOperation:
        return True
    return len(number.as_tuple().digits) > WIDEST or number.adjusted() + scale >= WIDEST


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists, but for views."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _has_views(kind: pa.DataType) -> bool:
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return True
    return any(_has_views(kind.field(at).type) for at in range(kind.num_fields))


def inside(maps: pa.MapArray, part: str) -> pa.Array:
    """The keys or the items of maps, without those before and after a slice."""
    whole: pa.Array = getattr(maps, part)
    ends = maps.offsets
    return whole.slice(ends[0].as_py(), ends[-1].as_py() - ends[0].as_py())
