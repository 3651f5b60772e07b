"""A job that writes Avro: its tasks have the schema that the start has registered, and another registry is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import spark_ext as sx
from spark_ext.errors import ConfigurationError
from spark_ext.spark.logs.spark_log import SparkLog
from tests.servers.kafka import Broker
from tests.servers.schema_registry import SchemaRegistry
from tests.sinks.kafka_2pc.test_formats import decoded
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEVER = "1 hour"


@pytest.mark.slow(30, "starts a job five times")
def test_a_job_that_is_stopped_changed_and_started_again(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """Each row once, by whatever schema its epoch was written; what is refused changes nothing. A move is accepted."""
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
        moved = job(other, "struct(id, ts, value)", accept=("out.schema_registry_url",))
        assert moved.run(progress=False).finished
        found = Counter(message.value() or b"" for message in kafka.messages(topic))
        later = list((found - Counter(first)).elements())
        rows = [decoded(registry, topic, content) for content in first]
        more = [decoded(other, topic, content) for content in later]
    assert sorted(row["id"] for row in [*rows, *more]) == list(range(60))
    assert all("value" not in row for row in rows) and all(row["value"] is not None for row in more)
