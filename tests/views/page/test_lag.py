"""Which figure counts of the two that there are of a query's lag."""

from typing import Any

import pytest

from spark_ext.views.page.figures import QueryLag, exchange_of, query_lag
from spark_ext.views.snapshot import ExchangeSnapshot
from spark_ext.views.style import exchange_text

BOTH = {"lag": {"b": [5, 2_000], "a": [10, 1_000]}, "complete": True}


def test_the_newer_one_of_heartbeat_and_epoch() -> None:
    sources = (("a", 10, 1_000), ("b", 5, 2_000))
    assert query_lag(BOTH, 7, 900, finished=False) == QueryLag(15, 1_000, sources)
    assert query_lag(BOTH, 7, 1_100, finished=False) == QueryLag(7, 1_100, sources)
    assert query_lag(BOTH, None, 1_100, finished=False) == QueryLag(15, 1_000, sources)
    assert query_lag({}, 7, 1_100, finished=False) == QueryLag(7, 1_100)
    assert query_lag({**BOTH, "complete": False}, None, None, finished=False) == QueryLag(None, None, sources)


def test_a_query_that_has_finished_has_nothing_to_read() -> None:
    assert query_lag({**BOTH, "watermark": 3}, 7, 900, finished=True) == QueryLag(0, watermark=3)


@pytest.mark.parametrize("said", [{"lag": 3}, {"lag": {"a": 3}}, {"lag": {"a": [True, 1]}}, {"lag": {"a": [1, 2, 3]}}])
def test_what_is_malformed_is_left_out(said: dict[str, Any]) -> None:
    assert query_lag({**said, "complete": True, "newest_row": "x"}, None, None, finished=False) == QueryLag()


def test_an_exchange_is_what_the_last_heartbeat_said() -> None:
    found = exchange_of({"exchange": ["x", 3, 40, 500]})
    assert found == ExchangeSnapshot(name="x", rows=3, bytes=40, stored_bytes=500)
    assert exchange_text(3, 40, 5 << 20) == "3 rows, 40 B; 5.0 MiB on disk"
    for said in ({}, {"exchange": None}, {"exchange": ["x", 3, 40]}, {"exchange": ["x", 3, "40", 500]}):
        assert exchange_of(said) is None
