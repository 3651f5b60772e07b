"""What `kafka_2pc` refuses, and what Kafka refuses of it, without Spark."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import OffsetSpec

from spark_ext import failpoints
from spark_ext.clients.kafka import offsets
from spark_ext.errors import CommitError, ConfigurationError, DataError, SparkExtError, TransientError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import CommitOutcome
from tests.servers.kafka import Broker
from tests.servers.kafka_reader import ANSWER_S
from tests.sinks.kafka_2pc.kafka_hand import VALUE, Sink, values
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("value bigint", "column 'value' has the type bigint, it must be string or binary"),
        ("value string, id bigint", "column 'id' has the type bigint, and is not a column of a message"),
        ("key string", "column 'value' does not exist"),
        ("value string, headers array<string>", "array<struct<key: string, value: binary>>"),
        ("value string, partition bigint", "column 'partition' has the type bigint, it must be int"),
    ],
)
def test_rows_that_are_no_messages_are_refused(kafka: Broker, tmp_path: Path, schema: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Sink(kafka, tmp_path, topic="t").sink().validate(columns(schema))


def test_without_a_topic_the_rows_have_to_say_it(kafka: Broker, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="column 'topic' does not exist, and the option 'topic' is not set"):
        Sink(kafka, tmp_path).sink().validate(VALUE)
    sink = Sink(kafka, tmp_path, columns("topic string, value string"))
    with pytest.raises(DataError, match="its column 'topic' is null"):
        sink.write(0, [{"topic": None, "value": "a"}])


def test_a_topic_or_partition_that_is_not_there_is_refused(kafka: Broker, tmp_path: Path) -> None:
    """The one of the option before the query starts, those of rows before a transaction begins."""
    with pytest.raises(ConfigurationError, match="'nowhere' cannot be written"):
        Sink(kafka, tmp_path, topic="nowhere").sink().validate(VALUE)
    topic = kafka.topic(partitions=2)
    sink = Sink(kafka, tmp_path, columns("topic string, partition int, value string"), transactional_id=topic)
    good = {"topic": topic, "partition": 1, "value": "a"}
    with pytest.raises(ConfigurationError, match="the topic 'nowhere' does not exist"):
        sink.commit(0, sink.write(0, [good, {**good, "topic": "nowhere"}]))
    with pytest.raises(ConfigurationError, match="has 2 partitions, and a row is for partition 2"):
        sink.commit(0, sink.write(0, [good, {**good, "partition": 2}]))
    assert values(kafka, topic) == []
    kafka.grow(topic, 3)
    sink.commit(0, sink.write(0, [good, {**good, "partition": 2, "value": "b"}]))
    assert sorted(values(kafka, topic)) == ["a", "b"]


def test_a_message_that_is_too_large_is_refused_in_the_task(kafka: Broker, tmp_path: Path) -> None:
    sink = Sink(kafka, tmp_path, topic=kafka.topic(), max_message_bytes="1k")
    with pytest.raises(DataError, match="a message has 1025 bytes, more than the 1024"):
        sink.run(0, "a", "x" * 1025)


def test_a_message_that_the_topic_refuses_ends_the_transaction(kafka: Broker, tmp_path: Path) -> None:
    """The error is the cause, not that the rest was discarded; the topic is left readable, and takes the next epoch."""
    topic = kafka.topic(max_message_bytes=2000)
    sink = Sink(kafka, tmp_path, topic=topic)
    with pytest.raises(DataError, match="MSG_SIZE_TOO_LARGE"):
        sink.run(0, "a", "x" * 5000, *("b" * 50))
    assert values(kafka, topic) == []
    sink.run(0, "a")
    assert values(kafka, topic) == ["a"]


def test_a_transaction_that_takes_longer_than_its_timeout(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held before its commit until the broker has ended it: reported with the option to raise, and repeated exactly."""
    topic, gate = kafka.topic(), tmp_path / "gate"
    sink = Sink(kafka, tmp_path, topic=topic, transaction_timeout="1 s")
    prepared = sink.write(0, [{"value": "a"}])
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, f"kafka.before_commit=wait:{gate}")

    def end() -> int:
        latest = {(topic, 0): OffsetSpec.latest()}
        return kafka.asked(lambda client: offsets(client, latest, ANSWER_S, committed=False))[(topic, 0)]

    with ThreadPoolExecutor(1) as held:
        late = held.submit(sink.commit, 0, prepared)
        try:
            until(lambda: end() == 2, "the message, and the marker that takes it back")
        finally:
            gate.touch()
        with pytest.raises(TransientError, match="longer than the option 'transaction_timeout' of 1000 ms") as caught:
            late.result()
    assert "raise transaction_timeout" in caught.value.do
    assert values(kafka, topic) == []
    assert Sink(kafka, tmp_path, topic=topic).commit(0, prepared) is CommitOutcome.COMMITTED
    assert values(kafka, topic) == ["a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"client_options": '{"transactional.id": "x"}'}, "'transactional.id' is set by the connector"),
        ({"client_options": "compression=lz4"}, "this is not a JSON object"),
        ({"client_options": '{"sasl.password": "${NO_SUCH}"}'}, "the environment variable NO_SUCH, which is not set"),
        ({"client_options": '{"no.such.setting": "1"}'}, "No such configuration property"),
        ({"transaction_timeout": "20 min"}, "INVALID_TRANSACTION_TIMEOUT"),
    ],
)
def test_settings_that_cannot_be_are_refused(kafka: Broker, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SparkExtError, match=said) as caught:
        Sink(kafka, tmp_path, topic=kafka.topic(), **options).run(0, "a")
    assert not isinstance(caught.value, CommitError | TransientError), "repeating it would not help"


def test_no_secret_is_shown(kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is given nor one from the environment."""
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret-2")
    given = '{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": "me", %s}'
    for secret in ('"sasl.password": "s3cret-1"', '"sasl.password": "${KAFKA_PASSWORD}"'):
        sink = Sink(kafka, tmp_path, topic="t", client_options=given % secret, request_timeout="1 s")
        with pytest.raises(SparkExtError) as caught:
            sink.sink().validate(VALUE)
        shown = f"{caught.value} {sink.sink().options!r} {sink.sink().options.public()}"
        assert "s3cret" not in shown
