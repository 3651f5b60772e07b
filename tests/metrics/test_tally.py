"""Counters follow from rows: each fact counts once, however often and in whatever order its row is given."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.ledger.schema import EpochRow
from spark_ext.metrics.book import Book, Bound, Sample
from spark_ext.metrics.tally import GAPS, Numbers, Tally
from spark_ext.model.latency import Hop, Marker
from tests.ledger.rows import START, checkpoint, epoch, event, flag
from tests.metrics.jobs import measured
from tests.metrics.rows import incident, state


def counted(rows: list[Any]) -> dict[str, float]:
    """The values after some rows: `name{labels}` without the job's."""
    tally, book = Tally("j"), Book(Bound("j"))
    for row in rows:
        for change in tally.take(row):
            book.apply(change)
    return {named(sample): sample.value for sample in book.samples()}


def named(sample: Sample) -> str:
    labels = ",".join(f"{name}={value}" for name, value in sample.named.items() if name != "job")
    return f"{sample.metric.name}{{{labels}}}"


@given(st.lists(st.integers(0, 60)))
def test_numbers_are_a_set(given_: list[int]) -> None:
    numbers, seen = Numbers(), set[int]()
    for number in given_:
        assert numbers.add(number) is (number not in seen)
        seen.add(number)
    assert numbers.gaps == max(0, sum(number - 1 not in seen for number in seen) - 1)


def test_numbers_stay_small_with_gaps_without_end() -> None:
    numbers = Numbers()
    for number in range(0, 20 * GAPS, 2):
        assert numbers.add(number)
    assert numbers.gaps == GAPS
    assert not numbers.add(20 * GAPS - 2) and numbers.add(20 * GAPS - 3), "newer gaps are remembered"


def test_a_latency_marker_is_an_observation() -> None:
    metrics = measured(*(Marker("in", 0, (Hop("p", 20), Hop("q", ms)), ("x-in",)) for ms in (100, 400)))
    (found,) = [one for one in metrics.samples() if one.metric.name == "spark_ext_latency_seconds"]
    assert found.named == {"job": "j", "query": "q", "source": "in"}
    assert found.value == 2 and found.distribution is not None and found.distribution.sum == 0.5


ROWS = st.one_of(
    st.builds(epoch, st.integers(0, 9), st.sampled_from("qr"), st.integers(1, 2)),
    st.builds(flag, st.integers(1, 5), st.sampled_from("st"), st.sampled_from("qr")),
    st.builds(checkpoint, st.integers(1, 9)), st.builds(incident, st.sampled_from("abc"), st.just(1.0)),
)  # fmt: skip


@given(st.data())
def test_a_row_that_is_given_again_changes_nothing(data: st.DataObject) -> None:
    rows = data.draw(st.lists(ROWS, max_size=30))
    again = data.draw(st.lists(st.sampled_from(rows), max_size=10)) if rows else []
    once = {repr(row): row for row in rows}
    shuffled = data.draw(st.permutations([*rows, *again]))
    newest = ("spark_ext_last_",)  # of a lineage that is not the newest one, the last row counts
    expected = {name: value for name, value in counted(list(once.values())).items() if not name.startswith(newest)}
    found = {name: value for name, value in counted(shuffled).items() if not name.startswith(newest)}
    assert found == expected
    for query, number in Counter(row.query for row in once.values() if isinstance(row, EpochRow)).items():
        assert found[f"spark_ext_epochs_total{{query={query}}}"] == number
        assert found[f"spark_ext_input_rows_total{{query={query}}}"] == 10 * number
        assert found[f"spark_ext_epoch_duration_seconds{{query={query}}}"] == number


def test_an_epoch_without_figures_counts_without_duration() -> None:
    found = counted([replace(epoch(0), input_rows=None, duration_ms=None), epoch(1)])
    assert found["spark_ext_epochs_total{query=q}"] == 2 and found["spark_ext_input_rows_total{query=q}"] == 10
    assert found["spark_ext_epoch_duration_seconds{query=q}"] == 1
    assert found["spark_ext_last_epoch{query=q}"] == 1
    assert found["spark_ext_last_commit_timestamp_seconds{query=q}"] == START.timestamp() + 1


def test_checkpoints_count_once_by_their_result() -> None:
    aligned = replace(checkpoint(1), mode="aligned", triggered_at=START, at=START + timedelta(seconds=3))
    found = counted(
        [
            replace(aligned, status="TRIGGERED", metadata=None), aligned,
            replace(checkpoint(2, status="FAILED"), mode="aligned"), checkpoint(3, "final", query="q"),
            checkpoint(3, "final", "FLAGGED", query="q"), checkpoint(3, "final", "CLOSED", query="q"),
        ]
    )  # fmt: skip
    assert found == {
        "spark_ext_checkpoints_total{kind=periodic,mode=aligned,result=completed}": 1,
        "spark_ext_checkpoint_duration_seconds{kind=periodic,mode=aligned}": 1,
        "spark_ext_checkpoints_total{kind=periodic,mode=aligned,result=failed}": 1,
        "spark_ext_checkpoints_total{kind=final,mode=,result=completed}": 1,
    }


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [flag(1), flag(2), flag(0, kind="source"), flag(0, kind="query")],
            {"channels_finished_total{query=q,source=s}": 2},
        ),
        (
            [state("RUNNING", 1)],
            {f"{name}_total{{query=q}}": 0 for name in ("epochs", "input_rows", "late_rows", "restarts")}
            | {"incidents_total{query=q,type=failure,severity=ERROR}": 0},
        ),
        (
            [
                incident("a", 1, type="NETWORK", origin="user"), incident("b", 2, type="NETWORK", origin="user"),
                incident("c", 3, "job 'j'", "driver_lost", type="SYSTEM", origin="spark"),
                incident("d", 4, kind="close"), incident("e", 5, type="of a plugin"),
            ],
            {
                "incidents_total{query=q,type=failure,severity=ERROR}": 3,
                "failures_total{query=q,class=NETWORK,origin=user}": 2,
                "failures_total{query=q,class=UNKNOWN,origin=UNKNOWN}": 1,
                "incidents_total{query=,type=driver_lost,severity=ERROR}": 1,
                "incidents_total{query=q,type=close,severity=WARNING}": 1,
            },
        ),
        ([event(1), "no row"], {}),
    ],
    ids=["only channels have finished", "all counters from the first state on", "incidents", "other tables"],
)  # fmt: skip
def test_rows_count(rows: list[Any], expected: dict[str, float]) -> None:
    assert counted(rows) == {f"spark_ext_{name}": value for name, value in expected.items()}


def test_restarts_are_of_queries_and_each_counts() -> None:
    rows = [state("RESTARTING", 1), state("RESTARTING", 1, ""), state("RUNNING", 2), state("RESTARTING", 3)]
    found = counted([*rows, rows[-1]])
    assert found["spark_ext_restarts_total{query=q}"] == 2
    assert "spark_ext_restarts_total{query=}" not in found
