"""The pages of the Kafka connectors: their examples run as printed, and each option is in its table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ext.options import Options
from spark_ext.sinks.kafka_2pc import KafkaSinkOptions
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.kafka_range import KafkaRangeOptions
from tests.servers.kafka import Broker
from tests.servers.postgres import Database

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["kafka_2pc", "kafka_range"])
def test_the_example_runs_as_printed(kafka: Broker, tmp_path: Path, page: str) -> None:
    if page == "kafka_2pc":
        kafka.make("orders", 3)
    else:
        kafka.make("clicks", 2)
        for partition in range(2):
            kafka.send("clicks", [f"click {number}" for number in range(150)], partition=partition)
    (example,) = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "KAFKA": kafka.bootstrap},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


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
    _, example = re.findall(r"^```python\n(.*?)^```", (DOCS / "hybrid.md").read_text(), re.DOTALL | re.MULTILINE)
    begin = 'import spark_ext as sx\n\nspark = sx.session("hybrid")\n'
    (tmp_path / "example.py").write_text(begin + example, encoding="utf-8")
    now = (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat()
    at = {"POSTGRES_DSN": database.dsn, "KAFKA": kafka.bootstrap, "MIDNIGHT": now}
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, **at},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found = DeltaTable(tmp_path / "lake" / "views").to_pyarrow_table().to_pylist()
    expected = [(partition, n, f"{partition}/{n}") for partition in range(2) for n in range(100)]
    assert sorted((row["partition"], row["offset"], row["body"]) for row in found) == expected


@pytest.mark.parametrize(
    ("page", "options", "shared"),
    [("kafka_2pc", KafkaSinkOptions, set()), ("kafka_range", KafkaRangeOptions, set(SourceOptions.model_fields))],
)
def test_each_option_is_in_the_table(page: str, options: type[Options], shared: set[str]) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    section = next(part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith("Options\n"))
    named = {found.lower() for found in re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)}
    assert named == set(options.model_fields) - shared
