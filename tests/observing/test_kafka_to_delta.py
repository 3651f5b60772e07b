"""Spark's own Kafka source into a Delta table, in a session of somebody else: an Observer is all that is added."""

import json
import sys
import urllib.request
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.query import StreamingQuery

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow, ExecutionStateRow, IncidentChangeRow, IncidentRow
from spark_ext.listeners import Observer
from spark_ext.server.page_view import PageView
from spark_ext.spark.session.jars import delta_jars
from spark_ext.testing.children import Child
from spark_ext.testing.waiting import until
from tests.servers.kafka import Broker
from tests.servers.ports import free_ports
from tests.servers.spark_kafka import spark_kafka_jars

MESSAGES = 180
DELTA: dict[str, Any] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def drive(folder: Path, servers: str, topic: str, port: int) -> None:
    """The driver: a query that fails half-way, and is started again. The figures of a scrape stay in a file."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    jars = [*delta_jars({}), *spark_kafka_jars()]
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraClassPath", ":".join(map(str, jars)))
    spark = builder.config(map=DELTA).config("spark.ui.enabled", "false").getOrCreate()
    ours = Observer(state=folder / "state", name="theirs", metrics=True, metrics_port=port, metrics_host="127.0.0.1")
    spark.streams.addListener(ours)
    repaired = str(folder / "repaired")

    @F.udf("long")
    def amount(value: str) -> int:
        number = int(value)
        if number == MESSAGES // 2 and not Path(repaired).exists():
            raise KeyError("currency")
        return number

    def start() -> StreamingQuery:
        clicks = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        clicks = clicks.option("subscribe", topic).option("startingOffsets", "earliest")
        rows = clicks.option("maxOffsetsPerTrigger", 60).load()
        writer = rows.select(amount(F.col("value").cast("string")).alias("n")).writeStream.format("delta")
        writer = writer.queryName("clicks").option("checkpointLocation", str(folder / "checkpoint"))
        return writer.trigger(processingTime="200 milliseconds").start(str(folder / "table"))

    ledger = Ledger(str(folder / "state"))
    first = start()
    # On a busy machine its start may have waited for a slot, which is an incident of its own.
    until(lambda: ledger.table(IncidentRow).rows([("type", "=", "failure")]), "the failure is an incident", 100)
    until(lambda: not first.isActive, "the query is over", 30)
    scrape(port, folder / "metrics-half-way")
    Path(repaired).touch()
    again = start()
    until(lambda: recorded(ledger) == MESSAGES, "all messages are in the table, and the epochs in the ledger", 60)
    until(lambda: resolved(ledger), "the incident is resolved", 30)
    scrape(port, folder / "metrics")
    again.stop()
    spark.stop()
    # The process of a test ends without what an interpreter does at its exit.
    until(lambda: not ours.watching, "the Observer has written its last rows", 60)


def scrape(port: int, file: Path) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        file.write_bytes(answer.read())


def lag(file: Path) -> float:
    series = 'spark_ext_source_lag_rows{job="theirs",query="clicks",source="KafkaV2"} '
    (line,) = [line for line in file.read_text().splitlines() if line.startswith(series)]
    return float(line.removeprefix(series))


def recorded(ledger: Ledger) -> int:
    return sum(row.input_rows or 0 for row in ledger.table(EpochRow).rows())


def resolved(ledger: Ledger) -> bool:
    (failure,) = ledger.table(IncidentRow).rows([("type", "=", "failure")])
    changes = ledger.table(IncidentChangeRow).rows([("new", "=", "RESOLVED")])
    return failure.incident_id in [row.incident_id for row in changes]


def written(folder: Path) -> int:
    table = folder / "table"
    return DeltaTable(str(table)).to_pyarrow_table().num_rows if (table / "_delta_log").exists() else 0


@pytest.mark.slow(35, "a JVM of its own, with Spark's Kafka source, and a broker")
def test_l5_kafka_to_delta_with_nothing_but_a_listener(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic("clicks", partitions=2)
    for partition in (0, 1):
        kafka.send(topic, [str(n) for n in range(partition, MESSAGES, 2)], partition=partition)
    (port,) = free_ports(1)
    with Child(drive, tmp_path, kafka.bootstrap, topic, port, env={"PYSPARK_PYTHON": sys.executable}) as child:
        said = child.wait()
        assert child.poll() == 0, said
    assert written(tmp_path) == MESSAGES

    ledger = Ledger(str(tmp_path / "state"))
    epochs = sorted(ledger.table(EpochRow).rows(), key=lambda row: row.epoch)
    assert [row.epoch for row in epochs] == list(range(len(epochs)))
    assert epochs[-1].offsets == [{topic: {"0": MESSAGES // 2, "1": MESSAGES // 2}}]
    states = sorted(ledger.table(ExecutionStateRow).rows([("operator", "=", "clicks")]), key=lambda row: row.since)
    names = [row.state for row in states]
    main = [name for name in names if name in ("RUNNING", "FAILED", "CANCELED")]
    assert [name for name, _ in groupby(main)] == ["RUNNING", "FAILED", "RUNNING", "CANCELED"]
    (incident,) = ledger.table(IncidentRow).rows([("type", "=", "failure")])
    assert (incident.labels["type"], incident.labels["origin"]) == ("USER_CODE", "user")
    assert "in amount: KeyError" in incident.what and "test_kafka_to_delta.py" in incident.what
    down = next(row for row in states if row.state == "FAILED")
    assert down.incident == incident.incident_id, "the time that it was down belongs to it"

    scraped = (tmp_path / "metrics").read_text()
    figure = f'spark_ext_input_rows_total{{job="theirs",query="clicks"}} {float(MESSAGES)}'
    assert figure in scraped, [line for line in scraped.splitlines() if "rows" in line]
    # It fails in an epoch of 60 that contains the middle one; the newest report is that of the epoch before.
    assert MESSAGES / 2 <= lag(tmp_path / "metrics-half-way") <= MESSAGES / 2 + 60 and lag(tmp_path / "metrics") == 0
    page: dict[str, Any] = json.loads(PageView(ledger).poll().text)
    assert page["job"]["observed"] is True and incident.incident_id in json.dumps(page)
