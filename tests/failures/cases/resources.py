"""Failures for want of memory, disk, files."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.building import add_java
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("resources.python_memory", type="RESOURCE", origin="user", decision="restart", line="bytearray(1 << 50)")
def python_memory(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def size(value: int) -> int:
        return len(bytearray(1 << 50))

    into_noop(numbers(spark).select(size("value")))


@case("resources.numpy_memory", type="RESOURCE", origin="user", decision="restart", line="np.zeros")
def numpy_memory(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("double")
    def distances(values: pd.Series) -> pd.Series:
        return pd.Series(np.zeros((len(values), 1 << 48)).sum(axis=1))

    into_noop(numbers(spark).select(distances("value")))


@case("resources.arrow_memory", type="RESOURCE", origin="dependency", decision="restart", line="pa.allocate_buffer")
def arrow_memory(spark: SparkSession, folder: Path) -> None:
    def copied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pa.allocate_buffer(1 << 50)
            yield batch

    into_noop(numbers(spark).select("value").mapInArrow(copied, "value long"))


@case("resources.killed_worker", type="RESOURCE", origin="spark", decision="restart")
def killed_worker(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def hungry(value: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
        return value

    into_noop(numbers(spark).select(hungry("value")))


@case("resources.disk_full", type="RESOURCE", origin="user", decision="restart", line="log.flush()")
def disk_full(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def logged(value: int) -> int:
        log = open("/dev/full", "w")  # noqa: SIM115
        log.write(f"value {value}\n")
        log.flush()
        return value

    into_noop(numbers(spark).select(logged("value")))


@case("resources.disk_full_pandas", type="RESOURCE", origin="dependency", decision="restart", line="to_csv")
def disk_full_pandas(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.toPandas().to_csv("/dev/full")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("resources.disk_full_java", type="RESOURCE", origin="user", decision="restart")
def disk_full_java(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Logged",
        """public class Logged implements org.apache.spark.sql.api.java.UDF1<Long, Long> {
          public Long call(Long value) throws Exception {
            try (var log = new java.io.FileOutputStream("/dev/full")) { log.write(1); }
            return value;
          }
        }""",
    )
    spark.udf.registerJavaFunction("failing_logged", "shop.Logged", "long")
    into_noop(numbers(spark).selectExpr("failing_logged(value)"))


@case("resources.open_files", type="RESOURCE", origin="user", decision="restart", line='open("/dev/null")')
def open_files(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def look_up(value: int) -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        kept = []
        for _ in range(100):
            kept.append(open("/dev/null"))  # noqa: SIM115
        return value

    into_noop(numbers(spark).select(look_up("value")))


@case("resources.file_size", type="RESOURCE", origin="user", decision="restart", line="open(folder")
def file_size(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def spooled(value: int) -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with open(folder / "spool", "wb") as spool:
            spool.write(bytes(5000))
            spool.flush()
        return value

    into_noop(numbers(spark).select(spooled("value")))


@case("resources.broadcast_table", type="RESOURCE", origin="spark", decision="stop")
def broadcast_table(spark: SparkSession, folder: Path) -> None:
    spark.conf.set("spark.sql.maxBroadcastTableSize", "1k")
    try:
        names = spark.range(10_000).selectExpr("id AS value", "repeat('x', 100) AS name")
        into_noop(numbers(spark).join(F.broadcast(names), "value"))
    finally:
        spark.conf.unset("spark.sql.maxBroadcastTableSize")


@case("resources.array_size", type="RESOURCE", origin="spark", decision="stop")
def array_size(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select(F.array_repeat(F.col("value"), F.lit(2147483647))))


@case(
    "resources.result_size",
    type="RESOURCE",
    origin="user",
    decision="stop",
    line=".collect()",
    where="process",
    conf={"spark.driver.maxResultSize": "10k"},
)
def result_size(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.sparkSession.range(50_000).select(F.expr("uuid()")).collect()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("resources.java_heap", type="RESOURCE", origin="spark", decision="restart", where="process", conf={"spark.executor.killOnFatalError.depth": "0"})  # fmt: skip  # noqa: E501
def java_heap(spark: SparkSession, folder: Path) -> None:
    texts = numbers(spark, rows=100).select(F.repeat(F.lit("x"), 100_000_000).alias("text"))
    fails(texts.agg(F.collect_list("text")).writeStream.format("noop").outputMode("complete"))


@case("resources.killed_executor", type="RESOURCE", origin="spark", decision="restart", where="cluster")
def killed_executor(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def hungry(value: int) -> int:
        executor = os.getppid()
        while "java" not in Path(f"/proc/{executor}/comm").read_text():
            executor = int(Path(f"/proc/{executor}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(executor, signal.SIGKILL)  # as the kernel does when memory runs out
        return value

    into_noop(numbers(spark).select(hungry("value")))
