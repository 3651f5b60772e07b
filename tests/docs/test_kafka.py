"""The examples of the pages of the Kafka connectors run as printed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from deltalake import DeltaTable

from tests.servers.kafka import Broker
from tests.servers.postgres import Database
from tests.support import pages


def test_the_examples_run_as_printed(kafka: Broker, tmp_path: Path) -> None:
    kafka.make("orders", 3)
    kafka.make("clicks", 2)
    for partition in range(2):
        kafka.send("clicks", [f"click {number}" for number in range(150)], partition=partition)
    examples = {page: "\n".join(pages.python_blocks(page)) for page in ("kafka_2pc", "kafka_range")}
    pages.run_each(tmp_path, examples, KAFKA=kafka.bootstrap)


def test_a_table_and_then_its_topic_as_printed(kafka: Broker, database: Database, tmp_path: Path) -> None:
    """The second example of `hybrid.md`: the table holds the beginning of each partition."""
    kafka.make("page-views", 2)
    for partition in range(2):
        kafka.send("page-views", [f"{partition}/{n}" for n in range(100)], partition=partition)
    database.run("CREATE TABLE events (part int, off bigint, body text, PRIMARY KEY (part, off))")
    for partition, rows in enumerate((60, 30)):
        database.run(
            f"INSERT INTO events SELECT {partition}, n, '{partition}/' || n FROM generate_series(0, {rows - 1}) n"
        )
    _, example = pages.python_blocks("hybrid")
    begin = 'import spark_ext as sx\n\nspark = sx.session("hybrid")\n'
    now = (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat()
    pages.run(tmp_path, begin + example, POSTGRES_DSN=database.dsn, KAFKA=kafka.bootstrap, MIDNIGHT=now)
    found = DeltaTable(tmp_path / "lake" / "views").to_pyarrow_table().to_pylist()
    expected = [(partition, n, f"{partition}/{n}") for partition in range(2) for n in range(100)]
    assert sorted((row["partition"], row["offset"], row["body"]) for row in found) == expected
