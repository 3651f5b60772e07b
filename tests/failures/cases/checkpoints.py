"""Failures of checkpoints: logs of offsets and commits, and their metadata."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

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


def _newest(log: Path) -> Path:
    return max((file for file in log.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


def _replace(file: Path, content: str) -> None:
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text(content)


def _again(spark: SparkSession, folder: Path, log: str, content: str) -> None:
    _run(_into(folder, numbers(spark)))
    _replace(_newest(folder / "checkpoint" / log), content)
    fails(_into(folder, numbers(spark)))


@case("checkpoints.empty_offsets", type="CHECKPOINT", origin="spark", decision="restore")
def empty_offsets(spark: SparkSession, folder: Path) -> None:
    _again(spark, folder, "offsets", "")


@case("checkpoints.damaged_offsets", type="CHECKPOINT", origin="spark", decision="restore")
def damaged_offsets(spark: SparkSession, folder: Path) -> None:
    _again(spark, folder, "offsets", 'v1\n{"batchWatermarkMs":0,"batchTimest')


@case("checkpoints.newer_version", type="CHECKPOINT", origin="spark", decision="restore")
def newer_version(spark: SparkSession, folder: Path) -> None:
    _again(spark, folder, "offsets", "v99\n{}\n{}\n")


@case("checkpoints.damaged_offset", type="CHECKPOINT", origin="spark", decision="restore")
def damaged_offset(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    newest = _newest(folder / "checkpoint" / "offsets")
    _replace(newest, newest.read_text()[:-12])
    fails(_into(folder, numbers(spark)))


@case("checkpoints.damaged_commits", type="CHECKPOINT", origin="spark", decision="restore")
def damaged_commits(spark: SparkSession, folder: Path) -> None:
    _again(spark, folder, "commits", "damaged")


@case("checkpoints.missing_offsets", type="CHECKPOINT", origin="spark", decision="restore")
def missing_offsets(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    newest = _newest(folder / "checkpoint" / "offsets")
    (newest.parent / str(int(newest.name) - 1)).unlink()
    _newest(folder / "checkpoint" / "commits").unlink()
    fails(_into(folder, numbers(spark)))


@case("checkpoints.commits_ahead", type="CHECKPOINT", origin="spark", decision="restore")
def commits_ahead(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    shutil.rmtree(folder / "checkpoint" / "offsets")
    fails(_into(folder, numbers(spark)))


@case("checkpoints.metadata", type="CHECKPOINT", origin="user", decision="restore")
def metadata(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    _replace(folder / "checkpoint" / "metadata", '{"id":')
    fails(_into(folder, numbers(spark)))


@case("checkpoints.source_log", type="CHECKPOINT", origin="spark", decision="restore")
def source_log(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("a\n")
    files = spark.readStream.text(str(folder / "in"))
    _into(folder, files).trigger(availableNow=True).start().awaitTermination()
    _replace(_newest(folder / "checkpoint" / "sources" / "0"), "v1\ndamaged")
    fails(_into(folder, files))


@case("checkpoints.sources", type="CHECKPOINT", origin="spark", decision="ask")
def sources(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    fails(_into(folder, numbers(spark).union(numbers(spark))))


@case("checkpoints.other_source", type="CHECKPOINT", origin="library", decision="ask")
def other_source(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark)))
    spark.range(2).write.format("delta").save(str(folder / "table"))
    fails(_into(folder, spark.readStream.format("delta").load(str(folder / "table"))))
