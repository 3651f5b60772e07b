"""Columns of files against those of the declared schema: which types fit, and how a batch is converted.

The rule: a value never changes. A type fits if each of its values is also a value of the declared type (a smaller
integer in a larger one); where that depends on the value (nanoseconds in a microsecond column) the cast is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from spark_ext import worker_internals
from spark_ext.schemas.casts import cast, is_list, is_text
from spark_ext.schemas.strptime import parsed

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ZONE = r":[0-9]{2}.*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"  # at a time of day: a date has dashes, too
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 20}  # decimal digits that hold all values of an integer type, by its size in bytes


def spark_schema(found: pa.Schema) -> StructType:
    """The Spark schema for a file's columns; all nullable, as in Spark's own readers."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.types import StructType

    out = StructType()
    for field in found:
        if types.is_null(field.type):
            raise TypeError(f"all values of column '{field.name}' are null, so that its type is not known")
        try:
            kind = None if _unsupported(field.type) else worker_internals.from_arrow_type(_sparks(field.type))
        except PySparkTypeError:
            kind = None
        if kind is None:
            raise TypeError(f"column '{field.name}' has the type {field.type}, which Spark does not support")
        out = out.add(field.name, kind, nullable=True)
    return out


def _unsupported(found: pa.DataType) -> bool:
    """Whether a type has no values, or decimals that Spark does not have."""
    return bool(
        types.is_null(found)
        or (types.is_decimal(found) and not 0 <= found.scale <= found.precision <= 38)
        or any(_unsupported(found.field(at).type) for at in range(found.num_fields))
    )


def _sparks(found: pa.DataType) -> pa.DataType:
    """The closest type that Spark supports and that holds all values of a file's type."""
    if types.is_dictionary(found):
        return _sparks(found.value_type)
    if types.is_unsigned_integer(found):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
        return wider[found.bit_width]
    if types.is_float16(found):
        return pa.float32()
    if types.is_string_view(found):
        return pa.string()
    if types.is_binary_view(found):
        return pa.binary()
    if types.is_date64(found):
        return pa.date32()
    if types.is_time32(found):
        return pa.time64("us")
    if is_list(found):
        return pa.list_(pa.field("element", _sparks(found.value_type)))
    if types.is_map(found):
        return pa.map_(_sparks(found.key_type), _sparks(found.item_type))
    if types.is_struct(found):
        return pa.struct([pa.field(child.name, _sparks(child.type)) for child in found])
    return found


def fits(found: pa.DataType, wanted: pa.DataType, grown: bool = False) -> bool:
    """Whether each value of the type found in a file is also a value of the wanted type."""
    # With `grown` a missing field of a struct is null, because fields were added to the schema later.
    if found == wanted or types.is_null(found):
        return True
    if types.is_dictionary(found):
        return fits(found.value_type, wanted, grown)
    if types.is_integer(found):
        return _integer_fits(found, wanted)
    if types.is_floating(found):
        return bool(types.is_floating(wanted) and found.bit_width <= wanted.bit_width)
    if types.is_decimal(found):
        return bool(
            types.is_decimal(wanted)
            and wanted.scale >= found.scale
            and wanted.precision - wanted.scale >= found.precision - found.scale
        )
    if types.is_date(found) and types.is_timestamp(wanted):
        # A table's column may be widened from date to timestamp_ntz.
        return grown and wanted.tz is None
    if types.is_timestamp(found):
        # A time without a zone is taken as UTC; the other way round would lose the zone.
        return bool(types.is_timestamp(wanted) and (found.tz is None or wanted.tz is not None))
    if is_list(found):
        return is_list(wanted) and fits(found.value_type, wanted.value_type, grown)
    if types.is_map(found):
        return (
            types.is_map(wanted)
            and fits(found.key_type, wanted.key_type, grown)
            and fits(found.item_type, wanted.item_type, grown)
        )
    if types.is_struct(found):
        return types.is_struct(wanted) and _struct_fits(found, wanted, grown)
    kinds = (is_text, _is_binary, types.is_date, types.is_time, types.is_duration)
    return any(kind(found) and kind(wanted) for kind in kinds)


def _integer_fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_integer(wanted):
        spare = types.is_unsigned_integer(found) and types.is_signed_integer(wanted)
        if types.is_unsigned_integer(wanted) and not types.is_unsigned_integer(found):
            return False
        return bool(found.bit_width < wanted.bit_width if spare else found.bit_width <= wanted.bit_width)
    if types.is_floating(wanted):
        return bool(found.bit_width <= {64: 32, 32: 16}.get(wanted.bit_width, 0))
    digits = _DIGITS[found.bit_width // 8]
    return bool(types.is_decimal(wanted) and wanted.precision - wanted.scale >= digits)


def _struct_fits(found: pa.DataType, wanted: pa.DataType, grown: bool) -> bool:
    # One that differs in case only is not missing: Spark reads it, and Arrow would make null of it.
    names = {child.name.lower() for child in found}
    return all(
        fits(found.field(child.name).type, child.type, grown)
        if found.get_field_index(child.name) >= 0
        else grown and child.nullable and child.name.lower() not in names
        for child in wanted
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def match(wanted: str, names: list[str]) -> str | None:
    """The name of a declared column in the file: the same, or the only one that differs in case; else None."""
    if wanted in names:
        return wanted
    near = [name for name in names if name.lower() == wanted.lower()]
    return near[0] if len(near) == 1 else None


def misfit(found: pa.Schema, wanted: pa.Schema, constants: Mapping[str, str | None], grown: bool = False) -> str | None:
    """What is wrong with a file's columns: column, expected and found type; None if they fit."""
    for field in wanted:
        if field.name in constants:
            continue
        name = match(field.name, found.names)
        if name is None:
            return f"it has no column '{field.name}' ({field.type}); it has: {', '.join(found.names)}"
        if found.names.count(name) > 1:
            return f"it has the column '{name}' twice"
        kind = found.field(name).type
        if not fits(kind, field.type, grown):
            return f"its column '{name}' has the type {kind} where {field.type} is declared"
    return None


def conform(batch: pa.RecordBatch, wanted: pa.Schema, constants: Mapping[str, str | None]) -> pa.RecordBatch:
    """The batch with exactly the wanted columns, constants filled in."""
    names, columns = batch.schema.names, []
    for field in wanted:
        if field.name in constants:
            column = constant(constants[field.name], field.type, batch.num_rows)
        else:
            name = match(field.name, names)
            if name is None:
                raise pa.ArrowInvalid(f"column '{field.name}' has no values")
            column = batch.column(names.index(name))
        if column.type != field.type:
            try:
                column = cast(column, field.type)
            except pa.ArrowInvalid as problem:
                raise pa.ArrowInvalid(f"column '{field.name}': {problem}") from None
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"column '{field.name}' is declared as not nullable and has a null")
        columns.append(column)
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def constant(text: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of one value given as text, such as the value in the name of a partition's folder."""
    if text is None:
        return pa.nulls(rows, kind)
    try:
        value = pa.array([text])
    except UnicodeEncodeError:
        raise pa.ArrowInvalid(f"{text!r} is not valid UTF-8") from None
    value = instants(value, kind) if types.is_timestamp(kind) else cast(value, kind)
    return pa.repeat(value[0], rows)


def instants(texts: pa.Array, kind: pa.DataType, pattern: str | None = None) -> pa.Array:
    """Texts as timestamps: ISO 8601, or by a strptime pattern; UTC if no zone is given."""
    if pattern is not None:
        return parsed(texts, pattern).cast(kind)
    naive = pa.timestamp("us")
    try:
        return texts.cast(naive).cast(kind)
    except pa.ArrowInvalid:
        if kind.tz is None:
            raise
    zoned = pc.match_substring_regex(texts, _ZONE)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(_with_time(texts), "Z", "")).cast(kind)


def _with_time(texts: pa.Array) -> pa.Array:
    """Add a time of day to a date, because Arrow does not parse a zone after a date."""
    dates = pc.match_substring_regex(texts, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
    return pc.if_else(dates, pc.binary_join_element_wise(texts, "T00:00:00", ""), texts)


_HIVE = re.compile(r"([^/=]+)=([^/]*)")


def folder_values(path: str) -> dict[str, str | None]:
    """The partition values in the folders of a path, as Hive names them: `year=2013/month=1/x.parquet`."""
    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        found = _HIVE.fullmatch(part)
        if found:
            text = unquote(found[2], errors="surrogateescape")
            values[unquote(found[1])] = None if text == "__HIVE_DEFAULT_PARTITION__" else text
    return values
