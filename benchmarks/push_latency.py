"""From the acknowledgement of an event to its row in a table: an inbox, Kafka, and plain Spark behind a web server.

A client sends `RATE` events a second. A row is in the table when the commit that has added its file is in the log.

* `inbox`: to the gateway of an inbox, which `http_ingest` reads; `delta_2pc` in a `Job`.
* `kafka`: by a producer with `acks=all`; `kafka_range` and `delta_2pc` in a `Job`.
* `plain`: to a web server that appends each body to a file, synced, and gives it to Spark's file source twice a second;
  Spark's own Delta sink. It has no identities, and is not exactly once.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from benchmarks import _control_clients
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._push import gateway, send, single
from benchmarks._spark import session, start, until, workplace
from tests.chaos.push_job import INBOX, SECRET
from tests.servers.kafka import Broker
from tests.servers.spark_kafka import spark_kafka_jars

ROUNDS = 3
RATE = 200
SECONDS = 30
WARM = 8  # seconds of each run that do not count; what was sent in them is in the table before the others begin
ROLLS = 0.5  # how often the web server gives its file away, s
SIDES = ("inbox", "kafka", "plain")
Sends = Callable[[int, float], list[tuple[int, float]]]
"""Sends events at a rate for some seconds; returns their numbers, and when each was acknowledged, s since 1970."""


def run(rounds: int = ROUNDS) -> Figures:
    jars = ":".join(map(str, spark_kafka_jars()))
    with session("push", {"spark.driver.extraClassPath": jars}) as spark, _control_clients.process() as clients:
        found = beside(SIDES, rounds, lambda side: _times(spark, clients, side))
    samples = {side: Sample.of([ms for times in found[side] for ms in times], "ms") for side in SIDES}
    notes = {"events per second": RATE, "seconds per run": SECONDS}
    for percent in (50, 95):
        at = {side: sample.percentile(percent) for side, sample in samples.items()}
        for other in SIDES[1:]:
            yield Figure(
                f"push_row_{other}_p{percent}",
                f"from the answer to the row in the table, {RATE} events/s, p{percent}: inbox / {other}",
                at["inbox"] / at[other], Aim("<=", 1.0), {side: samples[side] for side in ("inbox", other)},
                {**notes, **{f"{side}, ms": round(at[side]) for side in ("inbox", other)}},
            )  # fmt: skip


def _times(spark: SparkSession, clients: ProcessPoolExecutor, side: str) -> list[float]:
    with workplace() as folder, ExitStack() as stack:
        sends = stack.enter_context({"inbox": _inbox, "kafka": _kafka, "plain": _plain}[side](spark, folder, clients))
        warm = len(sends(0, WARM))
        until(lambda: len(_rows(folder / "out")) == warm, "the first events are in the table")
        acknowledged = sends(warm, SECONDS)
        wanted = {number for number, _ in acknowledged}
        until(lambda: wanted <= _rows(folder / "out").keys(), "all events are in the table")
        there = _rows(folder / "out")
        return [1000 * (there[number] - at) for number, at in acknowledged]


def _rows(table: Path) -> dict[int, float]:
    """When each row was committed."""
    found: dict[int, float] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                rows = pq.read_table(table / unquote(action["add"]["path"]), columns=["id"], partitioning=None)
                found.update(dict.fromkeys(rows["id"].to_pylist(), commit.stat().st_mtime))
    return found


def _parsed(frame: DataFrame, column: str) -> DataFrame:
    return frame.select(F.get_json_object(F.col(column).cast("string"), "$.id").cast("long").alias("id"))


@contextmanager
def _job(spark: SparkSession, folder: Path, read: Callable[[sx.Job], DataFrame]) -> Iterator[sx.Job]:
    job = sx.Job(spark, "push", state=folder / "state")
    rows = read(job)
    job.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=str(folder / "out"))).start()
    try:
        yield job
    finally:
        job.stop(60)


@contextmanager
def _inbox(spark: SparkSession, folder: Path, clients: ProcessPoolExecutor) -> Iterator[Sends]:
    def read(job: sx.Job) -> DataFrame:
        return _parsed(job.inbox(INBOX, scheme="standard", secrets=(f"env:{SECRET}",)).read("in"), "body")

    with _job(spark, folder, read) as job:
        until((folder / "state" / "inboxes" / INBOX / "inbox.json").exists, "the inbox is described", job)
        with gateway(folder) as (port, _):
            yield _over_http(port, clients)


def _over_http(port: int, clients: ProcessPoolExecutor) -> Sends:
    def sends(first: int, seconds: float) -> list[tuple[int, float]]:
        requests = [single(first + number) for number in range(round(RATE * seconds))]
        found = clients.submit(send, port, requests, 16, RATE).result()
        return [(first + number, at) for number, at in found.acknowledged]

    return sends


@contextmanager
def _kafka(spark: SparkSession, folder: Path, clients: ProcessPoolExecutor) -> Iterator[Sends]:
    with Broker(folder / "broker") as broker:
        topic = broker.topic("events", 2)
        reader = spark.readStream.format("kafka_range").options(
            uid="in", bootstrap_servers=broker.bootstrap, topics=topic, ending="none"
        )
        with _job(spark, folder, lambda _: _parsed(reader.load(), "value")):
            yield lambda first, seconds: clients.submit(_produce, broker.bootstrap, topic, first, seconds).result()


def _produce(bootstrap: str, topic: str, first: int, seconds: float) -> list[tuple[int, float]]:
    acknowledged: list[tuple[int, float]] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, "log_level": 0})
    began = time.monotonic()
    for number in range(first, first + round(RATE * seconds)):
        while time.monotonic() < began + (number - first) / RATE:
            producer.poll(max(0.0, began + (number - first) / RATE - time.monotonic()))
        body = json.dumps({"id": number, "amount": 1.5, "about": "x" * 100}).encode()
        producer.produce(topic, body, on_delivery=lambda *_, number=number: acknowledged.append((number, time.time())))
    producer.flush(30)
    return acknowledged


@contextmanager
def _plain(spark: SparkSession, folder: Path, clients: ProcessPoolExecutor) -> Iterator[Sends]:
    (folder / "in").mkdir()
    rows = _parsed(spark.readStream.format("text").load(str(folder / "in")), "value")
    with _web_server(folder) as port:
        query = start(rows.writeStream.format("delta").option("path", str(folder / "out")), folder / "checkpoint")
        try:
            yield _over_http(port, clients)
        finally:
            query.stop()


@contextmanager
def _web_server(folder: Path) -> Iterator[int]:
    """Appends the body of each request to a file, which is synced before the answer and given away now and then."""
    lock = threading.Lock()
    open_file = [(folder / "open").open("ab", buffering=0)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                open_file[0].write(body + b"\n")
                os.fdatasync(open_file[0].fileno())
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    def roll() -> None:
        number = 0
        while not ended.wait(ROLLS):
            with lock:
                if (folder / "open").stat().st_size:
                    open_file[0].close()
                    (folder / "open").rename(folder / "in" / f"{(number := number + 1)}.txt")
                    open_file[0] = (folder / "open").open("ab", buffering=0)

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threads = [threading.Thread(target=work, daemon=True) for work in (server.serve_forever, roll)]
    for thread in threads:
        thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        ended.set()
