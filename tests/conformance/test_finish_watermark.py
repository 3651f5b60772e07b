"""Conformance, "Finish", where event time is: the end of input, watermarks, timers, asynchronous work.

One test per line, named after it. The queries run outside a job, so that each epoch can be looked at.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from spark_ext import async_map, with_watermark
from tests.support.watermarks import DAY, Given, Streams, hour, hourly, sorted_rows

NOW = {"availableNow": True}


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Iterator[Streams]:
    with closing(Streams(spark, tmp_path)) as found:
        yield found


@pytest.mark.core
def test_f2_exactly_one_end_of_input_after_the_last_row(streams: Streams) -> None:
    """Per input and run one marker, in an epoch after the one with the last row; each plan is in another test."""
    streams.put("a", [(h, "x", h) for h in range(10)])
    streams.put("b", [(h, "x", h) for h in range(30)])
    left = with_watermark(streams.read("a", max_rows_per_epoch=6), "ts", "1 hour")
    right = with_watermark(streams.read("b", max_rows_per_epoch=12), "ts", "1 hour").selectExpr("ts as ts2", "n as n2")
    joined = left.join(right, F.expr("n = n2 and ts2 between ts - interval 1 hour and ts + interval 1 hour"), "full")
    streams.run(joined)
    for uid in ("a", "b"):
        markers, ended = streams.markers(f"{uid}~end"), streams.ended(uid)
        steps = [step for step, before in zip(markers, [(0, False), *markers], strict=False) if step != before]
        assert steps == [(1, False), (1, True)]
        assert markers.index((1, False)) > ended.index(True)
    assert streams.markers("a~end").index((1, False)) < streams.markers("b~end").index((1, False))
    assert len(streams.rows()) == 30
    assert set(streams.state_rows()) == {0}


LIVE: list[Given] = [(hours + 0.5, "x", hours) for hours in (10, 12, 14, 16)]


def old_and_live(streams: Streams) -> DataFrame:
    old = with_watermark(streams.read("old"), "ts", "1 hour")
    return hourly(old.union(with_watermark(streams.read("live", live=True), "ts", "1 hour")))


def run_and_start_again(streams: Streams, job: bool = True) -> list[tuple[Any, ...]]:
    """A bounded source of one old row beside a live one; returns the rows of the first start."""
    streams.put("old", [(0.5, "x", 1)])
    streams.put("live", LIVE[:2])
    streams.run(old_and_live(streams))
    first = streams.rows()
    streams.put("live", LIVE[:3])
    streams.start(old_and_live(streams), job=job)
    streams.settle()
    streams.put("live", LIVE)
    streams.settle()
    return first


@pytest.mark.core
def test_f11_a_finished_source_never_holds_the_watermark_back(streams: Streams) -> None:
    assert run_and_start_again(streams) == [(hour(0), 1), (hour(10), 10)]
    assert streams.rows() == [(hour(0), 1), (hour(10), 10), (hour(12), 12), (hour(14), 14)]
    assert max(streams.markers("old~end")) == (2, True)
    assert set(streams.markers("live~end")) == {(0, False)}


def test_f11_without_a_second_marker_it_would_hold_forever(streams: Streams) -> None:
    """Spark restores the global watermark only: this is why each planner process emits the marker again."""
    run_and_start_again(streams, job=False)
    assert streams.rows() == [(hour(0), 1), (hour(10), 10)]


@pytest.mark.parametrize("step", [(1, False), (1, True)], ids=["marker", "flush"])
def test_f11_a_crash_in_either_epoch_of_the_end_is_repeated(streams: Streams, step: tuple[int, bool]) -> None:
    """Its commit is lost after the sink's: the epoch is replayed, the end passes again, nothing is lost or doubled."""
    streams.put("a", [(0.5, "x", 1), (1.5, "x", 2)])
    streams.run(hourly(with_watermark(streams.read("a"), "ts", "1 hour")))
    whole = streams.rows()
    assert whole == [(hour(0), 1), (hour(1), 2)]
    streams.crash_in(streams.markers("a~end").index(step))
    streams.run(hourly(with_watermark(streams.read("a"), "ts", "1 hour")))
    assert streams.rows() == whole
    assert set(streams.state_rows()) == {0}
    assert streams.markers("a~end")[-1] == (2, True)


class Alarm(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        total = (self.total.get() or (0,))[0]
        for part in rows:
            total += int(part["n"].sum())
            for moment in part["ts"]:
                self.handle.registerTimer(int(moment.timestamp() * 1000) + 24 * 3600 * 1000)
        self.total.update((total,))
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        at = expiredTimerInfo.getExpiryTimeInMs() / 3_600_000 - DAY.timestamp() / 3600
        yield pd.DataFrame({"k": [key[0]], "at": [round(at, 1)], "n": [(self.total.get() or (0,))[0]]})
        if not list(self.handle.listTimers()):
            self.total.clear()

    def close(self) -> None:
        pass


@pytest.mark.core_for("availableNow")
@pytest.mark.parametrize("trigger", [NOW, None], ids=["availableNow", "trigger 0"])
def test_f12_event_time_timers_fire_at_the_end_of_input(streams: Streams, trigger: dict[str, Any] | None) -> None:
    streams.put("a", [(0.5, "x", 1), (1.5, "y", 2), (2.5, "x", 4)])
    rows = with_watermark(streams.read("a"), "ts", "1 hour")
    timed = rows.groupBy("k").transformWithStateInPandas(
        Alarm(), outputStructType="k string, at double, n bigint", outputMode="Append", timeMode="EventTime"
    )
    streams.run(timed, trigger)
    assert streams.rows() == [("x", 24.5, 5), ("x", 26.5, 5), ("y", 25.5, 2)]


@pytest.mark.core
def test_f16_asynchronous_work_comes_out_before_the_marker(streams: Streams) -> None:
    streams.put("a", *[[(h + part / 10, "x", h) for h in range(12)] for part in range(4)])

    async def slow(row: Row) -> tuple[Any, ...]:
        await asyncio.sleep(0.2 if row.n % 4 == 0 else 0)
        return (row.ts, row.k, row.n * 2)

    mapped = async_map(
        streams.read("a", max_rows_per_epoch=20, readers=4), slow, "ts timestamp, k string, n bigint", ordered=False
    )
    streams.run(hourly(with_watermark(mapped, "ts", "0 seconds")), NOW)
    assert streams.rows() == [(hour(h), 8 * h) for h in range(12)]
    assert set(streams.state_rows()) == {0}


FAR = {
    "9999-12-31": (datetime(9999, 12, 31, 23, 30, tzinfo=timezone.utc) - DAY).total_seconds() / 3600,
    "milliseconds taken for seconds": 1_700_000_000_000 / 3600,
}


Shape = Callable[[DataFrame], DataFrame]


def times(df: DataFrame) -> DataFrame:
    return df.select("n", "k", F.unix_micros("ts"))


def windows(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("ts", "1 hour")).agg(F.sum("n").alias("n")).select(F.unix_micros("window.start"), "n")


@pytest.mark.core_for("9999-12-31-times")
@pytest.mark.parametrize("shape", [times, windows])
@pytest.mark.parametrize("far", FAR.values(), ids=FAR)
def test_f17_null_and_far_future_times_pass_unharmed(streams: Streams, far: float, shape: Shape) -> None:
    streams.put("a", [(0.5, "x", 1), (None, "x", 2), (far, "x", 3), (far + 0.25, "y", 4)])
    streams.run(shape(with_watermark(streams.read("a"), "ts", "1 hour")), NOW if shape is windows else None)
    assert streams.rows() == sorted_rows(shape(streams.batch("a")))
    assert len(streams.rows()) == 4 if shape is times else set(streams.state_rows()) == {0}


@pytest.mark.parametrize("form", ["one watermark over both", "one watermark each"])
def test_f17_a_bounded_and_a_live_source_lose_no_live_row(streams: Streams, form: str) -> None:
    streams.put("old", [(0.5, "x", 1)])
    streams.put("live", [(0.6, "x", 10)])
    old, live = streams.read("old"), streams.read("live", live=True)
    if form == "one watermark each":
        both = with_watermark(old, "ts", "1 hour").union(with_watermark(live, "ts", "1 hour"))
    else:
        both = with_watermark(old.union(live), "ts", "1 hour")
    streams.start(hourly(both))
    streams.settle()
    streams.put("live", [(0.6, "x", 10), (0.7, "x", 100)])
    streams.settle()
    streams.put("live", [(0.6, "x", 10), (0.7, "x", 100), (9.5, "x", 1000)])
    streams.settle()
    assert streams.rows() == [(hour(0), 111)]


@pytest.mark.core
def test_f18_available_now_does_not_end_before_the_marker(streams: Streams) -> None:
    """1,000 rows in windows of ten: all of them, in one run, also if Spark makes no epoch without rows."""
    streams.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    streams.put("a", *[[(n / 10, "x", 1) for n in range(part, 1000, 2)] for part in range(2)])
    streams.run(hourly(with_watermark(streams.read("a", max_rows_per_epoch=400), "ts", "10 hours")), NOW)
    assert streams.rows() == [(hour(h), 10) for h in range(100)]
    assert streams.markers("a~end")[-1] == (1, True)


@pytest.mark.core
def test_f18_a_query_stopped_half_way_is_not_finished(streams: Streams) -> None:
    streams.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    streams.put("a", [(h + 0.5, "x", h) for h in range(6)])
    # A live source stands for a bounded one that is half read: stopped while there is more to come.
    streams.run(hourly(with_watermark(streams.read("a", live=True), "ts", "1 hour")))
    assert set(streams.markers("a~end")) == {(0, False)}
    assert len(streams.rows()) < 6
    streams.run(hourly(with_watermark(streams.read("a"), "ts", "1 hour")), NOW)
    assert streams.rows() == [(hour(h), h) for h in range(6)]
    assert streams.markers("a~end")[-1] == (1, True)
