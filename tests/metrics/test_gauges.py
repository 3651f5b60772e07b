"""Gauges are read from a snapshot."""

from dataclasses import replace

import pytest

from spark_ext.metrics.catalogue import OTHER
from spark_ext.metrics.gauges import QueryFacts, delay_of
from spark_ext.model.lifecycle import State
from spark_ext.views.snapshot import LatencySnapshot
from tests.metrics.jobs import live, measured, value
from tests.views.test_timeline import at


@pytest.mark.parametrize(
    ("watermark", "delay"),
    [
        ("2026-01-01T12:01:30.000Z", 10), ("2026-01-01T12:01:30Z", 10), ("2027-01-01T00:00:00.000Z", 0),
        ("+292278994-08-17T07:12:55.807Z", 0), ("1970-01-01T00:00:00.000Z", None), ("", None),
    ],
)  # fmt: skip
def test_the_delay_of_a_watermark(watermark: str, delay: float | None) -> None:
    assert delay_of(watermark, at(100)) == delay


def test_each_job_and_query_is_in_exactly_one_state() -> None:
    samples = measured(shown=live(queries=("a", "b"))).samples()
    for name, series in (("spark_ext_job_state", 1), ("spark_ext_query_state", 2)):
        found = [one for one in samples if one.metric.name == name]
        assert len(found) == series * len(State) and sum(one.value for one in found) == series


def test_many_queries_share_what_is_over_the_limit() -> None:
    metrics = measured(shown=live(queries=tuple(f"q{number}" for number in range(50))), limit=10)
    assert value(metrics, "spark_ext_state_rows", OTHER) == 40 * 7
    assert value(metrics, "spark_ext_query_state", OTHER, "RUNNING") == 40
    assert len([one for one in metrics.samples() if one.metric.name == "spark_ext_query_state"]) == 11 * len(State)


def test_the_latest_latency_is_that_of_the_slowest_way() -> None:
    shown = live()
    ways = tuple(
        LatencySnapshot(source="in", ms=ms, at=at(90), hops=(("p", 1), ("q", ms)), way=way, markers=3)
        for way, ms in ((("x-in",), 250), (("y-in",), 1_500), (("z-in",), 40))
    )
    (query,) = shown.snapshot.queries
    shown = replace(shown, snapshot=replace(shown.snapshot, queries=(replace(query, latencies=ways),)))
    assert value(measured(shown=shown), "spark_ext_latest_latency_seconds", "q", "in") == 1.5


def test_a_lag_that_is_known_has_an_age_while_its_query_runs() -> None:
    names = {one.metric.name for one in measured(shown=live()).samples()}
    assert not names & {"spark_ext_lag_rows", "spark_ext_watermark_delay_seconds", "spark_ext_downtime_seconds_total"}
    shown = live()
    facts = QueryFacts(
        lags={"in": 30, "other": 4}, lags_at={"in": at(60).timestamp()}, newest_row="2026-01-01T12:01:30Z"
    )
    metrics = measured(shown=replace(shown, facts={"q": facts}))
    assert value(metrics, "spark_ext_source_lag_rows", "q", "in") == 30
    assert value(metrics, "spark_ext_source_lag_age_seconds", "q", "in") == 40
    assert value(metrics, "spark_ext_newest_row_age_seconds", "q") == 10
    (query,) = shown.snapshot.queries
    over = replace(shown.snapshot, queries=(replace(query, state=State.FAILED),))
    names = {one.metric.name for one in measured(shown=replace(shown, snapshot=over, facts={"q": facts})).samples()}
    assert "spark_ext_source_lag_rows" in names and "spark_ext_source_lag_age_seconds" not in names
