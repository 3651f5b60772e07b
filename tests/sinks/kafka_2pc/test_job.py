"""A job from Kafka to Kafka whose broker and whose driver are killed under it: each message is there once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_ext as sx
from tests.servers.kafka import Broker
from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.job import Job

ROWS, PARTITIONS = 600, 3


def copy(spark: SparkSession, folder: Path, bootstrap: str, source: str, target: str, interval: str = "0 s") -> Job:
    """All of a topic into another one, in 12 epochs or so."""
    rows = spark.readStream.format("kafka_range").options(uid="in", bootstrap_servers=bootstrap, topics=source)
    rows = rows.option("max_rows_per_epoch", str(ROWS * PARTITIONS // 12))
    job = sx.Job(spark, "copy", state=folder / "state", interval=interval)
    writer = rows.load().select("key", "value").writeStream.format("kafka_2pc")
    job.add("copy", writer.options(uid="out", bootstrap_servers=bootstrap, topic=target))
    return job


@pytest.mark.slow(30, "the job is a process that dies; so does its broker")
def test_broker_and_driver_killed_and_each_message_is_there_once(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    source, target = kafka.topic("in", PARTITIONS), kafka.topic("out", 2)
    sent = {number: [f"{number}-{n}" for n in range(ROWS)] for number in range(PARTITIONS)}
    for number, values in sent.items():
        kafka.send(source, values, partition=number)

    def arrived() -> int:
        return len(kafka.messages(target))

    command: list[str | Path] = [
        sys.executable,
        "-m",
        "tests.sinks.kafka_2pc.test_job",
        tmp_path,
        kafka.bootstrap,
        source,
        target,
    ]
    with Tree(command, tmp_path / "driver.log", {"PYTHONPATH": str(Path(__file__).parents[3])}) as driver:
        until(lambda: arrived() or driver.poll() is not None, "the first epochs", 180)
        kafka.restart()
        before = arrived()
        until(lambda: arrived() > before or driver.poll() is not None, "an epoch after the broker's return", 180)
        assert driver.poll() is None, driver.text()[-5000:]
        driver.kill()
        until(lambda: not driver.members(), "the killed driver's JVM and workers have ended")
    between = arrived()
    assert 0 < between < ROWS * PARTITIONS, "killed in the middle"
    kafka.restart()
    result = copy(spark, tmp_path, kafka.bootstrap, source, target).run(progress=False)
    assert result.finished
    there = Counter((message.value() or b"").decode() for message in kafka.messages(target))
    assert there == Counter(value for values in sent.values() for value in values)
    staged = [path for path in (tmp_path / "state" / "staging").rglob("*.arrow")]
    assert staged == []


def main(folder: str, bootstrap: str, source: str, target: str) -> None:
    spark = cheap_jvm.session("kafka-copy", {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"})
    # Slowly, so that it is not at its end when the broker is there again.
    copy(spark, Path(folder), bootstrap, source, target, interval="1 s").run(progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
