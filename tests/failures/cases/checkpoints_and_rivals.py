"""Damaged checkpoints, and queries whose checkpoint or target belongs to another one."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.failures.corpus import case
from tests.failures.running import fails, kept, kept_noop, numbers, ran


@case("checkpoints.metadata", "CHECKPOINT", "user", "restore")
def metadata(spark: SparkSession, folder: Path) -> None:
    ran(folder, numbers(spark), 3)
    (folder / "checkpoint" / ".metadata.crc").unlink(missing_ok=True)
    (folder / "checkpoint" / "metadata").write_text('{"id":')
    fails(kept_noop(folder, numbers(spark)))


@case("checkpoints.sources", "CHECKPOINT", "spark", "ask")
def sources(spark: SparkSession, folder: Path) -> None:
    ran(folder, numbers(spark), 3)
    fails(kept_noop(folder, numbers(spark).union(numbers(spark))))


@case("checkpoints.other_source", "CHECKPOINT", "library", "ask")
def other_source(spark: SparkSession, folder: Path) -> None:
    ran(folder, numbers(spark), 3)
    spark.range(2).write.format("delta").save(str(folder / "table"))
    fails(kept_noop(folder, spark.readStream.format("delta").load(str(folder / "table"))))


@case("fencing.same_checkpoint", "FENCED", "user", "stop")
def same_checkpoint(spark: SparkSession, folder: Path) -> None:
    key = "spark.sql.streaming.stopActiveRunOnRestart"
    spark.conf.set(key, "false")
    writer = kept_noop(folder, numbers(spark))
    first = writer.start()
    try:
        fails(writer)
    finally:
        first.stop()
        spark.conf.unset(key)


@case("fencing.commit_log", "FENCED", "spark", "stop")
def commit_log(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        # A second driver that runs the same query has committed this epoch.
        (folder / "checkpoint" / "commits").mkdir(exist_ok=True)
        (folder / "checkpoint" / "commits" / str(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    fails(kept(folder, numbers(spark).writeStream.foreachBatch(write)))


@case("fencing.file_sink", "FENCED", "spark", "stop")
def file_sink(spark: SparkSession, folder: Path) -> None:
    log = folder / "out" / "_spark_metadata"

    @F.udf("long")
    def disturbed(value: int) -> int:
        # A second query that writes to the same folder has committed its epoch 0.
        log.mkdir(exist_ok=True, parents=True)
        (log / "0").write_text("v1")
        return value

    writer = numbers(spark).select(disturbed("value").alias("value")).writeStream.format("parquet")
    fails(kept(folder, writer.option("path", str(folder / "out"))))


def _job(spark: SparkSession, folder: Path, state: str, *, takeover: bool = False) -> sx.Job:
    rows = spark.readStream.format("datagen").option("uid", "rows").option("rows", "1000")
    rows = rows.option("max_rows_per_epoch", "10").schema("id long").load()
    job = sx.Job(spark, "shop", state=str(folder / state), takeover=takeover)
    table = rows.writeStream.format("delta_2pc").option("uid", "table").option("path", str(folder / "table"))
    job.add("load", table)
    return job


@case("fencing.second_job", "FENCED", "library", "stop")
def second_job(spark: SparkSession, folder: Path) -> None:
    first = _job(spark, folder, "state")
    first.start()
    try:
        _job(spark, folder, "state").run()
    finally:
        first.stop()


@case("fencing.takeover", "FENCED", "library", "stop")
def takeover(spark: SparkSession, folder: Path) -> None:
    first = _job(spark, folder, "state")
    first.start()
    second = _job(spark, folder, "state", takeover=True)
    second.start()
    try:
        first.await_termination(60)
    finally:
        second.stop()
