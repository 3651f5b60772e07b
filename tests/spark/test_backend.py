"""Facts about Spark's internals that the classic backend relies on."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.capabilities import capabilities
from spark_ext.spark.session import registry
from spark_ext.spark.session.environment import java_major
from tests.support import jobs
from tests.support.jobs import JobHarness
from tests.support.versions import needs_delta


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


def test_the_driver_s_jvm(spark: SparkSession) -> None:
    assert java_major(CLASSIC.java_version(spark) or "") >= 17
    process = psutil.Process(CLASSIC.jvm_pid(spark))
    assert "java" in process.name() and os.getpid() in [parent.pid for parent in process.parents()]
    assert CLASSIC.has_class(spark, "io.delta.tables.DeltaTable") == bool(capabilities(spark.version).delta)
    assert not CLASSIC.has_class(spark, "io.delta.tables.NoSuchTable")


def test_spark_hides_the_environment_that_travels_in_options(spark: SparkSession) -> None:
    config = getattr(spark._jvm.org.apache.spark.internal.config, "package$")  # type: ignore[union-attr]
    hidden = getattr(config, "MODULE$").SECRET_REDACTION_PATTERN().defaultValueString()
    assert re.search(hidden, registry.OPTION)


def test_sources_of_a_plan_have_options_with_lower_case_keys(spark: SparkSession) -> None:
    (found,) = CLASSIC.sources(counting(spark, uid="a", rowLimit="5"))
    assert (found.format, found.uid, found.options) == ("counting", "a", {"uid": "a", "rowlimit": "5"})
    (found,) = CLASSIC.sources(spark.readStream.format("rate").option("uid", "r").load())
    assert (found.format, found.uid) == ("rate", "r")


def test_sources_of_a_plan_keep_their_order_and_repetitions(spark: SparkSession) -> None:
    def timed(frame: DataFrame) -> DataFrame:
        return frame.withColumn("t", F.timestamp_seconds("n")).withWatermark("t", "1 minute")

    left, right = timed(counting(spark, uid="left").where("n > 1")), timed(counting(spark, uid="right"))
    df, static = counting(spark, uid="a"), spark.range(3).withColumnRenamed("id", "n")
    df.createOrReplaceTempView("numbers")
    for frame, uids in (
        (left.join(right, ["n", "t"]).groupBy(F.window("t", "1 day")).count(), ["left", "right"]),
        (df.join(df, "n"), ["a", "a"]),
        (df.union(df), ["a", "a"]),
        (df.join(static, "n"), ["a"]),
        (static, []),
        (counting(spark), [None]),
        (spark.sql("select * from numbers").mapInPandas(lambda frames: frames, "n int"), ["a"]),
    ):
        assert [source.uid for source in CLASSIC.sources(frame)] == uids


@pytest.mark.parametrize("form", ["parquet", pytest.param("delta", marks=needs_delta)])
def test_sources_of_a_plan_show_file_and_delta_streams_as_sparks(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    spark.range(2).write.format(form).save(str(tmp_path / "t"))
    df = spark.readStream.format(form).schema("id long") if form == "parquet" else spark.readStream.format(form)
    (found,) = CLASSIC.sources(df.option("uid", "unseen").load(str(tmp_path / "t")))
    assert found.description.startswith("Spark's own source ") and (found.uid, dict(found.options)) == (None, {})


def test_target_of_a_writer(spark: SparkSession) -> None:
    df = counting(spark, uid="a")
    writer = df.writeStream.format("parquet").options(path="/somewhere", uid="sink", checkpointLocation="/checkpoint")
    target = CLASSIC.target(writer.queryName("q").outputMode("append").partitionBy("n").trigger(availableNow=True))
    assert (target.format, target.options["path"], target.output_mode) == ("parquet", "/somewhere", "Append")
    assert (target.options["uid"], target.options["checkpointlocation"]) == ("sink", "/checkpoint")
    assert (target.partitioning, target.trigger) == (("n",), "AvailableNowTrigger")
    target = CLASSIC.target(df.writeStream.format("noop"))
    assert ("path" in target.options, target.partitioning, target.output_mode) == (False, (), "Append")
    assert target.trigger.startswith("ProcessingTimeTrigger(0")
    assert CLASSIC.frame(df.writeStream) is df


@pytest.mark.parametrize(
    ("trigger", "shown"),
    [({"once": True}, "OneTimeTrigger"), ({"processingTime": "2 seconds"}, "ProcessingTimeTrigger(2000)")],
)
def test_target_of_a_writer_shows_the_trigger(spark: SparkSession, trigger: dict[str, object], shown: str) -> None:
    writer = counting(spark, uid="a").writeStream.format("noop").trigger(**trigger)  # type: ignore[call-overload]
    assert CLASSIC.target(writer).trigger == shown


def test_checkpoint_location_is_resolved(spark: SparkSession, tmp_path: Path) -> None:
    writer = counting(spark, uid="a").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "with space")).start()
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
