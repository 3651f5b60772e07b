"""`kafka_2pc` beyond the contract kit: columns, topics, what is refused, and a broker that dies, without Spark."""

import datetime
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import OffsetSpec

from spark_ext import failpoints
from spark_ext.clients.kafka import offsets
from spark_ext.errors import (
    CommitError,
    ConfigurationError,
    DataError,
    FencedError,
    PreparedLostError,
    SparkExtError,
    StateError,
    StorageError,
    TransientError,
)
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, Task
from spark_ext.sinks.kafka_2pc import producer
from spark_ext.sinks.kafka_2pc.epochs import PARTITIONS, EpochRecord
from tests.servers.kafka import Broker
from tests.servers.kafka_reader import ANSWER_S
from tests.sinks.kafka_2pc.kafka_kit import QUERY, VALUE, Sink, values
from tests.support.waiting import until

EVERY_COLUMN = columns(
    "key string, value binary, headers array<struct<key string, value binary>>, topic string, partition int, "
    "timestamp timestamp"
)


def test_every_column_arrives_as_it_was_given(kafka: Broker, tmp_path: Path) -> None:
    one, two = kafka.topic("one", partitions=3), kafka.topic("two")
    at = datetime.datetime(2024, 1, 31, 12, 0, 0, 5000, datetime.timezone.utc)
    rows: list[dict[str, Any]] = [
        {"key": "k", "value": b"\x00v", "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]},
        {"key": None, "value": None, "partition": None},
        {"key": "", "value": b"", "timestamp": at, "partition": 2},
    ]
    sink = Sink(kafka, tmp_path, EVERY_COLUMN, transactional_id=one)
    sink.commit(0, sink.write(0, [{"topic": one, **row} for row in rows] + [{"topic": two, "value": b"other"}]))
    found = {message.value(): message for message in kafka.messages(one)}
    assert len(found) == 3
    first = found[b"\x00v"]
    assert (first.key(), first.headers()) == (b"k", [("h", b"1"), ("h", None)])
    assert (found[None].key(), found[None].headers()) == (None, None)
    last = found[b""]
    assert (last.key(), last.partition(), last.timestamp()[1]) == (b"", 2, round(at.timestamp() * 1000))
    assert values(kafka, two) == ["other"]


def test_the_option_topic_wins_over_the_column(kafka: Broker, tmp_path: Path) -> None:
    topic, other = kafka.topic(), kafka.topic()
    sink = Sink(kafka, tmp_path, columns("topic string, value string"), topic=topic)
    sink.commit(0, sink.write(0, [{"topic": other, "value": "a"}, {"topic": None, "value": "b"}]))
    assert sorted(values(kafka, topic)) == ["a", "b"]
    assert values(kafka, other) == []


def test_a_key_goes_to_the_partition_that_java_clients_choose(kafka: Broker, tmp_path: Path) -> None:
    """Murmur2 of the key, modulo the partitions, so that a topic may be written by this sink and by others."""
    topic = kafka.topic(partitions=8)
    sink = Sink(kafka, tmp_path, columns("key string, value string"), topic=topic)
    sink.commit(0, sink.write(0, [{"key": f"key-{number}", "value": "v"} for number in range(40)]))
    of_java = "1063104335610503141673544237714324246530"  # key-0, key-1, ...
    found = {message.key(): str(message.partition()) for message in kafka.messages(topic)}
    assert "".join(found[f"key-{number}".encode()] for number in range(40)) == of_java


@pytest.mark.parametrize("queue", [100_000, 100])
def test_a_tasks_rows_stay_in_order_within_a_partition(kafka: Broker, tmp_path: Path, queue: int) -> None:
    topic = kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic, client_options=json.dumps({"queue.buffering.max.messages": queue}))
    wanted = [f"{epoch}-{number}" for epoch in range(3) for number in range(3000)]
    for epoch in range(3):
        sink.run(epoch, *wanted[epoch * 3000 : epoch * 3000 + 3000])
    assert values(kafka, topic) == wanted


def test_an_epoch_goes_into_many_topics_in_one_step(kafka: Broker, tmp_path: Path, monkeypatch: Any) -> None:
    topics = [kafka.topic() for _ in range(3)]
    sink = Sink(kafka, tmp_path, columns("topic string, value string"), transactional_id=topics[0])
    rows = [{"topic": topic, "value": "a"} for topic in topics]
    monkeypatch.setenv(failpoints.VARIABLE, "kafka.before_commit=raise")
    prepared = sink.write(0, rows)
    with pytest.raises(OSError, match="fail point"):
        sink.commit(0, prepared)
    assert [values(kafka, topic) for topic in topics] == [[], [], []]
    assert sink.commit(0, prepared) is CommitOutcome.COMMITTED
    assert [values(kafka, topic) for topic in topics] == [["a"], ["a"], ["a"]]


def test_a_producer_that_took_the_transactional_id_is_found_out(kafka: Broker, tmp_path: Path) -> None:
    """A stranger under the same id is no newer incarnation: the next attempt takes the id back, and commits once."""
    topic = kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic)
    sink.run(0, "a")
    stranger = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"spark-ext.{topic}.out", "log_level": 0}
    )
    stranger.init_transactions(60)
    prepared = sink.write(1, [{"value": "b"}])
    with pytest.raises(TransientError, match="was taken by another producer"):
        sink.commit(1, prepared)
    assert sink.commit(1, prepared) is CommitOutcome.COMMITTED
    assert values(kafka, topic) == ["a", "b"]


def test_processes_that_commit_by_turns_do_not_refuse_each_other(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives the epochs of a query to any process that commits for its session; each keeps its producer."""
    topic = kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic)
    kept: list[dict[Any, Any]] = [{}, {}]
    for number in range(4):
        monkeypatch.setattr(producer, "_open", kept[number % 2])
        sink.run(number, str(number))
    assert values(kafka, topic) == ["0", "1", "2", "3"]


def test_outside_a_job_nothing_commits_once_a_job_has_claimed_it(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()
    plain, job = Sink(kafka, tmp_path, topic=topic), Sink(kafka, tmp_path, topic=topic, incarnation=1)
    plain.run(0, "a")
    job.claim()
    with pytest.raises(FencedError, match="incarnation 1 of job 'job'"):
        plain.run(1, "b")
    job.run(1, "b")
    assert values(kafka, topic) == ["a", "b"]


def test_a_broker_is_reported_when_down_and_used_when_back(kafka: Broker, tmp_path: Path) -> None:
    topic, other = kafka.topic(), kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic, request_timeout="2 s")
    unaware = Sink(kafka, tmp_path, topic=other, client_options=json.dumps({"reconnect.backoff.max.ms": 500}))
    sink.run(0, "a")
    unaware.run(5, "five")
    prepared = sink.write(1, [{"value": "b"}])
    kafka.crash()
    with pytest.raises(StorageError) as caught:
        sink.commit(1, prepared)
    assert "the operation will be retried" in caught.value.do
    kafka.start()
    assert Sink(kafka, tmp_path, topic=topic).commit(1, prepared) is CommitOutcome.COMMITTED
    assert values(kafka, topic) == ["a", "b"]
    assert unaware.run(4, "four") is CommitOutcome.ALREADY_COMMITTED
    assert unaware.run(6, "six") is CommitOutcome.COMMITTED
    assert values(kafka, other) == ["five", "six"]


def test_a_missing_staged_file_says_the_folder_is_not_shared(kafka: Broker, tmp_path: Path) -> None:
    sink = Sink(kafka, tmp_path, topic=kafka.topic())
    prepared = sink.write(0, [{"value": "a"}])
    Path(prepared.path).unlink()
    with pytest.raises(ConfigurationError, match="does not exist on") as caught:
        sink.commit(0, replace(prepared, host="another"))
    assert "'staging'" in caught.value.do
    with pytest.raises(PreparedLostError, match="is missing"):
        sink.commit(0, prepared)
    assert sink.run(0, "a") is CommitOutcome.COMMITTED


def test_a_staged_file_that_is_not_whole_is_noticed(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic)
    sink.run(0, "a")
    batches = [pa.RecordBatch.from_pydict({"value": [f"{n}-{row}" for row in range(5)]}) for n in range(3)]
    prepared = sink.sink().write(VALUE, iter(batches), Task("out", QUERY, 1, 0, 0, 0, 0))
    assert prepared is not None
    path = Path(prepared.path)
    whole = path.read_bytes()
    path.write_bytes(whole[: _two_batches(whole)])
    with pytest.raises(PreparedLostError, match="has 10 of 15 messages"):
        sink.commit(1, prepared)
    path.write_bytes(b"nothing that Arrow knows")
    with pytest.raises(PreparedLostError, match="cannot be read"):
        sink.commit(1, prepared)
    assert values(kafka, topic) == ["a"]
    path.write_bytes(whole)
    assert sink.commit(1, prepared) is CommitOutcome.COMMITTED
    assert len(values(kafka, topic)) == 16


def _two_batches(stream: bytes) -> int:
    with pa.ipc.open_stream(stream) as reader:
        schema = reader.schema
        first = [reader.read_next_batch() for _ in range(2)]
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)
    for batch in first:
        writer.write_batch(batch)
    return int(sink.tell())


def test_without_a_folder_to_stage_in_the_sink_says_so(kafka: Broker, tmp_path: Path) -> None:
    sink = Sink(kafka, tmp_path, topic="t")
    del sink.given["staging"]
    with pytest.raises(ConfigurationError, match="tasks have no folder in which to stage"):
        sink.write(0, [{"value": "a"}])
    sink.given["checkpointLocation"] = str(tmp_path / "checkpoint")
    assert sink.write(0, [{"value": "a"}]).path.startswith(str(tmp_path / "checkpoint" / "staging"))


def test_a_topic_of_epochs_that_would_forget_is_refused(kafka: Broker, tmp_path: Path) -> None:
    forgetful = kafka.topic("epochs", partitions=PARTITIONS)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy=delete, so it would lose"):
        Sink(kafka, tmp_path, topic=kafka.topic(), epochs_topic=forgetful, incarnation=1).claim()
    small = kafka.topic("epochs", partitions=1, cleanup_policy="compact")
    with pytest.raises(ConfigurationError, match=f"has 1 partitions instead of {PARTITIONS}"):
        Sink(kafka, tmp_path, topic=kafka.topic(), epochs_topic=small, incarnation=1).claim()


def test_the_last_record_is_found_behind_many_of_others(kafka: Broker, tmp_path: Path) -> None:
    topic, epochs = kafka.topic(), kafka.topic("epochs", partitions=PARTITIONS, cleanup_policy="compact")
    sink = Sink(kafka, tmp_path, topic=topic, epochs_topic=epochs)
    sink.run(3, "a")
    (record,) = kafka.messages(epochs)
    partition = record.partition()
    assert partition is not None
    kafka.send(epochs, [EpochRecord().to_bytes()] * 700, partition=partition, key="another")
    assert sink.sink()._epochs.latest() == EpochRecord(epochs={f"spark_ext:out:0:{QUERY}": 3})


def test_a_record_of_a_newer_release_is_refused(kafka: Broker, tmp_path: Path) -> None:
    topic, epochs = kafka.topic(), kafka.topic("epochs", partitions=PARTITIONS, cleanup_policy="compact")
    sink = Sink(kafka, tmp_path, topic=topic, epochs_topic=epochs)
    held = sink.sink()._epochs
    kafka.send(epochs, [json.dumps({"version": 2})], partition=held.partition, key=held.key)
    with pytest.raises(ConfigurationError, match="a record that this release does not support"):
        sink.run(0, "a")


def test_a_record_keeps_the_last_queries_and_not_all() -> None:
    record = EpochRecord()
    for number in range(250):
        record = record.with_epoch(Epoch("out", 0, f"query-{number}", number, 0))
    assert len(record.epochs) == 100
    assert record.holds(Epoch("out", 0, "query-249", 249, 0)) and record.holds(Epoch("out", 0, "query-150", 150, 0))
    assert not record.holds(Epoch("out", 0, "query-149", 149, 0))
    assert EpochRecord.from_bytes(record.to_bytes(), "") == record


ROWS = columns("topic string, value string")
COMMITTED = CommitOutcome.COMMITTED


def run(sink: Sink, epoch: int, *topics: str) -> CommitOutcome:
    return sink.commit(epoch, sink.write(epoch, [{"topic": topic, "value": f"{epoch}"} for topic in topics]))


def test_a_claim_keeps_the_topics_of_its_own_lineage_only() -> None:
    record = EpochRecord(epochs={"spark_ext:out:0:q": 7}, topics={"a": "1"})
    assert record.claimed(Claim("out", "j", "i", 2, 0), {"b": "2"}).topics == {"a": "1", "b": "2"}
    assert record.claimed(Claim("out", "j", "i", 2, 1), {"b": "2"}).topics == {"b": "2"}
    assert record.claimed(Claim("out", "j", "i", 2, 1), {}).epochs == record.epochs


def test_after_a_reset_a_topic_that_was_made_anew_is_written(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()
    first = Sink(kafka, tmp_path, ROWS, 1, start=11, transactional_id=topic).claim()
    run(first, 0, topic)
    kafka.delete(topic)
    kafka.make(topic)
    with pytest.raises(StateError, match="created again"):
        run(first, 1, topic)
    reset = Sink(kafka, tmp_path, ROWS, 2, start=12, lineage=1, transactional_id=topic).claim()
    assert run(reset, 0, topic) is COMMITTED
    assert values(kafka, topic) == ["0"]
    kafka.delete(topic)
    with pytest.raises(StateError, match="deleted"):
        run(reset, 1, topic)


def test_a_topic_that_is_no_longer_written_to_may_be_deleted(kafka: Broker, tmp_path: Path) -> None:
    old, topic = kafka.topic("old"), kafka.topic()
    sink = Sink(kafka, tmp_path, ROWS, 1, start=11, transactional_id=topic).claim()
    run(sink, 0, old, topic)
    kafka.delete(old)
    assert run(sink, 1, topic) is COMMITTED
    sink.check(2, previous=1)
    with pytest.raises(StateError, match=f"the topic '{old}' was deleted"):
        run(sink, 3, old, topic)
    assert run(sink, 3, topic) is COMMITTED
    # The same sink, now with the option: nothing but its topic is compared.
    fixed = Sink(kafka, tmp_path, ROWS, 2, start=12, transactional_id=topic, topic=topic)
    fixed.claim(previous=3)
    fixed.check(4, previous=3)
    kafka.delete(topic)
    with pytest.raises(StateError, match=f"the topic '{topic}' was deleted"):
        fixed.check(4, previous=3)


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
    sink = Sink(kafka, tmp_path, ROWS)
    with pytest.raises(DataError, match="its column 'topic' is null"):
        sink.write(0, [{"topic": None, "value": "a"}])


def test_a_topic_or_partition_that_is_not_there_is_refused(kafka: Broker, tmp_path: Path) -> None:
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
    topic = kafka.topic(max_message_bytes=2000)
    sink = Sink(kafka, tmp_path, topic=topic)
    with pytest.raises(DataError, match="MSG_SIZE_TOO_LARGE"):
        sink.run(0, "a", "x" * 5000, *("b" * 50))
    assert values(kafka, topic) == []
    sink.run(0, "a")
    assert values(kafka, topic) == ["a"]


def test_a_transaction_longer_than_its_timeout(kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, gate = kafka.topic(), tmp_path / "gate"
    sink = Sink(kafka, tmp_path, topic=topic, transaction_timeout="1 s")
    prepared = sink.write(0, [{"value": "a"}])
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
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret-2")
    given = '{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": "me", %s}'
    for secret in ('"sasl.password": "s3cret-1"', '"sasl.password": "${KAFKA_PASSWORD}"'):
        sink = Sink(kafka, tmp_path, topic="t", client_options=given % secret, request_timeout="1 s")
        with pytest.raises(SparkExtError) as caught:
            sink.sink().validate(VALUE)
        assert "s3cret" not in f"{caught.value} {sink.sink().options!r} {sink.sink().options.public()}"
