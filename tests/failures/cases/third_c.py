"""A third set: resources, state, checkpoints, rivals, cancellations and machines."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pandas as pd
import psutil
import psycopg
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StatefulProcessor, StatefulProcessorHandle

from tests.failures.cases.third_b import database, postgres
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case(
    "third.repeat_memory", type="RESOURCE", origin="dependency", decision="restart",
    line="values.repeat(",
)  # fmt: skip
def repeat_memory(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def total(values: pd.Series) -> pd.Series:
        return pd.Series([values.repeat(1 << 46).sum()] * len(values))

    into_noop(numbers(spark).select(total("value")))


@case("third.new_thread", type="RESOURCE", origin="user", decision="restart", line=".start()")
def new_thread(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def told(value: int) -> int:
        used = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
        threading.stack_size(512 << 20)
        threading.Thread(target=time.sleep, args=(0.1,)).start()
        return value

    into_noop(numbers(spark).select(told("value")))


@case("third.full_database", type="RESOURCE", origin="user", decision="restart", line="executemany(")
def full_database(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with sqlite3.connect(folder / "orders.db") as target:
            target.execute("PRAGMA max_page_count = 10")  # the quota of this shop
            target.execute("CREATE TABLE IF NOT EXISTS orders (body BLOB)")
            target.executemany("INSERT INTO orders VALUES (zeroblob(30000))", [() for _ in batch.collect()])

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.sequence", type="RESOURCE", origin="spark", decision="stop")
def sequence(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("sequence(value, value + 5000000000) AS seconds"))


@case("third.mapped_memory", type="RESOURCE", origin="user", decision="restart", line="mmap.mmap(")
def mapped_memory(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def scratch(value: int) -> int:
        with mmap.mmap(-1, 1 << 60) as memory:
            return len(memory)

    into_noop(numbers(spark).select(scratch("value")))


@case("third.checkpoint_disk", type="RESOURCE", origin="spark", decision="restart")
def checkpoint_disk(spark: SparkSession, folder: Path) -> None:
    from tests.support.disks import fill, small_disk

    with small_disk(folder / "disk", "1m") as disk:

        def write(batch: DataFrame, epoch: int) -> None:
            if epoch == 2:
                fill(disk)

        fails(numbers(spark).writeStream.foreachBatch(write).option("checkpointLocation", f"{disk}/checkpoint"))


@case(
    "third.tablespace", type="RESOURCE", origin="dependency", decision="restart",
    line="target.execute(",
)  # fmt: skip
def tablespace(spark: SparkSession, folder: Path) -> None:
    shop = database()
    with postgres().small_tablespace("1m") as place:
        shop.run(f"CREATE TABLE visits (body text) TABLESPACE {place}")

        def write(batch: DataFrame, epoch: int) -> None:
            with psycopg.connect(shop.dsn) as target:
                words = "INSERT INTO visits SELECT md5(n::text) FROM generate_series(1, %s) n"
                target.execute(words, (batch.count() * 20_000,))

        try:
            fails(numbers(spark).writeStream.foreachBatch(write))
        finally:
            shop.run("DROP TABLE visits")


def _into(folder: Path, frame: DataFrame, mode: str = "append") -> DataStreamWriter:
    return frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", f"{folder}/checkpoint")


def _some(writer: DataStreamWriter, epochs: int = 3) -> None:
    """Some epochs, without a failure."""
    query = writer.start()
    try:
        while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < epochs:
            query.awaitTermination(0.1)
        assert query.exception() is None, query.exception()
    finally:
        query.stop()


def _write(file: Path, content: bytes) -> None:
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_bytes(content)


def _newest(log: Path) -> Path:
    return max((file for file in log.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


def _joined(spark: SparkSession) -> DataFrame:
    orders = numbers(spark).withWatermark("timestamp", "1 hour").select("value", "timestamp")
    payments = numbers(spark).withWatermark("timestamp", "1 hour").select(F.col("value").alias("paid"), "timestamp")
    return orders.join(payments, F.expr("value = paid")).select("value")


@case("third.join_state", type="STATE", origin="spark", decision="restore")
def join_state(spark: SparkSession, folder: Path) -> None:
    _some(_into(folder, _joined(spark)))
    for file in (folder / "checkpoint" / "state").rglob("*"):
        if file.suffix in (".zip", ".changelog", ".delta", ".snapshot"):
            _write(file, bytes(file.stat().st_size))  # as after a loss of power
    fails(_into(folder, _joined(spark)))


class _Seen(StatefulProcessor):
    """Remembers what it has seen, in a variable of a kind."""

    def __init__(self, kind: str = "value") -> None:
        self.kind = kind

    def init(self, handle: StatefulProcessorHandle) -> None:
        if self.kind == "value":
            self.seen: Any = handle.getValueState("seen", "n long")
        else:
            self.seen = handle.getListState("seen", "n long")

    def handleInputRows(self, key: Any, frames: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n = sum(len(frame) for frame in frames)
        if self.kind == "value":
            self.seen.update((n,))
        else:
            self.seen.appendValue((n,))
        yield pd.DataFrame({"id": [key[0]]})

    def close(self) -> None:
        pass


def _seen(spark: SparkSession, kind: str = "value", times: str = "none") -> DataFrame:
    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    return groups.transformWithStateInPandas(_Seen(kind), "id long", "append", times)


@case("third.newest_state", type="STATE", origin="spark", decision="restore")
def newest_state(spark: SparkSession, folder: Path) -> None:
    _some(_into(folder, _seen(spark)))
    for partition in (folder / "checkpoint" / "state" / "0").glob("[0-9]*"):
        # A copy of the checkpoint without its youngest files.
        files = [file for file in partition.iterdir() if file.is_file() and not file.name.startswith(".")]
        versions = sorted({int(file.name.split(".")[0].split("_")[0]) for file in files})
        for file in files:
            if int(file.name.split(".")[0].split("_")[0]) in versions[-2:]:
                file.unlink()
    fails(_into(folder, _seen(spark)))


@case("third.time_mode", type="STATE", origin="spark", decision="ask")
def time_mode(spark: SparkSession, folder: Path) -> None:
    _some(_into(folder, _seen(spark)))
    fails(_into(folder, _seen(spark, times="processingTime")))


@case("third.variable_kind", type="STATE", origin="spark", decision="ask")
def variable_kind(spark: SparkSession, folder: Path) -> None:
    _some(_into(folder, _seen(spark)))
    fails(_into(folder, _seen(spark, "list")))


@case("third.duplicate_columns", type="STATE", origin="spark", decision="ask")
def duplicate_columns(spark: SparkSession, folder: Path) -> None:
    named = [F.col("value"), F.concat(F.lit("order "), "value").alias("name")]
    _some(_into(folder, numbers(spark).select(*named).dropDuplicates(["value"])))
    fails(_into(folder, numbers(spark).select(*named).dropDuplicates(["value", "name"])))


@case("third.zeroed_offsets", type="CHECKPOINT", origin="spark", decision="restore")
def zeroed_offsets(spark: SparkSession, folder: Path) -> None:
    _some(_into(folder, numbers(spark)))
    newest = _newest(folder / "checkpoint" / "offsets")
    _write(newest, bytes(newest.stat().st_size))  # as after a loss of power
    fails(_into(folder, numbers(spark)))


@case("third.commits_version", type="CHECKPOINT", origin="spark", decision="restore")
def commits_version(spark: SparkSession, folder: Path) -> None:
    _some(_into(folder, numbers(spark)))
    _write(_newest(folder / "checkpoint" / "commits"), b"version one\n{}")
    fails(_into(folder, numbers(spark)))


@case("third.compacted_log", type="CHECKPOINT", origin="spark", decision="restore")
def compacted_log(spark: SparkSession, folder: Path) -> None:
    key = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(key, "2")
    try:
        (folder / "in").mkdir()
        for number in range(4):
            (folder / "in" / f"{number}.txt").write_text(f"{number}\n")
        lines = spark.readStream.option("maxFilesPerTrigger", "1").text(f"{folder}/in")
        _into(folder, lines).trigger(availableNow=True).start().awaitTermination()
        for file in (folder / "checkpoint" / "sources" / "0").glob("*.compact"):
            _write(file, file.read_bytes()[:-20])
        fails(_into(folder, lines))
    finally:
        spark.conf.unset(key)


@case("third.source_removed", type="CHECKPOINT", origin="spark", decision="ask")
def source_removed(spark: SparkSession, folder: Path) -> None:
    shops = [numbers(spark).select("value") for _ in range(3)]
    _some(_into(folder, shops[0].union(shops[1]).union(shops[2])))
    fails(_into(folder, shops[0].union(shops[2])))


@case("third.delta_offset", type="CHECKPOINT", origin="library", decision="restore")
def delta_offset(spark: SparkSession, folder: Path) -> None:
    spark.range(4).write.format("delta").save(f"{folder}/table")
    rows = spark.readStream.format("delta").load(f"{folder}/table")
    _into(folder, rows).trigger(availableNow=True).start().awaitTermination()
    newest = _newest(folder / "checkpoint" / "offsets")
    _write(newest, newest.read_bytes().rstrip()[:-25])
    fails(_into(folder, rows))


@case("third.empty_metadata", type="CHECKPOINT", origin="user", decision="restore")
def empty_metadata(spark: SparkSession, folder: Path) -> None:
    _some(_into(folder, numbers(spark)))
    _write(folder / "checkpoint" / "metadata", b"")
    fails(_into(folder, numbers(spark)))


@case("third.linked_checkpoint", type="FENCED", origin="user", decision="stop")
def linked_checkpoint(spark: SparkSession, folder: Path) -> None:
    key = "spark.sql.streaming.stopActiveRunOnRestart"
    spark.conf.set(key, "false")
    first = _into(folder, numbers(spark)).start()
    try:
        (folder / "link").symlink_to(folder, target_is_directory=True)
        fails(_into(folder / "link", numbers(spark)))
    finally:
        first.stop()
        spark.conf.unset(key)


@case("third.source_log_taken", type="FENCED", origin="spark", decision="stop")
def source_log_taken(spark: SparkSession, folder: Path) -> None:
    log = folder / "checkpoint" / "sources" / "0"
    (folder / "in").mkdir()
    for number in range(3):
        (folder / "in" / f"{number}.txt").write_text(f"{number}\n")

    def write(batch: DataFrame, epoch: int) -> None:
        # A second driver that runs the same query has taken the next file.
        taken = (log / str(epoch)).read_text().replace(f"{epoch}.txt", f"{epoch + 1}.txt")
        (log / str(epoch + 1)).write_text(taken.replace(f'"batchId":{epoch}', f'"batchId":{epoch + 1}'))

    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(f"{folder}/in")
    fails(lines.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint"))


@case(
    "third.kafka_producer", type="FENCED", origin="dependency", decision="stop",
    line="mine.commit_transaction(",
)  # fmt: skip
def kafka_producer(spark: SparkSession, folder: Path) -> None:
    from tests.servers.kafka import Broker

    with Broker(folder) as broker:
        topic, settings = broker.topic(), {"bootstrap.servers": broker.bootstrap, "transactional.id": "shop"}

        def write(batch: DataFrame, epoch: int) -> None:
            mine = confluent_kafka.Producer(settings)
            mine.init_transactions(30)
            mine.begin_transaction()
            for row in batch.collect():
                mine.produce(topic, str(row.value))
            mine.flush(30)
            rival = confluent_kafka.Producer(settings)  # a newer start of the same program
            rival.init_transactions(30)
            mine.commit_transaction(30)

        fails(numbers(spark).writeStream.foreachBatch(write))


def _meanwhile(begun: Path, act: Callable[[], object]) -> threading.Thread:
    """Do something once a file is there."""

    def run() -> None:
        for _ in range(600):
            if begun.exists():
                break
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _slow(begun: Path) -> Callable[..., Column]:
    """A function that takes long; a file says that it has begun."""

    @F.udf("long")
    def slow(value: int) -> int:
        begun.touch()
        time.sleep(5)
        return value

    return slow


@case("third.nightly_group", type="CANCELED", origin="user", decision="stop", line=".count()")
def nightly_group(spark: SparkSession, folder: Path) -> None:
    slow, context = _slow(folder / "begun"), spark.sparkContext

    def write(batch: DataFrame, epoch: int) -> None:
        context.setJobGroup("nightly", "the nightly count", interruptOnCancel=True)
        batch.select(slow("value").alias("n")).filter("n > 1").count()

    thread = _meanwhile(folder / "begun", lambda: context.cancelJobGroup("nightly"))
    try:
        fails(numbers(spark).writeStream.foreachBatch(write))
    finally:
        thread.join()


@case("third.stage_of_batch", type="CANCELED", origin="user", decision="stop", line=".parquet(")
def stage_of_batch(spark: SparkSession, folder: Path) -> None:
    slow, context = _slow(folder / "begun"), spark.sparkContext

    def write(batch: DataFrame, epoch: int) -> None:
        batch.select(slow("value").alias("n")).write.mode("append").parquet(f"{folder}/out")

    def kill() -> None:
        for stage in context.statusTracker().getActiveStageIds():
            context._jsc.sc().cancelStage(stage, "killed via the Web UI")

    thread = _meanwhile(folder / "begun", kill)
    try:
        fails(numbers(spark).writeStream.foreachBatch(write))
    finally:
        thread.join()


@case("third.canceled_broadcast", type="CANCELED", origin="spark", decision="stop")
def canceled_broadcast(spark: SparkSession, folder: Path) -> None:
    slow = _slow(folder / "begun")
    names = spark.range(4).select(slow("id").alias("value"))
    thread = _meanwhile(folder / "begun", spark.sparkContext.cancelAllJobs)
    try:
        into_noop(numbers(spark).join(F.broadcast(names), "value"))
    finally:
        thread.join()


@case("third.canceled_delta", type="CANCELED", origin="spark", decision="stop")
def canceled_delta(spark: SparkSession, folder: Path) -> None:
    slow = _slow(folder / "begun")
    writer = numbers(spark).select(slow("value").alias("value")).writeStream.format("delta")
    thread = _meanwhile(folder / "begun", spark.sparkContext.cancelAllJobs)
    try:
        fails(writer.option("checkpointLocation", f"{folder}/checkpoint").option("path", f"{folder}/table"))
    finally:
        thread.join()


@case("third.stopped_in_batch", type="CANCELED", origin="spark", decision="stop", where="process")
def stopped_in_batch(spark: SparkSession, folder: Path) -> None:
    slow = _slow(folder / "begun")

    def write(batch: DataFrame, epoch: int) -> None:
        batch.select(slow("value")).collect()

    thread = _meanwhile(folder / "begun", spark.stop)
    try:
        fails(numbers(spark).writeStream.foreachBatch(write))
    finally:
        thread.join()


@case("third.illegal", type="USER_CODE", origin="user", decision="stop", line="signal.SIGILL")
def illegal(spark: SparkSession, folder: Path) -> None:
    class Tokens:
        def eval(self, value: int) -> Iterator[tuple[int]]:
            os.kill(os.getpid(), signal.SIGILL)  # native code for another processor
            yield (value,)

    spark.udtf.register("third_tokens", F.udtf(Tokens, returnType="token long"))
    numbers(spark).createOrReplaceTempView("third_numbers")
    into_noop(spark.sql("SELECT value, token FROM third_numbers, LATERAL third_tokens(value)"))


@case("third.native_division", type="USER_CODE", origin="user", decision="stop", line="signal.SIGFPE")
def native_division(spark: SparkSession, folder: Path) -> None:
    def scored(frame: pd.DataFrame) -> pd.DataFrame:
        os.kill(os.getpid(), signal.SIGFPE)  # native code that divides by zero
        return frame

    def write(batch: DataFrame, epoch: int) -> None:
        groups = batch.select("value").groupBy(F.col("value") % 2)
        groups.applyInPandas(scored, "value long").write.format("noop").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


def _local_folders(spark: SparkSession) -> list[str]:
    disk = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()  # type: ignore[union-attr]
    return list(disk.localDirsString())


@case("third.garbled_shuffle", type="SYSTEM", origin="spark", decision="restart")
def garbled_shuffle(spark: SparkSession, folder: Path) -> None:
    places = _local_folders(spark)

    @F.udf("long")
    def while_the_disk_fails(value: int) -> int:
        for place in places:
            for file in Path(place).rglob("shuffle_*.data"):
                with contextlib.suppress(OSError):
                    file.write_bytes(os.urandom(file.stat().st_size))
        return value

    spread = numbers(spark, rows=64).select("value").repartition(64, "value")
    into_noop(spread.select(while_the_disk_fails("value")))


@case("third.lost_disk_block", type="SYSTEM", origin="spark", decision="restart")
def lost_disk_block(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(4).withColumnRenamed("id", "value")
    names = rows.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
    for place in _local_folders(spark):
        for file in Path(place).rglob("rdd_*"):
            file.unlink()  # a disk of the executor has failed
    into_noop(numbers(spark).join(names, "value"))


@case("third.executor_bus", type="SYSTEM", origin="spark", decision="restart", where="cluster")
def executor_bus(spark: SparkSession, folder: Path) -> None:
    def while_memory_fails(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for process in psutil.Process().parents():
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                os.kill(process.pid, signal.SIGBUS)
        time.sleep(20)
        yield from frames

    into_noop(numbers(spark).select("value").mapInPandas(while_memory_fails, "value long"))
