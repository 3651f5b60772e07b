"""Failures of sources."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


class _Source(DataSource):
    """A source of the user's own; `orders` is read by the reader of a subclass."""

    def schema(self) -> str:
        return "id int, customer string"


class _Reader(DataSourceStreamReader):
    """Numbers of orders."""

    def initialOffset(self) -> dict[str, int]:
        return {"order": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"order": 2}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(start["order"]), InputPartition(end["order"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield (partition.value, "Ann")


@case("sources.deleted_file", type="SOURCE", origin="user", decision="restart", line="batch.collect()")
def deleted_file(spark: SparkSession, folder: Path) -> None:
    spark.range(4).repartition(2).write.parquet(str(folder / "in"))

    def write(batch: DataFrame, epoch: int) -> None:
        for file in (folder / "in").glob("*.parquet"):  # as somebody does who tidies up
            file.unlink()
        batch.collect()

    files = spark.readStream.schema("id long").parquet(str(folder / "in"))
    fails(files.writeStream.foreachBatch(write))


@case("sources.corrupt_parquet", type="SOURCE", origin="spark", decision="restart")
def corrupt_parquet(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "part-0.parquet").write_bytes(b"this is not a file of Parquet's at all")
    into_noop(spark.readStream.schema("id long").parquet(str(folder / "in")))


@case("sources.truncated_parquet", type="SOURCE", origin="spark", decision="restart")
def truncated_parquet(spark: SparkSession, folder: Path) -> None:
    spark.range(1000).coalesce(1).write.parquet(str(folder / "in"))
    (file,) = (folder / "in").glob("*.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:200] + bytes(300) + content[500:])
    for checksum in (folder / "in").glob(".*.crc"):
        checksum.unlink()
    into_noop(spark.readStream.schema("id long").parquet(str(folder / "in")))


@case("sources.checksum", type="SOURCE", origin="spark", decision="restart")
def checksum(spark: SparkSession, folder: Path) -> None:
    spark.range(1000).selectExpr("cast(id AS string) AS value").coalesce(1).write.text(str(folder / "in"))
    (file,) = (folder / "in").glob("*.txt")
    file.write_bytes(file.read_bytes().replace(b"77", b"78"))
    into_noop(spark.readStream.text(str(folder / "in")))


@case("sources.truncated_gzip", type="SOURCE", origin="spark", decision="restart")
def truncated_gzip(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    rows = "\n".join(f"{number},{number * number}" for number in range(10_000))
    (folder / "in" / "a.csv.gz").write_bytes(gzip.compress(rows.encode())[:5000])
    into_noop(spark.readStream.schema("id int, square long").csv(str(folder / "in")))


@case("sources.delta_file", type="SOURCE", origin="spark", decision="restart")
def delta_file(spark: SparkSession, folder: Path) -> None:
    spark.range(4).coalesce(1).write.format("delta").save(str(folder / "table"))
    for file in (folder / "table").glob("*.parquet"):
        file.unlink()
    into_noop(spark.readStream.format("delta").load(str(folder / "table")))


@case("sources.delta_log", type="SOURCE", origin="library", decision="restart")
def delta_log(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    for _ in range(4):
        spark.range(4).coalesce(1).write.format("delta").mode("append").save(table)

    def write(batch: DataFrame, epoch: int) -> None:
        for version in (1, 2):
            (folder / "table" / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)

    rows = spark.readStream.format("delta").option("startingVersion", 0).option("maxFilesPerTrigger", 1).load(table)
    fails(rows.writeStream.foreachBatch(write))


@case("sources.delta_deletes", type="SOURCE", origin="library", decision="stop")
def delta_deletes(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(4).coalesce(1).write.format("delta").save(table)
    spark.sql(f"UPDATE delta.`{table}` SET id = id + 10 WHERE id > 2")
    into_noop(spark.readStream.format("delta").option("startingVersion", 0).load(table))


@case("sources.own_read", type="SOURCE", origin="user", decision="restart once", line='["customer"]')
def own_read(spark: SparkSession, folder: Path) -> None:
    class Reader(_Reader):
        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            order = json.loads('{"id": 1}')
            yield (order["id"], order["customer"])

    class Orders(_Source):
        @classmethod
        def name(cls) -> str:
            return "failing_orders_read"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Orders)
    into_noop(spark.readStream.format("failing_orders_read").load())


@case("sources.own_latest", type="SOURCE", origin="user", decision="restart once", line="len(self.log)")
def own_latest(spark: SparkSession, folder: Path) -> None:
    class Reader(_Reader):
        def latestOffset(self) -> dict[str, int]:
            return {"order": len(self.log)}  # type: ignore[attr-defined]

    class Orders(_Source):
        @classmethod
        def name(cls) -> str:
            return "failing_orders_latest"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Orders)
    into_noop(spark.readStream.format("failing_orders_latest").load())


@case("sources.own_partitions", type="SOURCE", origin="user", decision="restart once", line='start["orders"]')
def own_partitions(spark: SparkSession, folder: Path) -> None:
    class Reader(_Reader):
        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(number) for number in range(start["orders"], end["orders"])]

    class Orders(_Source):
        @classmethod
        def name(cls) -> str:
            return "failing_orders_partitions"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Orders)
    into_noop(spark.readStream.format("failing_orders_partitions").load())


@case("sources.own_simple", type="SOURCE", origin="user", decision="restart once", line='start["page"] + size')
def own_simple(spark: SparkSession, folder: Path) -> None:
    size = "10"

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"page": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
            return iter([(1, "Ann")]), {"page": start["page"] + size}  # type: ignore[operator]

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[Any, ...]]:
            return iter([(1, "Ann")])

    class Orders(_Source):
        @classmethod
        def name(cls) -> str:
            return "failing_orders_simple"

        def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Orders)
    into_noop(spark.readStream.format("failing_orders_simple").load())


@case("sources.own_batch", type="SOURCE", origin="user", decision="restart once", line="open(self.file)")
def own_batch(spark: SparkSession, folder: Path) -> None:
    class Reader(DataSourceReader):
        file: Any = None

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            with open(self.file) as lines:
                for line in lines:
                    yield (len(line), line)

    class Customers(_Source):
        @classmethod
        def name(cls) -> str:
            return "failing_customers_batch"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Customers)
    customers = spark.read.format("failing_customers_batch").load()
    into_noop(numbers(spark).withColumnRenamed("value", "id").join(customers, "id"))


@case("sources.own_rows", type="SOURCE", origin="user", decision="restart once")
def own_rows(spark: SparkSession, folder: Path) -> None:
    class Reader(_Reader):
        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            yield (1, "Ann", "Berlin")

    class Orders(_Source):
        @classmethod
        def name(cls) -> str:
            return "failing_orders_rows"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Orders)
    into_noop(spark.readStream.format("failing_orders_rows").load())


@case("sources.own_commit", type="SOURCE", origin="user", decision="restart once", line="self.acknowledged.add")
def own_commit(spark: SparkSession, folder: Path) -> None:
    class Reader(_Reader):
        latest = 0

        def latestOffset(self) -> dict[str, int]:
            self.latest += 1
            return {"order": self.latest}

        def commit(self, end: dict[str, int]) -> None:
            self.acknowledged.add(end["order"])  # type: ignore[attr-defined]

    class Orders(_Source):
        @classmethod
        def name(cls) -> str:
            return "failing_orders_commit"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Orders)
    into_noop(spark.readStream.format("failing_orders_commit").load())


@case("sources.files_removed", type="SOURCE", origin="library", decision="restart")
def files_removed(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    for name in "ab":
        (folder / "in" / f"{name}.csv").write_text("1\n2\n3\n")

    def write(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        shutil.rmtree(folder / "in")
        (folder / "in").mkdir()

    rows = spark.readStream.format("files").option("uid", "orders").option("path", str(folder / "in"))
    rows = rows.option("max_rows_per_epoch", "2").option("readers", "1").schema("id int")
    fails(rows.load().writeStream.foreachBatch(write))


@case("sources.files_damaged", type="SOURCE", origin="library", decision="restart")
def files_damaged(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.parquet").write_bytes(b"PAR1 and then nothing that ends as a file should")
    rows = spark.readStream.format("files").option("uid", "orders").option("path", str(folder / "in"))
    into_noop(rows.schema("id int").load())
