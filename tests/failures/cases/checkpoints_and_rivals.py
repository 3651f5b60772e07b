"""Damaged checkpoints, and queries whose checkpoint or target belongs to another one."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

import spark_ext as sx
from tests.failures.corpus import case
from tests.failures.running import fails, numbers


def _into(folder: Path, frame: DataFrame) -> DataStreamWriter:
    return frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))


def _run(writer: DataStreamWriter) -> None:
    """Some epochs, without a failure."""
    query = writer.start()
    try:
        while (query.lastProgress or {"batchId": 0})["batchId"] < 3 and query.isActive:
            query.awaitTermination(0.05)
    finally:
        query.stop()


@case("checkpoints.metadata", type="CHECKPOINT", origin="user", decision="restore")
def metadata(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    (folder / "checkpoint" / ".metadata.crc").unlink(missing_ok=True)
    (folder / "checkpoint" / "metadata").write_text('{"id":')
    fails(_into(folder, numbers(spark)))


@case("checkpoints.sources", type="CHECKPOINT", origin="spark", decision="ask")
def sources(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    fails(_into(folder, numbers(spark).union(numbers(spark))))


@case("checkpoints.other_source", type="CHECKPOINT", origin="library", decision="ask")
def other_source(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    spark.range(2).write.format("delta").save(str(folder / "table"))
    fails(_into(folder, spark.readStream.format("delta").load(str(folder / "table"))))


@case("fencing.same_checkpoint", type="FENCED", origin="user", decision="stop")
def same_checkpoint(spark: SparkSession, folder: Path) -> None:
    key = "spark.sql.streaming.stopActiveRunOnRestart"
    spark.conf.set(key, "false")
    writer = numbers(spark).writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    first = writer.start()
    try:
        fails(writer)
    finally:
        first.stop()
        spark.conf.unset(key)


@case("fencing.commit_log", type="FENCED", origin="spark", decision="stop")
def commit_log(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        # A second driver that runs the same query has committed this epoch.
        (folder / "checkpoint" / "commits").mkdir(exist_ok=True)
        (folder / "checkpoint" / "commits" / str(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    writer = numbers(spark).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    fails(writer.foreachBatch(write))


@case("fencing.file_sink", type="FENCED", origin="spark", decision="stop")
def file_sink(spark: SparkSession, folder: Path) -> None:
    log = folder / "out" / "_spark_metadata"

    @F.udf("long")
    def disturbed(value: int) -> int:
        # A second query that writes to the same folder has committed its epoch 0.
        log.mkdir(exist_ok=True, parents=True)
        (log / "0").write_text("v1")
        return value

    writer = numbers(spark).select(disturbed("value").alias("value")).writeStream.format("parquet")
    fails(writer.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint")))


def _job(spark: SparkSession, folder: Path, state: str, *, takeover: bool = False) -> sx.Job:
    rows = spark.readStream.format("datagen").option("uid", "rows").option("rows", "1000")
    rows = rows.option("max_rows_per_epoch", "10").schema("id long").load()
    job = sx.Job(spark, "shop", state=str(folder / state), takeover=takeover)
    table = rows.writeStream.format("delta_2pc").option("uid", "table").option("path", str(folder / "table"))
    job.add("load", table)
    return job


@case("fencing.second_job", type="FENCED", origin="library", decision="stop")
def second_job(spark: SparkSession, folder: Path) -> None:
    first = _job(spark, folder, "state")
    first.start()
    try:
        _job(spark, folder, "state").run()
    finally:
        first.stop()


@case("fencing.takeover", type="FENCED", origin="library", decision="stop")
def takeover(spark: SparkSession, folder: Path) -> None:
    first = _job(spark, folder, "state")
    first.start()
    second = _job(spark, folder, "state", takeover=True)
    second.start()
    try:
        first.await_termination(60)
    finally:
        second.stop()
