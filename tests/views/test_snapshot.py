"""A snapshot sums up its queries."""

from datetime import timedelta

import pytest

from spark_ext.model.lifecycle import State
from tests.support.snapshots import T0, job, query


def test_a_job_sums_up_its_queries() -> None:
    found = job(query("a", rows=3, epochs=1), query("b", rows=4, epochs=2))
    assert (found.rows, found.epochs, found.finished) == (7, 3, False)
    assert job(query("a", State.FINISHED), state=State.FINISHED).finished
    assert (job().rows, job().epochs) == (0, 0)


@pytest.mark.parametrize(
    ("started", "ended", "seconds"), [(T0, None, 10), (T0, T0 + timedelta(seconds=4), 4), (None, None, 0)]
)
def test_time_runs_from_the_start_to_the_end_or_to_the_snapshot(started: object, ended: object, seconds: float) -> None:
    assert job(started=started, ended=ended, seconds=10).seconds == seconds


def test_a_query_is_found_by_its_uid() -> None:
    found = job(query("a"), query("b", rows=1))
    assert found.query("b").rows == 1
    with pytest.raises(KeyError, match="has no query 'c'; it has \\['a', 'b'\\]"):
        found.query("c")


def test_a_state_is_written_as_its_name() -> None:
    assert f"{query('a').state}" == str(query("a").state) == "RUNNING"
