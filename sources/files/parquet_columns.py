"""The columns of a Parquet file, as Spark types them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

INSTANT = pa.timestamp("us", "UTC")


class Columns(NamedTuple):
    """The columns of a file."""

    schema: pa.Schema
    int96: dict[str, list[bool]]
    """For each column, for each of its leaves in order, whether it is of the type INT96."""


def columns_in(parquet: pq.ParquetFile) -> Columns:
    """The file's columns; INT96 is a timestamp in UTC and ENUM is text, at any depth, as in Spark and Hive."""
    leaves = [parquet.schema.column(index) for index in range(len(parquet.schema))]
    rest = iter(leaves)
    fields, int96, first = [], {}, 0
    for field in parquet.schema_arrow:
        fields.append(field.with_type(_typed(field.type, rest)).remove_metadata())
        last = len(leaves) - length_hint(rest)
        int96[field.name] = [leaf.physical_type == "INT96" for leaf in leaves[first:last]]
        first = last
    if first != len(leaves):
        raise ValueError("its footer has columns that no type was found for")
    return Columns(pa.schema(fields), int96)


def _typed(kind: pa.DataType, leaves: Iterator[Any]) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        _typed(kind.storage_type, leaves)
        return kind
    if types.is_struct(kind):
        return pa.struct([child.with_type(_typed(child.type, leaves)) for child in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(_typed(kind.key_type, leaves))
        return pa.map_(key, kind.item_field.with_type(_typed(kind.item_type, leaves)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_typed(kind.value_type, leaves)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_typed(kind.value_type, leaves)), kind.list_size)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_typed(kind.value_type, leaves)))
    leaf = next(leaves, None)
    if leaf is None:
        raise ValueError("its footer has fewer columns than types were found for")
    if leaf.physical_type == "INT96":
        return INSTANT
    if leaf.logical_type.type == "ENUM":
        return pa.string()
    return kind
