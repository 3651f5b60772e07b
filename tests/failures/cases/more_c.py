"""Further failures: sources, sinks, states and checkpoints."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from delta import DeltaTable
from deltalake import write_deltalake
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


def available(frame: DataFrame, checkpoint: Path) -> None:
    """Run what is available of a streaming DataFrame into the sink `noop`."""
    writer = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


def orders(spark: SparkSession, folder: Path, number: int) -> DataFrame:
    """A streaming DataFrame of files of text, to which a file is added."""
    (folder / "orders").mkdir(exist_ok=True)
    (folder / "orders" / f"{number}.txt").write_text("apple\npear\n")
    return spark.readStream.text(str(folder / "orders"))


@case("more.feed", type="SOURCE", origin="user", decision="restart once", line='page["items"]')
def feed(spark: SparkSession, folder: Path) -> None:
    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"page": 0}

        def read(self, start: dict[str, int]) -> Any:
            page: dict[str, list[int]] = {"entries": [1, 2]}
            return iter([(item,) for item in page["items"]]), {"page": start["page"] + 1}

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
            return iter([])

    class Feed(DataSource):
        @classmethod
        def name(cls) -> str:
            return "further_feed"

        def schema(self) -> str:
            return "value long"

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Feed)
    into_noop(spark.readStream.format("further_feed").load())


@case("more.lookup", type="SOURCE", origin="user", decision="restart once", line="int(partition)")
def lookup(spark: SparkSession, folder: Path) -> None:
    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(1)]

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            yield (int(partition),)

    class Lookup(DataSource):
        @classmethod
        def name(cls) -> str:
            return "further_lookup"

        def schema(self) -> str:
            return "value long"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Lookup)
    into_noop(numbers(spark).join(spark.read.format("further_lookup").load(), "value"))


@case("more.torn_orc", type="SOURCE", origin="spark", decision="restart")
def torn_orc(spark: SparkSession, folder: Path) -> None:
    spark.range(1000).coalesce(1).write.orc(f"{folder}/orders")
    for path in (folder / "orders").glob("*.orc"):
        path.write_bytes(path.read_bytes()[:200])
        (folder / "orders" / f".{path.name}.crc").unlink(missing_ok=True)
    into_noop(spark.readStream.schema("id long").orc(f"{folder}/orders"))


@case("more.vacuumed", type="SOURCE", origin="spark", decision="restart")
def vacuumed(spark: SparkSession, folder: Path) -> None:
    spark.range(4).coalesce(1).write.format("delta").save(f"{folder}/table")
    for path in (folder / "table").glob("*.parquet"):
        path.unlink()
    into_noop(spark.readStream.format("delta").load(f"{folder}/table"))


@case("more.warehouse", type="SINK", origin="user", decision="restart once", line="self.counts[None]")
def warehouse(spark: SparkSession, folder: Path) -> None:
    class Writer(DataSourceStreamWriter):
        counts: dict[Any, int] = {}

        def write(self, rows: Iterator[Row]) -> WriterCommitMessage:
            for _ in rows:
                pass
            return WriterCommitMessage()

        def commit(self, messages: Any, batchId: int) -> None:
            print(self.counts[None])

    class Warehouse(DataSource):
        @classmethod
        def name(cls) -> str:
            return "further_warehouse"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Writer()

    spark.dataSource.register(Warehouse)
    writer = numbers(spark).select("value").writeStream.format("further_warehouse")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint"))


@case("more.locked", type="SINK", origin="user", decision="restart", line="INSERT INTO orders")
def locked(spark: SparkSession, folder: Path) -> None:
    other = sqlite3.connect(folder / "orders.db", isolation_level=None)
    other.execute("CREATE TABLE orders (id INTEGER)")
    other.execute("BEGIN EXCLUSIVE")

    def write(batch: DataFrame, epoch: int) -> None:
        database = sqlite3.connect(folder / "orders.db", timeout=0.1)
        database.execute("INSERT INTO orders VALUES (?)", (batch.count(),))

    try:
        fails(numbers(spark).writeStream.foreachBatch(write))
    finally:
        other.close()


@case("more.two_writers", type="SINK", origin="dependency", decision="restart", line=".execute()")
def two_writers(spark: SparkSession, folder: Path) -> None:
    table = f"{folder}/table"
    spark.range(4).write.format("delta").save(table)

    @F.udf("long")
    def enriched(value: int) -> int:
        import pyarrow as pa

        write_deltalake(table, pa.table({"id": [value + 1000]}), mode="append")
        return value

    def write(batch: DataFrame, epoch: int) -> None:
        target = DeltaTable.forPath(batch.sparkSession, table).alias("t")
        source = batch.select(enriched("value").alias("id")).alias("s")
        target.merge(source, "t.id = s.id").whenMatchedDelete().execute()

    fails(numbers(spark, rows=2).writeStream.foreachBatch(write))


@case("more.lost_state", type="STATE", origin="spark", decision="restore")
def lost_state(spark: SparkSession, folder: Path) -> None:
    for number in range(2):
        available(orders(spark, folder, number).groupBy("value").count(), folder / "checkpoint")
    for path in (folder / "checkpoint" / "state" / "0").glob("[0-9]/*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    available(orders(spark, folder, 2).groupBy("value").count(), folder / "checkpoint")


@case("more.other_key", type="STATE", origin="spark", decision="ask")
def other_key(spark: SparkSession, folder: Path) -> None:
    available(orders(spark, folder, 0).groupBy("value").count(), folder / "checkpoint")
    available(orders(spark, folder, 1).groupBy(F.length("value")).count(), folder / "checkpoint")


@case("more.other_sources", type="CHECKPOINT", origin="spark", decision="ask")
def other_sources(spark: SparkSession, folder: Path) -> None:
    available(orders(spark, folder, 0), folder / "checkpoint")
    (folder / "returns").mkdir()
    returns = spark.readStream.text(f"{folder}/returns")
    available(orders(spark, folder, 1).union(returns), folder / "checkpoint")


@case("more.garbled_offsets", type="CHECKPOINT", origin="spark", decision="restore")
def garbled_offsets(spark: SparkSession, folder: Path) -> None:
    available(orders(spark, folder, 0), folder / "checkpoint")
    (folder / "checkpoint" / "offsets" / ".0.crc").unlink(missing_ok=True)
    (folder / "checkpoint" / "offsets" / "0").write_text('v1\n{"batchWater')
    available(orders(spark, folder, 1), folder / "checkpoint")
