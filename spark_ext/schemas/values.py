"""Values that Spark and Arrow pass on, and most targets or their readers cannot represent. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from spark_ext.schemas.casts import inside, is_text

_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # 1 to 9999, us since 1970
_DAY: Final = 86_400_000_000


def undecodable(batch: pa.RecordBatch) -> str | None:
    """The full name of a column that has a text that is not UTF-8, or None."""
    for path, values in _leaves(batch, is_text):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            return path
    return None


def null_in(batch: pa.RecordBatch) -> str | None:
    """The full name of the first column or field that is declared as not nullable but has a null, or None."""
    left: list[tuple[str, pa.Field, pa.Array]] = list(zip(batch.schema.names, batch.schema, batch.columns, strict=True))
    while left:
        path, field, values = left.pop()
        kind = values.type
        if not field.nullable and values.null_count:
            return path
        if not _is_strict(kind):
            continue
        values = values.drop_null()
        if types.is_struct(kind):
            names = [f"{path}.{child.name}" for child in kind]
            left += zip(names, kind, values.flatten(), strict=True)
        elif types.is_map(kind):
            left.append((f"{path}.key", kind.key_field, inside(values, "keys")))
            left.append((f"{path}.value", kind.item_field, inside(values, "items")))
        else:
            left.append((f"{path}.element", kind.value_field, values.flatten()))
    return None


@lru_cache(maxsize=1024)
def _is_strict(kind: pa.DataType) -> bool:
    """Whether a part of a type is declared as not nullable; keys of maps never are null."""
    if types.is_map(kind):
        return _is_strict(kind.key_type) or not kind.item_field.nullable or _is_strict(kind.item_type)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return any(not field.nullable or _is_strict(field.type) for field in fields)


def refuse_far_times(batch: pa.RecordBatch) -> None:
    """Refuse dates and times that have no text form."""
    for path, values in _leaves(batch, _is_time):
        days = types.is_date(values.type)
        bounds = pc.min_max(values.cast(pa.int32()).cast(pa.int64()) if days else values.cast(pa.int64())).as_py()
        least, most = (bound // _DAY if days else bound for bound in _YEARS)
        if bounds["min"] is not None and (bounds["min"] < least or bounds["max"] > most):
            raise ValueError(f"column '{path}' has a time outside the years 1 to 9999")


def _leaves(batch: pa.RecordBatch, wanted: Callable[[pa.DataType], bool]) -> Iterator[tuple[str, pa.Array]]:
    """The simple columns of certain types at any depth, with their full names."""
    # They have the batch's own values only, also where it is a slice of a larger one: Arrow's validation of a nested
    # column looks into all of its children.
    left = [(field.name, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
    while left:
        path, values = left.pop()
        kind = values.type
        if not len(values) or not _contains(kind, wanted):
            continue
        if types.is_dictionary(kind):
            left.append((path, values.dictionary_decode()))
        elif types.is_struct(kind):
            left += zip([f"{path}.{field.name}" for field in kind], values.flatten(), strict=True)
        elif types.is_map(kind):
            left += [(f"{path}.key", inside(values, "keys")), (f"{path}.value", inside(values, "items"))]
        elif types.is_nested(kind):
            left.append((f"{path}.element", values.flatten()))
        else:
            yield path, values


@lru_cache(maxsize=1024)
def _contains(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    if types.is_dictionary(kind):
        return _contains(kind.value_type, wanted)
    return wanted(kind) or any(_contains(kind.field(number).type, wanted) for number in range(kind.num_fields))


def _is_time(kind: pa.DataType) -> bool:
    return bool(types.is_date(kind) or types.is_timestamp(kind))
