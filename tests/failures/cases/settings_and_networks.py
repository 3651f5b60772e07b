"""Wrong or missing settings, and failures of connections."""

import configparser
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import deltalake
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import requests
from pyarrow import fs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from tests.failures.cases.code_and_rows import database
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


@case("configuration.missing_file", "CONFIGURATION", "user", "stop", line="open(rates)")
def missing_file(spark: SparkSession, folder: Path) -> None:
    rates = "/etc/shop/rates.csv"

    @F.udf("double")
    def rate(value: int) -> float:
        with open(rates) as lines:
            return float(next(lines))

    into_noop(numbers(spark).select(rate("value")))


@case("configuration.java_class", "CONFIGURATION", "user", "stop")
def java_class(spark: SparkSession, folder: Path) -> None:
    spark.udf.registerJavaFunction("failing_absent", "shop.AbsentDiscount", "long")
    into_noop(numbers(spark).selectExpr("failing_absent(value)"))


@case("configuration.output_mode", "CONFIGURATION", "user", "stop")
def output_mode(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).groupBy("value").count())


@contextmanager
def answering(status: int) -> Iterator[str]:
    """The address of a server that answers every request with a status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@case("configuration.password", "CONFIGURATION", "dependency", "stop", line="raise_for_status()")
def password(spark: SparkSession, folder: Path) -> None:
    with answering(401) as address:

        @F.udf("string")
        def customer(value: int) -> str:
            answer = requests.get(f"http://{address}/", auth=("shop", "old password"), timeout=5)
            answer.raise_for_status()
            return answer.text

        into_noop(numbers(spark).select(customer("value")))


@case("more.unavailable", "NETWORK", "dependency", "restart", line=".raise_for_status()")
def unavailable(spark: SparkSession, folder: Path) -> None:
    with answering(503) as address:

        def write(batch: DataFrame, epoch: int) -> None:
            requests.get(f"http://{address}/bulk", timeout=5).raise_for_status()

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.socket_source", "NETWORK", "spark", "restart")
def socket_source(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.format("socket").option("host", "127.0.0.1").option("port", "1").load())


@case("more.device_full", "RESOURCE", "user", "restart", line="os.write(")
def device_full(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        out = os.open("/dev/full", os.O_WRONLY)
        try:
            os.write(out, b"orders: %d" % batch.count())
        finally:
            os.close(out)

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("others.jdbc_driver", "CONFIGURATION", "user", "stop", line=".save()")
def jdbc_driver(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        target = {"url": "jdbc:teradata://warehouse/DATABASE=sales", "dbtable": "orders"}
        batch.write.format("jdbc").options(**target).mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("others.url_without_scheme", "CONFIGURATION", "dependency", "stop", line="requests.get")
def url_without_scheme(spark: SparkSession, folder: Path) -> None:
    address = "rates.internal/latest"

    @F.udf("string")
    def rates(value: int) -> str:
        return requests.get(address, params={"of": value}, timeout=5).text

    into_noop(numbers(spark).select(rates("value")))


@case("third.ca_file", "CONFIGURATION", "dependency", "stop", line="requests.get(")
def ca_file(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def rate(value: int) -> str:
        return requests.get("https://127.0.0.1:1/rates", verify="/etc/shop/ca.pem", timeout=5).text

    into_noop(numbers(spark).select(rate("value")))


@case("third.no_option", "CONFIGURATION", "user", "stop", line="settings.get(")
def no_option(spark: SparkSession, folder: Path) -> None:
    (folder / "shop.ini").write_text("[warehouse]\nhosts = 127.0.0.1\n")

    def write(batch: DataFrame, epoch: int) -> None:
        settings = configparser.ConfigParser()
        settings.read(folder / "shop.ini")
        batch.write.mode("append").parquet(settings.get("warehouse", "path"))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.charset", "CONFIGURATION", "spark", "stop")
def charset(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.csv").write_text("1,Ann\n")
    rows = spark.readStream.schema("id int, name string").option("encoding", "latin-99")
    into_noop(rows.csv(f"{folder}/in"))


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


@case("third.rust_conflict", "SINK", "dependency", "restart", line="mine.delete(")
def rust_conflict(spark: SparkSession, folder: Path) -> None:
    table = f"{folder}/table"
    spark.range(9).coalesce(1).write.format("delta").save(table)

    def write(batch: DataFrame, epoch: int) -> None:
        mine = deltalake.DeltaTable(table)
        deltalake.DeltaTable(table).delete("id < 4")  # another writer
        mine.delete("id < 6")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.derby_lock", "SINK", "dependency", "restart", line=".jdbc(address")
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


@case("fifth.not_granted", "CONFIGURATION", "dependency", "stop", line='"UPDATE stock')
def not_granted(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        with shop.server.admin(shop.name) as admin:
            admin.execute("CREATE TABLE stock (sku bigint, pieces bigint)")

        def write(batch: DataFrame, epoch: int) -> None:
            with shop.connect() as connection:
                connection.execute("UPDATE stock SET pieces = pieces - %s", [batch.count()])

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.absent_database", "CONFIGURATION", "dependency", "stop", line="psycopg.connect(")
def absent_database(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        options = {**shop.options, "dbname": "warehouse"}

        def send(row: Row) -> None:
            with psycopg.connect(**options) as connection:  # type: ignore[arg-type]
                connection.execute("INSERT INTO orders VALUES (%s)", [row.value])

        fails(numbers(spark).writeStream.foreach(send))


@case("fifth.absent_schema", "CONFIGURATION", "user", "stop", line="saveAsTable(")
def absent_schema(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.mode("append").saveAsTable("fifth_sales.orders")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.database_host", "NETWORK", "dependency", "restart", line="psycopg.connect(")
def database_host(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with psycopg.connect("host=orders-db.invalid dbname=shop connect_timeout=5") as connection:
            connection.execute("INSERT INTO epochs VALUES (%s, %s)", [epoch, batch.count()])

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.publish", "NETWORK", "library", "restart")
def publish(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).selectExpr("cast(value AS string) AS value").writeStream.format("kafka_2pc")
    writer = writer.options(uid="clicks", topic="clicks", bootstrap_servers="127.0.0.1:1", request_timeout="2 s")
    fails(kept(folder, writer.option("commit_attempts", "1")))


@case("fifth.s3_upload", "NETWORK", "dependency", "restart", line="pq.write_table(")
def s3_upload(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        lake = fs.S3FileSystem(
            endpoint_override="127.0.0.1:1", scheme="http", region="eu-central-1", access_key="key", secret_key="-",
            connect_timeout=2, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )  # fmt: skip
        pq.write_table(batch.toArrow(), f"lake/orders/{epoch}.parquet", filesystem=lake)

    fails(numbers(spark).writeStream.foreachBatch(write))
