"""Facts about Spark's internals that the classic backend relies on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.session.environment import java_major
from tests.support import jobs
from tests.support.jobs import JobHarness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Counting(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter([(start["at"],)]), {"at": start["at"] + 1}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
        return iter([(n,) for n in range(start["at"], end["at"])])


class CountingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "n int"

    def simpleStreamReader(self, schema: object) -> Counting:
        return Counting()


def counting(spark: SparkSession, **options: str) -> DataFrame:
    spark.dataSource.register(CountingSource)
    return spark.readStream.format("counting").options(**options).load()


def test_java_version_is_one_that_spark_runs_on(spark: SparkSession) -> None:
    assert java_major(CLASSIC.java_version(spark)) >= 17


def test_jvm_pid_is_a_java_process_that_this_one_started(spark: SparkSession) -> None:
    process = psutil.Process(CLASSIC.jvm_pid(spark))
    assert "java" in process.name()
    assert os.getpid() in [parent.pid for parent in process.parents()]


def test_has_class_tells_present_from_absent(spark: SparkSession) -> None:
    assert CLASSIC.has_class(spark, "io.delta.tables.DeltaTable")
    assert not CLASSIC.has_class(spark, "io.delta.tables.NoSuchTable")


def test_plan_sources_shows_a_python_sources_options_with_keys_in_lower_case(spark: SparkSession) -> None:
    (found,) = CLASSIC.sources(counting(spark, uid="a", rowLimit="5"))
    assert (found.format, found.uid) == ("counting", "a")
    assert found.options == {"uid": "a", "rowlimit": "5"}


def test_plan_sources_keeps_plan_order_through_operators(spark: SparkSession) -> None:
    left = counting(spark, uid="left").where("n > 1").withColumn("t", F.timestamp_seconds("n"))
    right = counting(spark, uid="right").withColumn("t", F.timestamp_seconds("n"))
    joined = left.withWatermark("t", "1 minute").join(right.withWatermark("t", "1 minute"), ["n", "t"])
    windows = joined.groupBy(F.window("t", "1 day")).count()
    assert [source.uid for source in CLASSIC.sources(windows)] == ["left", "right"]


def test_plan_sources_shows_a_self_join_twice(spark: SparkSession) -> None:
    df = counting(spark, uid="a")
    assert [source.uid for source in CLASSIC.sources(df.join(df, "n"))] == ["a", "a"]
    assert [source.uid for source in CLASSIC.sources(df.union(df))] == ["a", "a"]


def test_plan_sources_leaves_out_static_tables(spark: SparkSession) -> None:
    joined = counting(spark, uid="a").join(spark.range(3).withColumnRenamed("id", "n"), "n")
    assert [source.uid for source in CLASSIC.sources(joined)] == ["a"]
    assert CLASSIC.sources(spark.range(3)) == ()


def test_plan_sources_has_no_uid_for_a_source_that_was_given_none(spark: SparkSession) -> None:
    (found,) = CLASSIC.sources(counting(spark))
    assert found.uid is None


def test_plan_sources_sees_through_views_and_python_functions(spark: SparkSession) -> None:
    counting(spark, uid="a").createOrReplaceTempView("numbers")
    mapped = spark.sql("select * from numbers").mapInPandas(lambda frames: frames, "n int")
    assert [source.uid for source in CLASSIC.sources(mapped)] == ["a"]


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_plan_sources_shows_sparks_file_and_delta_streams_as_its_own(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    spark.range(2).write.format(form).save(str(tmp_path / "t"))
    df = spark.readStream.format(form).schema("id long") if form == "parquet" else spark.readStream.format(form)
    (found,) = CLASSIC.sources(df.option("uid", "unseen").load(str(tmp_path / "t")))
    assert found.description.startswith("Spark's own source ") and (found.uid, dict(found.options)) == (None, {})


def test_plan_sources_shows_the_rate_source(spark: SparkSession) -> None:
    (found,) = CLASSIC.sources(spark.readStream.format("rate").option("uid", "r").load())
    assert (found.format, found.uid) == ("rate", "r")


def test_writer_target_of_a_writer_with_every_setting(spark: SparkSession) -> None:
    writer = (
        counting(spark, uid="a")
        .writeStream.format("parquet")
        .option("path", "/somewhere")
        .option("uid", "sink")
        .option("checkpointLocation", "/checkpoint")
        .queryName("q")
        .outputMode("append")
        .partitionBy("n")
        .trigger(availableNow=True)
    )
    target = CLASSIC.target(writer)
    assert (target.format, target.path) == ("parquet", "/somewhere")
    assert target.options["uid"] == "sink"
    assert target.options["checkpointlocation"] == "/checkpoint"
    assert (target.output_mode, target.partitioning) == ("Append", ("n",))
    assert target.trigger == "AvailableNowTrigger"


def test_writer_target_of_a_writer_without_settings(spark: SparkSession) -> None:
    target = CLASSIC.target(counting(spark, uid="a").writeStream.format("noop"))
    assert (target.path, target.partitioning) == (None, ())
    assert target.output_mode == "Append"
    assert target.trigger.startswith("ProcessingTimeTrigger(0")


@pytest.mark.parametrize(
    ("trigger", "shown"),
    [({"once": True}, "OneTimeTrigger"), ({"processingTime": "2 seconds"}, "ProcessingTimeTrigger(2000)")],
)
def test_writer_target_shows_the_trigger(spark: SparkSession, trigger: dict[str, object], shown: str) -> None:
    writer = counting(spark, uid="a").writeStream.format("noop").trigger(**trigger)  # type: ignore[call-overload]
    assert CLASSIC.target(writer).trigger == shown


def test_writer_frame_is_the_frame_that_is_written(spark: SparkSession) -> None:
    df = counting(spark, uid="a")
    assert CLASSIC.frame(df.writeStream) is df


def test_checkpoint_location_is_resolved(spark: SparkSession, tmp_path: Path) -> None:
    query = (
        counting(spark, uid="a")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "with space"))
        .start()
    )
    place = CLASSIC.checkpoint(query)
    query.stop()
    assert place.startswith("file:")
    assert (tmp_path / "with space" / "metadata").exists()


def test_planners_add_nothing_to_the_map_that_all_queries_share(lab: JobHarness) -> None:
    """Otherwise two queries that are started at one time could break it, and with it each further task."""
    jobs._registered.pop(lab.spark, None)  # a map that no planner has seen
    jobs.register(lab.spark)
    sources = lab.spark._jsparkSession.sessionState().dataSourceManager()
    shared = sources.lookupDataSource("numbers").dataSourceCls().envVars()
    before = dict(shared)
    writer = lab.source(counts="10").writeStream.format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", str(lab.folder / "checkpoint")).start().awaitTermination()
    assert shared["SPARK_BUFFER_SIZE"] != before["SPARK_BUFFER_SIZE"] == "", "Spark sets it to what it uses"
    assert set(shared) == set(before)
