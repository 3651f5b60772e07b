"""Rows of a lookup, found by the values of columns: as a join of SQL finds them, row by row."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.jobs.lookup_rows import LookupRows

TYPES = pa.schema([("a", pa.string()), ("b", pa.int32()), ("number", pa.int64())])
KEYS = st.tuples(st.sampled_from(["", "x", "y", None]), st.sampled_from([0, 1, -7, None]))


def rows_of(keys: list[tuple[Any, Any]]) -> LookupRows:
    rows = [{"a": a, "b": b, "number": number} for number, (a, b) in enumerate(keys)]
    return LookupRows("id", 1, pa.Table.from_pylist(rows, TYPES))


@given(
    st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=8), st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")])
)
def test_a_row_matches_where_all_columns_are_equal_and_none_is_null(
    keys: list[tuple[Any, Any]], asked: list[tuple[Any, Any]], on: tuple[str, ...]
) -> None:
    places = ["ab".index(name) for name in on]
    picked = [tuple(key[place] for place in places) for key in keys]
    wanted = [[n for n, key in enumerate(picked) if key == one and None not in one] for one in
              [tuple(key[place] for place in places) for key in asked]]  # fmt: skip
    arrays = [
        pa.array([key[place] for key in asked], TYPES.field(name).type) for name, place in zip(on, places, strict=True)
    ]
    found = rows_of(keys).lists(on, arrays, ("number",)).to_pylist()
    assert [[one["number"] for one in each] for each in found] == wanted
    several = {key for key in picked if None not in key and picked.count(key) > 1}
    repeated = rows_of(keys).repeated(on)
    assert (repeated is None) == (not several)
    assert repeated is None or tuple(repeated.values()) in several
    for one, numbers in zip(asked, wanted, strict=True):
        row = rows_of(keys).one(on, [one[place] for place in places])
        assert (row and row["number"]) == (numbers[0] if numbers else None)


def test_the_value_of_a_key_has_its_columns_type() -> None:
    with pytest.raises(ValueError, match="int"):
        rows_of([("x", 1)]).one(("b",), ["1"])
