"""What a reader finds in a topic, however long the broker was away; and on its disk, of transactions."""

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.support.waiting import until

ONGOING: Final = 1
DECIDED: Final = frozenset({2, 3})  # to be committed or aborted, and the end is not in all partitions yet
COMMITTED: Final = 4
ABORTED: Final = 5
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_UNCOUNTED: Final = 12  # bytes before those that a batch's length counts
_STATE: Final = struct.Struct(">hqhib")  # version, producer id, its epoch, time-out, state: of `__transaction_state`


def states(data: Path) -> dict[str, int]:
    """The last state of each transactional id in a broker's `log.dirs`."""
    found: dict[str, int] = {}
    for log in sorted(data.glob("__transaction_state-*/*.log")):
        for key, value in _records(log.read_bytes()):
            if value is not None:
                found[key[4:].decode()] = _STATE.unpack_from(value)[-1]
    return found


def settled(data: Path) -> bool:
    """Whether the end of each decided transaction is in all of its partitions, so that readers see it.

    Kafka answers a commit when it is decided, which is before that.
    """
    return DECIDED.isdisjoint(states(data).values())


def _records(raw: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of all records, in order; batches are not compressed."""
    at = 0
    while at + _BATCH.size <= len(raw):
        length, count = struct.unpack_from(">i", raw, at + 8)[0], _BATCH.unpack_from(raw, at)[-1]
        if length <= 0 or at + _UNCOUNTED + length > len(raw):
            return  # the empty rest of the file, or a batch that was not written to its end
        place = at + _BATCH.size
        for _ in range(count):
            size, place = _varint(raw, place)
            end, place = place + size, place + 1
            for _ in range(2):  # the differences to the batch's time and offset
                _, place = _varint(raw, place)
            key, place = _bytes(raw, place)
            value, place = _bytes(raw, place)
            yield key or b"", value
            place = end
        at += _UNCOUNTED + length


def _bytes(raw: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(raw, at)
    return (None, at) if length < 0 else (raw[at : at + length], at + length)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = raw[at]
        found, shift, at = found | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at


ANSWER_S: Final = 10.0  # how long a request waits for its answer, before another client makes it
# Of clients that live for a request or two: half of it passes before their second connection.
QUICK: Final[dict[str, str | int | float]] = {"reconnect.backoff.ms": 20}
# Errors of requests that another client repeats.
NO_ANSWER: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT"})


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
