"""Options of `kafka_range` with a real broker: decoded values, tasks, internal topics, times without a message."""

import random
from decimal import Decimal
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.model.offsets import Range
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel
from spark_ext.sources.kafka_range.source import KafkaRange
from spark_ext.sources.runtime.reader import assign
from spark_ext.testing.source_kit import SourceRun, drive
from tests.servers.kafka import Broker
from tests.servers.schema_registry import SchemaRegistry
from tests.sources.kafka_range.kafka_kit import begun, run_of, source, to_rest
from tests.sources.kafka_range.test_decoding import NOON, ORDER_1, ORDER_2, framed


def channels(made: KafkaRange) -> set[str]:
    return {id.rpartition("-")[0] for id in begun(made)}


def orders(kafka: Broker, registry: SchemaRegistry) -> tuple[str, list[dict[str, Any]]]:
    """A topic of records of two versions, bad ones and tombstones between them; and what the second version says."""
    topic = kafka.topic("orders", partitions=2)
    first = registry.register(f"{topic}-value", ORDER_1)
    second = registry.register(f"{topic}-value", ORDER_2)
    wanted: list[dict[str, Any]] = []
    for partition in range(2):
        contents: list[bytes | None] = []
        for n in range(20):
            id = partition * 100 + n
            if n % 7 == 3:
                contents.append(b"bad" if partition else b"\0\0\0\x7f\xff")
            elif n % 7 == 5:
                contents.append(None)
                wanted.append({"partition": partition, "offset": n, "value": None})
            elif n < 10:
                contents.append(framed(first, ORDER_1, {"id": id, "amount": Decimal(n), "at": NOON}))
                row = {"id": id, "at": NOON, "note": None, "state": "new"}
                wanted.append({"partition": partition, "offset": n, "value": row})
            else:
                row = {"id": id, "at": NOON, "note": f"note {n}", "state": "sent"}
                contents.append(framed(second, ORDER_2, row))
                wanted.append({"partition": partition, "offset": n, "value": row})
        kafka.send(topic, contents, partition=partition)
    return topic, wanted


@pytest.mark.parametrize("seed", [1, 2])
def test_histories_give_each_good_and_each_bad_record_once(kafka: Broker, registry: SchemaRegistry, seed: int) -> None:
    """Epochs of random sizes, replays, restarts, tasks that read parts; the kit compares second reads."""
    topic, wanted = orders(kafka, registry)
    options = {"value_format": "avro", "value_version": "2", "on_bad_row": "quarantine", "min_partitions": "5"}
    make = lambda more: source(kafka, topic, schema_registry_url=registry.url, **options, **more)  # noqa: E731
    limits = [{"max_rows_per_epoch": str(rows)} for rows in (3, 7)]
    trace = drive(make, {}, rng=random.Random(seed), limits=limits)
    found = trace.all_rows().select(["partition", "offset", "value"]).to_pylist()
    assert sorted(found, key=lambda row: (row["partition"], row["offset"])) == wanted
    places = [one.position for rows in trace.bad_rows.values() for one in rows]
    bad = sorted((place["partition"], place["offset"]) for place in places)
    assert bad == [(partition, n) for partition in range(2) for n in (3, 10, 17)]


def test_histories_of_json_with_fields(kafka: Broker) -> None:
    """Keys and values; a tombstone is null, and a bad key or value is a bad row of its offset."""
    topic = kafka.topic(partitions=1)
    kinds = ['{"id": %d, "more": []}', '{"id": "%d"}', None, '{"id": %d, "id": 1}', "{}", '{"id": %d']
    kafka.send(topic, [kind and kind.replace("%d", str(n)) for n, kind in enumerate(kinds * 5)], key='{"k": 7}')
    kafka.send(topic, ["{}"], key="no key")
    fields = columns("key struct<k: int>, offset bigint, value struct<id: bigint NOT NULL>")
    options = {"value_format": "json", "key_format": "json", "on_bad_row": "quarantine", "min_partitions": "3"}
    make = lambda more: source(kafka, topic, **options, **more)  # noqa: E731
    limits = [{"max_rows_per_epoch": str(rows)} for rows in (3, 7)]
    trace = drive(make, {}, rng=random.Random(1), limits=limits, schema=fields)
    found = sorted(trace.all_rows().to_pylist(), key=lambda row: row["offset"])
    wanted = {n: None if n % 6 else {"id": n} for n in range(30) if n % 6 in (0, 2)}
    assert found == [{"key": {"k": 7}, "offset": n, "value": value} for n, value in wanted.items()]
    bad = [one.position["offset"] for rows in trace.bad_rows.values() for one in rows]
    assert sorted(bad) == [n for n in range(31) if n not in wanted]


def test_without_quarantine_a_bad_record_fails_with_its_place(kafka: Broker, registry: SchemaRegistry) -> None:
    topic, _ = orders(kafka, registry)
    options = {"schema_registry_url": registry.url, "value_format": "avro"}
    run = to_rest(run_of(kafka, topic, "offset bigint, topic string", **options))
    assert len(run.trace.all_rows()) == 40, "columns that are not selected are not decoded"
    made = source(kafka, topic, **options)
    made.declared = made.schema()
    channel = begun(made)[f"{topic}-1"]
    with pytest.raises(DataError, match=f"value of the message at offset 3 of partition 1 of topic '{topic}' is bad"):
        list(made.read(channel, 0, 20))


def test_an_epoch_is_read_by_as_many_tasks_as_wanted(kafka: Broker) -> None:
    """Large partitions by more of them; one task reads a partition without the option."""
    topic = kafka.topic(partitions=2)
    kafka.send(topic, [f"a{n}" for n in range(90)], partition=0)
    kafka.send(topic, [f"b{n}" for n in range(10)], partition=1)
    made = source(kafka, topic, min_partitions="5")
    made.declared = columns("value binary")
    pieces = [Range(id, one.data, 0, 90 if id.endswith("-0") else 10) for id, one in sorted(begun(made).items())]
    tasks: Any = assign(made, pieces, 2)
    sizes = sorted(sum(piece.end - piece.start for piece in task.ranges) for task in tasks)
    assert len(tasks) == 5 and sum(sizes) == 100 and sizes[-1] <= 25
    read = [
        value
        for task in tasks
        for piece in task.ranges
        for batch in made.read(Channel(piece.channel, None, piece.data), piece.start, piece.end)
        for value in batch.column("value").to_pylist()
    ]
    assert sorted(read) == sorted([*(b"a%d" % n for n in range(90)), *(b"b%d" % n for n in range(10))])
    plain: Any = assign(source(kafka, topic), pieces, 8)
    assert len(plain) == 2


def test_topics_that_keep_state_are_matched_on_request_only(kafka: Broker) -> None:
    topic, own = kafka.topic("_schemas"), kafka.topic("__heartbeat")
    for name in ("_schemas", "spark-ext-epochs"):
        if name not in kafka.asked(lambda client: client.list_topics(timeout=9)).topics:
            kafka.make(name)
    found = channels(source(kafka, "", pattern=".*"))
    assert topic in found, "only its beginning is that of a registry's topic"
    assert not {own, "_schemas", "spark-ext-epochs", "__consumer_offsets"} & found
    every = channels(source(kafka, "", pattern=".*", internal_topics="true"))
    assert {own, "_schemas", "spark-ext-epochs", topic} <= every
    assert channels(source(kafka, own)) == {own}, "by its name any topic is read"


def test_a_begun_topic_stays_when_internal_ones_become_unwanted(kafka: Broker) -> None:
    own = kafka.topic("__heartbeat")
    kafka.send(own, ["a", "b"])
    make = lambda more: source(kafka, "", pattern=own, ending="none", **more)  # noqa: E731
    run = SourceRun(make, {"internal_topics": "true"}, limits=[{}], schema=columns("value binary"))
    assert run.epoch()
    kafka.send(own, ["c"])
    run.restart({})
    assert run.epoch()
    assert run.trace.all_rows()["value"].to_pylist() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("by", ["one", "partition"])
def test_a_partition_without_a_message_of_a_time(kafka: Broker, by: str) -> None:
    topic = kafka.topic(partitions=2, retention_ms=-1)
    kafka.send(topic, ["a", "b"], partition=0, timestamp=1_700_000_000_000)
    kafka.send(topic, ["c"], partition=1, timestamp=1_600_000_000_000)
    time = "1700000000000" if by == "one" else f'{{"{topic}": {{"0": 1700000000000, "1": 1700000000000}}}}'

    def begins(**options: str) -> dict[str, Any]:
        return {id: one.begin for id, one in begun(source(kafka, topic, starting_timestamp=time, **options)).items()}

    assert begins() == {f"{topic}-0": 0, f"{topic}-1": 1}
    with pytest.raises(
        ConfigurationError, match=f"partition 1 of topic '{topic}' has no message at or after its start"
    ):
        begins(starting_timestamp_unmatched="refuse")
    kafka.send(topic, ["d"], partition=1, timestamp=1_700_000_000_001)
    assert begins(starting_timestamp_unmatched="refuse") == {f"{topic}-0": 0, f"{topic}-1": 1}
