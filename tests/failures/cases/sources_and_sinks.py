"""Failures of sources and sinks, and of the state of queries."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import pyarrow as pa
from delta import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter, InputPartition, WriterCommitMessage

from tests.failures.cases.settings_and_networks import Pages, own
from tests.failures.corpus import case
from tests.failures.running import fails, fails_after, into_noop, kept, kept_noop, numbers, ran
from tests.servers.handler import Handler, InThread
from tests.servers.kafka import Broker


@case("sources.delta_log", "SOURCE", "library", "restart")
def delta_log(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    for _ in range(4):
        spark.range(4).coalesce(1).write.format("delta").mode("append").save(table)

    def write(batch: DataFrame, epoch: int) -> None:
        for version in (1, 2):
            (folder / "table" / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)

    rows = spark.readStream.format("delta").option("startingVersion", 0).option("maxFilesPerTrigger", 1).load(table)
    fails(rows.writeStream.foreachBatch(write))


@case("sinks.delta_vanished", "SINK", "library", "restart")
def delta_vanished(spark: SparkSession, folder: Path) -> None:
    table = folder / "table"
    spark.range(1).selectExpr("id AS value").write.format("delta").save(str(table))

    @F.udf("long")
    def disturbed(value: int) -> int:
        if value > 4 and table.is_dir():
            shutil.rmtree(table)
            table.write_text("a file has taken the place of the table")
        return value

    rows = numbers(spark).select(disturbed("value").alias("value"))
    fails(kept(folder, rows.writeStream.format("delta").option("path", str(table))))


@case("sinks.file_log", "SINK", "spark", "restart")
def file_log(spark: SparkSession, folder: Path) -> None:
    out = folder / "out"

    @F.udf("long")
    def disturbed(value: int) -> int:
        if value >= 8:
            shutil.rmtree(out / "_spark_metadata", ignore_errors=True)
        return value

    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "4")
    try:
        writer = numbers(spark).select(disturbed("value").alias("value")).writeStream.format("parquet")
        fails(kept(folder, writer.option("path", str(out))))
    finally:
        spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


class Failing(Handler):
    def do_POST(self) -> None:
        self.body()
        self.answer(500, b"")


@case("sinks.http_500", "SINK", "library", "restart")
def http_500(spark: SparkSession, folder: Path) -> None:
    with InThread(Failing) as running:
        writer = numbers(spark).select("value").writeStream.format("http_2pc").option("commit_attempts", "2")
        url = f"http://127.0.0.1:{running.server.server_port}/"
        writer = writer.options(uid="shop", url=url, outbox=str(folder / "out"))
        fails(kept(folder, writer))


@case("fourth.overwritten_table", "SOURCE", "library", "stop")
def overwritten_table(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(4).write.format("delta").save(table)
    overwritten = spark.range(8).write.format("delta").mode("overwrite")
    fails_after(folder, spark.readStream.format("delta").load(table), lambda: overwritten.save(table))


@case("fourth.topic_deleted", "SOURCE", "library", "restart")
def topic_deleted(spark: SparkSession, folder: Path) -> None:
    (folder / "kafka").mkdir()
    with Broker(folder / "kafka") as broker:
        topic = broker.topic()
        broker.send(topic, ["first", "second"])
        clicks = spark.readStream.format("kafka_range").option("uid", "clicks").option("topics", topic)
        clicks = clicks.option("bootstrap_servers", broker.bootstrap).option("ending", "none")

        def again() -> None:
            broker.delete(topic)
            broker.make(topic)
            broker.send(topic, ["other", "clicks", "of", "today"])

        fails_after(folder, clicks.option("request_timeout", "10 s").load(), again)


@case("fourth.commit_rows", "SINK", "user", "restart once", line="message.rows for message")
def commit_rows(spark: SparkSession, folder: Path) -> None:
    class Counted(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: list[Any], epoch: int) -> None:
            print(epoch, sum(message.rows for message in messages))

    rows = numbers(spark).selectExpr("CAST(value AS string) AS line")
    fails(kept(folder, rows.writeStream.format(own(spark, Counted))))


@case("fifth.page_frame", "SOURCE", "dependency", "restart once", line='orders["amount"]')
def page_frame(spark: SparkSession, folder: Path) -> None:
    class Orders(Pages):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            orders = pd.read_json(io.StringIO('[{"id": 1, "total": 12.5}]'))
            for amount in orders["amount"]:
                yield (str(amount),)

    into_noop(spark.readStream.format(own(spark, Orders)).load())


@case("fifth.half_dimension", "SOURCE", "spark", "restart")
def half_dimension(spark: SparkSession, folder: Path) -> None:
    spark.range(1000).selectExpr("id AS value", "uuid() AS name").coalesce(1).write.parquet(f"{folder}/customers")
    (whole,) = (folder / "customers").glob("*.parquet")
    broken_off = whole.read_bytes()[: whole.stat().st_size // 2]
    whole.with_name("copied.parquet").write_bytes(broken_off)
    customers = spark.read.schema("value long, name string").parquet(f"{folder}/customers")
    into_noop(numbers(spark).join(customers, "value"))


@case("fifth.expired_records", "SOURCE", "library", "restart", where="process")
def expired_records(spark: SparkSession, folder: Path) -> None:
    (folder / "kafka").mkdir()
    with Broker(folder / "kafka") as broker:
        broker.make("clicks")
        broker.send("clicks", ["first", "second"])
        clicks = spark.readStream.format("kafka").option("subscribe", "clicks").option("startingOffsets", "earliest")
        clicks = clicks.option("kafka.bootstrap.servers", broker.bootstrap)
        ran(folder, clicks.load())
        broker.send("clicks", ["third", "fourth"])
        broker.forget("clicks", 4)
        broker.send("clicks", ["fifth"])
        fails(kept_noop(folder, clicks.load()))


@case("fifth.sink_line", "SINK", "user", "restart once", line='"\\t".join(row)')
def sink_line(spark: SparkSession, folder: Path) -> None:
    class Lines(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            with open(folder / "lines.tsv", "a") as file:
                for row in iterator:
                    file.write("\t".join(row) + "\n")
            return WriterCommitMessage()

    fails(kept(folder, numbers(spark).writeStream.format(own(spark, Lines))))


@case("fifth.merged_meanwhile", "SINK", "dependency", "restart", line=".execute()")
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


@case("fifth.cut_state", "STATE", "spark", "restore")
def cut_state(spark: SparkSession, folder: Path) -> None:
    late = numbers(spark).withWatermark("timestamp", "1 minute")
    counts = late.groupBy(F.window("timestamp", "1 minute")).count()
    for file in (ran(folder, counts, 3) / "state" / "0").glob("[0-9]*/*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    fails(kept_noop(folder, counts))


@case("fifth.wider_join", "STATE", "spark", "ask")
def wider_join(spark: SparkSession, folder: Path) -> None:
    orders, payments = numbers(spark).select("value"), numbers(spark).withColumnRenamed("timestamp", "paid")
    ran(folder, orders.join(payments, "value"), 2)
    fails(kept_noop(folder, orders.join(payments.withColumn("method", F.lit("card")), "value")))
