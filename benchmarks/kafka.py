"""`kafka_2pc` and `kafka_range` against Spark's own Kafka sink and source, and a bare transactional producer.

One private broker on loopback. A message has a number as key and a value of 100 bytes. Spark's sink (at least once)
and `kafka_2pc` get the same rows from `rate-micro-batch`; acks=all, no compression, and 1 MB batches on every side. The
bare producer sends messages that are already in memory, one transaction per epoch: the rate of one client if no time is
spent on producing rows. The two sources read the same topic to its end, by `availableNow`, into `noop`. The time is
that of whole epochs; the first one, in which workers and connections start, is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import LIMIT, run_epochs, session, until, workplace
from spark_ext.clients.kafka import offsets
from tests.servers.kafka import Broker
from tests.servers.spark_kafka import spark_kafka_jars

ROUNDS = 3
ROWS = 1_000_000  # rows per epoch
EPOCHS = 2  # number of epochs that count
PARTITIONS = 4
VALUE = "x" * 100
MARKERS = 100
"""Offsets per epoch beyond its rows when reading: so that the transaction markers at the topic's end are no epoch."""

SINKS = ("kafka_2pc", "Spark's sink")
SOURCES = ("kafka_range", "Spark's source")
BARE = "bare producer"
PARTS = ("throughput", "bare", "read")  # what is measured


def run(rounds: int = ROUNDS) -> Figures:
    rates: dict[str, list[float]] = {way: [] for way in (*SINKS, BARE, *SOURCES)}
    jars = ":".join(map(str, spark_kafka_jars()))
    with session("kafka", {"spark.driver.extraClassPath": jars}) as spark, _broker() as broker:
        full = _topic(broker)
        if "read" in PARTS:
            _bare(broker, full)
        for round_ in range(rounds):
            measured = {way: _write(spark, broker, way) for way in SINKS}
            if "bare" in PARTS:
                measured[BARE] = _bare(broker, _topic(broker))
            if "read" in PARTS:
                measured |= {way: _read(spark, broker, way, full) for way in SOURCES}
            for way, one in measured.items():
                if round_ or rounds == 1:  # the first round compiles
                    rates[way].append(one)
    rate = {way: Sample.of(values, "M rows/s") for way, values in rates.items() if values}
    sizes = {"rows per epoch": ROWS, "epochs": EPOCHS, "rounds": rounds, "bytes per value": len(VALUE)}
    figures = {
        "throughput": ("written", SINKS[0], SINKS[1], 0.95),
        "bare": ("written", SINKS[0], BARE, 0.7),
        "read": ("read", SOURCES[0], SOURCES[1], 1.0),
    }
    return [_figure(f"kafka_{part}", *figures[part], rate, sizes) for part in PARTS]


def _figure(name: str, done: str, a: str, b: str, aim: float, rate: dict[str, Sample], sizes: dict[str, int]) -> Figure:
    what = f"rows {done} per second: {a} / {b}"
    sides = {side: rate[side] for side in (a, b)}
    ratio = rate[a].median / rate[b].median
    return Figure(name, what, ratio, Aim(">=", aim), sides, sizes, divided=(a, b))


@contextmanager
def _broker() -> Iterator[Broker]:
    with workplace() as folder, Broker(folder) as broker:
        yield broker


def _topic(broker: Broker) -> str:
    return broker.topic("rows", PARTITIONS)


def _check(broker: Broker, topic: str, rows: int) -> None:
    """Check that readers of committed messages see all of them, which takes some ms after the commit."""
    ends = {(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    with broker.admin() as client:
        until(lambda: sum(offsets(client, ends, 30).values()) >= rows, f"{rows} messages are in {topic}")


def _drop(broker: Broker, topic: str) -> None:
    with broker.admin() as client:
        client.delete_topics([topic])[topic].result(30)


def _write(spark: SparkSession, broker: Broker, way: str) -> float:
    """Millions of rows per second."""
    topic = _topic(broker)
    with workplace() as folder:
        reports = run_epochs(_writer(_rows(spark), broker, way, topic, folder), folder / "checkpoint", EPOCHS)
    _check(broker, topic, (EPOCHS + 1) * ROWS)
    _drop(broker, topic)
    seconds = sum(report["durationMs"]["triggerExecution"] for report in reports if report["batchId"] >= 1) / 1000
    return EPOCHS * ROWS / seconds / 1e6


def _rows(spark: SparkSession) -> DataFrame:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    return stream.selectExpr("CAST(value AS STRING) AS key", f"'{VALUE}' AS value")


def _writer(rows: DataFrame, broker: Broker, way: str, topic: str, folder: Path) -> DataStreamWriter:
    if way == "kafka_2pc":
        options = {"uid": "out", "bootstrap_servers": broker.bootstrap, "topic": topic, "staging": str(folder)}
        return rows.writeStream.format("kafka_2pc").options(**options)
    # With batches of 16 kB, Kafka's default, a broker is slower.
    options = {"kafka.acks": "all", "kafka.batch.size": "1000000", "kafka.linger.ms": "5"}
    options |= {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    return rows.writeStream.format("kafka").options(**options)


def _bare(broker: Broker, topic: str) -> float:
    """Millions of rows per second of prepared messages; the first transaction is not counted."""
    messages = [(str(number).encode(), VALUE.encode()) for number in range(ROWS)]
    producer: Any = Producer(
        {
            "bootstrap.servers": broker.bootstrap, "transactional.id": topic, "partitioner": "murmur2_random",
            "log_level": 0,
        }
    )  # fmt: skip
    producer.init_transactions(LIMIT)
    begun = 0.0
    for epoch in range(EPOCHS + 1):
        if epoch == 1:
            begun = time.perf_counter()
        producer.begin_transaction()
        for key, value in messages:
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:  # the client's queue of 100,000 is full
                    producer.poll(0.05)
        producer.commit_transaction(LIMIT)
    seconds = time.perf_counter() - begun
    _check(broker, topic, (EPOCHS + 1) * ROWS)
    producer.close()
    return EPOCHS * ROWS / seconds / 1e6


def _read(spark: SparkSession, broker: Broker, way: str, topic: str) -> float:
    """Millions of rows per second."""
    writer = _reader(spark, broker, way, topic).writeStream.format("noop").trigger(availableNow=True)
    with workplace() as folder:
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        if not query.awaitTermination(round(LIMIT)):
            query.stop()
            raise TimeoutError(f"{way} has not read {topic} in {LIMIT:g} s")
    epochs = [(report["numInputRows"], report["durationMs"]["triggerExecution"]) for report in query.recentProgress]
    full = [epoch for epoch in epochs if epoch[0]]
    assert sum(rows for rows, _ in full) == (EPOCHS + 1) * ROWS, f"{way} read {full}"
    return sum(rows for rows, _ in full[1:]) / sum(ms for _, ms in full[1:]) / 1000


def _reader(spark: SparkSession, broker: Broker, way: str, topic: str) -> DataFrame:
    if way == "kafka_range":
        options = {"uid": "in", "bootstrap_servers": broker.bootstrap, "topics": topic}
        return spark.readStream.format("kafka_range").options(max_rows_per_epoch=ROWS + MARKERS, **options).load()
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": str(ROWS + MARKERS), "kafka.isolation.level": "read_committed"}
    return spark.readStream.format("kafka").options(**options).load()
