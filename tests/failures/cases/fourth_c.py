"""Everyday failures, unseen by the rules: resources, states, checkpoints, drivers, machines."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import spark_ext as sx
from tests.failures.cases.fourth_a import database
from tests.failures.cases.fourth_b import epochs, kept
from tests.failures.corpus import case
from tests.failures.running import TIMEOUT, fails, into_noop, numbers
from tests.support.disks import small_disk


def _run(writer: DataStreamWriter) -> None:
    """Some epochs, without a failure."""
    query = writer.start()
    try:
        epochs(query)
    finally:
        query.stop()


def _newest(folder: Path, log: str) -> Path:
    """The newest entry of a checkpoint's log, without its checksum."""
    newest = max((folder / "checkpoint" / log).glob("[0-9]*"), key=lambda entry: int(entry.name))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    return newest


# Resources.


@case(
    "fourth.repeated_rows",
    held_out=True,
    type="RESOURCE",
    origin="dependency",
    decision="restart",
    line="index.repeat(",
)
def repeated_rows(spark: SparkSession, folder: Path) -> None:
    def spread(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.loc[frame.index.repeat(1 << 46)]

    into_noop(numbers(spark).select("value").mapInPandas(spread, "value long"))


@case("fourth.threads", held_out=True, type="RESOURCE", origin="user", decision="restart", line="thread.start()")
def threads(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def fetched(value: int) -> int:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), resource.RLIM_INFINITY))
        threading.stack_size(128 << 20)
        for _ in range(8):
            thread = threading.Thread(target=time.sleep, args=(1,), daemon=True)
            thread.start()
        return value

    into_noop(numbers(spark).select(fetched("value")))


@case("fourth.full_target", held_out=True, type="RESOURCE", origin="spark", decision="restart")
def full_target(spark: SparkSession, folder: Path) -> None:
    with small_disk(folder / "disk", "2m") as disk:
        readings = numbers(spark, rows=200_000).select("value", F.expr("uuid()").alias("reading"))
        fails(kept(folder, readings, "parquet").option("path", str(disk / "readings")))


@case(
    "fourth.full_database",
    held_out=True,
    type="RESOURCE",
    origin="dependency",
    decision="restart",
    line="cursor.executemany(",
)
def full_database(spark: SparkSession, folder: Path) -> None:
    with database() as shop, shop.server.small_tablespace("1m") as place:
        shop.run(f"CREATE TABLE readings (value bigint, reading text) TABLESPACE {place}")

        def write(batch: DataFrame, epoch: int) -> None:
            rows = [tuple(row) for row in batch.collect()]
            with shop.connect() as connection, connection.cursor() as cursor:
                cursor.executemany("INSERT INTO readings VALUES (%s, %s)", rows)

        try:
            fails(numbers(spark, rows=2000).selectExpr("value", "repeat('x', 1000)").writeStream.foreachBatch(write))
        finally:
            shop.run("DROP TABLE readings")


# States and checkpoints.


@case("fourth.join_state", held_out=True, type="STATE", origin="spark", decision="restore")
def join_state(spark: SparkSession, folder: Path) -> None:
    def joined() -> DataFrame:
        orders = numbers(spark).withWatermark("timestamp", "1 minute").alias("orders")
        paid = numbers(spark).withWatermark("timestamp", "1 minute").alias("paid")
        return orders.join(paid, F.expr("orders.value = paid.value AND orders.timestamp = paid.timestamp"))

    _run(kept(folder, joined()))
    for file in (folder / "checkpoint" / "state" / "0" / "1").rglob("*"):
        if file.is_file():
            file.unlink()
    fails(kept(folder, joined()))


@case("fourth.state_columns", held_out=True, type="STATE", origin="spark", decision="ask")
def state_columns(spark: SparkSession, folder: Path) -> None:
    def counted(state_schema: str, *initial: Any) -> DataFrame:
        def count(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
            state.update((sum(map(len, frames)), *initial))
            yield pd.DataFrame({"id": [key[0]]})

        groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
        return groups.applyInPandasWithState(count, "id long", state_schema, "append", GroupStateTimeout.NoTimeout)

    _run(kept(folder, counted("rows long")))
    fails(kept(folder, counted("rows long, last string", "none")))


@case("fourth.distinct_columns", held_out=True, type="STATE", origin="spark", decision="ask")
def distinct_columns(spark: SparkSession, folder: Path) -> None:
    _run(kept(folder, numbers(spark).dropDuplicates(["value"])))
    fails(kept(folder, numbers(spark).dropDuplicates(["value", "timestamp"])))


@case("fourth.empty_commit", held_out=True, type="CHECKPOINT", origin="spark", decision="restore")
def empty_commit(spark: SparkSession, folder: Path) -> None:
    _run(kept(folder, numbers(spark)))
    _newest(folder, "commits").write_bytes(b"")
    fails(kept(folder, numbers(spark)))


@case("fourth.zeroed_offsets", held_out=True, type="CHECKPOINT", origin="spark", decision="restore")
def zeroed_offsets(spark: SparkSession, folder: Path) -> None:
    _run(kept(folder, numbers(spark)))
    newest = _newest(folder, "offsets")
    newest.write_bytes(bytes(newest.stat().st_size))  # as a file system leaves it after a power failure
    fails(kept(folder, numbers(spark)))


@case("fourth.delta_offset", held_out=True, type="CHECKPOINT", origin="library", decision="restore")
def delta_offset(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(4).write.format("delta").save(table)
    orders = spark.readStream.format("delta").load(table)
    query = kept(folder, orders).start()
    epochs(query, 0)
    query.stop()
    newest = _newest(folder, "offsets")
    newest.write_text(newest.read_text()[:-20])
    fails(kept(folder, orders))


@case("fourth.union_removed", held_out=True, type="CHECKPOINT", origin="spark", decision="ask")
def union_removed(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(4).write.format("delta").save(table)
    returns = spark.readStream.format("delta").load(table).withColumnRenamed("id", "value")
    _run(kept(folder, numbers(spark).select("value").union(returns)))
    fails(kept(folder, numbers(spark).select("value")))


# Drivers and who stops them.

_SECOND_DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.failures.cases import fourth_b, fourth_c
from tests.failures.running import numbers
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
fourth_c._run(fourth_b.kept(Path(sys.argv[1]), numbers(spark)))
"""

_SECOND_JOB = """
import sys
from pathlib import Path
import spark_ext as sx
from tests.failures.cases import fourth_c
job = fourth_c._export(sx.session("second", master="local[1]"), Path(sys.argv[1]), takeover=True).start()
job.wait(5)
job.stop()
"""


def _second(program: str, folder: Path) -> None:
    """Run another driver to its end."""
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, stdout=sys.stderr)


@case("fourth.redeployed", held_out=True, type="FENCED", origin="spark", decision="stop")
def redeployed(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        if epoch == 1:
            _second(_SECOND_DRIVER, folder)

    query = numbers(spark).writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint").start()
    try:
        query.awaitTermination(5 * TIMEOUT)
    finally:
        query.stop()


def _export(spark: SparkSession, folder: Path, **settings: Any) -> sx.Job:
    writer = numbers(spark).select("value").writeStream.format("files_2pc").option("uid", "export-files")
    job = sx.Job(spark, "export", state=str(folder / "state"), interval="1 s", **settings)
    job.add("export", writer.option("path", str(folder / "out")))
    return job


@case("fourth.second_export", held_out=True, type="FENCED", origin="library", decision="stop")
def second_export(spark: SparkSession, folder: Path) -> None:
    job = _export(spark, folder).start()
    try:
        job.wait(3)
        _second(_SECOND_JOB, folder)
        job.await_termination(TIMEOUT)
    finally:
        job.stop()


def _soon(spark: SparkSession, stop: Any) -> None:
    """Do something once Spark runs a job."""

    def wait() -> None:
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.1)
        time.sleep(1)
        stop()

    threading.Thread(target=wait, daemon=True).start()


def _slowly(frame: DataFrame) -> DataFrame:
    return frame.select(F.udf(lambda value: time.sleep(20) or value, "long")("value").alias("value"))


@case("fourth.maintenance", held_out=True, type="CANCELED", origin="spark", decision="stop")
def maintenance(spark: SparkSession, folder: Path) -> None:
    spark.sparkContext.addJobTag("nightly")
    try:
        _soon(spark, lambda: spark.sparkContext.cancelJobsWithTag("nightly"))
        into_noop(_slowly(numbers(spark)))
    finally:
        spark.sparkContext.removeJobTag("nightly")


@case("fourth.cancelled_run", held_out=True, type="CANCELED", origin="user", decision="stop", line=".collect()")
def cancelled_run(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        print(len(_slowly(batch).collect()))

    _soon(spark, lambda: spark.sparkContext.cancelJobGroup(str(spark.streams.active[-1].runId)))
    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "fourth.pod_terminated",
    held_out=True,
    type="CANCELED",
    origin="user",
    decision="stop",
    line="sys.exit(143)",
    where="process",
)
def pod_terminated(spark: SparkSession, folder: Path) -> None:
    def terminated(number: int, frame: object) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        _soon(spark, lambda: os.kill(os.getpid(), signal.SIGTERM))
        into_noop(numbers(spark))
    finally:
        signal.signal(signal.SIGTERM, before)


# Machines.


@case(
    "fourth.illegal_instruction",
    held_out=True,
    type="USER_CODE",
    origin="user",
    decision="stop",
    line="native(signal.SIGILL)",
)
def illegal_instruction(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("double")
    def scores(values: pd.Series) -> pd.Series:
        native = getattr(ctypes.CDLL(None), "raise")
        native(signal.SIGILL)  # as code that was compiled for a newer processor does
        return values * 1.0

    into_noop(numbers(spark).select(scores("value")))


@case("fourth.preempted_executor", held_out=True, type="SYSTEM", origin="spark", decision="restart", where="cluster")
def preempted_executor(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def preempted(value: int) -> int:
        executor = os.getppid()
        while "java" not in Path(f"/proc/{executor}/comm").read_text():
            executor = int(Path(f"/proc/{executor}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(executor, signal.SIGTERM)  # as the owner of the machines does
        time.sleep(20)
        return value

    into_noop(numbers(spark).select(preempted("value")))
