"""Batches of a source in exactly the declared schema; rows that cannot be cast are found one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from spark_ext.bad_rows.sift import sift, text_of
from spark_ext.errors import DataError
from spark_ext.sources.contract import BadRow

if TYPE_CHECKING:
    from spark_ext.model.offsets import Range


def conform(batch: pa.RecordBatch, schema: pa.Schema, piece: Range, uid: str) -> pa.RecordBatch:
    """A batch in the declared schema."""
    # Spark checks only the first batch of a task; a later one that differs crashes the JVM's reader.
    try:
        return _cast(batch, schema)
    except (KeyError, pa.ArrowException) as problem:
        raise _refusal(problem, schema, piece, uid) from problem


def sifted(
    batch: pa.RecordBatch, schema: pa.Schema, piece: Range, uid: str, first: int, bad: Callable[[BadRow], object]
) -> pa.RecordBatch:
    """Like `conform`, without the rows that do not fit."""

    def collect(row: int, one: pa.RecordBatch, problem: Exception) -> None:
        position = {"from": piece.start, "row": first + row}
        bad(BadRow(position, f"it does not have the declared schema: {problem}", text_of(one)))

    try:
        return _cast(batch, schema)
    except (KeyError, pa.ArrowNotImplementedError) as problem:
        raise _refusal(problem, schema, piece, uid) from problem
    except pa.ArrowException:
        good = list(sift(batch, lambda rows: _cast(rows, schema), pa.ArrowException, collect))
    if not good:
        return pa.RecordBatch.from_pylist([], schema)
    return pa.Table.from_batches(good, schema=schema).combine_chunks().to_batches()[0]


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    from spark_ext.schemas.casts import cast
    from spark_ext.schemas.values import null_in, undecodable

    for field in schema:
        if (absent := _absent(batch.column(field.name).type, field.type)) is not None:
            raise pa.ArrowNotImplementedError(f"column '{field.name}' has no field '{absent}'")
    columns = [cast(batch.column(field.name), field.type) for field in schema]
    found = pa.RecordBatch.from_arrays(columns, schema=schema)
    column = undecodable(found)
    if column is not None:
        raise pa.ArrowInvalid(f"column '{column}' has a text that is not UTF-8")
    if (column := null_in(found)) is not None:
        raise pa.ArrowInvalid(f"column '{column}' is declared as not nullable and has a null")
    return found


def _absent(found: pa.DataType, wanted: pa.DataType) -> str | None:
    """The name of a field that values of a type do not have; Arrow would make null of it."""
    parts: dict[str, tuple[pa.DataType, pa.DataType]] = {}
    if types.is_struct(found) and types.is_struct(wanted):
        for child in wanted:
            if (at := found.get_field_index(child.name)) < 0:
                return str(child.name)
            parts[child.name] = (found.field(at).type, child.type)
    elif types.is_map(found) and types.is_map(wanted):
        parts = {"key": (found.key_type, wanted.key_type), "value": (found.item_type, wanted.item_type)}
    elif types.is_list(wanted) and found.num_fields == 1:
        parts = {"element": (found.field(0).type, wanted.value_type)}
    for name, (one, other) in parts.items():
        if (inner := _absent(one, other)) is not None:
            return f"{name}.{inner}"
    return None


def _refusal(problem: Exception, schema: pa.Schema, piece: Range, uid: str) -> DataError:
    return DataError(
        f"rows do not have the declared schema: {problem}",
        operator=f"source '{uid}', channel '{piece.channel}', from {piece.start!r}",
        kept="everything up to the previous epoch; no row of this one was committed",
        do="declare the schema that the data has, or repair the data; declared: "
        + ", ".join(f"{field.name} {field.type}" for field in schema),
    )
