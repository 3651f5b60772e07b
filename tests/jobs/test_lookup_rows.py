"""Rows of a lookup, found by the values of columns: as a join of SQL finds them, row by row."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.jobs.lookup_rows import LookupRows

TYPES = pa.schema([("a", pa.string()), ("b", pa.int32()), ("number", pa.int64())])
KEYS = st.tuples(st.sampled_from(["", "x", "y", None]), st.sampled_from([0, 1, -7, None]))


def rows_of(keys: Sequence[tuple[Any, Any]], key: tuple[str, ...] = ("a", "b")) -> LookupRows:
    rows = [{"a": a, "b": b, "number": number} for number, (a, b) in enumerate(keys)]
    return LookupRows("id", 1, pa.Table.from_pylist(rows, TYPES), key)


@settings(max_examples=40)
@given(st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=8), st.sampled_from(["a", "b", "ab", "ba"]))
def test_a_row_matches_where_all_columns_are_equal_and_none_is_null(
    keys: list[tuple[Any, Any]], asked: list[tuple[Any, Any]], on: str
) -> None:
    def picked(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, ...]]:
        return [tuple(pair["ab".index(name)] for name in on) for pair in pairs]

    there, wanted = picked(keys), picked(asked)
    matches = [[n for n, key in enumerate(there) if key == one and None not in one] for one in wanted]
    arrays = [pa.array([one[at] for one in wanted], TYPES.field(name).type) for at, name in enumerate(on)]
    found = rows_of(keys, tuple(on)).lists(tuple(on), arrays, ("number",)).to_pylist()
    assert [[one["number"] for one in each] for each in found] == matches
    repeated = rows_of(keys, tuple(on)).repeated
    several = {key for key in there if None not in key and there.count(key) > 1}
    assert tuple(repeated.values()) in several if repeated else not several


@given(st.lists(KEYS, max_size=12, unique=True), KEYS)
def test_a_key_finds_its_row(keys: list[tuple[Any, Any]], one: tuple[Any, Any]) -> None:
    row = rows_of(keys).get(one)
    assert (None if row is None else (row["a"], row["b"])) == (one if one in keys and None not in one else None)


def test_the_value_of_a_key_has_its_columns_type() -> None:
    with pytest.raises(ValueError, match="int"):
        rows_of([("x", 1)], ("b",)).get(["1"])
