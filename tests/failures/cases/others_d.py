"""Further: jobs that somebody canceled, machines that fail, and failures that need a driver of their own."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread, Timer

import pandas as pd
import psutil
import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


def _slowly(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Each part, after a while."""
    for part in parts:
        time.sleep(5)
        yield part


@case("others.canceled_tag", type="CANCELED", origin="user", decision="stop", line=".count()")
def canceled_tag(spark: SparkSession, folder: Path) -> None:
    context = spark.sparkContext

    def write(batch: DataFrame, epoch: int) -> None:
        context.addJobTag("held-nightly")
        Timer(1.0, context.cancelJobsWithTag, ["held-nightly"]).start()
        batch.select("value").mapInPandas(_slowly, "value long").count()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("others.canceled_stage", type="CANCELED", origin="spark", decision="stop")
def canceled_stage(spark: SparkSession, folder: Path) -> None:
    context = spark.sparkContext

    def cancel() -> None:
        deadline = time.monotonic() + 20
        while not (stages := context.statusTracker().getActiveStageIds()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for stage in stages:
            context._jsc.sc().cancelStage(stage)

    Thread(target=cancel, daemon=True).start()
    into_noop(numbers(spark).select("value").mapInPandas(_slowly, "value long"))


@case("others.native_exit", type="SYSTEM", origin="spark", decision="restart")
def native_exit(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def tokenize(value: int) -> int:
        return ctypes.CDLL(None)._exit(3)

    into_noop(numbers(spark).select(tokenize("value")))


@case("others.shuffle_files_cleaned", type="SYSTEM", origin="spark", decision="restart")
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


@case(
    "others.result_size", type="RESOURCE", origin="user", decision="stop", line=".collect()",
    where="process", conf={"spark.driver.maxResultSize": "1m"},
)  # fmt: skip
def result_size(spark: SparkSession, folder: Path) -> None:
    @F.udf("binary")
    def body_of(value: int) -> bytes:
        return random.Random(value).randbytes(1_000_000)

    def write(batch: DataFrame, epoch: int) -> None:
        bodies = batch.select(body_of("value").alias("body"))
        (folder / "bodies.bin").write_bytes(b"".join(row.body for row in bodies.collect()))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "others.kryo_registration", type="SERIALIZATION", origin="spark", decision="stop",
    subject="org.apache.spark.sql.delta.actions.AddFile", where="process",
    conf={
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrationRequired": "true",
    },
)  # fmt: skip
def kryo_registration(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).writeStream.format("delta").option("path", str(folder / "table"))
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")))


@case(
    "others.backend_terminated", type="NETWORK", origin="dependency", decision="restart",
    line="target.execute", where="process",
)  # fmt: skip
def backend_terminated(spark: SparkSession, folder: Path) -> None:
    from tests.servers.postgres import PASSWORD, USER, PostgresServer

    server = PostgresServer().create()

    def write(batch: DataFrame, epoch: int) -> None:
        address = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{server.port}/postgres"
        with psycopg.connect(address) as target:
            with server.admin() as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", (target.info.backend_pid,))
            target.execute("SELECT 1")

    try:
        fails(numbers(spark).writeStream.foreachBatch(write))
    finally:
        server.close()


@case("others.executor_ended", type="SYSTEM", origin="spark", decision="restart", where="cluster")
def executor_ended(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def while_the_machine_goes_down(value: int) -> int:
        for process in psutil.Process().parents():
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                os.kill(process.pid, signal.SIGTERM)
        time.sleep(20)
        return value

    into_noop(numbers(spark).select(while_the_machine_goes_down("value")))
