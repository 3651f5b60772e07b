"""A third set: settings, sources, sinks and networks."""

from __future__ import annotations

import atexit
import configparser
import contextlib
import functools
import os
import shutil
import smtplib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import adbc_driver_postgresql.dbapi as adbc  # type: ignore[import-untyped]
import anyio
import confluent_kafka.admin
import deltalake
import pandas as pd
import psycopg
import pyarrow as pa
import requests
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)

from tests.failures.building import add_java
from tests.failures.cases.more_b import answering
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers

if TYPE_CHECKING:
    from tests.servers.postgres import Database, PostgresServer


@functools.cache
def postgres() -> PostgresServer:
    """A server of PostgreSQL that lives as long as the process."""
    from tests.servers.postgres import PostgresServer  # workers import this file, and need no server

    server = PostgresServer().create()
    atexit.register(server.close)
    return server


def database() -> Database:
    """A new database of it."""
    return postgres().database()


@contextlib.contextmanager
def peer(says: bytes, *, asked: bool = True) -> Iterator[int]:
    """The port of a server that says something to each client, after its first words if `asked`, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client:
                        if asked:
                            client.recv(65536)
                        client.sendall(says)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@case("third.partition_column", type="CONFIGURATION", origin="user", decision="stop")
def partition_column(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).writeStream.format("parquet").partitionBy("country").option("path", f"{folder}/out")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint"))


@case(
    "third.wrong_password", type="CONFIGURATION", origin="dependency", decision="stop",
    line="psycopg.connect(",
)  # fmt: skip
def wrong_password(spark: SparkSession, folder: Path) -> None:
    shop = database()
    address = f"postgresql://tester:last-years-password@127.0.0.1:{shop.server.port}/{shop.name}"

    def write(batch: DataFrame, epoch: int) -> None:
        with psycopg.connect(address) as target:
            target.execute("INSERT INTO epochs VALUES (%s)", (epoch,))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "third.no_relation", type="CONFIGURATION", origin="dependency", decision="stop",
    line="target.execute(",
)  # fmt: skip
def no_relation(spark: SparkSession, folder: Path) -> None:
    address = database().dsn

    class Writer:
        def process(self, row: Row) -> None:
            with psycopg.connect(address) as target:
                target.execute("INSERT INTO ordres (id) VALUES (%s)", (row.value,))

    fails(numbers(spark).writeStream.foreach(Writer()))


@case("third.ca_file", type="CONFIGURATION", origin="dependency", decision="stop", line="requests.get(")
def ca_file(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def rate(value: int) -> str:
        return requests.get("https://127.0.0.1:1/rates", verify="/etc/shop/ca.pem", timeout=5).text

    into_noop(numbers(spark).select(rate("value")))


@case(
    "third.forbidden", type="CONFIGURATION", origin="user", decision="stop",
    line="urllib.request.urlopen(",
)  # fmt: skip
def forbidden(spark: SparkSession, folder: Path) -> None:
    with answering(403) as address:

        @F.udf("string")
        def customer(value: int) -> str:
            with urllib.request.urlopen(f"http://{address}/customers/{value}", timeout=5) as answer:
                return answer.read().decode()

        into_noop(numbers(spark).select(customer("value")))


@case("third.no_option", type="CONFIGURATION", origin="user", decision="stop", line="settings.get(")
def no_option(spark: SparkSession, folder: Path) -> None:
    (folder / "shop.ini").write_text("[warehouse]\nhosts = 127.0.0.1\n")

    def write(batch: DataFrame, epoch: int) -> None:
        settings = configparser.ConfigParser()
        settings.read(folder / "shop.ini")
        batch.write.mode("append").parquet(settings.get("warehouse", "path"))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.api_key", type="CONFIGURATION", origin="user", decision="stop", line="os.environ[")
def api_key(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("string")
    def signed(values: pd.Series) -> pd.Series:
        return values.astype(str) + os.environ["SHOP_API_KEY"]

    into_noop(numbers(spark).select(signed("value")))


@case("third.starting_version", type="CONFIGURATION", origin="library", decision="stop")
def starting_version(spark: SparkSession, folder: Path) -> None:
    spark.range(2).write.format("delta").save(f"{folder}/table")
    into_noop(spark.readStream.format("delta").option("startingVersion", "newest").load(f"{folder}/table"))


@case("third.charset", type="CONFIGURATION", origin="spark", decision="stop")
def charset(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.csv").write_text("1,Ann\n")
    rows = spark.readStream.schema("id int, name string").option("encoding", "latin-99")
    into_noop(rows.csv(f"{folder}/in"))


class _Source(DataSource):
    """A source of the user's own."""

    def schema(self) -> str:
        return "id long"


class _Reader(DataSourceStreamReader):
    """Numbers of tickets."""

    def initialOffset(self) -> dict[str, int]:
        return {"ticket": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"ticket": 3}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["ticket"], end["ticket"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from ((ticket,) for ticket in range(*partition.value))


@case(
    "third.replayed_page", type="SOURCE", origin="user", decision="restart once",
    line="self.pages[",
)  # fmt: skip
def replayed_page(spark: SparkSession, folder: Path) -> None:
    class Pages(SimpleDataSourceStreamReader):
        pages: dict[int, list[int]] = {}

        def initialOffset(self) -> dict[str, int]:
            return {"page": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            self.pages[start["page"]] = [1, 2]
            return iter([(1,), (2,)]), {"page": start["page"] + 1}

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
            for page in range(start["page"], end["page"]):
                yield from ((item,) for item in self.pages[page])

    class PageSource(_Source):
        @classmethod
        def name(cls) -> str:
            return "third_pages"

        def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
            return Pages()

    spark.dataSource.register(PageSource)
    pages = spark.readStream.format("third_pages").load()
    writer = pages.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start()
    try:
        while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < 2:
            query.awaitTermination(0.1)
    finally:
        query.stop()
    # The driver dies before the last epoch is committed, and with it the pages that it has read.
    newest = max(int(file.name) for file in (folder / "checkpoint" / "offsets").iterdir() if file.name.isdigit())
    (folder / "checkpoint" / "commits" / str(newest)).unlink(missing_ok=True)
    fails(writer)


@case(
    "third.tickets_table", type="SOURCE", origin="dependency", decision="restart once",
    line='.column("ticket")',
)  # fmt: skip
def tickets_table(spark: SparkSession, folder: Path) -> None:
    class Tickets(_Reader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            answer = pa.RecordBatch.from_pydict({"id": list(range(*partition.value))})
            yield pa.RecordBatch.from_arrays([answer.column("ticket")], names=["id"])

    class TicketSource(_Source):
        @classmethod
        def name(cls) -> str:
            return "third_tickets"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Tickets()

    spark.dataSource.register(TicketSource)
    into_noop(spark.readStream.format("third_tickets").load())


@case(
    "third.first_ticket", type="SOURCE", origin="user", decision="restart once",
    line="min(self.open_tickets)",
)  # fmt: skip
def first_ticket(spark: SparkSession, folder: Path) -> None:
    class Tickets(_Reader):
        open_tickets: list[int] = []

        def initialOffset(self) -> dict[str, int]:
            return {"ticket": min(self.open_tickets)}

    class TicketSource(_Source):
        @classmethod
        def name(cls) -> str:
            return "third_first_ticket"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Tickets()

    spark.dataSource.register(TicketSource)
    into_noop(spark.readStream.format("third_first_ticket").load())


@case("third.lookup_replaced", type="SOURCE", origin="spark", decision="restart")
def lookup_replaced(spark: SparkSession, folder: Path) -> None:
    spark.range(4).selectExpr("id AS value", "'Ann' AS name").write.parquet(f"{folder}/names")
    names = spark.read.parquet(f"{folder}/names")
    spark.range(9).selectExpr("id AS value", "'Bob' AS name").write.parquet(f"{folder}/new_names")
    # Somebody writes the names again, while the query still has the list of the old files.
    shutil.rmtree(folder / "names")
    (folder / "new_names").rename(folder / "names")
    into_noop(numbers(spark).join(names, "value"))


@case("third.garbled_delta_log", type="SOURCE", origin="library", decision="restart")
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


@case("third.not_gzip", type="SOURCE", origin="spark", decision="restart")
def not_gzip(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "orders.json.gz").write_text('{"id": 1}\n' * 50)
    into_noop(spark.readStream.schema("id int").json(f"{folder}/in"))


class _Sink(DataSource):
    """A sink of the user's own."""

    def schema(self) -> str:
        return "value long"


def _into_sink(spark: SparkSession, folder: Path, sink: type[DataSource]) -> None:
    spark.dataSource.register(sink)
    writer = numbers(spark).select("value").writeStream.format(sink.name())
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint"))


@case(
    "third.arrow_writer", type="SINK", origin="user", decision="restart once",
    line="self.sizes[batch.num_rows]",
)  # fmt: skip
def arrow_writer(spark: SparkSession, folder: Path) -> None:
    class Writer(DataSourceStreamArrowWriter):
        sizes = ("none", "one")

        def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for batch in batches:
                print(self.sizes[batch.num_rows])
            return WriterCommitMessage()

        def commit(self, messages: Any, batchId: int) -> None:
            pass

        def abort(self, messages: Any, batchId: int) -> None:
            pass

    class Shop(_Sink):
        @classmethod
        def name(cls) -> str:
            return "third_arrow_sink"

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
            return Writer()

    _into_sink(spark, folder, Shop)


@case(
    "third.pandas_writer", type="SINK", origin="dependency", decision="restart once",
    line='frame["amount"]',
)  # fmt: skip
def pandas_writer(spark: SparkSession, folder: Path) -> None:
    class Writer(DataSourceStreamWriter):
        def write(self, rows: Iterator[Row]) -> WriterCommitMessage:
            frame = pd.DataFrame([row.asDict() for row in rows])
            frame["amount"].to_csv(f"{folder}/amounts.csv")
            return WriterCommitMessage()

        def commit(self, messages: Any, batchId: int) -> None:
            pass

        def abort(self, messages: Any, batchId: int) -> None:
            pass

    class Shop(_Sink):
        @classmethod
        def name(cls) -> str:
            return "third_pandas_sink"

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
            return Writer()

    _into_sink(spark, folder, Shop)


@case("third.replace_where", type="SINK", origin="dependency", decision="restart", line=".save(")
def replace_where(spark: SparkSession, folder: Path) -> None:
    table = f"{folder}/table"
    spark.range(4).coalesce(1).write.format("delta").save(table)

    @F.udf("long")
    def meanwhile(value: int) -> int:
        if value == 0:
            deltalake.write_deltalake(table, pa.table({"id": [value + 500]}), mode="append")
        return value

    def write(batch: DataFrame, epoch: int) -> None:
        rows = batch.select(meanwhile("value").alias("id"))
        rows.write.format("delta").mode("overwrite").option("replaceWhere", "id < 1000").save(table)

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.rust_conflict", type="SINK", origin="dependency", decision="restart", line="mine.delete(")
def rust_conflict(spark: SparkSession, folder: Path) -> None:
    table = f"{folder}/table"
    spark.range(9).coalesce(1).write.format("delta").save(table)

    def write(batch: DataFrame, epoch: int) -> None:
        mine = deltalake.DeltaTable(table)
        deltalake.DeltaTable(table).delete("id < 4")  # another writer
        mine.delete("id < 6")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.protocol_changed", type="SINK", origin="library", decision="restart")
def protocol_changed(spark: SparkSession, folder: Path) -> None:
    table = f"{folder}/table"
    spark.range(4).selectExpr("id AS value").coalesce(1).write.format("delta").save(table)

    @F.udf("long")
    def meanwhile(value: int) -> int:
        if value == 0:
            alter = deltalake.DeltaTable(table).alter
            alter.add_feature(deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        return value

    writer = numbers(spark).select(meanwhile("value").alias("value")).writeStream.format("delta")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint").option("path", table))


@case("third.derby_lock", type="SINK", origin="dependency", decision="restart", line=".jdbc(address")
def derby_lock(spark: SparkSession, folder: Path) -> None:
    address = f"jdbc:derby:memory:{folder.name};create=true"
    other = spark._jvm.java.sql.DriverManager.getConnection(address)  # type: ignore[union-attr]
    for statement in (
        "CREATE TABLE orders (id bigint PRIMARY KEY)",
        "CALL SYSCS_UTIL.SYSCS_SET_DATABASE_PROPERTY('derby.locks.waitTimeout', '1')",
    ):
        other.createStatement().execute(statement)
    other.setAutoCommit(False)
    other.createStatement().execute("INSERT INTO orders VALUES 2")

    def insert(batch: DataFrame, epoch: int) -> None:
        batch.selectExpr("value AS id").write.mode("append").jdbc(address, "orders")

    try:
        fails(numbers(spark).writeStream.foreachBatch(insert))
    finally:
        other.rollback()
        other.close()


@case("third.table_lock", type="SINK", origin="dependency", decision="restart", line="target.execute(f")
def table_lock(spark: SparkSession, folder: Path) -> None:
    shop = database()
    shop.run("CREATE TABLE epochs (id bigint)")

    def write(batch: DataFrame, epoch: int) -> None:
        with psycopg.connect(shop.dsn) as target:
            target.execute("SET lock_timeout = '300ms'")
            target.execute(f"INSERT INTO epochs VALUES ({epoch})")

    with psycopg.connect(shop.dsn) as other:
        other.execute("LOCK TABLE epochs")
        fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.out_is_a_file", type="SINK", origin="spark", decision="restart")
def out_is_a_file(spark: SparkSession, folder: Path) -> None:
    out = folder / "out"

    @F.udf("string")
    def disturbed(value: int) -> str:
        if value >= 8 and out.is_dir():
            shutil.rmtree(out)
            out.write_text("somebody has copied a file to where the folder was")
        return str(value)

    writer = numbers(spark).select(disturbed("value").alias("value")).writeStream.format("text")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint").option("path", str(out)))


@case("third.task_group", type="NETWORK", origin="dependency", decision="restart")
def task_group(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def told(value: int) -> int:
        async def tell() -> None:
            async with anyio.create_task_group() as peers:
                peers.start_soon(anyio.connect_tcp, "127.0.0.1", 1)

        anyio.run(tell)
        return value

    into_noop(numbers(spark).select(told("value")))


@case("third.smtp", type="NETWORK", origin="user", decision="restart", line="smtplib.SMTP(")
def smtp(spark: SparkSession, folder: Path) -> None:
    with peer(b"", asked=False) as port:

        def alarm(batch: DataFrame, epoch: int) -> None:
            with smtplib.SMTP("127.0.0.1", port, timeout=5) as mail:
                mail.sendmail("shop@localhost", ["ann@localhost"], f"epoch {epoch}: {batch.count()}")

        fails(numbers(spark).writeStream.foreachBatch(alarm))


@case(
    "third.kafka_client", type="NETWORK", origin="dependency", decision="restart", line=".list_topics("
)  # fmt: skip
def kafka_client(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        client = confluent_kafka.admin.AdminClient({"bootstrap.servers": "127.0.0.1:1"})
        assert "clicks" in client.list_topics(timeout=2).topics

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.short_answer", type="NETWORK", origin="user", decision="restart", line="answer.read()")
def short_answer(spark: SparkSession, folder: Path) -> None:
    with peer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nnot all of it") as port:

        @F.udf("string")
        def customer(value: int) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{value}", timeout=5) as answer:
                return answer.read().decode()

        into_noop(numbers(spark).select(customer("value")))


@case("third.chunks", type="NETWORK", origin="dependency", decision="restart", line="requests.get(")
def chunks(spark: SparkSession, folder: Path) -> None:
    with peer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nnot all of it") as port:

        def look_up(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                frame["name"] = requests.get(f"http://127.0.0.1:{port}/names", timeout=5).text
                yield frame

        into_noop(numbers(spark).select("value").mapInPandas(look_up, "value long, name string"))


@case(
    "third.source_refused", type="NETWORK", origin="user", decision="restart", line="create_connection("
)  # fmt: skip
def source_refused(spark: SparkSession, folder: Path) -> None:
    class Tickets(_Reader):
        def latestOffset(self) -> dict[str, int]:
            with socket.create_connection(("127.0.0.1", 1), timeout=5) as desk:
                return {"ticket": int(desk.recv(100))}

    class TicketSource(_Source):
        @classmethod
        def name(cls) -> str:
            return "third_refused_tickets"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Tickets()

    spark.dataSource.register(TicketSource)
    into_noop(spark.readStream.format("third_refused_tickets").load())


@case("third.sink_timeout", type="NETWORK", origin="user", decision="restart", line="desk.recv(")
def sink_timeout(spark: SparkSession, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()

        class Writer(DataSourceStreamWriter):
            def write(self, rows: Iterator[Row]) -> WriterCommitMessage:
                with socket.create_connection(address, timeout=0.5) as desk:
                    desk.sendall(b"".join(b"%d\n" % row.value for row in rows))
                    assert desk.recv(10) == b"ok"
                return WriterCommitMessage()

            def commit(self, messages: Any, batchId: int) -> None:
                pass

            def abort(self, messages: Any, batchId: int) -> None:
                pass

        class Desk(_Sink):
            @classmethod
            def name(cls) -> str:
                return "third_silent_desk"

            def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
                return Writer()

        _into_sink(spark, folder, Desk)


@case("third.adbc", type="NETWORK", origin="dependency", decision="restart", line="adbc.connect(")
def adbc_refused(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with adbc.connect("postgresql://shop@127.0.0.1:1/shop?connect_timeout=5") as target, target.cursor() as cursor:
            cursor.adbc_ingest("orders", batch.toArrow(), mode="append")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.gateway", type="NETWORK", origin="user", decision="restart", line="urllib.request.urlopen(")
def gateway(spark: SparkSession, folder: Path) -> None:
    with answering(502) as address:

        def write(batch: DataFrame, epoch: int) -> None:
            with urllib.request.urlopen(f"http://{address}/epochs/{epoch}", timeout=5) as answer:
                answer.read()

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.java_host", type="NETWORK", origin="user", decision="restart")
def java_host(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Rates",
        """public class Rates implements org.apache.spark.sql.api.java.UDF1<Long, String> {
          public String call(Long value) {
            try (var in = new java.net.URL("http://rates.invalid/" + value).openStream()) {
              return new String(in.readAllBytes());
            } catch (java.io.IOException problem) {
              throw new java.io.UncheckedIOException("no rate", problem);
            }
          }
        }""",
    )
    spark.udf.registerJavaFunction("third_rates", "shop.Rates", "string")
    into_noop(numbers(spark).selectExpr("third_rates(value)"))


@case("third.target_away", type="NETWORK", origin="library", decision="restart")
def target_away(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).select("value").writeStream.format("postgres_2pc")
    writer = writer.options(uid="orders", dsn="postgresql://shop@127.0.0.1:1/shop", table="orders", commit_attempts="1")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint"))


@case(
    "third.kafka_target", type="NETWORK", origin="dependency", decision="restart", line=".save()",
    where="process", conf={"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"},
)  # fmt: skip
def kafka_target(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        target = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "kafka.max.block.ms": "3000"}
        batch.selectExpr("cast(value AS string) AS value").write.format("kafka").options(**target).save()

    fails(numbers(spark).writeStream.foreachBatch(write))
