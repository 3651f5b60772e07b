"""What Spark does that `with_watermark` is shaped by: forms that lose rows, and limits that the manual names.

Each test pins a behaviour of this Spark version. One that fails after an upgrade says which reason has gone.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from spark_ext import with_watermark
from spark_ext.model.end_of_input import FORMAT
from tests.support.watermarks import Given, Streams, hour, hourly

NOW = {"availableNow": True}
HOURLY: list[Given] = [(h + 0.5, "x", h) for h in range(4)]
ALL = [(hour(h), h) for h in range(4)]


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Iterator[Streams]:
    with closing(Streams(spark, tmp_path)) as found:
        yield found


def unforeseen(value: Column) -> Column:
    return F.get(F.array(value), F.col("zero"))


def by_hand(
    df: DataFrame,
    *,
    keep: Callable[[DataFrame], DataFrame] = lambda df: df.where(
        F.when(F.spark_partition_id() >= 0, ~F.col("flag")).otherwise(F.lit(False))
    ),
    watches: str = "a",
    null: Callable[[Column], Column] = unforeseen,
) -> DataFrame:
    end = df.sparkSession.readStream.format(FORMAT).option("uid", f"{watches}~end").option("watches", watches).load()
    columns = [
        F.col("end_of_time").alias("ts"),
        null(F.lit(None).cast("string")).alias("k"),
        null(F.lit(None).cast("bigint")).alias("n"),
        (F.col("zero") == 0).alias("flag"),
    ]
    both = df.withColumn("flag", F.lit(False)).union(end.select(*columns)).withWatermark("ts", "1 hour")
    return keep(both).drop("flag")


def test_the_form_by_hand_is_the_one_that_works(streams: Streams) -> None:
    """The other tests change one thing in it."""
    streams.put("a", HOURLY)
    streams.run(hourly(by_hand(streams.read("a"))), NOW)
    assert streams.rows() == ALL


@pytest.mark.parametrize("flag", ["not flag", "spark_partition_id() >= 0 and not flag"], ids=["plain", "conjunct"])
def test_a_flag_is_pushed_below_it_and_eats_the_marker(streams: Streams, flag: str) -> None:
    streams.put("a", HOURLY)
    streams.run(hourly(by_hand(streams.read("a"), keep=lambda df: df.where(flag))), NOW)
    assert streams.rows() == ALL[:2]


def test_telling_the_marker_by_its_time_loses_rows_without_one(streams: Streams) -> None:
    streams.put("a", [*HOURLY, (None, "x", 99)])
    keep = F.unix_micros("ts") < 6_000_000_000_000_000_000
    streams.run(by_hand(streams.read("a"), keep=lambda df: df.where(keep)), NOW)
    assert {row[2] for row in streams.rows()} == {0, 1, 2, 3}


def test_a_marker_of_constants_makes_a_join_drop_the_others_rows(streams: Streams) -> None:
    """In the epoch of a's marker Spark takes a's keys to be null in all of its rows, those in the state included."""
    streams.put("a", [(0.5, "x", 1)])
    streams.put("b", [(0.5, "x", 10)], [(0.6, "x", 20)])
    right = by_hand(streams.read("b", max_rows_per_epoch=1, readers=1), watches="b").select("ts", "k", "n")
    near = F.expr("l.k = r.k and r.ts between l.ts - interval 5 days and l.ts + interval 5 days")
    found = {}
    for name, null in {"constants": lambda value: value, "unforeseen": unforeseen}.items():
        joined = by_hand(streams.read("a"), null=null).alias("l").join(right.alias("r"), near).select("r.n")
        with closing(Streams(streams.spark, streams.folder, name)) as one:
            one.run(joined, NOW)
            found[name] = one.rows()
    assert found == {"constants": [(10,)], "unforeseen": [(10,), (20,)]}


def test_an_early_marker_over_a_union_makes_every_live_row_late(streams: Streams) -> None:
    """Why all sources under one watermark have to end first, and why each source better has its own."""
    streams.put("a", HOURLY)
    streams.put("live", [])
    streams.start(hourly(by_hand(streams.read("a").union(streams.read("live", live=True)))))
    streams.settle()
    assert streams.rows() == ALL
    streams.put("live", [(90.5, "x", 1)])
    streams.settle()
    streams.put("live", [(90.5, "x", 1), (99.5, "x", 1)])
    streams.settle()
    assert streams.rows() == ALL
    assert streams.query is not None
    dropped = [part["numRowsDroppedByWatermark"] for p in streams.query.recentProgress for part in p["stateOperators"]]
    assert sum(dropped) == 2


def test_trigger_once_is_over_before_the_end_of_input(streams: Streams) -> None:
    streams.put("a", HOURLY)
    streams.run(hourly(with_watermark(streams.read("a"), "ts", "1 hour")), {"once": True})
    assert streams.rows() == []
    assert streams.markers("a~end") == [(0, False)]


def test_outside_a_job_it_is_sparks_own_watermark(streams: Streams) -> None:
    streams.put("a", HOURLY)
    streams.run(hourly(with_watermark(streams.read("a"), "ts", "1 hour")), NOW, job=False)
    assert streams.rows() == ALL[:2]


def test_sparks_watermark_on_a_window_is_garbage(streams: Streams) -> None:
    """It reads the struct's place in the row as the time, whence 1970: `with_watermark` refuses a window."""
    streams.put("a", HOURLY)
    windows = streams.read("a").select(F.window("ts", "1 hour").alias("w"), "n").withWatermark("w", "1 hour")
    streams.run(windows.groupBy("w").agg(F.sum("n")), NOW)
    assert streams.query is not None
    seen = {progress["eventTime"].get("max", "")[:4] for progress in streams.query.recentProgress}
    assert "1970" in seen
    assert "2024" not in seen


class Nowhere(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return WriterCommitMessage()


class NowhereSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return Nowhere()


def test_python_sinks_refuse_update_mode(streams: Streams) -> None:
    streams.put("a", HOURLY)
    streams.spark.dataSource.register(NowhereSink)
    writer = hourly(with_watermark(streams.read("a"), "ts", "1 hour")).writeStream.format("nowhere")
    with pytest.raises((AnalysisException, StreamingQueryException), match=r"(?i)update"):
        writer.outputMode("update").option("checkpointLocation", str(streams.checkpoint)).start().awaitTermination()


def test_state_that_does_not_hold_the_event_time_never_empties(streams: Streams) -> None:
    streams.put("a", HOURLY)
    streams.run(with_watermark(streams.read("a"), "ts", "1 hour").dropDuplicates(["n"]), NOW)
    assert len(streams.rows()) == 4
    assert streams.state_rows() == [4]


def test_a_join_on_equality_alone_never_empties(streams: Streams) -> None:
    streams.put("a", HOURLY)
    streams.put("b", HOURLY)
    left = with_watermark(streams.read("a"), "ts", "1 hour")
    right = with_watermark(streams.read("b"), "ts", "1 hour").selectExpr("n as m", "ts as ts2")
    streams.run(left.join(right, F.expr("n = m")), NOW)
    assert len(streams.rows()) == 4
    assert streams.state_rows() == [8]


def test_a_full_outer_join_within_months_is_refused_by_spark(streams: Streams) -> None:
    """A month has no fixed length, so Spark sees no range condition in it."""
    streams.put("a", HOURLY)
    streams.put("b", [(0.5, "x", 1)])
    left = with_watermark(streams.read("a"), "ts", "1 hour")
    right = with_watermark(streams.read("b"), "ts", "1 hour").selectExpr("n as m", "ts as ts2")
    near = F.expr("n = m and ts2 between ts - interval 1 month and ts + interval 1 month")
    with pytest.raises(AnalysisException, match="FullOuter join"):
        streams.run(left.join(right, near, "full"), NOW)


class Rearmed(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        for part in rows:
            self.handle.registerTimer(int(part["ts"].max().timestamp() * 1000) + 3_600_000)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 3_600_000)
        yield pd.DataFrame({"at": [expiredTimerInfo.getExpiryTimeInMs()]})

    def close(self) -> None:
        pass


def test_timers_set_by_timers_fire_one_generation_per_epoch(streams: Streams) -> None:
    """The end of input has one epoch for them: a chain that never ends does not hold the job."""
    streams.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    streams.put("a", [(0.5, "x", 1)])
    rows = with_watermark(streams.read("a"), "ts", "1 hour")
    chain = rows.groupBy("k").transformWithStateInPandas(
        Rearmed(), outputStructType="at bigint", outputMode="Append", timeMode="EventTime"
    )
    streams.run(chain, NOW)
    assert len(streams.rows()) == 1
    assert streams.markers("a~end")[-1] == (1, True)
