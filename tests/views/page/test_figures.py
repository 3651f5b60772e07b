"""What the epochs of a query add up to, against sums over rows."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.ledger.columns import to_arrow
from spark_ext.ledger.schema import EpochRow
from spark_ext.views.page.epochs import Epochs
from spark_ext.views.page.figures import counts_of, figures_of, rates_of
from spark_ext.views.timeline import timeline
from tests.ledger.rows import START, epoch

ROWS = st.lists(
    st.builds(
        lambda number, query, lineage, **fields: replace(epoch(number, query, lineage=lineage), **fields),
        st.integers(0, 4), st.sampled_from("ab"), st.integers(1, 3), incarnation=st.integers(1, 3),
        duration_ms=st.none() | st.integers(1, 9),
        **dict.fromkeys(("input_rows", "lag_rows", "late_rows", "state_rows"), st.none() | st.integers(0, 9)),
    ),
    unique_by=lambda row: (row.query, row.lineage, row.epoch),
    max_size=30,
)  # fmt: skip


@given(ROWS, st.integers(1, 3))
def test_of_each_number_the_newest_lineage_counts(rows: list[EpochRow], least: int) -> None:
    found = figures_of(epochs := Epochs.of(to_arrow(EpochRow, rows)), lambda query: least)
    own: dict[str, dict[int, EpochRow]] = {}
    for row in sorted(rows, key=lambda row: row.lineage):
        if row.lineage >= least:
            own.setdefault(row.query, {})[row.epoch] = row
    assert found.keys() == own.keys()
    now = round(START.timestamp() * 1000) + 62_000
    for uid, counted in own.items():
        newest = counted[max(counted)]
        figures = found[uid]
        assert (figures.epochs, figures.rows) == (len(counted), sum(row.input_rows or 0 for row in counted.values()))
        assert (figures.last, figures.last_ms, figures.lag) == (newest.epoch, newest.duration_ms, newest.lag_rows)
        assert figures.state == newest.state_rows
        assert figures.late == sum(row.late_rows or 0 for row in counted.values())
        assert figures.at == newest.committed_at.timestamp() * 1000
        newest_start = max(row.incarnation for row in counted.values())
        since = max(now - 60_000, min(began(row) for row in counted.values() if row.incarnation == newest_start))
        read = sum(
            sum(since <= at < now for at in range(began(row), ended(row)))
            * (row.input_rows or 0)
            / (row.duration_ms or 1)
            for row in counted.values()
        )
        expected = read / (now - since) * 1000
        assert rates_of(epochs, lambda query: least, now)[uid] == pytest.approx(expected, abs=0.051)


def began(row: EpochRow) -> int:
    return ended(row) - (row.duration_ms or 1)


def ended(row: EpochRow) -> int:
    return round(row.committed_at.timestamp() * 1000)


@pytest.mark.parametrize(("after_s", "rate"), [(0, 1_000.0), (30, 1_000.0), (60, 0.0)])
def test_a_long_epoch_counts_with_the_part_that_lies_in_the_last_minute(after_s: int, rate: float) -> None:
    row = replace(epoch(1), committed_at=START + timedelta(minutes=10), duration_ms=600_000, input_rows=600_000)
    now = ended(row) + after_s * 1000
    expected = rate * (60 - after_s) / 60
    assert rates_of(Epochs.of(to_arrow(EpochRow, [row])), lambda query: 0, now) == {"q": expected}


def test_a_query_that_began_seconds_ago_is_not_measured_over_a_minute() -> None:
    rows = [
        replace(epoch(n), committed_at=START + timedelta(seconds=n), duration_ms=700, input_rows=300)
        for n in range(1, 11)
    ]
    found = rates_of(Epochs.of(to_arrow(EpochRow, rows)), lambda query: 0, ended(rows[-1]))
    assert found == {"q": pytest.approx(3_000 / 9.7, abs=0.05)}


@given(ROWS)
def test_counts_are_those_of_a_timeline_of_the_rows(rows: list[EpochRow]) -> None:
    plain = [vars(row) for row in rows]
    starts = [{"event": "started", "incarnation": row.incarnation, "at": START} for row in rows]
    spans = timeline([], starts, plain).spans
    assert counts_of(Epochs.of(to_arrow(EpochRow, rows))) == {span.number: (span.epochs, span.rows) for span in spans}
