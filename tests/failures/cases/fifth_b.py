"""What often fails, unseen by the rules: what is configured wrongly, networks."""

from __future__ import annotations

import asyncio
import ftplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import psycopg
import pyarrow.parquet as pq
import urllib3
from pyarrow import fs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.streaming import DataStreamWriter, StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from tests.failures.cases.fourth_a import database
from tests.failures.cases.networks import server
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers
from tests.servers.kafka import Broker


def kept(folder: Path, writer: DataStreamWriter) -> DataStreamWriter:
    """With a checkpoint in the folder."""
    return writer.option("checkpointLocation", f"{folder}/checkpoint")


class _Own(DataSource):
    part: type[Any]

    @classmethod
    def name(cls) -> str:
        return f"fifth_{cls.part.__name__.lower()}"

    def schema(self) -> str:
        return "line string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self.part()  # type: ignore[no-any-return]

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self.part()  # type: ignore[no-any-return]


def own(spark: SparkSession, part: type[DataSourceStreamReader | DataSourceStreamWriter]) -> str:
    """Register a source or sink of the user's own; returns its format."""
    source = type(part.__name__, (_Own,), {"part": part})
    spark.dataSource.register(source)
    return source.name()


class Pages(DataSourceStreamReader):
    """A reader with one page more in each epoch."""

    page = 0

    def initialOffset(self) -> dict[str, int]:
        return {"page": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        self.page += 1
        return {"page": self.page}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(page) for page in range(start["page"], end["page"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (f"page {partition.value}",)


# What is configured wrongly.


@case("fifth.absent_topic", held_out=True, type="CONFIGURATION", origin="library", decision="stop")
def absent_topic(spark: SparkSession, folder: Path) -> None:
    (folder / "kafka").mkdir()
    with Broker(folder / "kafka") as broker:
        refunds = spark.readStream.format("kafka_range").options(uid="refunds", topics="refunds")
        into_noop(refunds.option("bootstrap_servers", broker.bootstrap).load())


@case(
    "fifth.not_granted", held_out=True, type="CONFIGURATION", origin="dependency", decision="stop", line='"UPDATE stock'
)
def not_granted(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        with shop.server.admin(shop.name) as admin:
            admin.execute("CREATE TABLE stock (sku bigint, pieces bigint)")

        def write(batch: DataFrame, epoch: int) -> None:
            with shop.connect() as connection:
                connection.execute("UPDATE stock SET pieces = pieces - %s", [batch.count()])

        fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "fifth.excel_engine", held_out=True, type="CONFIGURATION", origin="dependency", decision="stop", line=".to_excel("
)
def excel_engine(spark: SparkSession, folder: Path) -> None:
    def report(batch: DataFrame, epoch: int) -> None:
        batch.select("value").toPandas().to_excel(folder / f"report-{epoch}.xlsx")

    fails(numbers(spark).writeStream.foreachBatch(report))


@case(
    "fifth.absent_database", held_out=True, type="CONFIGURATION", origin="dependency", decision="stop",
    line="psycopg.connect(",
)  # fmt: skip
def absent_database(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        options = {**shop.options, "dbname": "warehouse"}

        def send(row: Row) -> None:
            with psycopg.connect(**options) as connection:  # type: ignore[arg-type]
                connection.execute("INSERT INTO orders VALUES (%s)", [row.value])

        fails(numbers(spark).writeStream.foreach(send))


@case("fifth.absent_schema", held_out=True, type="CONFIGURATION", origin="user", decision="stop", line="saveAsTable(")
def absent_schema(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.mode("append").saveAsTable("fifth_sales.orders")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.s3_target", held_out=True, type="CONFIGURATION", origin="user", decision="stop", line='.parquet("s3a://')
def s3_target(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.mode("append").parquet("s3a://lake/orders")

    fails(numbers(spark).writeStream.foreachBatch(write))


# Networks.


@case(
    "fifth.gathered", held_out=True, type="NETWORK", origin="dependency", decision="restart", line="await client.get("
)
def gathered(spark: SparkSession, folder: Path) -> None:
    with server() as port:

        async def score(client: httpx.AsyncClient, value: int) -> float:
            answer = await client.get(f"http://127.0.0.1:{port}/scores/{value}")
            return float(answer.text)

        async def scores(values: pd.Series) -> list[float]:
            async with httpx.AsyncClient(timeout=1, trust_env=False) as client:
                return await asyncio.gather(*(score(client, value) for value in values))

        def scored(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                yield frame.assign(score=asyncio.run(scores(frame["value"])))

        into_noop(numbers(spark).select("value").mapInPandas(scored, "value long, score double"))


@case(
    "fifth.database_host", held_out=True, type="NETWORK", origin="dependency", decision="restart",
    line="psycopg.connect(",
)  # fmt: skip
def database_host(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with psycopg.connect("host=orders-db.invalid dbname=shop connect_timeout=5") as connection:
            connection.execute("INSERT INTO epochs VALUES (%s, %s)", [epoch, batch.count()])

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.alert_pool", held_out=True, type="NETWORK", origin="dependency", decision="restart", line="pool.request(")
def alert_pool(spark: SparkSession, folder: Path) -> None:
    class Alerts(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.seen = handle.getValueState("seen", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            pool = urllib3.PoolManager(retries=1)
            pool.request("POST", "http://127.0.0.1:1/alerts", json={"key": key[0]})
            self.seen.update((sum(1 for _ in rows),))
            yield Row(key=key[0])

        def close(self) -> None:
            pass

    groups = numbers(spark).withColumn("key", F.col("value") % 2).groupBy("key")
    into_noop(groups.transformWithState(Alerts(), "key long", "append", "none"))


@case("fifth.publish", held_out=True, type="NETWORK", origin="library", decision="restart")
def publish(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).selectExpr("cast(value AS string) AS value").writeStream.format("kafka_2pc")
    writer = writer.options(uid="clicks", topic="clicks", bootstrap_servers="127.0.0.1:1", request_timeout="2 s")
    fails(kept(folder, writer.option("commit_attempts", "1")))


@case("fifth.partner_feed", held_out=True, type="NETWORK", origin="user", decision="restart", line="ftplib.FTP(")
def partner_feed(spark: SparkSession, folder: Path) -> None:
    class Feed(Pages):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            lines: list[str] = []
            with ftplib.FTP("127.0.0.1", timeout=5) as partner:
                partner.login()
                partner.retrlines(f"RETR orders-{partition.value}.csv", lines.append)
            yield from ((line,) for line in lines)

    into_noop(spark.readStream.format(own(spark, Feed)).load())


@case("fifth.s3_upload", held_out=True, type="NETWORK", origin="dependency", decision="restart", line="pq.write_table(")
def s3_upload(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        lake = fs.S3FileSystem(
            endpoint_override="127.0.0.1:1", scheme="http", region="eu-central-1", access_key="key", secret_key="-",
            connect_timeout=2, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )  # fmt: skip
        pq.write_table(batch.toArrow(), f"lake/orders/{epoch}.parquet", filesystem=lake)

    fails(numbers(spark).writeStream.foreachBatch(write))
