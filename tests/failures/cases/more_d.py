"""Further failures: owners, cancellations and machines."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import LongType

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@F.udf(LongType())
def slow(value: int) -> int:
    """A value, after a while."""
    time.sleep(2)
    return value


@case("more.second_driver", type="FENCED", origin="spark", decision="stop")
def second_driver(spark: SparkSession, folder: Path) -> None:
    offsets = folder / "checkpoint" / "offsets"

    def write(batch: DataFrame, epoch: int) -> None:
        shutil.copy(offsets / str(epoch), offsets / str(epoch + 1))

    fails(numbers(spark).writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint"))


@case("more.started_twice", type="FENCED", origin="user", decision="stop")
def started_twice(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
    first = writer.start()
    try:
        fails(writer)
    finally:
        first.stop()
        spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")


@case("more.killed_job", type="CANCELED", origin="spark", decision="stop")
def killed_job(spark: SparkSession, folder: Path) -> None:
    tracker = spark.sparkContext.statusTracker()

    def kill() -> None:
        for _ in range(100):
            for job in tracker.getActiveJobsIds():
                spark.sparkContext._jsc.sc().cancelJob(job, "killed via the Web UI")
                return
            time.sleep(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        into_noop(numbers(spark).select(slow("value")))
    finally:
        killer.join()


@case("more.all_cancelled", type="CANCELED", origin="user", decision="stop")
def all_cancelled(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        timer = threading.Timer(1, spark.sparkContext.cancelAllJobs)
        timer.start()
        try:
            batch.select(slow("value")).collect()
        finally:
            timer.cancel()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.segfault", type="USER_CODE", origin="user", decision="stop", line="ctypes.string_at(")
def segfault(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def native(values: pd.Series) -> pd.Series:
        return pd.Series([ctypes.string_at(0)])

    into_noop(numbers(spark).select(native("value")))


@case("more.abort", type="USER_CODE", origin="user", decision="stop", line="os.kill(")
def abort(spark: SparkSession, folder: Path) -> None:
    def total(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGABRT)
        yield pd.DataFrame({"id": [key[0]]})

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    schemas = ("id long", "total long")
    into_noop(groups.applyInPandasWithState(total, *schemas, "append", GroupStateTimeout.NoTimeout))
