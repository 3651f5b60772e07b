"""`hybrid` over a Delta table and the Kafka topic that it was filled from: each message once, whatever happens."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.sources.kafka_range.bounds import TopicPartition, after, among, milliseconds, rest
from spark_ext.sources.kafka_range.source import KafkaRange
from spark_ext.sources.staged import Cutover
from spark_ext.testing.source_kit import SourceRun, drive
from tests.servers.kafka import Broker
from tests.sources.hybrid.test_hybrid import drain

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
    given = {"uid": "events", "stages": "history,live", "history.format": "delta_snapshot", "history.path": str(lake)}
    given |= {"history.seam": "topic:partition:offset", "live.format": "kafka_range", "live.topics": topic}
    given |= {"live.bootstrap_servers": kafka.bootstrap, "live.select": "topic, partition, offset, value"}
    return given | more


def lake(kafka: Broker, topic: str, folder: Path, upto: int) -> Path:
    there = everything(kafka, topic)
    taken = [one for part in range(4) for one in [one for one in there if one[0] == part][:upto]]
    random.Random(1).shuffle(taken)
    for number in range(3):
        rows = [{"topic": topic, "partition": p, "offset": o, "value": value} for p, o, value in taken[number::3]]
        schema = pa.schema({"topic": "string", "partition": "int32", "offset": "int64", "value": "binary"})
        write_deltalake(folder / "lake", pa.Table.from_pylist(rows, schema), mode="append")
    return folder / "lake"


def found(trace: pa.Table) -> list[tuple[int, int, bytes]]:
    return sorted((row["partition"], row["offset"], row["value"]) for row in trace.to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_there_once_across_the_cutover(kafka: Broker, tmp_path: Path, seed: int) -> None:
    topic = filled(kafka)
    given = options(kafka, topic, lake(kafka, topic, tmp_path, 17))
    trace = drive(Hybrid, given, rng=random.Random(seed), crash=0.3)
    assert found(trace.all_rows()) == everything(kafka, topic)


def test_the_live_side_continues_and_takes_new_partitions(kafka: Broker, tmp_path: Path) -> None:
    topic = filled(kafka)
    given = options(kafka, topic, lake(kafka, topic, tmp_path, 9), **{"live.ending": "none", "discovery_interval": "0"})
    run = SourceRun(lambda more: Hybrid({**given, **more}), {}, limits=[{"max_rows_per_epoch": "7"}])
    drain(run)
    assert found(run.trace.all_rows()) == everything(kafka, topic)
    kafka.grow(topic, 5)
    kafka.send_in_transaction(topic, ["new", "newer"], 4)
    kafka.send_in_transaction(topic, ["more"], 0)
    run.restart({"max_rows_per_epoch": "7"})
    drain(run)
    assert found(run.trace.all_rows()) == everything(kafka, topic)
    assert not run.offset.ended


@pytest.mark.parametrize("restart", [True, False], ids=["restart", "same planner"])
@pytest.mark.parametrize("by", ["topics", "pattern"])
def test_a_topic_created_anew_during_the_history_is_refused(
    kafka: Broker, tmp_path: Path, by: str, restart: bool
) -> None:
    topic = filled(kafka)
    given = options(kafka, topic, lake(kafka, topic, tmp_path, 9), **{"live.ending": "none"})
    given |= {f"live.{by}": given.pop("live.topics")}
    run = SourceRun(Hybrid, given, limits=[{"max_rows_per_epoch": "5"}])
    assert run.epoch() and run.epoch()
    kafka.delete(topic)
    kafka.make(topic, partitions=4)
    for partition in range(4):
        kafka.send_in_transaction(topic, [f"new-{n}" for n in range(20)], partition)
    if restart:
        run.restart()
    with pytest.raises(DataError, match=f"topic '{topic}' was deleted and created again") as refused:
        drain(run)
    assert "in a new query" in refused.value.do
    assert run.trace.all_rows().num_rows == 9 + 9 + 5  # the history, and nothing else


@pytest.mark.parametrize(
    ("offsets", "places", "then"),
    [
        ({"t:0": 4, "t:1": 6}, [("t", 0), ("t", 1), ("t", 2)], {("t", 0): 5, ("t", 1): 7}),
        ({"0": 4}, [("t", 0), ("t", 1)], {("t", 0): 5}),
        ({"t:0": 4, "not.read:9": 3}, [("t", 0)], {("t", 0): 5}),
        ({"0": 4}, [("t", 0), ("u", 0)], "partitions without their topic, and there are 2 topics"),
        ({"t:5": 4}, [("t", 0)], "ended at offset 4 of partition 5 of topic 't', which does not exist"),
        ({"5": 4}, [("t", 0)], "ended at offset 4 of partition 5 of topic 't', which does not exist"),
        ({"": 4}, [("t", 0)], "ended at offset 4 of '', which is no partition"),
        ({"t:x": 4}, [("t", 0)], "ended at offset 4 of 't:x', which is no partition"),
    ],
)
def test_where_partitions_continue(
    offsets: dict[str, int], places: list[TopicPartition], then: dict[TopicPartition, int] | str
) -> None:
    if isinstance(then, dict):
        assert among(after(offsets, "who"), places, "who") == then
        return
    with pytest.raises(ConfigurationError, match=then):
        among(after(offsets, "who"), places, "who")


NOON = 1_714_564_800_000  # milliseconds, 2024-05-01


def by_time(kafka: Broker, topic: str, folder: Path, times: list[int | None], **more: str) -> dict[str, str]:
    """A seam by time, after a table with these times, ms after noon."""
    at = pa.array([None if time is None else (NOON + time) * 1000 for time in times], pa.timestamp("us", "UTC"))
    write_deltalake(folder / "lake", pa.table({"value": pa.array([b"old"] * len(times)), "at": at}))
    given = options(kafka, topic, folder / "lake", **{"history.seam": "at", "live.select": "value", **more})
    return {**given, "history.select": "value"}


@pytest.mark.parametrize("partitions", [1, 3])
def test_messages_missing_in_the_last_millisecond_are_read(kafka: Broker, tmp_path: Path, partitions: int) -> None:
    topic = kafka.topic("seam", partitions=partitions)
    kafka.send(topic, ["a", "b"], timestamp=NOON)
    kafka.send(topic, ["c", "d", "e", "f"], timestamp=NOON + 1)
    kafka.send(topic, ["g"], partition=partitions - 1, timestamp=NOON + 2)
    trace = drive(Hybrid, by_time(kafka, topic, tmp_path, [0, 0, 1, None, 1]), rng=random.Random(1), crash=0.3)
    assert sorted(trace.all_rows()["value"].to_pylist()) == [b"e", b"f", b"g"] + [b"old"] * 5


def test_a_cutover_by_time_that_cannot_be_told_is_refused(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic("seam", partitions=2)
    for partition in range(2):
        kafka.send(topic, ["a", "b"], partition, timestamp=NOON)
    with pytest.raises(DataError, match=r"ended with 3 rows of 2024-05-01T12:00:00\.000.* 4 messages in 2 partitions"):
        drive(Hybrid, by_time(kafka, topic, tmp_path, [0, 0, 0]), rng=random.Random(1))
    trace = drive(Hybrid, by_time(kafka, topic, tmp_path / "whole", [0, 0, 0, 0]), rng=random.Random(1))
    assert trace.all_rows().num_rows == 4, "each of them is in the history"


A, B = ("t", 0), ("t", 1)


@pytest.mark.parametrize(
    ("there", "rows", "then"),
    [
        ({}, 3, {}), ({A: [5, 7], B: [1]}, 3, {}), ({A: [5, 7, 8]}, 1, {A: 7}),
        ({A: [5, 7], B: [1]}, 2, "3 messages in 2 partitions"),
        ({A: [5]}, 2, "ended with 2 rows .* 1 messages in 1 partitions"),
    ],
)  # fmt: skip
def test_what_is_left_of_the_last_millisecond(
    there: dict[TopicPartition, list[int]], rows: int, then: dict[TopicPartition, int] | str
) -> None:
    cutover = Cutover(time=NOON * 1000 + 999, rows=rows)
    if isinstance(then, dict):
        assert rest(there, cutover, "who") == then
    if then:
        with pytest.raises(DataError, match=then if isinstance(then, str) else "3 messages in 1 partitions"):
            rest(there, replace(cutover, uncounted=True), "who")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1970-01-01T00:00:00.0004", 1), ("1970-01-01T00:00:00.001", 1), ("2024-05-01T12:00:00.123", NOON + 123),
        ("1969-12-31T23:59:59.9985", -1), (f"{NOON}", NOON),
    ],
)  # fmt: skip
def test_a_time_within_a_millisecond_begins_after_it(text: str, found: int) -> None:
    assert milliseconds(text) == found


def test_a_time_before_1970_is_the_beginning(kafka: Broker) -> None:
    """To the brokers -1 is the end of a partition, and other negative numbers are further questions."""
    topic = kafka.topic("early")
    kafka.send(topic, ["a"])
    for time in ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.997Z", "1900-01-01"):
        made = KafkaRange(
            {"uid": "in", "bootstrap_servers": kafka.bootstrap, "topics": topic, "starting_timestamp": time}
        )
        made.resume((), frozenset())
        assert [one.begin for one in made.discover()] == [0]


def test_only_topics_that_are_still_read_are_expected() -> None:
    given = {"uid": "in", "bootstrap_servers": "127.0.0.1:1"}
    for options in ({"topics": "b,c"}, {"pattern": "[bc]"}):
        made = KafkaRange({**given, **options})
        made.expect({"a": "1", "b": "2"})
        made.resume((), frozenset())
        assert made._brokers.ids == {"b": "2"}
