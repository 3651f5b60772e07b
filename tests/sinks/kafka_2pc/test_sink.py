"""`kafka_2pc` beyond the contract kit: columns, refusals, what Kafka refuses, and a broker that dies, without Spark."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from spark_ext import failpoints
from spark_ext.errors import ConfigurationError, FencedError, PreparedLostError, StorageError, TransientError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, FenceMark, Task
from spark_ext.sinks.kafka_2pc.epochs import PARTITIONS, EpochRecord
from spark_ext.sinks.kafka_2pc.producer import forget
from tests.servers.kafka import Broker
from tests.sinks.kafka_2pc.kafka_hand import QUERY, VALUE, Sink, values

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


def test_a_key_goes_to_the_partition_that_kafkas_java_clients_choose(kafka: Broker, tmp_path: Path) -> None:
    """Murmur2, so that a topic may be written by this sink and by others."""
    topic = kafka.topic(partitions=8)
    sink = Sink(kafka, tmp_path, columns("key string, value string"), topic=topic)
    sink.commit(0, sink.write(0, [{"key": f"key-{number}", "value": "v"} for number in range(40)]))
    for message in kafka.messages(topic):
        assert message.partition() == (_murmur2(message.key() or b"") & 0x7FFFFFFF) % 8


def _murmur2(data: bytes) -> int:
    """As in org.apache.kafka.common.utils.Utils."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize("queue", [100_000, 100])
def test_a_tasks_rows_stay_in_order_within_a_partition(kafka: Broker, tmp_path: Path, queue: int) -> None:
    """Also when the client's queue is full again and again."""
    topic = kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic, client_options=json.dumps({"queue.buffering.max.messages": queue}))
    wanted = [f"{epoch}-{number}" for epoch in range(3) for number in range(3000)]
    for epoch in range(3):
        sink.run(epoch, *wanted[epoch * 3000 : epoch * 3000 + 3000])
    assert values(kafka, topic) == wanted


def test_an_epoch_goes_into_many_topics_in_one_step(kafka: Broker, tmp_path: Path, monkeypatch: Any) -> None:
    """A commit that fails at the last moment shows nothing in any of them."""
    topics = [kafka.topic() for _ in range(3)]
    sink = Sink(kafka, tmp_path, columns("topic string, value string"), transactional_id=topics[0])
    rows = [{"topic": topic, "value": "a"} for topic in topics]
    monkeypatch.setattr(failpoints, "_passed", Counter())
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


def test_outside_a_job_nothing_commits_once_a_job_has_claimed_it(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()
    plain, job = Sink(kafka, tmp_path, topic=topic), Sink(kafka, tmp_path, topic=topic, incarnation=1)
    plain.run(0, "a")
    job.claim()
    with pytest.raises(FencedError, match="incarnation 1 of job 'job'"):
        plain.run(1, "b")
    job.run(1, "b")
    assert values(kafka, topic) == ["a", "b"]


def test_epochs_only_grow(kafka: Broker, tmp_path: Path) -> None:
    """One that is older than the last is taken to be committed, also by a process that has just started."""
    topic = kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic)
    sink.run(5, "five")
    for fresh in (False, True):
        if fresh:
            forget(sink.sink().options, sink.sink()._epochs)
        assert sink.run(4, "four") is CommitOutcome.ALREADY_COMMITTED
        assert sink.run(5, "five") is CommitOutcome.ALREADY_COMMITTED
    assert sink.run(6, "six") is CommitOutcome.COMMITTED
    assert values(kafka, topic) == ["five", "six"]


def test_a_broker_that_is_down_is_reported_and_one_that_comes_back_is_used(kafka: Broker, tmp_path: Path) -> None:
    """Also by a process that has noticed nothing, with the producer that it keeps."""
    topic, other = kafka.topic(), kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic, request_timeout="2 s")
    soon = json.dumps({"reconnect.backoff.max.ms": 500})
    unaware = Sink(kafka, tmp_path, topic=other, client_options=soon)
    sink.run(0, "a")
    unaware.run(5, "five")
    prepared = sink.write(1, [{"value": "b"}])
    kafka.crash()
    with pytest.raises(StorageError) as caught:
        sink.commit(1, prepared)
    assert "the operation will be retried" in caught.value.do
    kafka.start()
    patient = Sink(kafka, tmp_path, topic=topic)
    assert patient.commit(1, prepared) is CommitOutcome.COMMITTED
    assert values(kafka, topic) == ["a", "b"]
    assert unaware.run(4, "four") is CommitOutcome.ALREADY_COMMITTED
    assert unaware.run(6, "six") is CommitOutcome.COMMITTED
    assert values(kafka, other) == ["five", "six"]


def test_a_staged_file_that_is_not_there_says_that_the_folder_is_not_shared(kafka: Broker, tmp_path: Path) -> None:
    """It was written on another machine. On the same one it is lost, and the epoch is repeated."""
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
    """Cut between two batches, as a file system may leave it after a crash, it looks like a shorter one."""
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
    """In the same partition, further back than the first look goes."""
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


def test_a_record_of_an_older_release_is_taken_over() -> None:
    """It has neither the start's random number nor the topics' ids."""
    raw = json.dumps({"version": 1, "incarnation": 3, "job": "j", "job_id": "i", "epochs": {"spark_ext:out:1:q": 7}})
    record = EpochRecord.from_bytes(raw.encode(), "")
    FenceMark(4, 5).check(record.mark, "")
    claim = Claim("out", "j", "i", 4, 1, start=5)
    assert claim.known(record.epochs) == {"q": 7}
    assert record.claimed(claim, {"t": "id"}).mark == FenceMark(4, 5)
    record.check_topics({"t": "another"}, "")
