"""Where rules were weak: what a function for batches meets, crashes, other shapes, limits, a JVM that dies."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import string
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import requests
from delta import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter, InputPartition
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import spark_ext as sx
from tests.failures.building import add_java
from tests.failures.cases.fifth_b import Pages, kept, own
from tests.failures.cases.fourth_a import database
from tests.failures.cases.fourth_b import epochs
from tests.failures.corpus import case
from tests.failures.running import TIMEOUT, fails, into_noop, numbers
from tests.servers.kafka import Broker
from tests.support.waiting import until


def in_batch(rows: DataFrame, does: Callable[[DataFrame], object]) -> None:
    """Give each batch to a function."""
    fails(rows.writeStream.foreachBatch(lambda batch, epoch: does(batch)))  # type: ignore[arg-type,func-returns-value]


# What a function for batches meets while it reads its batch.


@contextmanager
def clicks(spark: SparkSession, folder: Path) -> Iterator[tuple[DataFrame, Broker]]:
    """The messages of a topic, and the broker that has them."""
    (folder / "kafka").mkdir()
    with Broker(folder / "kafka") as broker:
        topic = broker.topic()
        broker.send(topic, ["first", "second"])
        rows = spark.readStream.format("kafka_range").options(uid="clicks", topics=topic, request_timeout="2 s")
        yield rows.option("bootstrap_servers", broker.bootstrap).load(), broker


@case("sixth.broker_in_batch", type="NETWORK", origin="library", decision="restart")
def broker_in_batch(spark: SparkSession, folder: Path) -> None:
    with clicks(spark, folder) as (rows, broker):
        in_batch(rows, lambda batch: (broker.crash(), batch.collect()))


@case("sixth.broker_while_saving", type="NETWORK", origin="library", decision="restart")
def broker_while_saving(spark: SparkSession, folder: Path) -> None:
    with clicks(spark, folder) as (rows, broker):
        table = f"{folder}/clicks"
        in_batch(rows, lambda batch: (broker.crash(), batch.select("value").write.format("delta").save(table)))


@case("sixth.broker_of_job", type="NETWORK", origin="library", decision="restart")
def broker_of_job(spark: SparkSession, folder: Path) -> None:
    with clicks(spark, folder) as (rows, broker):
        report = rows.writeStream.foreachBatch(lambda batch, epoch: (broker.crash(), batch.toPandas()))
        job = sx.Job(spark, "shop", state=f"{folder}/state", restart_attempts=0)
        job.add("report", report)
        job.run(progress=False)


@case("sixth.database_in_batch", type="NETWORK", origin="library", decision="restart")
def database_in_batch(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE orders (id bigint PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
        orders = spark.readStream.format("postgres").options(uid="orders", table="orders", dsn=shop.dsn)
        in_batch(orders.load(), lambda batch: (shop.server.kill(), batch.toPandas()))


class Partner(Pages):
    """Pages of a server that is away."""

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        with socket.create_connection(("127.0.0.1", 1), timeout=5) as partner:
            yield (partner.recv(100).decode(),)


@case("sixth.wrapped_outage", type="NETWORK", origin="user", decision="restart")
def wrapped_outage(spark: SparkSession, folder: Path) -> None:
    def report(batch: DataFrame) -> None:
        try:
            batch.collect()
        except Exception as problem:
            raise RuntimeError("there is no report") from problem

    in_batch(spark.readStream.format(own(spark, Partner)).load(), report)


@case("sixth.partner_rows", type="NETWORK", origin="dependency", decision="restart")
def partner_rows(spark: SparkSession, folder: Path) -> None:
    class Answers(Pages):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            yield (requests.get(f"http://127.0.0.1:1/{partition.value}", timeout=5).text,)

    in_batch(spark.readStream.format(own(spark, Answers)).load(), lambda batch: list(batch.toLocalIterator()))


@case("sixth.scores_in_batch", type="NETWORK", origin="dependency", decision="restart")
def scores_in_batch(spark: SparkSession, folder: Path) -> None:
    async def score(row: Row) -> tuple[str]:
        async with httpx.AsyncClient(trust_env=False) as client:
            return ((await client.get(f"http://127.0.0.1:1/{row.value}")).text,)

    in_batch(numbers(spark), lambda batch: sx.async_map(batch, score, "score string").write.parquet(f"{folder}/scores"))


@case("sixth.control_in_batch", type="NETWORK", origin="library", decision="restart")
def control_in_batch(spark: SparkSession, folder: Path) -> None:
    control = sx.Control("http://127.0.0.1:1/v1/jobs/shop", "token-of-shop")
    in_batch(numbers(spark), lambda batch: control.set("rows", batch.count()))


@case("sixth.row_in_batch", type="USER_DATA", origin="library", decision="stop")
def row_in_batch(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "orders.csv").write_text("1\ntwo\n")
    orders = spark.readStream.format("files").options(uid="orders", path=f"{folder}/in").schema("id int")
    in_batch(orders.load(), lambda batch: batch.collect())


# The death of the driver's JVM.


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


# Crashes in native code that a function runs.


@case("sixth.deep_recursion", type="USER_CODE", origin="user", decision="stop", line="list(map(depth")
def deep_recursion(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def levels(value: int) -> int:
        def depth(level: int) -> list[Any]:
            return list(map(depth, [level + 1]))

        sys.setrecursionlimit(1 << 30)
        return len(depth(value))

    into_noop(numbers(spark).select(levels("value")))


@case("sixth.freed_twice", type="USER_CODE", origin="user", decision="stop", line="c.free(")
def freed_twice(spark: SparkSession, folder: Path) -> None:
    def parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        c = ctypes.CDLL(None)
        c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        for batch in batches:
            buffer = c.malloc(1 << 12)
            for _ in range(2):
                c.free(buffer)
            yield batch

    into_noop(numbers(spark).select("value").mapInArrow(parsed, "value long"))


@case("sixth.strides", type="USER_CODE", origin="user", decision="stop", line="windows.sum()")
def strides(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("double")
    def moving(values: pd.Series) -> pd.Series:
        windows = np.lib.stride_tricks.as_strided(values.to_numpy(float), (1 << 20,), (1 << 20,))
        return pd.Series(windows.sum(), values.index)

    into_noop(numbers(spark).select(moving("value")))


@case("sixth.batch_crash", type="USER_CODE", origin="user", decision="stop", line="signal.raise_signal(")
def batch_crash(spark: SparkSession, folder: Path) -> None:
    def scored(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            signal.raise_signal(signal.SIGILL)  # as code that was compiled for a newer processor does
            yield frame

    rows = numbers(spark).select("value")
    in_batch(rows, lambda batch: batch.mapInPandas(scored, "value long").write.parquet(f"{folder}/out"))


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


# Results of another shape than was declared.


def values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The column `value` alone."""
    for batch in batches:
        yield batch.select(["value"])


@case("sixth.arrow_columns", type="USER_CODE", origin="user", decision="stop")
def arrow_columns(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).mapInArrow(values, "value long, name string"))


@case("sixth.arrow_columns_in_batch", type="USER_CODE", origin="user", decision="stop")
def arrow_columns_in_batch(spark: SparkSession, folder: Path) -> None:
    in_batch(numbers(spark), lambda batch: batch.mapInArrow(values, "value long, name string").collect())


@case("sixth.arrow_struct", type="USER_CODE", origin="user", decision="stop")
def arrow_struct(spark: SparkSession, folder: Path) -> None:
    def nested(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([pa.StructArray.from_arrays([batch["value"]], ["id"])], ["order"])

    into_noop(numbers(spark).mapInArrow(nested, "order struct<id: long, name: string>"))


@case("sixth.arrow_type", type="USER_CODE", origin="user", decision="stop")
def arrow_type(spark: SparkSession, folder: Path) -> None:
    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([batch["value"].cast(pa.string())], ["value"])

    into_noop(numbers(spark).mapInArrow(named, "value long"))


@case("sixth.short_tuple", type="USER_CODE", origin="user", decision="stop")
def short_tuple(spark: SparkSession, folder: Path) -> None:
    @F.udf("struct<id: long, name: string>", useArrow=False)
    def order(value: int) -> tuple[int]:
        return (value,)

    into_noop(numbers(spark).select(order("value").alias("order")).select("order.*"))


@case("sixth.unverified_rows", type="USER_CODE", origin="user", decision="stop")
def unverified_rows(spark: SparkSession, folder: Path) -> None:
    def made(batch: DataFrame) -> DataFrame:
        rows = batch.rdd.map(lambda row: (row.value,))
        return batch.sparkSession.createDataFrame(rows, "value long, name string", verifySchema=False)

    in_batch(numbers(spark), lambda batch: made(batch).collect())


class Counter(StatefulProcessor):
    """Returns a column fewer than is declared."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle


@case("sixth.state_row", type="USER_CODE", origin="user", decision="stop")
def state_row(spark: SparkSession, folder: Path) -> None:
    class Counts(Counter):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            yield Row(id=key[0])

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    into_noop(groups.transformWithState(Counts(), "id long, n long", "append", "none"))


@case("sixth.state_frame", type="USER_CODE", origin="user", decision="stop")
def state_frame(spark: SparkSession, folder: Path) -> None:
    class Counts(Counter):
        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            yield pd.DataFrame({"id": [key[0]]})

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    into_noop(groups.transformWithStateInPandas(Counts(), "id long, n long", "append", "none"))


@case("sixth.java_result", type="USER_CODE", origin="user", decision="stop")
def java_result(spark: SparkSession, folder: Path) -> None:
    head = "public class Named implements org.apache.spark.sql.api.java.UDF1<Long, Object>"
    add_java(spark, "shop.Named", f"{head} {{ public Object call(Long value) {{ return value.toString(); }} }}")
    spark.udf.registerJavaFunction("sixth_named", "shop.Named", "long")
    into_noop(numbers(spark).selectExpr("sixth_named(value)"))


# Limits.


@case(
    "sixth.result_frame", type="RESOURCE", origin="user", decision="stop",
    where="process", conf={"spark.driver.maxResultSize": "100k"},
)  # fmt: skip
def result_frame(spark: SparkSession, folder: Path) -> None:
    wide = [F.explode(F.sequence(F.lit(1), F.lit(20_000))), F.expr("uuid()")]
    in_batch(numbers(spark), lambda batch: batch.select(*wide).toPandas())


@case("sixth.inserted", type="RESOURCE", origin="spark", decision="stop")
def inserted(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select(F.array_insert(F.array("value"), F.lit(2_147_483_640), F.lit(1))))


@case("sixth.repeated", type="RESOURCE", origin="user", decision="stop")
def repeated(spark: SparkSession, folder: Path) -> None:
    in_batch(numbers(spark), lambda batch: batch.select(F.array_repeat("value", F.lit(2_147_483_640))).collect())


@case("sixth.broadcast_names", type="RESOURCE", origin="user", decision="stop")
def broadcast_names(spark: SparkSession, folder: Path) -> None:
    names = spark.range(10_000).selectExpr("id AS value", "repeat('x', 100) AS name")

    def named(batch: DataFrame) -> None:
        batch.sparkSession.conf.set("spark.sql.maxBroadcastTableSize", "1k")
        batch.join(F.broadcast(names), "value").collect()

    in_batch(numbers(spark), named)


@case(
    "sixth.task_size", type="RESOURCE", origin="user", decision="stop",
    where="cluster", conf={"spark.rpc.message.maxSize": "1"},
)  # fmt: skip
def task_size(spark: SparkSession, folder: Path) -> None:
    rates = spark.sparkContext.parallelize([random.Random(1).randbytes(3 << 20)], 1)
    in_batch(numbers(spark), lambda batch: rates.map(len).collect())


@case("sixth.index_row", type="RESOURCE", origin="dependency", decision="stop", line="cursor.executemany(")
def index_row(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE notes (note text PRIMARY KEY)")
        long = "".join(random.Random(1).choices(string.ascii_letters, k=20_000))

        def write(batch: DataFrame, epoch: int) -> None:
            with shop.connect() as connection, connection.cursor() as cursor:
                cursor.executemany("INSERT INTO notes VALUES (%s)", [(long,) for _ in batch.collect()])

        fails(numbers(spark).writeStream.foreachBatch(write))


# A path that is a file.


@case("sixth.out_is_a_file", type="CONFIGURATION", origin="user", decision="stop")
def out_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "out").write_text("the orders of today")
    rows = numbers(spark).selectExpr("cast(value AS string)")
    fails(kept(folder, rows.writeStream.format("text").option("path", f"{folder}/out")))


@case("sixth.checkpoint_is_a_file", type="CONFIGURATION", origin="user", decision="stop")
def checkpoint_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "checkpoint").write_text("the orders of today")
    fails(kept(folder, numbers(spark).writeStream.format("noop")))


@case("sixth.table_is_a_file", type="CONFIGURATION", origin="library", decision="stop")
def table_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "table").write_text("the orders of today")
    fails(kept(folder, numbers(spark).writeStream.format("delta").option("path", f"{folder}/table")))


@case("sixth.report_below_a_file", type="CONFIGURATION", origin="user", decision="stop", line=".csv(str(report")
def report_below_a_file(spark: SparkSession, folder: Path) -> None:
    report = folder / "report.csv"
    report.write_text("the orders of today")
    in_batch(numbers(spark), lambda batch: batch.select("value").write.csv(str(report / "epoch=0")))


@case("sixth.export_is_a_file", type="CONFIGURATION", origin="library", decision="stop")
def export_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "out").write_text("the orders of today")
    writer = numbers(spark).select("value").writeStream.format("files_2pc")
    fails(kept(folder, writer.options(uid="export", path=f"{folder}/out", commit_attempts="2")))


# Rows that were deleted under a stream.


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


@case("sixth.deleted_day", type="SOURCE", origin="library", decision="stop")
def deleted_day(spark: SparkSession, folder: Path) -> None:
    delete_under_a_stream(spark, folder, "day = 0")


@case("sixth.deleted_row", type="SOURCE", origin="library", decision="stop")
def deleted_row(spark: SparkSession, folder: Path) -> None:
    delete_under_a_stream(spark, folder, "id = 2")


@case("sixth.followed_row", type="SOURCE", origin="library", decision="stop")
def followed_row(spark: SparkSession, folder: Path) -> None:
    delete_under_a_stream(spark, folder, "id = 2", "delta_snapshot", uid="orders", follow="true")
