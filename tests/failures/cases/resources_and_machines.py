"""Want of memory, disk and files, machines that fail, and queries that somebody stops."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, kept_noop, numbers, ran
from tests.support.disks import small_disk
from tests.support.waiting import until


@case("resources.broadcast_table", "RESOURCE", "spark", "stop")
def broadcast_table(spark: SparkSession, folder: Path) -> None:
    spark.conf.set("spark.sql.maxBroadcastTableSize", "1k")
    try:
        names = spark.range(10_000).selectExpr("id AS value", "repeat('x', 100) AS name")
        into_noop(numbers(spark).join(F.broadcast(names), "value"))
    finally:
        spark.conf.unset("spark.sql.maxBroadcastTableSize")


@case("resources.array_size", "RESOURCE", "spark", "stop")
def array_size(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select(F.array_repeat(F.col("value"), F.lit(2147483647))))


@case("resources.killed_executor", "RESOURCE", "spark", "restart", where="cluster")
def killed_executor(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def hungry(value: int) -> int:
        executor = os.getppid()
        while "java" not in Path(f"/proc/{executor}/comm").read_text():
            executor = int(Path(f"/proc/{executor}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(executor, signal.SIGKILL)  # as the kernel does when memory runs out
        return value

    into_noop(numbers(spark).select(hungry("value")))


@case("systems.lost_blocks", "SYSTEM", "spark", "restart", where="process")
def lost_blocks(spark: SparkSession, folder: Path) -> None:
    names = spark.range(4).withColumnRenamed("id", "value").localCheckpoint(storageLevel=StorageLevel.MEMORY_ONLY)
    for number in spark.sparkContext._jsc.sc().getPersistentRDDs().keys().mkString(",").split(","):
        spark._jvm.org.apache.spark.SparkEnv.get().blockManager().master().removeRdd(int(number), True)  # type: ignore
    into_noop(numbers(spark).join(names, "value"))


@case("others.native_exit", "SYSTEM", "spark", "restart")
def native_exit(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def tokenize(value: int) -> int:
        return ctypes.CDLL(None)._exit(3)

    into_noop(numbers(spark).select(tokenize("value")))


@case("others.shuffle_files_cleaned", "SYSTEM", "spark", "restart")
def shuffle_files_cleaned(spark: SparkSession, folder: Path) -> None:
    disk = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()  # type: ignore
    roots = list(disk.localDirsString())

    @F.udf("long")
    def while_temporary_files_are_cleaned(value: int) -> int:
        for root in roots:
            for file in Path(root).rglob("shuffle_*"):
                file.unlink(missing_ok=True)
        return value

    spread = numbers(spark, rows=64).select("value").repartition(64, "value")
    into_noop(spread.select(while_temporary_files_are_cleaned("value")))


@case("fourth.delta_offset", "CHECKPOINT", "library", "restore")
def delta_offset(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(4).write.format("delta").save(table)
    orders = spark.readStream.format("delta").load(table)
    newest = max((ran(folder, orders) / "offsets").glob("[0-9]*"), key=lambda entry: int(entry.name))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    newest.write_text(newest.read_text()[:-20])
    fails(kept_noop(folder, orders))


def _soon(spark: SparkSession, stop: Any) -> None:
    """Do something once Spark runs a job."""

    def wait() -> None:
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.1)
        time.sleep(1)
        stop()

    threading.Thread(target=wait, daemon=True).start()


@case("fourth.pod_terminated", "CANCELED", "user", "stop", line="sys.exit(143)", where="process")
def pod_terminated(spark: SparkSession, folder: Path) -> None:
    def terminated(number: int, frame: object) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        _soon(spark, lambda: os.kill(os.getpid(), signal.SIGTERM))
        into_noop(numbers(spark))
    finally:
        signal.signal(signal.SIGTERM, before)


@case("fifth.full_disk", "RESOURCE", "user", "restart", line=".parquet(str(disk")
def full_disk(spark: SparkSession, folder: Path) -> None:
    with small_disk(folder / "disk", "64k") as disk:

        def write(batch: DataFrame, epoch: int) -> None:
            wide = batch.select("value", F.explode(F.sequence(F.lit(1), F.lit(20_000))), F.expr("uuid()"))
            wide.write.mode("append").parquet(str(disk / "wide"))

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.killed_python", "RESOURCE", "spark", "restart", where="cluster")
def killed_python(spark: SparkSession, folder: Path) -> None:
    def totals(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when a container's memory runs out
            yield frame

    into_noop(numbers(spark).select("value").mapInPandas(totals, "value long"))


@case("fifth.native_library", "USER_CODE", "user", "stop", line="c.strlen(")
def native_library(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def lengths(values: pd.Series) -> pd.Series:
        c = ctypes.CDLL(None)
        return values.map(lambda value: int(c.strlen(value)))

    into_noop(numbers(spark).select(lengths("value")))


IMPATIENT = {
    "spark.network.timeout": "12s", "spark.network.timeoutInterval": "3s", "spark.executor.heartbeatInterval": "2s",
    "spark.task.maxFailures": "1",
}  # fmt: skip


@case("fifth.frozen_executor", "SYSTEM", "spark", "restart", where="cluster", conf=IMPATIENT)
def frozen_executor(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def scored(value: int) -> int:
        executor = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
        executor.suspend()  # as a virtual machine that is paused
        return value

    into_noop(numbers(spark).select(scored("value")))


@contextmanager
def meanwhile(folder: Path, act: Callable[[], object]) -> Iterator[None]:
    """Do something once the file `begun` is there."""

    def run() -> None:
        until((folder / "begun").exists, "the first row")
        act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def slowly(folder: Path, frame: DataFrame) -> DataFrame:
    """Rows that take long; the file `begun` tells that the first one is being made."""
    begun = folder / "begun"

    @F.udf("long")
    def slow(value: int) -> int:
        begun.touch()
        time.sleep(5)
        return value

    return frame.select(slow("value"))


@case("third.stopped_in_batch", "CANCELED", "spark", "stop", where="process")
def stopped_in_batch(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        slowly(folder, batch).collect()

    with meanwhile(folder, spark.stop):
        fails(numbers(spark).writeStream.foreachBatch(write))


@case("cancellation.all_jobs", "CANCELED", "spark", "stop")
def all_jobs(spark: SparkSession, folder: Path) -> None:
    with meanwhile(folder, spark.sparkContext.cancelAllJobs):
        into_noop(slowly(folder, numbers(spark)))


@case("cancellation.keyboard", "CANCELED", "user", "stop")
def keyboard(spark: SparkSession, folder: Path) -> None:
    try:
        with meanwhile(folder, lambda: os.kill(os.getpid(), signal.SIGINT)):
            into_noop(slowly(folder, numbers(spark)))
    finally:
        # The interrupt has cost this thread its connection to the JVM, and with it the active session.
        sx.register(spark)


@case("cancellation.stopped_session", "CANCELED", "spark", "stop", where="process")
def stopped_session(spark: SparkSession, folder: Path) -> None:
    with meanwhile(folder, spark.stop):
        into_noop(slowly(folder, numbers(spark)))
