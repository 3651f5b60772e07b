"""Further: what is configured wrongly, and sources, sinks and networks that break."""

from __future__ import annotations

import gzip
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import deltalake
import httpx
import requests
import tenacity
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("others.jdbc_driver", type="CONFIGURATION", origin="user", decision="stop", line=".save()")
def jdbc_driver(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        target = {"url": "jdbc:teradata://warehouse/DATABASE=sales", "dbtable": "orders"}
        batch.write.format("jdbc").options(**target).mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "others.url_without_scheme", type="CONFIGURATION", origin="dependency", decision="stop",
    line="requests.get",
)  # fmt: skip
def url_without_scheme(spark: SparkSession, folder: Path) -> None:
    address = "rates.internal/latest"

    @F.udf("string")
    def rates(value: int) -> str:
        return requests.get(address, params={"of": value}, timeout=5).text

    into_noop(numbers(spark).select(rates("value")))


@case(
    "others.source_partitions", type="SOURCE", origin="user", decision="restart once",
    line="self.shards[shard]",
)  # fmt: skip
def source_partitions(spark: SparkSession, folder: Path) -> None:
    class Shards(DataSourceStreamReader):
        shards = ("first", "second")

        def initialOffset(self) -> dict[str, int]:
            return {"shard": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            return {"shard": 3}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(self.shards[shard]) for shard in range(start["shard"], end["shard"])]

        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            yield (partition.value,)

    class ShardSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "held_shards"

        def schema(self) -> str:
            return "shard string"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Shards()

    spark.dataSource.register(ShardSource)
    into_noop(spark.readStream.format("held_shards").load())


@case("others.cut_gzip_file", type="SOURCE", origin="spark", decision="restart")
def cut_gzip_file(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    whole = gzip.compress("\n".join(str(random.random()) for _ in range(5000)).encode())
    (folder / "in" / "readings.txt.gz").write_bytes(whole[: len(whole) // 2])
    into_noop(spark.readStream.text(str(folder / "in")))


@case("others.writer_commit", type="SINK", origin="user", decision="restart once", line="self.totals[epoch]")
def writer_commit(spark: SparkSession, folder: Path) -> None:
    class Totals(DataSourceStreamWriter):
        totals: dict[int, int] = {}

        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: list[WriterCommitMessage | None], epoch: int) -> None:
            self.totals[epoch] += len(messages)

    class TotalSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "held_totals"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Totals()

    spark.dataSource.register(TotalSink)
    fails(numbers(spark).writeStream.format("held_totals").option("checkpointLocation", str(folder / "checkpoint")))


@case("others.table_altered", type="SINK", origin="library", decision="restart")
def table_altered(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.sql(f"CREATE TABLE delta.`{table}` (value LONG) USING delta")

    @F.udf("long")
    def meanwhile(value: int) -> int:
        if value == 0:
            deltalake.DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        return value

    written = numbers(spark).select(meanwhile("value").alias("value")).writeStream.format("delta")
    fails(written.option("checkpointLocation", f"{folder}/checkpoint").option("path", table))


@case("others.retries_refused", type="NETWORK", origin="user", decision="restart", line="s.connect(")
def retries_refused(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def send(value: int) -> int:
        @tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_fixed(0.1))
        def to_collector() -> int:
            with socket.socket() as s:
                s.connect(("127.0.0.1", 1))
                return s.send(b"%d" % value)

        return to_collector()

    into_noop(numbers(spark).select(send("value")))


@case("others.hung_up", type="NETWORK", origin="dependency", decision="restart", line="client.post(")
def hung_up(spark: SparkSession, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/scores"

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(65536)
            connection.close()

        Thread(target=hang_up, daemon=True).start()

        def score(batch: DataFrame, epoch: int) -> None:
            with httpx.Client(trust_env=False, timeout=10) as client:
                client.post(url, json=[row.value for row in batch.collect()])

        fails(numbers(spark).writeStream.foreachBatch(score))
