"""The source `kafka_range` over a real broker; and a topic as the contract kit's world."""

import uuid
from collections.abc import Sequence
from typing import Any, cast

from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql.types import StructType

from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel, ChannelSource, Committed
from spark_ext.sources.kafka_range.source import KafkaRange
from spark_ext.testing.source_contract import SourceWorld
from spark_ext.testing.source_kit import SourceRun
from tests.servers.kafka import Broker


class KafkaWorld(SourceWorld):
    """Four partitions: plain, of transactions with aborted ones between, of one message, and empty."""

    def __init__(self, kafka: Broker, topic: str, **options: str) -> None:
        self.kafka, self.topic = kafka, topic
        self.group = f"group-{uuid.uuid4()}"
        self._more = options

    @staticmethod
    def fill(kafka: Broker) -> str:
        """The topic; it is only read, so tests may share it."""
        topic = kafka.topic("world", partitions=4)
        kafka.send(topic, [f"a{n}" for n in range(17)], partition=0, key="k", headers=[("h", b"1"), ("h", None)])
        for number in range(4):
            values = [f"b{number}-{n}" for n in range(3)]
            kafka.send_in_transaction(topic, values, partition=1, commit=number != 2)
        kafka.send(topic, [None], partition=2)
        return topic

    def source(self, **options: str) -> ChannelSource:
        given = {"uid": "in", "bootstrap_servers": self.kafka.bootstrap, "topics": self.topic, "group": self.group}
        given["client_options"] = '{"client.id": "s3cret-id"}'
        return KafkaRange({**given, **self._more, **options})

    @property
    def secrets(self) -> tuple[str, ...]:
        return ("s3cret-id",)

    def expected(self) -> list[dict[str, Any]]:
        return [as_row(message) for message in self.kafka.messages(self.topic)]

    def misfits(self) -> Sequence[StructType]:
        return [columns("value string"), columns("value binary, nowhere int")]

    def check_acknowledged(self, epoch: Committed) -> None:
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": self.group})
        places = [TopicPartition(self.topic, number) for number in range(4)]
        committed = {f"{one.topic}-{one.partition}": one.offset for one in consumer.committed(places, 30)}
        consumer.close()
        # What an earlier epoch has acknowledged is no longer in the last one.
        assert epoch.positions and epoch.positions.items() <= committed.items()


def source(kafka: Broker, topics: str, **options: str) -> KafkaRange:
    return KafkaRange({"uid": "in", "bootstrap_servers": kafka.bootstrap, "topics": topics, **options})


def begun(made: KafkaRange) -> dict[str, Channel]:
    made.resume([], frozenset())
    return {channel.id: channel for channel in made.discover()}


def run_of(kafka: Broker, topics: str, schema: str = "value binary", **options: str) -> SourceRun:
    make = lambda given: source(kafka, topics, **options, **given)  # noqa: E731
    return SourceRun(make, {}, schema=columns(schema) if schema else None, limits=[{}])


def to_rest(run: SourceRun) -> SourceRun:
    while run.epoch():
        pass
    return run


def as_row(message: Message) -> dict[str, Any]:
    kind, at = message.timestamp()
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return {
        "key": message.key(), "value": message.value(), "topic": message.topic(), "partition": message.partition(),
        "offset": message.offset(), "timestamp": at * 1000, "timestampType": kind - 1,
        "headers": [{"key": key, "value": value} for key, value in headers] or None,
    }  # fmt: skip
