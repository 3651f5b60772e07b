"""`hybrid` over a Delta table and the Kafka topic that it was filled from: each message once, whatever happens."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.testing.source_kit import SourceRun, drive
from tests.servers.kafka import Broker

LENGTHS = (40, 17, 5, 0)
"""Messages of each partition; some are in transactions that were aborted, and in no one's result."""


def filled(kafka: Broker) -> str:
    topic = kafka.topic("hybrid", partitions=4)
    for partition, count in enumerate(LENGTHS):
        for first in range(0, count, 10):
            values = [f"{partition}-{n}" for n in range(first, min(count, first + 10))]
            kafka.send_in_transaction(topic, ["never"], partition, commit=False)
            kafka.send_in_transaction(topic, values, partition)
    return topic


def everything(kafka: Broker, topic: str) -> list[tuple[int, int, bytes]]:
    return sorted((one.partition() or 0, one.offset() or 0, one.value() or b"") for one in kafka.messages(topic))


def options(kafka: Broker, topic: str, lake: Path, **more: str) -> dict[str, str]:
    return {
        "uid": "events",
        "stages": "history,live",
        "history.format": "delta_snapshot",
        "history.path": str(lake),
        "history.seam": "topic:partition:offset",
        "live.format": "kafka_range",
        "live.bootstrap_servers": kafka.bootstrap,
        "live.topics": topic,
        "live.select": "topic, partition, offset, value",
        **more,
    }


def lake(kafka: Broker, topic: str, folder: Path, upto: int) -> Path:
    """The first messages of each partition as a table, in several files and no order."""
    there = everything(kafka, topic)
    taken = [one for part in range(4) for one in [one for one in there if one[0] == part][:upto]]
    random.Random(1).shuffle(taken)
    for number in range(3):
        part = taken[number::3]
        table = pa.table(
            {
                "topic": pa.array([topic] * len(part), pa.string()),
                "partition": pa.array([one[0] for one in part], pa.int32()),
                "offset": pa.array([one[1] for one in part], pa.int64()),
                "value": pa.array([one[2] for one in part], pa.binary()),
            }
        )
        write_deltalake(folder / "lake", table, mode="append")
    return folder / "lake"


def found(trace: pa.Table) -> list[tuple[int, int, bytes]]:
    return sorted((row["partition"], row["offset"], row["value"]) for row in trace.to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_there_once_across_the_cutover(kafka: Broker, tmp_path: Path, seed: int) -> None:
    """A partition that the history has in part, one that it has whole, one without any message."""
    topic = filled(kafka)
    given = options(kafka, topic, lake(kafka, topic, tmp_path, 17))
    trace = drive(Hybrid, given, rng=random.Random(seed), crash=0.3)
    assert found(trace.all_rows()) == everything(kafka, topic)


def test_the_live_side_continues_and_takes_new_partitions(kafka: Broker, tmp_path: Path) -> None:
    topic = filled(kafka)
    given = options(kafka, topic, lake(kafka, topic, tmp_path, 9), **{"live.ending": "none", "discovery_interval": "0"})
    run = SourceRun(lambda more: Hybrid({**given, **more}), {}, limits=[{"max_rows_per_epoch": "7"}])
    while run.epoch():
        pass
    assert found(run.trace.all_rows()) == everything(kafka, topic)
    kafka.grow(topic, 5)
    kafka.send_in_transaction(topic, ["new", "newer"], 4)
    kafka.send_in_transaction(topic, ["more"], 0)
    run.restart({"max_rows_per_epoch": "7"})
    while run.epoch():
        pass
    assert found(run.trace.all_rows()) == everything(kafka, topic)
    assert not run.offset.ended
