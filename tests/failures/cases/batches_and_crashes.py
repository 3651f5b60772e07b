"""Functions for batches, crashes, limits, and a JVM that dies."""

from __future__ import annotations

import ctypes
import os
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from delta import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter, InputPartition
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import spark_ext as sx
from tests.failures.building import add_java
from tests.failures.cases.code_and_rows import database
from tests.failures.cases.settings_and_networks import Pages, kept, own
from tests.failures.cases.sources_and_sinks import epochs
from tests.failures.corpus import case
from tests.failures.running import TIMEOUT, fails, into_noop, numbers
from tests.support.waiting import until


def in_batch(rows: DataFrame, does: Callable[[DataFrame], object]) -> None:
    """Give each batch to a function."""
    fails(rows.writeStream.foreachBatch(lambda batch, epoch: does(batch)))  # type: ignore[arg-type,func-returns-value]


def jvm() -> psutil.Process:
    """The JVM of this driver."""
    return next(process for process in psutil.Process().children(recursive=True) if process.name() == "java")


@case("sixth.killed_jvm", type="SYSTEM", origin="user", decision="restart", where="process")
def killed_jvm(spark: SparkSession, folder: Path) -> None:
    query = numbers(spark).writeStream.foreachBatch(lambda batch, epoch: jvm().kill()).start()
    query.awaitTermination()


@case("sixth.job_without_jvm", type="SYSTEM", origin="library", decision="stop", where="process")
def job_without_jvm(spark: SparkSession, folder: Path) -> None:
    job = sx.Job(spark, "shop", state=f"{folder}/state")
    job.add("report", numbers(spark).writeStream.foreachBatch(lambda batch, epoch: jvm().kill()))
    job.run(progress=False)


@case("sixth.job_without_session", type="CANCELED", origin="spark", decision="stop", where="process")
def job_without_session(spark: SparkSession, folder: Path) -> None:
    job = sx.Job(spark, "shop", state=f"{folder}/state")
    job.add("report", numbers(spark).writeStream.format("noop"))
    job.start()
    until(lambda: job.snapshot().query("report").epochs, "an epoch")
    spark.stop()
    job.await_termination()


@case("sixth.source_crash", type="SOURCE", origin="user", decision="restart once", line="os.abort()")
def source_crash(spark: SparkSession, folder: Path) -> None:
    class Decoded(Pages):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            os.abort()

    into_noop(spark.readStream.format(own(spark, Decoded)).load())


@case("sixth.sink_crash", type="SINK", origin="user", decision="restart once", line="ctypes.string_at(")
def sink_crash(spark: SparkSession, folder: Path) -> None:
    class Encoded(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> Any:
            return ctypes.string_at(0)

    fails(kept(folder, numbers(spark).selectExpr("'x' AS line").writeStream.format(own(spark, Encoded))))


def values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The column `value` alone."""
    for batch in batches:
        yield batch.select(["value"])


@case("sixth.arrow_columns", type="USER_CODE", origin="user", decision="stop")
def arrow_columns(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).mapInArrow(values, "value long, name string"))


class Counter(StatefulProcessor):
    """Returns a column fewer than is declared."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle


@case("sixth.java_result", type="USER_CODE", origin="user", decision="stop")
def java_result(spark: SparkSession, folder: Path) -> None:
    head = "public class Named implements org.apache.spark.sql.api.java.UDF1<Long, Object>"
    add_java(spark, "shop.Named", f"{head} {{ public Object call(Long value) {{ return value.toString(); }} }}")
    spark.udf.registerJavaFunction("sixth_named", "shop.Named", "long")
    into_noop(numbers(spark).selectExpr("sixth_named(value)"))


@case("sixth.inserted", type="RESOURCE", origin="spark", decision="stop")
def inserted(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select(F.array_insert(F.array("value"), F.lit(2_147_483_640), F.lit(1))))


@case("sixth.repeated", type="RESOURCE", origin="user", decision="stop")
def repeated(spark: SparkSession, folder: Path) -> None:
    in_batch(numbers(spark), lambda batch: batch.select(F.array_repeat("value", F.lit(2_147_483_640))).collect())


@case("sixth.index_row", type="RESOURCE", origin="dependency", decision="stop", line="cursor.executemany(")
def index_row(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE notes (note text PRIMARY KEY)")
        long = "".join(random.Random(1).choices(string.ascii_letters, k=20_000))

        def write(batch: DataFrame, epoch: int) -> None:
            with shop.connect() as connection, connection.cursor() as cursor:
                cursor.executemany("INSERT INTO notes VALUES (%s)", [(long,) for _ in batch.collect()])

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("sixth.out_is_a_file", type="CONFIGURATION", origin="user", decision="stop")
def out_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "out").write_text("the orders of today")
    rows = numbers(spark).selectExpr("cast(value AS string)")
    fails(kept(folder, rows.writeStream.format("text").option("path", f"{folder}/out")))


@case("sixth.checkpoint_is_a_file", type="CONFIGURATION", origin="user", decision="stop")
def checkpoint_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "checkpoint").write_text("the orders of today")
    fails(kept(folder, numbers(spark).writeStream.format("noop")))


def delete_under_a_stream(spark: SparkSession, folder: Path, condition: str, source: str = "delta", **how: str) -> None:
    """Delete rows of a table once a query has committed an epoch of it; what it raises passes out."""
    table = f"{folder}/orders"
    spark.range(4).selectExpr("id", "id % 2 AS day").coalesce(1).write.format("delta").partitionBy("day").save(table)
    query = kept(folder, spark.readStream.format(source).options(**how).load(table).writeStream.format("noop")).start()
    try:
        epochs(query, 0)
        DeltaTable.forPath(spark, table).delete(condition)
        query.awaitTermination(TIMEOUT)
    finally:
        query.stop()


@case("sixth.followed_row", type="SOURCE", origin="library", decision="stop")
def followed_row(spark: SparkSession, folder: Path) -> None:
    delete_under_a_stream(spark, folder, "id = 2", "delta_snapshot", uid="orders", follow="true")
