"""Queries that somebody stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


def _slow(spark: SparkSession, folder: Path) -> DataFrame:
    """Rows that take long; the file `begun` tells that the first one is being made."""
    begun = folder / "begun"

    @F.udf("long")
    def slow(value: int) -> int:
        begun.touch()
        time.sleep(5)
        return value

    return numbers(spark).select(slow("value"))


def _meanwhile(folder: Path, act: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        for _ in range(400):
            if (folder / "begun").exists():
                break
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@case("cancellation.all_jobs", type="CANCELED", origin="spark", decision="stop")
def all_jobs(spark: SparkSession, folder: Path) -> None:
    thread = _meanwhile(folder, spark.sparkContext.cancelAllJobs)
    try:
        into_noop(_slow(spark, folder))
    finally:
        thread.join()


@case("cancellation.job_group", type="CANCELED", origin="spark", decision="stop")
def job_group(spark: SparkSession, folder: Path) -> None:
    thread = _meanwhile(folder, lambda: [spark.sparkContext.cancelJobGroup(q.runId) for q in spark.streams.active])
    try:
        into_noop(_slow(spark, folder))
    finally:
        thread.join()


@case("cancellation.stage", type="CANCELED", origin="spark", decision="stop")
def stage(spark: SparkSession, folder: Path) -> None:
    def cancel() -> None:
        context = spark.sparkContext
        for number in context.statusTracker().getActiveStageIds():
            context._jsc.sc().cancelStage(number)

    thread = _meanwhile(folder, cancel)
    try:
        into_noop(_slow(spark, folder))
    finally:
        thread.join()


@case("cancellation.tag", type="CANCELED", origin="user", decision="stop", line="named.collect()")
def tag(spark: SparkSession, folder: Path) -> None:
    begun = folder / "begun"

    @F.udf("long")
    def slow(value: int) -> int:
        begun.touch()
        time.sleep(5)
        return value

    def write(batch: DataFrame, epoch: int) -> None:
        batch.sparkSession.sparkContext.addJobTag("nightly")
        named = batch.select(slow("value"))
        named.collect()

    thread = _meanwhile(folder, lambda: spark.sparkContext.cancelJobsWithTag("nightly"))
    try:
        fails(numbers(spark).writeStream.foreachBatch(write))
    finally:
        thread.join()


@case("cancellation.keyboard", type="CANCELED", origin="user", decision="stop")
def keyboard(spark: SparkSession, folder: Path) -> None:
    thread = _meanwhile(folder, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        into_noop(_slow(spark, folder))
    finally:
        thread.join()
        # The interrupt has cost this thread its connection to the JVM, and with it the active session.
        sx.register(spark)


@case("cancellation.stopped_session", type="CANCELED", origin="spark", decision="stop", where="process")
def stopped_session(spark: SparkSession, folder: Path) -> None:
    thread = _meanwhile(folder, spark.stop)
    try:
        into_noop(_slow(spark, folder))
    finally:
        thread.join()
