"""The pages of the Kafka connectors: their examples run as printed, and each option is in its table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ext.options import Options
from spark_ext.sinks.kafka_2pc import KafkaSinkOptions
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.kafka_range import KafkaRangeOptions
from tests.servers.kafka import Broker

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


@pytest.mark.parametrize(
    ("page", "options", "shared"),
    [("kafka_2pc", KafkaSinkOptions, set()), ("kafka_range", KafkaRangeOptions, set(SourceOptions.model_fields))],
)
def test_each_option_is_in_the_table(page: str, options: type[Options], shared: set[str]) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    section = next(part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith("Options\n"))
    named = {found.lower() for found in re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)}
    assert named == set(options.model_fields) - shared
