"""A job from Kafka to Kafka whose broker and whose driver are killed under it: each message is there once."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import ConfigurationError
from spark_ext.jobs.job import Job
from spark_ext.spark.logs.spark_log import SparkLog
from tests.servers.kafka import Broker
from tests.servers.schema_registry import SchemaRegistry
from tests.sinks.kafka_2pc.test_formats import decoded
from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.waiting import until

NEVER = "1 hour"


@pytest.mark.slow(30, "starts a job five times")
def test_a_job_that_is_stopped_changed_and_started_again(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()

    def job(registry: SchemaRegistry, value: str = "struct(id, ts)", **options: Any) -> sx.Job:
        rows = spark.readStream.format("datagen").options(uid="rows", rows="60", max_rows_per_epoch="30").load()
        written = rows.selectExpr("tag AS key", f"{value} AS value").writeStream.format("kafka_2pc")
        given = {"uid": "out", "bootstrap_servers": kafka.bootstrap, "topic": topic, "value_format": "avro"}
        settings: dict[str, Any] = {"interval": NEVER} if options.pop("first", False) else {}
        accept = options.pop("accept", ())
        given |= {"schema_registry_url": registry.url, **options}
        made = sx.Job(spark, "avro", state=tmp_path / "state", **settings)
        return made.add("q", written.options(**given), accept=accept)

    log = SparkLog(str(tmp_path / "state" / "queries" / "q" / "checkpoint"))
    with SchemaRegistry() as registry, SchemaRegistry() as other:
        with pytest.raises(ConfigurationError, match="does not have the schema of the rows, and auto_register=false"):
            job(registry, auto_register="false").start()
        assert kafka.messages(topic) == []
        running = job(registry, first=True).start()
        until(lambda: log.newest_commit() == 0, "the first epoch")
        running.stop()
        assert len(kafka.messages(topic)) == 30
        registry.fixed.add(f"{topic}-value")
        with pytest.raises(ConfigurationError, match="not compatible with the subject"):
            job(registry, "struct(id, ts, value)").start()
        with pytest.raises(ConfigurationError, match="option 'schema_registry_url' of sink 'out' was"):
            job(other).start()
        first = [message.value() or b"" for message in kafka.messages(topic)]
        assert job(other, "struct(id, ts, value)", accept=("out.schema_registry_url",)).run(progress=False).finished
        found = Counter(message.value() or b"" for message in kafka.messages(topic))
        later = list((found - Counter(first)).elements())
        rows = [decoded(registry, topic, content) for content in first]
        more = [decoded(other, topic, content) for content in later]
    assert sorted(row["id"] for row in [*rows, *more]) == list(range(60))
    assert all("value" not in row for row in rows) and all(row["value"] is not None for row in more)


ROWS, PARTITIONS = 600, 3


def copy(spark: SparkSession, folder: Path, bootstrap: str, source: str, target: str, interval: str = "0 s") -> Job:
    rows = spark.readStream.format("kafka_range").options(uid="in", bootstrap_servers=bootstrap, topics=source)
    rows = rows.option("max_rows_per_epoch", str(ROWS * PARTITIONS // 12))
    job = sx.Job(spark, "copy", state=folder / "state", interval=interval)
    writer = rows.load().select("key", "value").writeStream.format("kafka_2pc")
    job.add("copy", writer.options(uid="out", bootstrap_servers=bootstrap, topic=target))
    return job


@pytest.mark.slow(30, "the job is a process that dies; so does its broker")
def test_broker_and_driver_killed_each_message_is_once(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    source, target = kafka.topic("in", PARTITIONS), kafka.topic("out", 2)
    sent = {number: [f"{number}-{n}" for n in range(ROWS)] for number in range(PARTITIONS)}
    for number, values in sent.items():
        kafka.send(source, values, partition=number)

    def arrived() -> int:
        return len(kafka.messages(target))

    command = [sys.executable, "-m", "tests.sinks.kafka_2pc.test_job", str(tmp_path), kafka.bootstrap, source, target]
    with Tree(command, tmp_path / "driver.log", {"PYTHONPATH": str(Path(__file__).parents[3])}) as driver:
        until(lambda: arrived() or driver.poll() is not None, "the first epochs", 180)
        kafka.restart()
        before = arrived()
        until(lambda: arrived() > before or driver.poll() is not None, "an epoch after the broker's return", 180)
        assert driver.poll() is None, driver.text()[-5000:]
        driver.kill()
        until(lambda: not driver.members(), "the killed driver's JVM and workers have ended")
    assert 0 < arrived() < ROWS * PARTITIONS, "killed in the middle"
    kafka.restart()
    assert copy(spark, tmp_path, kafka.bootstrap, source, target).run(progress=False).finished
    there = Counter((message.value() or b"").decode() for message in kafka.messages(target))
    assert there == Counter(value for values in sent.values() for value in values)
    assert not list((tmp_path / "state" / "staging").rglob("*.arrow"))


def main(folder: str, bootstrap: str, source: str, target: str) -> None:
    spark = cheap_jvm.session("kafka-copy", {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"})
    # Slowly, so that it is not at its end when the broker is there again.
    copy(spark, Path(folder), bootstrap, source, target, interval="1 s").run(progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
