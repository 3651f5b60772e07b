"""`kafka_range` over topics that change while they are read: grown, shortened, deleted, created anew."""

import time

import pytest

from spark_ext.errors import ConfigurationError, DataError, TerminalError
from spark_ext.testing.source_kit import SourceRun
from tests.servers.kafka import Broker
from tests.sources.kafka_range.kafka_kit import begun, run_of, source

ENDINGS = ["latest", "none"]


def values(found: SourceRun) -> list[bytes]:
    return [row["value"] for row in found.trace.all_rows().to_pylist()]


def anew(kafka: Broker, topic: str, count: int) -> None:
    kafka.delete(topic)
    kafka.make(topic)
    kafka.send(topic, [f"new-{number}" for number in range(count)])


def half_read(kafka: Broker, topic: str, ending: str) -> SourceRun:
    kafka.send(topic, [f"old-{number}" for number in range(20)])
    found = run_of(kafka, topic, ending=ending, discovery_interval="0", max_rows_per_epoch="5")
    while len(values(found)) < 10:
        assert found.epoch()
    return found


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("restart", [True, False], ids=["restart", "same planner"])
def test_a_topic_created_anew_with_more_messages_is_refused(kafka: Broker, ending: str, restart: bool) -> None:
    """Its offsets go as far as those of the old one; only its id is another one."""
    topic = kafka.topic()
    found = half_read(kafka, topic, ending)
    before = values(found)
    anew(kafka, topic, 25)
    if restart:
        found.restart()
    with pytest.raises(DataError, match=f"topic '{topic}' was deleted and created again") as refused:
        for _ in range(3):
            found.epoch()
    assert values(found) == before and "in a new query" in refused.value.do


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_replay_from_a_topic_created_anew_is_refused(kafka: Broker, ending: str) -> None:
    topic = kafka.topic()
    found = half_read(kafka, topic, ending)
    anew(kafka, topic, 25)
    with pytest.raises(DataError, match="was deleted and created again"):
        found.replay()


def test_a_topic_that_is_gone_is_refused_by_what_happened_to_it(kafka: Broker) -> None:
    topic = kafka.topic()
    found = half_read(kafka, topic, "none")
    kafka.delete(topic)
    found.restart()
    with pytest.raises(TerminalError, match=f"topic '{topic}' was deleted"):
        found.epoch()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_topic_that_was_shortened_or_has_grown(kafka: Broker, ending: str) -> None:
    """What was deleted from its beginning is reported; what was added behind it is no change."""
    topic = kafka.topic()
    found = half_read(kafka, topic, ending)
    kafka.send(topic, ["more"] * 5)
    kafka.grow(topic, 2)
    found.restart()
    assert found.epoch()
    kafka.forget(topic, 18)
    found.restart()
    with pytest.raises(DataError, match=r"offsets 1\d to 17 of partition 0 .* retention has deleted them"):
        found.epoch()


def test_a_start_in_the_future_is_refused(kafka: Broker) -> None:
    topic = kafka.topic()
    at = int(time.time() * 1000) + 3_600_000
    kafka.send(topic, ["earlier"])

    def begins(moment: int) -> list[object]:
        made = source(kafka, topic, ending="none", starting_timestamp=str(moment))
        return [channel.begin for channel in begun(made).values()]

    with pytest.raises(ConfigurationError, match="'starting_timestamp' is in the future"):
        begins(at)
    kafka.send(topic, ["ahead"], timestamp=at + 5)
    assert begins(at) == [1]
    assert begins(int(time.time() * 1000) - 1) == [1]
