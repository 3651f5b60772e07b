"""Series that are thinned out: nothing is lost but the place of an epoch in its period."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.ledger.columns import to_arrow
from spark_ext.ledger.schema import EpochRow
from spark_ext.views.page.epochs import UNKNOWN, Epochs, points_each, series, series_of, series_of_all
from tests.ledger.rows import START, epoch

# Time, rows and duration.
EPOCH = st.tuples(st.integers(0, 10**6), st.integers(UNKNOWN, 10**6), st.integers(UNKNOWN, 10**5))


@given(st.lists(EPOCH, max_size=200), st.integers(1, 50))
def test_a_series_keeps_sums_extremes_and_order(epochs: list[tuple[int, int, int]], most: int) -> None:
    at, rows, ms = (np.array(part, np.int64) for part in zip(*sorted(epochs), strict=True)) if epochs else ([],) * 3
    at, rows, ms = np.asarray(at, np.int64), np.asarray(rows, np.int64), np.asarray(ms, np.int64)
    found = series(at, rows, ms, most)
    assert len(found.at) <= most and sum(found.epochs) == len(epochs)
    assert sum(found.rows) == sum(row for _, row, _ in epochs if row != UNKNOWN)
    begins, ends = found.at - found.before, found.at + found.after
    assert min(begins, default=0) == min((time - max(took, 0) for time, _, took in epochs), default=0)
    assert max(ends, default=0) == max((time for time, _, _ in epochs), default=0)
    assert list(found.at) == sorted(found.at) and set(found.at) <= {time for time, _, _ in epochs}
    known = [one for _, _, one in epochs if one != UNKNOWN]
    there = [point for point in zip(found.least, found.mean, found.greatest, strict=True) if point[0] != UNKNOWN]
    assert all(least <= mean <= greatest for least, mean, greatest in there)
    assert min((point[0] for point in there), default=None) == min(known, default=None)
    assert max((point[2] for point in there), default=None) == max(known, default=None)


@given(st.lists(EPOCH, min_size=1, max_size=50))
def test_few_epochs_are_left_as_they_are(epochs: list[tuple[int, int, int]]) -> None:
    at, rows, ms = (np.array(part, np.int64) for part in zip(*sorted(epochs), strict=True))
    found = series(at, rows, ms, 50)
    assert found.at.tolist() == at.tolist() and found.mean.tolist() == ms.tolist() == found.least.tolist()


def test_epochs_of_rows_in_any_order_each_once() -> None:
    rows = [epoch(2, "b"), epoch(1, "b"), epoch(1, "a", lineage=2), epoch(1, "a"), epoch(1, "b")]
    rows.append(replace(epoch(3, "b"), input_rows=None, duration_ms=None))
    found = Epochs.of(to_arrow(EpochRow, rows))
    assert found.queries == ("a", "b") and len(found) == 5
    part = found.slices()["b"]
    assert found.epoch[part].tolist() == [1, 2, 3] and found.rows[part].tolist() == [10, 10, UNKNOWN]
    assert found.at[part][0] == (START + timedelta(seconds=1)).timestamp() * 1000
    assert sorted(found.lineage[found.slices()["a"]].tolist()) == [1, 2]
    assert series_of(found, 1)["b"].epochs.tolist() == [3] and series_of_all(found, 9).epochs.sum() == 5
    assert series_of(found, 9)["b"].mean.tolist() == [5, 5, UNKNOWN]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(UNKNOWN, 10**5)), min_size=1), st.integers(1, 50))
def test_no_peak_of_a_lag_is_lost(epochs: list[tuple[int, int]], most: int) -> None:
    at, lag = (np.array(part, np.int64) for part in zip(*sorted(epochs), strict=True))
    found = series(at, lag, lag, most, lag).lag.tolist()
    assert max(found, default=UNKNOWN) == max(lag) and (found == [] or max(found) >= 0)
    assert series(at, lag, lag, most).lag.tolist() == [], "of several queries there is no such figure"


def test_no_epochs() -> None:
    found = Epochs.of(to_arrow(EpochRow, []))
    assert len(found) == 0 and found.slices() == {} and series_of(found, 5) == {}
    assert series_of_all(found, 5).to_json()["at"] == []


@pytest.mark.parametrize(("queries", "each"), [(0, 240), (1, 240), (100, 80), (10_000, 16)])
def test_many_queries_get_fewer_points_each(queries: int, each: int) -> None:
    assert points_each(queries, 240, 16, 8_000) == each
