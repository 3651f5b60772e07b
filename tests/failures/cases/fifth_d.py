"""What often fails, unseen by the rules: two drivers, what somebody stops, resources, machines."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pandas as pd
import psutil
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.failures.cases.fifth_b import kept
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers
from tests.support.disks import small_disk
from tests.support.waiting import until


def executor() -> psutil.Process:
    """The executor of this Python worker."""
    return next(parent for parent in psutil.Process().parents() if parent.name() == "java")


@contextmanager
def somebody(acts: Callable[[int], object], found: Callable[[], list[int]]) -> Iterator[None]:
    """Somebody who waits until a job or stage is there, and does something to it, again and again."""
    over = Event()

    def watch() -> None:
        while not over.wait(0.5):
            for number in found():
                acts(number)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def slow(column: str) -> Column:
    """The column, of which each row takes a while."""

    @F.udf("long")
    def waited(value: int) -> int:
        time.sleep(3)
        return value

    return waited(column)


# Two drivers.

_SECOND = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
rows.writeStream.format("noop").option("checkpointLocation", sys.argv[1]).start().awaitTermination()
"""


@case("fifth.second_run", held_out=True, type="FENCED", origin="spark", decision="stop")
def second_run(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with subprocess.Popen([sys.executable, "-c", _SECOND, str(folder / "checkpoint")]) as second:
            try:
                until((folder / "checkpoint" / "commits" / str(epoch)).exists, "the second driver commits")
            finally:
                second.terminate()

    fails(kept(folder, numbers(spark).writeStream.foreachBatch(write)))


@case("fifth.new_release", held_out=True, type="FENCED", origin="library", decision="stop")
def new_release(spark: SparkSession, folder: Path) -> None:
    def release(**settings: Any) -> sx.Job:
        orders = spark.readStream.format("datagen").options(uid="orders", rows_per_second="20").load()
        writer = orders.writeStream.format("files_2pc").options(uid="export", path=f"{folder}/out")
        job = sx.Job(spark, "shop", state=f"{folder}/state", **settings)
        job.add("export", writer)
        job.start()
        return job

    before = release()
    until(lambda: before.snapshot().queries, "the job runs")
    after = release(takeover=True)
    try:
        before.await_termination(60)
    finally:
        after.stop()


# What somebody stops.


@case("fifth.run_cancelled", held_out=True, type="CANCELED", origin="spark", decision="stop")
def run_cancelled(spark: SparkSession, folder: Path) -> None:
    def cancel(job: int) -> None:
        for query in spark.streams.active:
            spark.sparkContext.cancelJobGroup(str(query.runId))

    with somebody(cancel, lambda: spark.sparkContext.statusTracker().getActiveJobsIds()):
        into_noop(numbers(spark).select(slow("value")))


@case("fifth.killed_report", held_out=True, type="CANCELED", origin="user", decision="stop", line=".toPandas()")
def killed_report(spark: SparkSession, folder: Path) -> None:
    context: Any = spark.sparkContext

    def report(batch: DataFrame, epoch: int) -> None:
        print(batch.select(slow("value")).toPandas().describe())

    def kill(job: int) -> None:
        context._jsc.sc().cancelJob(job, "killed via the Web UI")  # as the page of jobs does it

    with somebody(kill, context.statusTracker().getActiveJobsIds):
        fails(numbers(spark).writeStream.foreachBatch(report))


@case("fifth.stage_killed", held_out=True, type="CANCELED", origin="spark", decision="stop")
def stage_killed(spark: SparkSession, folder: Path) -> None:
    context: Any = spark.sparkContext

    def kill(stage: int) -> None:
        context._jsc.sc().cancelStage(stage, "killed via the Web UI")  # as the page of stages does it

    counts = numbers(spark).groupBy("value").count().select(slow("value"), "count")
    with somebody(kill, context.statusTracker().getActiveStageIds):
        fails(counts.writeStream.format("noop").outputMode("update"))


# Resources and machines.


@case(
    "fifth.executor_heap", held_out=True, type="RESOURCE", origin="spark", decision="restart", where="cluster",
    conf={"spark.executor.memory": "512m", "spark.task.maxFailures": "2"},
)  # fmt: skip
def executor_heap(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select(F.repeat(F.col("value").cast("string"), F.lit(900_000_000))))


@case("fifth.reindexed", held_out=True, type="RESOURCE", origin="dependency", decision="restart", line="frame.reindex(")
def reindexed(spark: SparkSession, folder: Path) -> None:
    def filled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.reindex(range(1 << 44), fill_value=0)

    into_noop(numbers(spark).select("value").mapInPandas(filled, "value long"))


@case("fifth.full_disk", held_out=True, type="RESOURCE", origin="user", decision="restart", line=".parquet(str(disk")
def full_disk(spark: SparkSession, folder: Path) -> None:
    with small_disk(folder / "disk", "64k") as disk:

        def write(batch: DataFrame, epoch: int) -> None:
            wide = batch.select("value", F.explode(F.sequence(F.lit(1), F.lit(20_000))), F.expr("uuid()"))
            wide.write.mode("append").parquet(str(disk / "wide"))

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.killed_python", held_out=True, type="RESOURCE", origin="spark", decision="restart", where="cluster")
def killed_python(spark: SparkSession, folder: Path) -> None:
    def totals(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when a container's memory runs out
            yield frame

    into_noop(numbers(spark).select("value").mapInPandas(totals, "value long"))


@case("fifth.native_library", held_out=True, type="USER_CODE", origin="user", decision="stop", line="c.strlen(")
def native_library(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def lengths(values: pd.Series) -> pd.Series:
        c = ctypes.CDLL(None)
        return values.map(lambda value: int(c.strlen(value)))

    into_noop(numbers(spark).select(lengths("value")))


@case(
    "fifth.frozen_executor", held_out=True, type="SYSTEM", origin="spark", decision="restart", where="cluster",
    conf={
        "spark.network.timeout": "12s", "spark.network.timeoutInterval": "3s", "spark.executor.heartbeatInterval": "2s",
        "spark.task.maxFailures": "1",
    },
)  # fmt: skip
def frozen_executor(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def scored(value: int) -> int:
        executor().suspend()  # as a virtual machine that is paused
        return value

    into_noop(numbers(spark).select(scored("value")))
