"""Everyday failures, unseen by the rules: functions, rows, what cannot be pickled, what is configured wrongly."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import confluent_kafka
import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers
from tests.servers.postgres import Database, PostgresServer


@contextmanager
def database() -> Iterator[Database]:
    """A database of a PostgreSQL server that lives as long."""
    server = PostgresServer()
    try:
        yield server.create().database()
    finally:
        server.close()


# Functions and expressions.


@case("fourth.gross", held_out=True, type="USER_CODE", origin="user", decision="stop", line="amount * 1.19")
def gross(spark: SparkSession, folder: Path) -> None:
    @F.udf("double")
    def with_tax(amount: Any) -> float:
        return float(amount * 1.19)

    into_noop(numbers(spark).select(with_tax(F.expr("nullif(cast(value AS double), 2)"))))


@case("fourth.forgotten_yield", held_out=True, type="USER_CODE", origin="user", decision="stop")
def forgotten_yield(spark: SparkSession, folder: Path) -> None:
    def doubled(frames: Iterator[pd.DataFrame]) -> Any:
        return pd.concat(frames) * 2

    into_noop(numbers(spark).select("value").mapInPandas(doubled, "value long"))


@case("fourth.row_count", held_out=True, type="USER_CODE", origin="user", decision="stop", line="row.value / row.count")
def row_count(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        for row in batch.groupBy("value").count().collect():
            print(row.value / row.count)  # type: ignore[operator]

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "fourth.state_unpacked",
    held_out=True,
    type="USER_CODE",
    origin="user",
    decision="stop",
    line="(before,) = state.get",
)
def state_unpacked(spark: SparkSession, folder: Path) -> None:
    def total(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before = 0
        if state.exists:
            (before,) = state.get
        after = before + sum(int(frame["value"].sum()) for frame in frames)
        state.update((after, key[0]))
        yield pd.DataFrame({"id": [key[0]], "total": [after]})

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    schemas = ("id long, total long", "total long, last long")
    into_noop(groups.applyInPandasWithState(total, *schemas, "append", GroupStateTimeout.NoTimeout))


@case("fourth.first_seen", held_out=True, type="USER_CODE", origin="user", decision="stop", line="self.seen.get()[0]")
def first_seen(spark: SparkSession, folder: Path) -> None:
    class Seen(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.seen = handle.getValueState("seen", "rows long")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            before = self.seen.get()[0]  # type: ignore[index]
            self.seen.update((before + sum(map(len, rows)),))
            yield pd.DataFrame({"id": [key[0]], "rows": [before]})

        def close(self) -> None:
            pass

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    into_noop(groups.transformWithStateInPandas(Seen(), "id long, rows long", "append", "none"))


@case(
    "fourth.naive_times",
    held_out=True,
    type="USER_CODE",
    origin="user",
    decision="stop",
    line="datetime.now(timezone.utc) - written",
)
def naive_times(spark: SparkSession, folder: Path) -> None:
    @F.udf("double")
    def age(written: datetime) -> float:
        return (datetime.now(timezone.utc) - written).total_seconds()

    into_noop(numbers(spark).select(age("timestamp")))


@case(
    "fourth.no_group_by",
    held_out=True,
    type="USER_CODE",
    origin="user",
    decision="stop",
    line="batch.sparkSession.sql(",
)
def no_group_by(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.createOrReplaceTempView("fourth_updates")
        totals = batch.sparkSession.sql("SELECT value % 2 AS customer, sum(value) AS total FROM fourth_updates")
        totals.write.format("noop").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fourth.open_case", held_out=True, type="USER_CODE", origin="user", decision="stop", line="batch.selectExpr(")
def open_case(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        levels = batch.selectExpr("value", "CASE WHEN value > 2 THEN 'high' ELSE 'low' AS level")
        levels.write.format("noop").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "fourth.local_times", held_out=True, type="USER_CODE", origin="dependency", decision="stop", line="dt.tz_convert("
)
def local_times(spark: SparkSession, folder: Path) -> None:
    def hours(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            local = frame["timestamp"].dt.tz_convert("Europe/Berlin")
            yield pd.DataFrame({"hour": local.dt.hour})

    into_noop(numbers(spark).select("timestamp").mapInPandas(hours, "hour int"))


# Rows.


@case("fourth.day_format", held_out=True, type="USER_DATA", origin="user", decision="stop", line="datetime.strptime(")
def day_format(spark: SparkSession, folder: Path) -> None:
    @F.udf("date")
    def day(text: str) -> Any:
        return datetime.strptime(text, "%Y-%m-%d").date()

    into_noop(numbers(spark).select(day(F.expr("concat(value + 27, '.02.2024')"))))


@case("fourth.price_text", held_out=True, type="USER_DATA", origin="user", decision="stop", line="float(text)")
def price_text(spark: SparkSession, folder: Path) -> None:
    @F.udf("double")
    def price(text: str) -> float:
        return float(text)

    into_noop(numbers(spark).select(price(F.expr("if(value = 3, 'n/a', concat(value, '.99'))"))))


@case(
    "fourth.decimal_comma", held_out=True, type="USER_DATA", origin="user", decision="stop", line="Decimal(row.amount)"
)
def decimal_comma(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        print(sum(Decimal(row.amount) for row in batch.collect()))

    fails(numbers(spark).selectExpr("concat(value, ',50') AS amount").writeStream.foreachBatch(write))


@case(
    "fourth.pandas_days", held_out=True, type="USER_DATA", origin="dependency", decision="stop", line="pd.to_datetime("
)
def pandas_days(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("int")
    def weekday(days: pd.Series) -> pd.Series:
        return pd.to_datetime(days).dt.weekday

    into_noop(numbers(spark).select(weekday(F.expr("concat('2024-02-', value + 28)"))))


@case("fourth.long_name", held_out=True, type="USER_DATA", origin="dependency", decision="stop", line="executemany(")
def long_name(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE customers (id bigint, name varchar(12))")

        def write(batch: DataFrame, epoch: int) -> None:
            rows = [tuple(row) for row in batch.collect()]
            with shop.connect() as connection, connection.cursor() as cursor:
                cursor.executemany("INSERT INTO customers VALUES (%s, %s)", rows)

        names = numbers(spark).selectExpr("value", "repeat('name', cast(value AS int) + 1) AS name")
        fails(names.writeStream.foreachBatch(write))


@case("fourth.query_string", held_out=True, type="USER_DATA", origin="spark", decision="stop")
def query_string(spark: SparkSession, folder: Path) -> None:
    queries = numbers(spark).selectExpr("concat('page=', value, '&sort=asc&page=2') AS query")
    into_noop(queries.select(F.str_to_map("query", F.lit("&"), F.lit("="))))


@case("fourth.long_code", held_out=True, type="USER_DATA", origin="library", decision="stop")
def long_code(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE codes (code varchar(4))")
        codes = numbers(spark).selectExpr("repeat('ab', cast(value AS int)) AS code")
        writer = codes.writeStream.format("postgres_2pc").options(**shop.options, uid="codes", table="codes")
        fails(writer.option("checkpointLocation", str(folder / "checkpoint")))


# What cannot be pickled.


@case(
    "fourth.held_producer",
    held_out=True,
    type="SERIALIZATION",
    origin="user",
    decision="stop",
    subject="cimpl.Producer",
)
def held_producer(spark: SparkSession, folder: Path) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1"})

    def send(row: Row) -> None:
        producer.produce("clicks", str(row.value))

    fails(numbers(spark).writeStream.foreach(send))


@case("fourth.tls_context", held_out=True, type="SERIALIZATION", origin="user", decision="stop", subject="SSLContext")
def tls_context(spark: SparkSession, folder: Path) -> None:
    context = ssl.create_default_context()

    @F.udf("string")
    def protocol(value: int) -> str:
        with socket.create_connection(("rates.internal", 443)) as plain:
            return str(context.wrap_socket(plain, server_hostname="rates.internal").version())

    into_noop(numbers(spark).select(protocol("value")))


@case("fourth.open_socket", held_out=True, type="SERIALIZATION", origin="user", decision="stop", subject="socket")
def open_socket(spark: SparkSession, folder: Path) -> None:
    class Statsd:
        def __init__(self) -> None:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        def process(self, row: Row) -> None:
            self.socket.sendto(b"rows:1|c", ("127.0.0.1", 8125))

    fails(numbers(spark).writeStream.foreach(Statsd()))


@case("fourth.array_result", held_out=True, type="SERIALIZATION", origin="user", decision="stop", subject="numpy.dtype")
def array_result(spark: SparkSession, folder: Path) -> None:
    @F.udf("array<double>", useArrow=False)
    def features(value: int) -> Any:
        return np.array([value, value**2], dtype="float64")

    into_noop(numbers(spark).select(features("value")))


# What is configured wrongly.


@case(
    "fourth.no_token",
    held_out=True,
    type="CONFIGURATION",
    origin="user",
    decision="stop",
    line='os.environ["FOURTH_RATES_TOKEN"]',
)
def no_token(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        headers = {"Authorization": os.environ["FOURTH_RATES_TOKEN"]}
        print(json.dumps(headers), batch.count())

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "fourth.undefined_table",
    held_out=True,
    type="CONFIGURATION",
    origin="dependency",
    decision="stop",
    line="connection.execute(",
)
def undefined_table(spark: SparkSession, folder: Path) -> None:
    with database() as shop:

        def write(batch: DataFrame, epoch: int) -> None:
            with shop.connect() as connection:
                connection.execute("INSERT INTO epoch_totals VALUES (%s, %s)", [epoch, batch.count()])

        fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "fourth.sqlite_table",
    held_out=True,
    type="CONFIGURATION",
    origin="user",
    decision="stop",
    line="SELECT name FROM products",
)
def sqlite_table(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def name(value: int) -> str:
        with sqlite3.connect(folder / "products.db") as products:
            return str(products.execute("SELECT name FROM products WHERE id = ?", (value,)).fetchone()[0])

    into_noop(numbers(spark).select(name("value")))


@case("fourth.delta_partitioning", held_out=True, type="CONFIGURATION", origin="library", decision="stop")
def delta_partitioning(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.sql(f"CREATE TABLE delta.`{table}` (value LONG, day DATE) USING delta PARTITIONED BY (day)")
    days = numbers(spark).selectExpr("value", "cast(timestamp AS date) AS day")
    writer = days.writeStream.format("delta").partitionBy("value").option("path", table)
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")))


@case("fourth.files_2pc_column", held_out=True, type="CONFIGURATION", origin="library", decision="stop")
def files_2pc_column(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).select("value").writeStream.format("files_2pc").option("uid", "export")
    writer = writer.option("path", str(folder / "out")).option("partition_by", "day")
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")))


@case("fourth.receiver_unauthorized", held_out=True, type="CONFIGURATION", origin="library", decision="stop")
def receiver_unauthorized(spark: SparkSession, folder: Path) -> None:
    class Unauthorized(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Unauthorized) as receiver:
        Thread(target=receiver.serve_forever, daemon=True).start()
        writer = numbers(spark).select("value").writeStream.format("http_2pc").option("uid", "scores")
        writer = writer.option("url", f"http://127.0.0.1:{receiver.server_port}/").option("outbox", f"{folder}/outbox")
        try:
            fails(writer.option("checkpointLocation", str(folder / "checkpoint")))
        finally:
            receiver.shutdown()
