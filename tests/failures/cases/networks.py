"""Failures of connections."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pandas as pd
import psycopg
import requests
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.failures.building import add_java
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@contextmanager
def server(*, resets: bool = False, says: bytes = b"") -> Iterator[int]:
    """The port of a server that accepts connections, and does not answer as a server should."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    peer, _ = listening.accept()
                    kept.append(peer)
                    if says:
                        peer.sendall(says)
                    if resets:
                        peer.recv(1)
                        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        peer.close()
            except OSError:
                return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for peer in kept:
                peer.close()


@case("networks.requests_refused", type="NETWORK", origin="dependency", decision="restart", line="requests.get")
def requests_refused(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def customer(value: int) -> str:
        return requests.get(f"http://127.0.0.1:1/customers/{value}", timeout=5).text

    into_noop(numbers(spark).select(customer("value")))


@case("networks.httpx_refused", type="NETWORK", origin="dependency", decision="restart", line="await client.get")
def httpx_refused(spark: SparkSession, folder: Path) -> None:
    async def customer(row: Row) -> tuple[str]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:1/{row.value}")
        return (answer.text,)

    into_noop(sx.async_map(numbers(spark), customer, "customer string"))


@case("networks.unknown_name", type="NETWORK", origin="user", decision="restart", line="urllib.request.urlopen")
def unknown_name(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("string")
    def customers(values: pd.Series) -> pd.Series:
        with urllib.request.urlopen("http://customers.invalid/all", timeout=5) as answer:
            return values.map(answer.read().decode().splitlines())

    into_noop(numbers(spark).select(customers("value")))


@case("networks.postgres_refused", type="NETWORK", origin="dependency", decision="restart", line="psycopg.connect")
def postgres_refused(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with psycopg.connect("host=127.0.0.1 port=1 user=shop connect_timeout=5") as connection:
            connection.execute("INSERT INTO epochs VALUES (%s)", [epoch])

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("networks.read_timeout", type="NETWORK", origin="dependency", decision="restart", line="requests.post")
def read_timeout(spark: SparkSession, folder: Path) -> None:
    with server() as port:

        def send(row: Row) -> None:
            requests.post(f"http://127.0.0.1:{port}/", json={"value": row.value}, timeout=0.5)

        fails(numbers(spark).writeStream.foreach(send))


@case("networks.socket_timeout", type="NETWORK", origin="user", decision="restart", line="connection.recv")
def socket_timeout(spark: SparkSession, folder: Path) -> None:
    with server() as port:

        @F.udf("binary")
        def answer(value: int) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
                return connection.recv(100)

        into_noop(numbers(spark).select(answer("value")))


@case("networks.reset", type="NETWORK", origin="user", decision="restart", line="connection.recv")
def reset(spark: SparkSession, folder: Path) -> None:
    with server(resets=True) as port:

        @F.udf("binary")
        def answer(value: int) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"GET")
                return connection.recv(100)

        into_noop(numbers(spark).select(answer("value")))


@case("networks.tls", type="NETWORK", origin="user", decision="restart", line="context.wrap_socket")
def tls(spark: SparkSession, folder: Path) -> None:
    with server(says=b"220 this server speaks plain text\r\n") as port:

        def write(batch: DataFrame, epoch: int) -> None:
            context = ssl.create_default_context()
            with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
                context.wrap_socket(plain, server_hostname="localhost").close()

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("networks.socket_source", type="NETWORK", origin="spark", decision="restart")
def socket_source(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.format("socket").option("host", "127.0.0.1").option("port", "1").load())


@case("networks.java", type="NETWORK", origin="user", decision="restart")
def java(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Remote",
        """public class Remote implements org.apache.spark.sql.api.java.UDF1<Long, Long> {
          public Long call(Long value) throws Exception {
            try (java.net.Socket socket = new java.net.Socket("127.0.0.1", 1)) { return value; }
          }
        }""",
    )
    spark.udf.registerJavaFunction("failing_remote", "shop.Remote", "long")
    into_noop(numbers(spark).selectExpr("failing_remote(value)"))


@case("networks.http_2pc", type="NETWORK", origin="library", decision="restart")
def http_2pc(spark: SparkSession, folder: Path) -> None:
    writer = numbers(spark).select("value").writeStream.format("http_2pc").option("uid", "shop")
    writer = writer.option("url", "http://127.0.0.1:1/").option("outbox", str(folder / "outbox"))
    fails(writer.option("commit_attempts", "1").option("checkpointLocation", str(folder / "checkpoint")))


@case("networks.postgres_source", type="NETWORK", origin="library", decision="restart")
def postgres_source(spark: SparkSession, folder: Path) -> None:
    orders = spark.readStream.format("postgres").option("uid", "orders").option("table", "orders")
    orders = orders.option("dsn", "postgresql://shop@127.0.0.1:1/shop")
    into_noop(orders.schema("id long").load())


@case("networks.kafka_range", type="NETWORK", origin="library", decision="restart")
def kafka_range(spark: SparkSession, folder: Path) -> None:
    clicks = spark.readStream.format("kafka_range").option("uid", "clicks").option("topics", "clicks")
    clicks = clicks.option("bootstrap_servers", "127.0.0.1:1").option("request_timeout", "2 s")
    into_noop(clicks.load())


@case(
    "networks.kafka",
    type="NETWORK",
    origin="library",
    decision="restart",
    where="process",
    conf={"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"},
)
def kafka(spark: SparkSession, folder: Path) -> None:
    clicks = spark.readStream.format("kafka").option("subscribe", "clicks")
    clicks = clicks.option("kafka.bootstrap.servers", "127.0.0.1:1").option("kafka.default.api.timeout.ms", "3000")
    into_noop(clicks.option("kafka.request.timeout.ms", "2000").load())
