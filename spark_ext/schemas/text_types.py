"""As which types CSV and JSON are parsed, and how these become the declared ones, by rules more exact than Arrow's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json, types

from spark_ext.errors import refused
from spark_ext.schemas.casts import cast, replaced, widened
from spark_ext.schemas.columns import instants
from spark_ext.schemas.strptime import has_zone

ODD_NUMBER: Final = re.compile(rb"[:,\[]\s*(-NaN|-?Inf)\s*[,}\]]")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_FIRST: Final = b"{}\n"


def parsed_in_csv(kind: pa.DataType, odd_integers: bool) -> pa.DataType:
    """The type that Arrow parses in CSV; timestamps, decimals and odd integers are converted from text more exactly."""
    exact = types.is_timestamp(kind) or types.is_decimal(kind) or (odd_integers and types.is_integer(kind))
    return pa.string() if exact else kind


def parsed_in_json(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow parses in JSON: text for dates and times, room for all digits of decimals, at any depth."""
    return replaced(widened(kind), lambda one: pa.string() if types.is_temporal(one) else one)


def json_objects(
    block: pa.Buffer, columns: pa.Schema, several_lines: bool, undeclared: Literal["ignore", "error"] = "ignore"
) -> pa.Table:
    """All objects of a text as columns of the types that are parsed; a missing key is null, an undeclared one ignored.

    Raises:
        ArrowException: a part of it is not an object, or does not fit.
    """
    # Arrow takes bytes of strings as they are, and ends the process if the first value of a block is null.
    _check_utf8(block)
    data = _FIRST + bytes(block)
    _check_numbers(data)
    table = json.read_json(
        pa.BufferReader(data),
        read_options=json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=json.ParseOptions(
            explicit_schema=columns, unexpected_field_behavior=undeclared, newlines_in_values=several_lines
        ),
    )
    return table.slice(1)


def _check_numbers(text: bytes) -> None:
    """Refuse -NaN and Inf: Arrow takes them for NaN and Infinity, and Spark does not."""
    if (b"-NaN" in text or b"Inf" in text) and ODD_NUMBER.search(text):
        found = ODD_NUMBER.search(_STRING.sub(b'""', text))
        if found:
            raise pa.ArrowInvalid(f"{found[1].decode()} is not a number; NaN, Infinity and -Infinity are")


def _check_utf8(block: pa.Buffer) -> None:
    try:
        pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, block.size], np.int32)), block).validate(full=True)
    except pa.ArrowInvalid:
        raise pa.ArrowInvalid("it is not valid UTF-8") from None


def as_declared(table: pa.Table, held: pa.Schema, pattern: str | None) -> pa.Table:
    """Convert the columns that were parsed as other types to their declared ones."""
    table = table.select(held.names).combine_chunks()
    for index, field in enumerate(held):
        column = table.column(index)
        if column.type != field.type:
            try:
                chunks = [_converted(chunk, field.type, pattern) for chunk in column.chunks]
            except pa.ArrowInvalid as problem:
                raise pa.ArrowInvalid(f"column '{field.name}': {problem}") from None
            table = table.set_column(index, field.name, pa.chunked_array(chunks, field.type))
    return table


def _converted(values: pa.Array, kind: pa.DataType, pattern: str | None) -> pa.Array:
    if values.type == kind:
        return values
    if types.is_timestamp(kind):
        return instants(values, kind, pattern)
    if types.is_struct(kind):
        children = [_converted(values.field(at), kind.field(at).type, pattern) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if types.is_list(kind):
        # Those of these rows alone: a slice has the elements of all rows, and one of another row may not fit.
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        items = _converted(values.values.slice(first, last - first), kind.value_type, pattern)
        offsets = pc.subtract(values.offsets, values.offsets[0])
        return pa.ListArray.from_arrays(offsets, items, type=kind, mask=values.is_null())
    if (types.is_decimal(kind) or types.is_integer(kind)) and types.is_string(values.type):
        values = pc.utf8_trim(values, " \t")  # as of other numbers
        values = pc.replace_substring_regex(values, r"^\+([0-9]+)$", r"\1")
    return cast(values, kind)


def refuse_lost_zones(wanted: pa.Schema, pattern: str | None, uid: str) -> None:
    """Refuse a pattern with a zone for a time of day without one, as such a text is refused without a pattern."""
    if pattern is not None and has_zone(pattern):
        for field in wanted:
            if any(types.is_timestamp(kind) and kind.tz is None for kind in _kinds(field.type)):
                raise refused(
                    f"column '{field.name}' has times without a zone (timestamp_ntz), and the option "
                    f"'timestamp_format' is {pattern!r}, with a zone",
                    f"source '{uid}'",
                    "declare it as timestamp, or as string and convert it in the query",
                )


def refuse_types(wanted: pa.Schema, uid: str, name: str, unsupported: Sequence[Callable[[pa.DataType], bool]]) -> None:
    """Refuse columns of types that a format does not have, at any depth."""
    for field in wanted:
        if any(one(kind) for kind in _kinds(field.type) for one in unsupported):
            raise refused(
                f"column '{field.name}': {name} files do not support the type {field.type}",
                f"source '{uid}'",
                "declare the column as string and convert it in the query",
            )


def _kinds(kind: pa.DataType) -> Iterator[pa.DataType]:
    """A type and those within it."""
    yield kind
    for at in range(kind.num_fields):
        yield from _kinds(kind.field(at).type)
