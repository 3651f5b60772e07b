"""Everyday failures, unseen by the rules: sources, sinks and networks."""

from __future__ import annotations

import json
import smtplib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import httpx
import pandas as pd
import psycopg
import pyarrow as pa
import requests
from delta import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from tests.failures.cases.fourth_a import database
from tests.failures.cases.networks import server
from tests.failures.corpus import case
from tests.failures.running import TIMEOUT, fails, into_noop, numbers
from tests.servers.kafka import Broker


def kept(folder: Path, frame: DataFrame, format: str = "noop") -> DataStreamWriter:
    """Into a sink, with a checkpoint in the folder."""
    return frame.writeStream.format(format).option("checkpointLocation", str(folder / "checkpoint"))


def epochs(query: StreamingQuery, epoch: int = 2) -> None:
    """Wait until this epoch has been committed, or the query has ended."""
    while (query.lastProgress or {"batchId": -1})["batchId"] < epoch and query.isActive:
        query.awaitTermination(0.1)


# Sources.


class _Source(DataSource):
    """A source of orders that a subclass reads."""

    def schema(self) -> str:
        return "id long"


@case("fourth.no_days", held_out=True, type="SOURCE", origin="user", decision="restart once", line="min(self.days)")
def no_days(spark: SparkSession, folder: Path) -> None:
    class Days(DataSourceStreamReader):
        def __init__(self) -> None:
            self.days = [path.name for path in folder.glob("day=*")]

        def initialOffset(self) -> dict[str, str]:
            return {"day": min(self.days)}

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (len(partition.value),)

    class DaySource(_Source):
        @classmethod
        def name(cls) -> str:
            return "fourth_days"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Days()

    spark.dataSource.register(DaySource)
    into_noop(spark.readStream.format("fourth_days").load())


@case(
    "fourth.text_offsets",
    held_out=True,
    type="SOURCE",
    origin="user",
    decision="restart once",
    line="in range(start, end)",
)
def text_offsets(spark: SparkSession, folder: Path) -> None:
    class Pages(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, str]:
            return {"page": "0"}

        def latestOffset(self) -> dict[str, str]:  # type: ignore[override]
            return {"page": "7"}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition((start["page"], end["page"]))]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            start, end = partition.value
            for page in range(start, end):
                yield (page,)

    class PageSource(_Source):
        @classmethod
        def name(cls) -> str:
            return "fourth_pages"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Pages()

    spark.dataSource.register(PageSource)
    into_noop(spark.readStream.format("fourth_pages").load())


@case("fourth.overwritten_table", held_out=True, type="SOURCE", origin="library", decision="stop")
def overwritten_table(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(4).write.format("delta").save(table)
    query = kept(folder, spark.readStream.format("delta").load(table)).start()
    try:
        epochs(query, 0)
        spark.range(8).write.format("delta").mode("overwrite").save(table)
        query.awaitTermination(TIMEOUT)
    finally:
        query.stop()


@case("fourth.bad_blocks", held_out=True, type="SOURCE", origin="spark", decision="restart")
def bad_blocks(spark: SparkSession, folder: Path) -> None:
    spark.range(20_000).selectExpr("uuid() AS id").coalesce(1).write.parquet(f"{folder}/in", compression="gzip")
    (written,) = (folder / "in").glob("part-*")
    written.with_name(f".{written.name}.crc").unlink()
    content = bytearray(written.read_bytes())
    content[50_000:54_096] = bytes(4096)  # as a bad disk leaves it
    written.write_bytes(content)
    into_noop(spark.readStream.schema("id string").parquet(f"{folder}/in"))


@case("fourth.topic_deleted", held_out=True, type="SOURCE", origin="library", decision="restart")
def topic_deleted(spark: SparkSession, folder: Path) -> None:
    (folder / "kafka").mkdir()
    with Broker(folder / "kafka") as broker:
        topic = broker.topic()
        broker.send(topic, ["first", "second"])
        clicks = spark.readStream.format("kafka_range").option("uid", "clicks").option("topics", topic)
        clicks = clicks.option("bootstrap_servers", broker.bootstrap).option("ending", "none")
        query = kept(folder, clicks.option("request_timeout", "10 s").load()).start()
        try:
            epochs(query, 0)
            broker.delete(topic)
            broker.make(topic)
            broker.send(topic, ["other", "clicks", "of", "today"])
            query.awaitTermination(TIMEOUT)
        finally:
            query.stop()


# Sinks.


class _Written(DataSourceStreamWriter):
    """A writer that writes nothing."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


@case(
    "fourth.sink_json",
    held_out=True,
    type="SINK",
    origin="user",
    decision="restart once",
    line="json.dumps(row.asDict())",
)
def sink_json(spark: SparkSession, folder: Path) -> None:
    class Lines(_Written):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            with tempfile.TemporaryFile("w") as lines:
                for row in iterator:
                    lines.write(json.dumps(row.asDict()) + "\n")
            return WriterCommitMessage()

    class LineSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "fourth_lines"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Lines()

    spark.dataSource.register(LineSink)
    fails(kept(folder, numbers(spark), "fourth_lines"))


@case(
    "fourth.commit_rows",
    held_out=True,
    type="SINK",
    origin="user",
    decision="restart once",
    line="message.rows for message",
)
def commit_rows(spark: SparkSession, folder: Path) -> None:
    class Counted(_Written):
        def commit(self, messages: list[Any], epoch: int) -> None:
            print(epoch, sum(message.rows for message in messages))

    class CountSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "fourth_counts"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Counted()

    spark.dataSource.register(CountSink)
    fails(kept(folder, numbers(spark), "fourth_counts"))


@case(
    "fourth.arrow_sink",
    held_out=True,
    type="SINK",
    origin="dependency",
    decision="restart once",
    line='column("amount")',
)
def arrow_sink(spark: SparkSession, folder: Path) -> None:
    class Amounts(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for batch in iterator:
                print(batch.column("amount").sum())
            return WriterCommitMessage()

    class AmountSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "fourth_amounts"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Amounts()

    spark.dataSource.register(AmountSink)
    fails(kept(folder, numbers(spark), "fourth_amounts"))


@case(
    "fourth.compacted_meanwhile", held_out=True, type="SINK", origin="dependency", decision="restart", line=".execute()"
)
def compacted_meanwhile(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(8).repartition(2).write.format("delta").save(table)

    @F.udf("long")
    def meanwhile(value: int) -> int:
        deltalake.DeltaTable(table).optimize.compact()
        return value

    def write(batch: DataFrame, epoch: int) -> None:
        ids = batch.select(meanwhile("value").alias("id")).alias("new")
        target = DeltaTable.forPath(batch.sparkSession, table).alias("old")
        target.merge(ids, "old.id = new.id").whenMatchedUpdate(set={"id": "new.id + 100"}).execute()

    fails(numbers(spark, rows=1).writeStream.foreachBatch(write))


@case(
    "fourth.concurrent_update",
    held_out=True,
    type="SINK",
    origin="dependency",
    decision="restart",
    line="UPDATE totals SET n = n +",
)
def concurrent_update(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE totals (n bigint)", "INSERT INTO totals VALUES (0)")

        def write(batch: DataFrame, epoch: int) -> None:
            with psycopg.connect(shop.dsn) as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.execute("SELECT n FROM totals").fetchall()
                shop.run("UPDATE totals SET n = 1000")  # as another program does
                connection.execute("UPDATE totals SET n = n + %s", [batch.count()])

        fails(numbers(spark).writeStream.foreachBatch(write))


# Networks.


@case("fourth.mail_refused", held_out=True, type="NETWORK", origin="user", decision="restart", line="smtplib.SMTP(")
def mail_refused(spark: SparkSession, folder: Path) -> None:
    def alert(batch: DataFrame, epoch: int) -> None:
        if late := batch.where("value > 1").count():
            with smtplib.SMTP("127.0.0.1", 1, timeout=5) as mail:
                mail.sendmail("jobs@shop.invalid", "team@shop.invalid", f"{late} orders are late")

    fails(numbers(spark).writeStream.foreachBatch(alert))


@case("fourth.cut_answer", held_out=True, type="NETWORK", origin="dependency", decision="restart", line="requests.get(")
def cut_answer(spark: SparkSession, folder: Path) -> None:
    with server(says=b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n[1.08,", resets=True) as port:

        def priced(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                rates = requests.get(f"http://127.0.0.1:{port}/rates", timeout=5).json()
                yield frame.assign(price=frame["value"] * rates[0])

        into_noop(numbers(spark).select("value").mapInPandas(priced, "value long, price double"))


@case("fourth.slow_answer", held_out=True, type="NETWORK", origin="dependency", decision="restart", line="client.post(")
def slow_answer(spark: SparkSession, folder: Path) -> None:
    with server() as port:

        def scored(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=0.5) as client:
                for frame in frames:
                    answer = client.post("/scores", json=frame["value"].tolist())
                    yield frame.assign(score=answer.json())

        into_noop(numbers(spark).select("value").mapInPandas(scored, "value long, score double"))


@case(
    "fourth.rates_address", held_out=True, type="NETWORK", origin="dependency", decision="restart", line="pd.read_csv("
)
def rates_address(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        rates = pd.read_csv("http://127.0.0.1:1/rates.csv")
        batch.sparkSession.createDataFrame(rates).join(batch, "value").write.format("noop").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "fourth.source_refused",
    held_out=True,
    type="NETWORK",
    origin="dependency",
    decision="restart",
    line="requests.get(",
)
def source_refused(spark: SparkSession, folder: Path) -> None:
    class Orders(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"order": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            return {"order": requests.get("http://127.0.0.1:1/orders/latest", timeout=5).json()["id"]}

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

    class OrderSource(_Source):
        @classmethod
        def name(cls) -> str:
            return "fourth_orders"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Orders()

    spark.dataSource.register(OrderSource)
    into_noop(spark.readStream.format("fourth_orders").load())


@case("fourth.stopped_database", held_out=True, type="NETWORK", origin="library", decision="restart")
def stopped_database(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        target = {**shop.options, "uid": "orders", "table": "orders", "commit_attempts": "1"}
        query = kept(folder, numbers(spark).select("value"), "postgres_2pc").options(**target).start()
        try:
            epochs(query, 1)
            shop.server.stop()
            query.awaitTermination(TIMEOUT)
        finally:
            query.stop()
