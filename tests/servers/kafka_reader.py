"""What a reader finds in a topic, however long the broker was away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.servers.kafka_log import settled
from tests.support.waiting import until

ANSWER_S: Final = 10.0  # how long a request waits for its answer, before another client makes it
QUICK: Final[dict[str, str | int | float]] = {"reconnect.backoff.ms": 20}
"""Of clients that live for a request or two: half of it passes before their second connection."""

NO_ANSWER: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT"})
"""Errors of requests that another client repeats."""


def messages(bootstrap: str, data: Path, topic: str, isolation: str = "read_committed") -> list[Message]:
    """All messages of a topic as a reader sees them, partition by partition; with all transactions decided by now."""
    until(lambda: settled(data), "the ends of transactions to be written to their partitions")
    (found,) = until(lambda: _read(bootstrap, topic, isolation), f"the ends of all partitions of {topic}")
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def _read(bootstrap: str, topic: str, isolation: str) -> tuple[list[Message]] | None:
    """None: a partition's end was not reached in time. The next attempt has another client: see `Broker.admin`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "test-reader", "enable.auto.commit": False,
            "enable.partition.eof": True, "isolation.level": isolation, "fetch.wait.max.ms": 10, "log_level": 0,
            **QUICK,
        }
    )  # fmt: skip
    found: list[Message] = []
    with consumer:
        try:
            partitions = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
        except KafkaException as problem:
            if problem.args[0].name() not in NO_ANSWER:
                raise
            return None
        left = len(partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        limit = time.monotonic() + ANSWER_S
        while left and time.monotonic() < limit:
            for message in consumer.consume(10_000, 0.02):
                limit = time.monotonic() + ANSWER_S
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.name() == "_PARTITION_EOF", error
                    left -= 1
    return None if left else (found,)
