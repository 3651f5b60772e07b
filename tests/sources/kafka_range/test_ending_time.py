"""`kafka_range` up to a time that is still to come, on a real broker."""

from __future__ import annotations

import time

from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.kafka_range.source import KafkaRange
from tests.servers.kafka import Broker
from tests.support.waiting import until


def source(kafka: Broker, topic: str, at: int, grace: str) -> KafkaRange:
    """Up to a time, ms."""
    given = {"bootstrap_servers": kafka.bootstrap, "topics": topic, "ending_time": str(at), "ending_grace": grace}
    return KafkaRange({"uid": "in", **given})


def begun(made: KafkaRange) -> list[Channel]:
    """Its channels, as a planner would ask for them."""
    made.resume([], frozenset())
    return list(made.discover())


def test_it_waits_for_the_first_message_of_that_time(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    at = int(time.time() * 1000) + 60_000
    made = source(kafka, topic, at, "1 h")
    first, second = begun(made)
    assert made.bounded and first.data[2] is None
    kafka.send(topic, ["a", "b"], timestamp=at - 2)
    until(lambda: made.advance(first, 0, Limit()).end == 2, "both messages are seen")
    assert not made.advance(first, 2, Limit()).finished, "older ones may come"
    kafka.send(topic, ["c"], timestamp=at - 1)
    kafka.send(topic, ["d", "e"], timestamp=at)
    until(lambda: made.advance(first, 2, Limit()).finished, "the end is seen")
    assert made.advance(first, 2, Limit()).end == 3, "the message at that time is not read"
    assert made.advance(Channel(first.id, None, first.data), 0, Limit(rows=2)).end == 2
    assert not made.advance(second, 0, Limit()).finished
    again = source(kafka, topic, at, "1 h")
    again.resume([Channel(first.id, None, first.data), Channel(second.id, None, second.data)], frozenset())
    assert list(again.discover()) == []
    assert again.advance(first, 2, Limit()).end == 3, "another planner finds the same end"


def test_messages_of_that_time_that_are_there_before_it_end_it(kafka: Broker) -> None:
    """A producer whose clock is ahead."""
    topic = kafka.topic()
    at = int(time.time() * 1000) + 3_600_000
    kafka.send(topic, ["a"], timestamp=at - 1)
    kafka.send(topic, ["b"], timestamp=at + 5)
    made = source(kafka, topic, at, "0")
    (channel,) = begun(made)
    step = made.advance(channel, 0, Limit())
    assert (step.end, step.finished) == (1, True)


def test_partitions_without_such_a_message_end_after_the_grace(kafka: Broker) -> None:
    """One that is empty, and one with earlier messages."""
    topic = kafka.topic(partitions=2)
    at = int(time.time() * 1000) + 5_000
    made = source(kafka, topic, at, "200 ms")
    channels = sorted(begun(made), key=lambda channel: channel.id)

    def finished() -> list[bool]:
        return [made.advance(channel, 0, Limit()).finished for channel in channels]

    assert finished() == [False, False]
    kafka.send(topic, ["0", "1", "2"], partition=1, timestamp=at - 1)
    until(lambda: any(finished()), "time and grace have passed")
    assert time.time() * 1000 >= at + 200
    assert finished() == [True, True]
    assert [made.advance(channel, 0, Limit()).end for channel in channels] == [0, 3]


def test_a_time_that_has_just_passed_is_waited_for_as_well(kafka: Broker) -> None:
    """A source that begins late, such as the last stage of a hybrid one: what is on its way belongs to it."""
    topic = kafka.topic()
    at = int(time.time() * 1000) - 1_000
    kafka.send(topic, ["a"], timestamp=at - 1)
    made = source(kafka, topic, at, "1 h")
    (channel,) = begun(made)
    until(lambda: made.advance(channel, 0, Limit()).end == 1, "the message is seen")
    assert not made.advance(channel, 1, Limit()).finished
    kafka.send(topic, ["late"], timestamp=at - 1)
    kafka.send(topic, ["behind"], timestamp=at)
    until(lambda: made.advance(channel, 1, Limit()).finished, "the end is seen")
    assert made.advance(channel, 1, Limit()).end == 2
    (ended,) = begun(source(kafka, topic, at, "0"))
    assert ended.data[2] == 2
