"""Failures of Spark itself, and of the machines."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("systems.segmentation_fault", type="USER_CODE", origin="user", decision="stop", line="ctypes.string_at")
def segmentation_fault(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def read(value: int) -> int:
        ctypes.string_at(0)
        return value

    into_noop(numbers(spark).select(read("value")))


@case("systems.aborted_worker", type="USER_CODE", origin="user", decision="stop", line="os.abort()")
def aborted_worker(spark: SparkSession, folder: Path) -> None:
    def copied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            os.abort()
            yield batch

    into_noop(numbers(spark).select("value").mapInArrow(copied, "value long"))


@case("systems.bus_error", type="USER_CODE", origin="user", decision="stop", line="signal.SIGBUS")
def bus_error(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.select(F.udf(lambda value: os.kill(os.getpid(), signal.SIGBUS), "long")("value")).collect()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("systems.lost_blocks", type="SYSTEM", origin="spark", decision="restart", where="process")
def lost_blocks(spark: SparkSession, folder: Path) -> None:
    names = spark.range(4).withColumnRenamed("id", "value").localCheckpoint(storageLevel=StorageLevel.MEMORY_ONLY)
    for number in spark.sparkContext._jsc.sc().getPersistentRDDs().keys().mkString(",").split(","):
        spark._jvm.org.apache.spark.SparkEnv.get().blockManager().master().removeRdd(int(number), True)  # type: ignore
    into_noop(numbers(spark).join(names, "value"))


@case("systems.lost_shuffle", type="SYSTEM", origin="spark", decision="restart", where="process")
def lost_shuffle(spark: SparkSession, folder: Path) -> None:
    disk = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()  # type: ignore[union-attr]
    places = list(disk.localDirsString())

    @F.udf("long")
    def disturbed(value: int) -> int:
        for place in places:
            for file in Path(place).glob("*/shuffle_*"):
                file.unlink(missing_ok=True)
        return value

    into_noop(numbers(spark, rows=100, partitions=4).repartition(8).select(disturbed("value")))


@case("systems.lost_folder", type="SYSTEM", origin="spark", decision="restart", where="process")
def lost_folder(spark: SparkSession, folder: Path) -> None:
    disk = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()  # type: ignore[union-attr]
    for place in disk.localDirsString():
        shutil.rmtree(place)
        Path(place).write_text("no folder any more")
    into_noop(numbers(spark, partitions=2).repartition(4))


@case("systems.ended_executor", type="SYSTEM", origin="spark", decision="restart", where="cluster")
def ended_executor(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def fatal(value: int) -> int:
        executor = os.getppid()
        while "java" not in Path(f"/proc/{executor}/comm").read_text():
            executor = int(Path(f"/proc/{executor}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(executor, signal.SIGABRT)
        return value

    into_noop(numbers(spark).select(fatal("value")))
