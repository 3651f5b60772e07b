"""Wrong or missing settings, and failures of connections."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import deltalake
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, kept, numbers


@case("configuration.missing_path", "CONFIGURATION", "user", "stop")
def missing_path(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.schema("id long").parquet(str(folder / "nothing")))


@case("configuration.no_schema", "CONFIGURATION", "user", "stop")
def no_schema(spark: SparkSession, folder: Path) -> None:
    (folder / "a.json").write_text('{"id": 1}\n')
    into_noop(spark.readStream.json(str(folder)))


@case("configuration.delta_schema", "CONFIGURATION", "library", "stop")
def delta_schema(spark: SparkSession, folder: Path) -> None:
    spark.range(1).selectExpr("date '2024-01-01' AS value").write.format("delta").save(str(folder / "table"))
    writer = numbers(spark).select("value").writeStream.format("delta").option("path", str(folder / "table"))
    fails(kept(folder, writer))


@case("configuration.delta_2pc_column", "CONFIGURATION", "library", "stop")
def delta_2pc_column(spark: SparkSession, folder: Path) -> None:
    deltalake.write_deltalake(str(folder / "table"), pa.table({"value": ["text"]}))
    writer = numbers(spark).select("value").writeStream.format("delta_2pc").option("uid", "table")
    fails(kept(folder, writer.option("path", str(folder / "table"))))


@case("configuration.added_module", "CONFIGURATION", "user", "stop")
def added_module(spark: SparkSession, folder: Path) -> None:
    (folder / "failing_prices.py").write_text("import failing_tariffs\n\n\ndef price(value):\n    return value\n")
    spark.addArtifacts(str(folder / "failing_prices.py"), pyfile=True)

    @F.udf("long")
    def price(value: int) -> int:
        from failing_prices import price as found  # type: ignore[import-not-found]

        return int(found(value))

    into_noop(numbers(spark).select(price("value")))


@case("configuration.java_class", "CONFIGURATION", "user", "stop")
def java_class(spark: SparkSession, folder: Path) -> None:
    spark.udf.registerJavaFunction("failing_absent", "shop.AbsentDiscount", "long")
    into_noop(numbers(spark).selectExpr("failing_absent(value)"))


@case("more.socket_source", "NETWORK", "spark", "restart")
def socket_source(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.format("socket").option("host", "127.0.0.1").option("port", "1").load())


@case("others.jdbc_driver", "CONFIGURATION", "user", "stop", line=".save()")
def jdbc_driver(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        target = {"url": "jdbc:teradata://warehouse/DATABASE=sales", "dbtable": "orders"}
        batch.write.format("jdbc").options(**target).mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.garbled_delta_log", "SOURCE", "library", "restart")
def garbled_delta_log(spark: SparkSession, folder: Path) -> None:
    table = f"{folder}/table"
    for _ in range(4):
        spark.range(4).coalesce(1).write.format("delta").mode("append").save(table)

    def write(batch: DataFrame, epoch: int) -> None:
        for version in (2, 3):
            log = folder / "table" / "_delta_log" / f"{version:020}.json"
            log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
            log.write_text(log.read_text()[:100])

    rows = spark.readStream.format("delta").option("startingVersion", 0).option("maxFilesPerTrigger", 1).load(table)
    fails(rows.writeStream.foreachBatch(write))


@case("third.kafka_client", "NETWORK", "dependency", "restart", line=".list_topics(")
def kafka_client(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        client = confluent_kafka.admin.AdminClient({"bootstrap.servers": "127.0.0.1:1"})
        assert "clicks" in client.list_topics(timeout=2).topics

    fails(numbers(spark).writeStream.foreachBatch(write))


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


@case("fifth.absent_schema", "CONFIGURATION", "user", "stop", line="saveAsTable(")
def absent_schema(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.mode("append").saveAsTable("fifth_sales.orders")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.publish", "NETWORK", "library", "restart")
def publish(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).selectExpr("cast(value AS string) AS value").writeStream.format("kafka_2pc")
    writer = writer.options(uid="clicks", topic="clicks", bootstrap_servers="127.0.0.1:1", request_timeout="2 s")
    fails(kept(folder, writer.option("commit_attempts", "1")))
