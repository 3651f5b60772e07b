"""Cutting a range into parts."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_ext.sources.files.row_groups import even_cuts, parts_between


@given(start=st.integers(0, 50), length=st.integers(0, 50), cuts=st.lists(st.integers(-5, 110)))
def test_the_parts_are_the_range_whatever_the_cuts_are(start: int, length: int, cuts: list[int]) -> None:
    end = start + length
    parts = parts_between(start, end, cuts)
    assert (parts[0][0], parts[-1][1]) == (start, end)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert parts == [(start, end)] or all(low < high for low, high in parts)
    assert {low for low, _ in parts[1:]} <= set(cuts)


def test_cuts_at_equal_distances() -> None:
    assert even_cuts(10, 20, 3) == [13, 16]
    assert even_cuts(10, 20, 1) == even_cuts(10, 20, 0) == []
    assert parts_between(10, 20, even_cuts(10, 20, 3)) == [(10, 13), (13, 16), (16, 20)]
