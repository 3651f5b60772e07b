"""Further failures: settings, networks and resources."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import requests
from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@contextlib.contextmanager
def answering(status: int) -> Iterator[str]:
    """The address of a server that answers every request with a status; 0 hangs up instead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@case("more.no_schema", type="CONFIGURATION", origin="user", decision="stop")
def no_schema(spark: SparkSession, folder: Path) -> None:
    (folder / "orders").mkdir()
    into_noop(spark.readStream.json(str(folder / "orders")))


@case("more.rates_file", type="CONFIGURATION", origin="user", decision="stop", line="open(rates)")
def rates_file(spark: SparkSession, folder: Path) -> None:
    rates = f"{folder}/rates.csv"

    @F.udf("string")
    def rate(value: int) -> str:
        with open(rates) as lines:
            return lines.readline()

    into_noop(numbers(spark).select(rate("value")))


@case(
    "more.no_delta_table",
    type="CONFIGURATION",
    origin="dependency",
    decision="stop",
    line="DeltaTable.forPath(",
)
def no_delta_table(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        DeltaTable.forPath(batch.sparkSession, f"{folder}/customers").delete("id < 0")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case(
    "more.unauthorized",
    type="CONFIGURATION",
    origin="dependency",
    decision="stop",
    line=".raise_for_status()",
)
def unauthorized(spark: SparkSession, folder: Path) -> None:
    with answering(401) as address:

        @F.udf("long")
        def status(value: int) -> int:
            return httpx.get(f"http://{address}/customers/{value}").raise_for_status().status_code

        into_noop(numbers(spark).select(status("value")))


@case("more.delta_column", type="CONFIGURATION", origin="library", decision="stop")
def delta_column(spark: SparkSession, folder: Path) -> None:
    spark.range(1).write.format("delta").save(f"{folder}/table")
    frame = numbers(spark).selectExpr("value AS id", "'EUR' AS currency")
    writer = frame.writeStream.format("delta").option("path", f"{folder}/table")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint"))


@case("more.requests", type="NETWORK", origin="dependency", decision="restart", line="requests.get(")
def with_requests(spark: SparkSession, folder: Path) -> None:
    def look_up(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame({"name": [requests.get("http://127.0.0.1:1/names", timeout=5).text] * len(frame)})

    into_noop(numbers(spark).select("value").mapInPandas(look_up, "name string"))


@case("more.host", type="NETWORK", origin="user", decision="restart", line="socket.getaddrinfo(")
def host(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        socket.getaddrinfo("warehouse.invalid", 5432)

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.tls", type="NETWORK", origin="user", decision="restart", line="wrap_socket(")
def tls(spark: SparkSession, folder: Path) -> None:
    with answering(200) as address:

        @F.udf("string")
        def version(value: int) -> str:
            name, port = address.split(":")
            with socket.create_connection((name, int(port)), timeout=5) as plain:
                return str(ssl.create_default_context().wrap_socket(plain, server_hostname=name).version())

        into_noop(numbers(spark).select(version("value")))


@case(
    "more.unavailable",
    type="NETWORK",
    origin="dependency",
    decision="restart",
    line=".raise_for_status()",
)
def unavailable(spark: SparkSession, folder: Path) -> None:
    with answering(503) as address:

        def write(batch: DataFrame, epoch: int) -> None:
            requests.get(f"http://{address}/bulk", timeout=5).raise_for_status()

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.socket_source", type="NETWORK", origin="spark", decision="restart")
def socket_source(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.format("socket").option("host", "127.0.0.1").option("port", "1").load())


@case("more.matrix", type="RESOURCE", origin="user", decision="restart", line="np.ones(")
def matrix(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("double")
    def distances(values: pd.Series) -> pd.Series:
        return pd.Series(np.ones((1 << 26, 1 << 26))[0][: len(values)])

    into_noop(numbers(spark).select(distances("value")))


@case("more.device_full", type="RESOURCE", origin="user", decision="restart", line="os.write(")
def device_full(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        out = os.open("/dev/full", os.O_WRONLY)
        try:
            os.write(out, b"orders: %d" % batch.count())
        finally:
            os.close(out)

    fails(numbers(spark).writeStream.foreachBatch(write))
