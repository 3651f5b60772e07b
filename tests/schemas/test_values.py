"""Texts that are not UTF-8, and nulls where none may be, are found at any depth, in the rows of the batch alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_ext.schemas.values import null_in, undecodable

RAW = pa.array([b"ok", b"M\xf6hre", b"x", None], pa.binary())
TEXTS = pa.Array.from_buffers(pa.string(), 4, RAW.buffers(), RAW.null_count)
LARGE = pa.Array.from_buffers(pa.large_string(), 3, RAW.slice(0, 3).cast(pa.large_binary()).buffers())
ENDS = pa.array([0, 1, 2, 3, 4], pa.int32())
NUMBERS = pa.array(range(4))
STRUCT = pa.StructArray.from_arrays([NUMBERS, TEXTS], ["n", "t"])


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (TEXTS, "c"),
        (LARGE, "c"),
        (pa.DictionaryArray.from_arrays(pa.array(range(4)), TEXTS), "c"),
        (STRUCT, "c.t"),
        (pa.ListArray.from_arrays(ENDS, TEXTS), "c.element"),
        (pa.FixedSizeListArray.from_arrays(TEXTS, 1), "c.element"),
        (pa.MapArray.from_arrays(ENDS, NUMBERS, STRUCT), "c.value.t"),
        (pa.MapArray.from_arrays(ENDS[:4], TEXTS[:3], NUMBERS[:3]), "c.key"),
        (pa.ListArray.from_arrays(ENDS, pa.ListArray.from_arrays(ENDS, STRUCT)), "c.element.element.t"),
    ],
)
def test_the_column_is_named_and_other_rows_of_a_larger_batch_do_not_count(column: pa.Array, name: str) -> None:
    batch = pa.RecordBatch.from_arrays([column], ["c"])
    assert undecodable(batch) == name
    found = [undecodable(batch.slice(row, 1)) for row in range(len(column))]
    assert found == [name if row == 1 else None for row in range(len(column))]
    assert undecodable(batch.slice(2)) is None and undecodable(batch.slice(1, 0)) is None


def test_bytes_are_no_text() -> None:
    structs = pa.nulls(4, pa.struct([("t", pa.string())]))
    assert undecodable(pa.record_batch({"b": RAW, "n": NUMBERS, "s": structs})) is None


INT, INTS = pa.field("i", pa.int32(), nullable=False), pa.list_(pa.field("element", pa.int32(), nullable=False))


@pytest.mark.parametrize(
    ("kind", "good", "bad", "path"),
    [
        (pa.int32(), [1], None, "v"),
        (pa.struct([INT]), [{"i": 1}], {"i": None}, "v.i"),
        (INTS, [[1], []], [1, None], "v.element"),
        (pa.list_(pa.struct([INT])), [[{"i": 1}, None], None], [{"i": None}], "v.element.i"),
        (pa.map_(pa.string(), INTS), [[("a", [1]), ("b", None)], []], [("a", [None])], "v.value.element"),
        (pa.map_(pa.string(), pa.int32()), [[("a", None)]], None, "v"),
    ],
)
def test_a_null_where_none_is_declared_is_found(kind: pa.DataType, good: list[Any], bad: Any, path: str) -> None:
    """Also in a slice, and not in what a null hides. Spark takes it for a zero."""
    strict = pa.schema([pa.field("v", kind, nullable=False)])
    for declared in (strict, pa.schema([pa.field("v", kind)])):
        null = [] if declared is strict else [None]
        batch = pa.RecordBatch.from_arrays(
            [pa.array([*null, *(one for one in good if one is not None), *null], kind)], schema=declared
        )
        assert null_in(batch) is None
    every = [bad, good[0], bad, good[0]]
    batch = pa.RecordBatch.from_arrays([pa.array(every, kind)], schema=strict)
    assert [null_in(batch.slice(at, 1)) for at in range(4)] == [path, None, path, None]
