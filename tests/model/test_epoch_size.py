"""How many rows an epoch will have, by how far its offsets advance: pure functions."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.slow import ALIKE, NEEDED, advance, planned_rows


def logged(*sources: Any) -> LoggedOffsets:
    return LoggedOffsets(1, {}, sources)


POSITIONS = st.lists(st.integers(0, 10**9), min_size=1, max_size=5)


@given(POSITIONS, st.data())
def test_the_advance_is_the_sum_over_all_sources_and_channels(positions: list[int], data: st.DataObject) -> None:
    by = [data.draw(st.integers(0, 1000)) for _ in positions]
    before = logged({"t": {str(n): at for n, at in enumerate(positions)}}, positions, "2026-01-01")
    after = logged(
        {"t": {str(n): at + far for n, (at, far) in enumerate(zip(positions, by, strict=True))}},
        [at + far for at, far in zip(positions, by, strict=True)],
        "2026-02-01",
    )
    assert advance(before, after) == 2 * sum(by)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": 2, "b": 9}),
        (None, {"a": 2}),
        ({"logOffset": 1}, {"logOffset": 2}),
        ({"reservoirVersion": 1, "index": -1}, {"reservoirVersion": 2, "index": -1}),
    ],
)
def test_offsets_that_do_not_count_rows_say_nothing(before: Any, after: Any) -> None:
    assert advance(logged(before), logged(after)) is None


@given(st.floats(0.01, 1000), st.lists(st.integers(1, 10**6), min_size=NEEDED, max_size=20), st.integers(0, 10**7))
def test_rows_in_proportion_to_advances_are_known_in_advance(rate: float, far: list[int], now: int) -> None:
    known = [(one / rate, one) for one in far]
    assert planned_rows(known, now / rate) == pytest.approx(now)
    assert planned_rows(known[: NEEDED - 1], now / rate) is None
    assert planned_rows(known, None) is None
    assert planned_rows([*known, (1.0, round(ALIKE * rate) + 2)], now / rate) is None
