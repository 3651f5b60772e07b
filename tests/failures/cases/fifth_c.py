"""What often fails, unseen by the rules: sources, targets, state, checkpoints."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import pyarrow as pa
from confluent_kafka import TopicPartition
from delta import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.failures.cases.fifth_b import Pages, kept, own
from tests.failures.cases.fourth_a import database
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers
from tests.servers.kafka import Broker


def into(folder: Path, frame: DataFrame) -> DataStreamWriter:
    """Into the sink `noop`, with a checkpoint in the folder."""
    return kept(folder, frame.writeStream.format("noop").outputMode("append"))


def ran(folder: Path, frame: DataFrame, epochs: int = 1) -> Path:
    """Run some epochs of a streaming DataFrame, without a failure; returns its checkpoint."""
    query = into(folder, frame).start()
    try:
        while not (folder / "checkpoint" / "commits" / str(epochs - 1)).exists():
            assert not query.awaitTermination(0.1)
    finally:
        query.stop()
    return folder / "checkpoint"


def newest(log: Path) -> Path:
    """The newest entry of a log of a checkpoint."""
    return max((entry for entry in log.iterdir() if entry.name.isdigit()), key=lambda entry: int(entry.name))


def rewritten(entry: Path, text: str) -> None:
    """Replace an entry, as a disk would: its checksum is gone as well."""
    entry.write_text(text)
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)


# Sources.


@case(
    "fifth.page_frame", held_out=True, type="SOURCE", origin="dependency", decision="restart once",
    line='orders["amount"]',
)  # fmt: skip
def page_frame(spark: SparkSession, folder: Path) -> None:
    class Orders(Pages):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            orders = pd.read_json(io.StringIO('[{"id": 1, "total": 12.5}]'))
            for amount in orders["amount"]:
                yield (str(amount),)

    into_noop(spark.readStream.format(own(spark, Orders)).load())


@case("fifth.last_page", held_out=True, type="SOURCE", origin="user", decision="restart once", line=".group(1)")
def last_page(spark: SparkSession, folder: Path) -> None:
    class Linked(Pages):
        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            link = '<https://shop.internal/orders?after=17>; rel="next"'
            return {"page": int(re.search(r"page=(\d+)", link).group(1))}  # type: ignore[union-attr]

    into_noop(spark.readStream.format(own(spark, Linked)).load())


@case("fifth.log_retention", held_out=True, type="SOURCE", origin="library", decision="restart")
def log_retention(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")

    def append() -> None:
        spark.range(3).write.format("delta").mode("append").save(table)

    append()
    ran(folder, spark.readStream.format("delta").load(table))
    for _ in range(3):
        append()
    deltalake.DeltaTable(table).create_checkpoint()
    for version in range(3):
        (folder / "table" / "_delta_log" / f"{version:020}.json").unlink()
    fails(into(folder, spark.readStream.format("delta").load(table)))


@case("fifth.half_dimension", held_out=True, type="SOURCE", origin="spark", decision="restart")
def half_dimension(spark: SparkSession, folder: Path) -> None:
    spark.range(1000).selectExpr("id AS value", "uuid() AS name").coalesce(1).write.parquet(f"{folder}/customers")
    (whole,) = (folder / "customers").glob("*.parquet")
    broken_off = whole.read_bytes()[: whole.stat().st_size // 2]
    whole.with_name("copied.parquet").write_bytes(broken_off)
    customers = spark.read.schema("value long, name string").parquet(f"{folder}/customers")
    into_noop(numbers(spark).join(customers, "value"))


@case(
    "fifth.expired_records", held_out=True, type="SOURCE", origin="library", decision="restart", where="process",
    conf={"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"},
)  # fmt: skip
def expired_records(spark: SparkSession, folder: Path) -> None:
    (folder / "kafka").mkdir()
    with Broker(folder / "kafka") as broker:
        broker.make("clicks")
        broker.send("clicks", ["first", "second"])
        clicks = spark.readStream.format("kafka").option("subscribe", "clicks").option("startingOffsets", "earliest")
        clicks = clicks.option("kafka.bootstrap.servers", broker.bootstrap)
        ran(folder, clicks.load())
        broker.send("clicks", ["third", "fourth"])
        with broker.admin() as admin:
            for deleted in admin.delete_records([TopicPartition("clicks", 0, 4)]).values():
                deleted.result(30)
        broker.send("clicks", ["fifth"])
        fails(into(folder, clicks.load()))


# Targets.


@case("fifth.sink_line", held_out=True, type="SINK", origin="user", decision="restart once", line='"\\t".join(row)')
def sink_line(spark: SparkSession, folder: Path) -> None:
    class Lines(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            with open(folder / "lines.tsv", "a") as file:
                for row in iterator:
                    file.write("\t".join(row) + "\n")
            return WriterCommitMessage()

    fails(kept(folder, numbers(spark).writeStream.format(own(spark, Lines))))


@case(
    "fifth.sorted_messages", held_out=True, type="SINK", origin="user", decision="restart once", line="sorted(messages)"
)
def sorted_messages(spark: SparkSession, folder: Path) -> None:
    class Manifest(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            (folder / f"manifest-{batchId}").write_text(str(sorted(messages)))  # type: ignore[type-var]

    fails(kept(folder, numbers(spark, partitions=2).writeStream.format(own(spark, Manifest))))


@case("fifth.merged_meanwhile", held_out=True, type="SINK", origin="dependency", decision="restart", line=".execute()")
def merged_meanwhile(spark: SparkSession, folder: Path) -> None:
    stock = str(folder / "stock")
    serializable = "TBLPROPERTIES ('delta.isolationLevel'='Serializable')"
    spark.sql(f"CREATE TABLE delta.`{stock}` (sku LONG) USING delta {serializable}")

    @F.udf("long")
    def meanwhile(sku: int) -> int:
        if sku == 0:
            deltalake.write_deltalake(stock, pa.table({"sku": [7]}), mode="append")
        return sku

    def write(batch: DataFrame, epoch: int) -> None:
        rows = batch.select(meanwhile("value").alias("sku")).alias("s")
        target = DeltaTable.forPath(batch.sparkSession, stock).alias("t")
        target.merge(rows, "t.sku = s.sku").whenNotMatchedInsertAll().execute()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.deadlock", held_out=True, type="SINK", origin="dependency", decision="restart", line="n + 1 WHERE id = 2")
def deadlock(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE totals (id int, n bigint)", "INSERT INTO totals VALUES (1, 0), (2, 0)")
        mine = threading.Event()

        def other() -> None:
            with shop.server.admin(shop.name) as admin, admin.transaction():
                admin.execute("SET LOCAL deadlock_timeout = '1h'")
                admin.execute("UPDATE totals SET n = 0 WHERE id = 2")
                mine.wait()
                admin.execute("UPDATE totals SET n = 0 WHERE id = 1")

        def write(batch: DataFrame, epoch: int) -> None:
            thread = threading.Thread(target=other)
            with shop.connect() as connection, connection.transaction():
                connection.execute("UPDATE totals SET n = n + 1 WHERE id = 1")
                thread.start()
                while not connection.execute("SELECT FROM pg_locks WHERE pid <> pg_backend_pid()").fetchall():
                    pass
                mine.set()
                connection.execute("UPDATE totals SET n = n + 1 WHERE id = 2")

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.target_log_cut", held_out=True, type="SINK", origin="library", decision="restart")
def target_log_cut(spark: SparkSession, folder: Path) -> None:
    for n in range(3):
        spark.range(n).selectExpr("id AS value").write.format("delta").mode("append").save(f"{folder}/table")
    for name in ("00000000000000000001.json", ".00000000000000000001.json.crc"):
        (folder / "table" / "_delta_log" / name).unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    fails(kept(folder, numbers(spark).select("value").writeStream.format("delta").option("path", f"{folder}/table")))


# State.


def _state_files(checkpoint: Path) -> list[Path]:
    return [file for file in (checkpoint / "state" / "0").glob("[0-9]*/*") if file.is_file()]


@case("fifth.swept_state", held_out=True, type="STATE", origin="spark", decision="restore")
def swept_state(spark: SparkSession, folder: Path) -> None:
    def total(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before = state.get[0] if state.exists else 0
        state.update((before + sum(len(frame) for frame in frames),))
        yield pd.DataFrame({"id": [key[0]], "total": [before]})

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    schemas = ("id long, total long", "total long")
    totals = groups.applyInPandasWithState(total, *schemas, "append", GroupStateTimeout.NoTimeout)
    for file in _state_files(ran(folder, totals, 3)):
        file.unlink()  # as a rule of the bucket does it with what is old
    fails(into(folder, totals))


@case("fifth.cut_state", held_out=True, type="STATE", origin="spark", decision="restore")
def cut_state(spark: SparkSession, folder: Path) -> None:
    late = numbers(spark).withWatermark("timestamp", "1 minute")
    counts = late.groupBy(F.window("timestamp", "1 minute")).count()
    for file in _state_files(ran(folder, counts, 3)):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
    fails(into(folder, counts))


@case("fifth.wider_join", held_out=True, type="STATE", origin="spark", decision="ask")
def wider_join(spark: SparkSession, folder: Path) -> None:
    orders, payments = numbers(spark).select("value"), numbers(spark).withColumnRenamed("timestamp", "paid")
    ran(folder, orders.join(payments, "value"), 2)
    fails(into(folder, orders.join(payments.withColumn("method", F.lit("card")), "value")))


# Checkpoints.


@case("fifth.cut_offsets", held_out=True, type="CHECKPOINT", origin="spark", decision="restore")
def cut_offsets(spark: SparkSession, folder: Path) -> None:
    entry = newest(ran(folder, numbers(spark), 2) / "offsets")
    rewritten(entry, entry.read_text()[:40])
    fails(into(folder, numbers(spark)))


@case("fifth.source_added", held_out=True, type="CHECKPOINT", origin="spark", decision="ask")
def source_added(spark: SparkSession, folder: Path) -> None:
    ran(folder, numbers(spark))
    fails(into(folder, numbers(spark).union(numbers(spark, rows=2))))


@case("fifth.page_offset", held_out=True, type="CHECKPOINT", origin="spark", decision="restore")
def page_offset(spark: SparkSession, folder: Path) -> None:
    class Counted(Pages):
        pass

    pages: Any = spark.readStream.format(own(spark, Counted))
    entry = newest(ran(folder, pages.load(), 2) / "offsets")
    rewritten(entry, entry.read_text()[:-3])
    fails(into(folder, pages.load()))


@case("fifth.lost_source_log", held_out=True, type="CHECKPOINT", origin="spark", decision="restore")
def lost_source_log(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "orders.txt").write_text("1\n2\n")
    checkpoint = ran(folder, spark.readStream.text(f"{folder}/in"))
    newest(checkpoint / "commits").unlink()
    for entry in (checkpoint / "sources" / "0").iterdir():
        entry.unlink()
    fails(into(folder, spark.readStream.text(f"{folder}/in")))
