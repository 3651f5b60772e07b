"""Functions for batches, crashes, limits, and a JVM that dies."""

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
from delta import DeltaTable
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter, InputPartition

import spark_ext as sx
from tests.failures.cases.settings_and_networks import Pages, own
from tests.failures.corpus import case
from tests.failures.running import fails, fails_after, into_noop, kept, numbers
from tests.support.waiting import until


def jvm() -> psutil.Process:
    return next(process for process in psutil.Process().children(recursive=True) if process.name() == "java")


@case("sixth.killed_jvm", "SYSTEM", "user", "restart", where="process")
def killed_jvm(spark: SparkSession, folder: Path) -> None:
    query = numbers(spark).writeStream.foreachBatch(lambda batch, epoch: jvm().kill()).start()
    query.awaitTermination()


@case("sixth.job_without_jvm", "SYSTEM", "library", "stop", where="process")
def job_without_jvm(spark: SparkSession, folder: Path) -> None:
    job = sx.Job(spark, "shop", state=f"{folder}/state")
    job.add("report", numbers(spark).writeStream.foreachBatch(lambda batch, epoch: jvm().kill()))
    job.run(progress=False)


@case("sixth.job_without_session", "CANCELED", "spark", "stop", where="process")
def job_without_session(spark: SparkSession, folder: Path) -> None:
    job = sx.Job(spark, "shop", state=f"{folder}/state")
    job.add("report", numbers(spark).writeStream.format("noop"))
    job.start()
    until(lambda: job.snapshot().query("report").epochs, "an epoch")
    spark.stop()
    job.await_termination()


@case("sixth.source_crash", "SOURCE", "user", "restart once", line="os.abort()")
def source_crash(spark: SparkSession, folder: Path) -> None:
    class Decoded(Pages):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            os.abort()

    into_noop(spark.readStream.format(own(spark, Decoded)).load())


@case("sixth.sink_crash", "SINK", "user", "restart once", line="ctypes.string_at(")
def sink_crash(spark: SparkSession, folder: Path) -> None:
    class Encoded(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> Any:
            return ctypes.string_at(0)

    fails(kept(folder, numbers(spark).selectExpr("'x' AS line").writeStream.format(own(spark, Encoded))))


@case("sixth.arrow_columns", "USER_CODE", "user", "stop")
def arrow_columns(spark: SparkSession, folder: Path) -> None:
    value_alone = lambda batches: (batch.select(["value"]) for batch in batches)  # noqa: E731
    into_noop(numbers(spark).mapInArrow(value_alone, "value long, name string"))


@case("sixth.java_result", "USER_CODE", "user", "stop")
def java_result(spark: SparkSession, folder: Path) -> None:
    # Lives as long as the process: each later task of the session opens the jars that were added to it.
    lasting = Path(tempfile.mkdtemp(prefix="failures-jars-"))
    atexit.register(shutil.rmtree, lasting, ignore_errors=True)
    head = "package shop; public class Named implements org.apache.spark.sql.api.java.UDF1<Long, Object>"
    source, classes, jar = lasting / "Named.java", lasting / "classes", lasting / "named.jar"
    source.write_text(f"{head} {{ public Object call(Long value) {{ return value.toString(); }} }}")
    spark_jars = Path(pyspark.__file__).parent / "jars/*"
    subprocess.run(["javac", "-proc:none", "-cp", str(spark_jars), "-d", str(classes), str(source)], check=True)
    subprocess.run(["jar", "cf", str(jar), "-C", str(classes), "."], check=True)
    spark.sql(f"ADD JAR '{jar}'")
    spark.udf.registerJavaFunction("sixth_named", "shop.Named", "long")
    into_noop(numbers(spark).selectExpr("sixth_named(value)"))


@case("sixth.repeated", "RESOURCE", "user", "stop")
def repeated(spark: SparkSession, folder: Path) -> None:
    write = lambda batch, epoch: batch.select(F.array_repeat("value", F.lit(2_147_483_640))).collect()  # noqa: E731
    fails(numbers(spark).writeStream.foreachBatch(write))


@case("sixth.out_is_a_file", "CONFIGURATION", "user", "stop")
def out_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "out").write_text("the orders of today")
    rows = numbers(spark).selectExpr("cast(value AS string)")
    fails(kept(folder, rows.writeStream.format("text").option("path", f"{folder}/out")))


@case("sixth.checkpoint_is_a_file", "CONFIGURATION", "user", "stop")
def checkpoint_is_a_file(spark: SparkSession, folder: Path) -> None:
    (folder / "checkpoint").write_text("the orders of today")
    fails(kept(folder, numbers(spark).writeStream.format("noop")))


@case("sixth.followed_row", "SOURCE", "library", "stop")
def followed_row(spark: SparkSession, folder: Path) -> None:
    table = f"{folder}/orders"
    spark.range(4).selectExpr("id", "id % 2 AS day").coalesce(1).write.format("delta").partitionBy("day").save(table)
    orders = spark.readStream.format("delta_snapshot").options(uid="orders", follow="true").load(table)
    fails_after(folder, orders, lambda: DeltaTable.forPath(spark, table).delete("id = 2"))
