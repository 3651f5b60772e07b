"""`kafka_2pc` in doubt: a transaction that the brokers have ended, brokers with their default settings, odd rows."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import OffsetSpec

from spark_ext.clients.kafka import KafkaOptions, admin, offsets
from spark_ext.errors import ConfigurationError, DataError, FencedError, StorageError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import CommitOutcome, TwoPhaseCommitSink
from spark_ext.sinks.kafka_2pc.epochs import PARTITIONS
from spark_ext.sinks.kafka_2pc.producer import Session
from spark_ext.sources.kafka_range.source import KafkaRange
from spark_ext.testing.children import frozen
from spark_ext.testing.sink_driver import Driver, run_epoch
from tests.servers.kafka import Broker
from tests.servers.kafka_reader import ANSWER_S
from tests.sinks.kafka_2pc.kafka_kit import VALUE, KafkaTarget, Sink, values
from tests.support.waiting import until

UTC = datetime.timezone.utc
HEADERS = "value string, headers array<struct<key string, value binary>>"


class HastyTarget(KafkaTarget):
    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return super().sink(uid, **{"transaction_timeout": "1 s", **options})


def test_a_transaction_that_the_brokers_ended(kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver was frozen just before its commit for longer than `transaction_timeout`; nobody else has come."""
    monkeypatch.setenv("SPARK_EXT_REGISTRY", str(tmp_path / "registry"))
    target = HastyTarget(kafka, tmp_path)
    Driver(target, options={"transaction_timeout": "1 min"}).claim()

    def ends(*, committed: bool) -> list[int]:
        places = {(target.topic, number): OffsetSpec.latest() for number in range(2)}
        with admin(KafkaOptions(bootstrap_servers=kafka.bootstrap), "test") as client:
            return list(offsets(client, places, 20, committed=committed).values())

    with frozen(tmp_path, "kafka.before_commit", run_epoch, target, 1, 0, 0, 5) as driver:
        # The messages, and behind them the marker that ended them.
        until(lambda: len(kafka.messages(target.topic, "read_uncommitted")) == 5, "the messages are sent")
        until(lambda: ends(committed=True) == ends(committed=False), "the brokers have ended the transaction")
        assert target.ids() == []
        said = driver.wake()
    assert "Error" not in said, said
    assert target.ids() == list(range(5))


def test_a_producer_that_was_not_let_in_asks_no_more(kafka: Broker, tmp_path: Path) -> None:
    """Its request continues after the time-out: once answered it would fence off whoever has the id by then."""
    made: list[Session] = []

    class Kept(Session):
        def __init__(self, *given: Any) -> None:
            made.append(self)
            super().__init__(*given)

    topic = kafka.topic()
    sink = Sink(kafka, tmp_path, topic=topic, transactional_id=topic, request_timeout="1 s").sink()
    kafka.freeze()
    try:
        with pytest.raises(StorageError, match="the transactional id could not be taken"):
            Kept(sink.options, sink._epochs, sink._limits)
    finally:
        kafka.thaw()
    with pytest.raises(RuntimeError, match="closed"):
        made[0]._producer.poll(0)
    assert Sink(kafka, tmp_path, topic=topic, transactional_id=topic).run(0, "a") is CommitOutcome.COMMITTED


@pytest.mark.parametrize("step", ["an epoch without rows", "a start"])
def test_behind_an_open_transaction_no_epoch_is_missing(kafka: Broker, tmp_path: Path, step: str) -> None:
    epochs = kafka.topic("epochs", partitions=PARTITIONS, cleanup_policy="compact")
    given: Any = {"topic": kafka.topic(), "epochs_topic": epochs}
    sink = Sink(kafka, tmp_path, incarnation=1, start=11, **given).claim()
    sink.run(0, "a")
    other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{epochs}-other", "log_level": 0})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(epochs, b"-", key=b"other", partition=sink.sink()._epochs.partition)
    assert other.flush(30) == 0
    assert sink.run(1, "b") is CommitOutcome.COMMITTED, "by the producer that is kept, which does not look again"

    def take(**patience: Any) -> None:
        if step == "a start":
            Sink(kafka, tmp_path, incarnation=2, start=12, **given, **patience).claim(previous=1)
        else:
            Sink(kafka, tmp_path, incarnation=1, start=11, **given, **patience).check(2, previous=1)

    with pytest.raises(FencedError, match="started twice"):  # that is certain, and not waited for
        Sink(kafka, tmp_path, incarnation=1, start=99, **given).check(2, previous=1)
    with pytest.raises(StorageError, match="has been open for 2 s"):
        take(request_timeout="2 s")
    other.abort_transaction(30)
    take()


def test_asking_for_a_topic_makes_none(kafka: Broker, tmp_path: Path) -> None:
    """Brokers make a topic for whoever asks for its metadata, unless a setting forbids it; of one partition."""
    topic, epochs = kafka.topic(), "epochs-of-its-own"
    sink = Sink(kafka, tmp_path, topic=topic, epochs_topic=epochs)
    with pytest.raises(ConfigurationError, match="'no-such-1' cannot be written"):
        Sink(kafka, tmp_path, topic="no-such-1").sink().validate(VALUE)
    rows = Sink(kafka, tmp_path, columns("topic string, value string"), transactional_id=topic)
    rows.sink().validate(rows.schema)
    with pytest.raises(ConfigurationError, match="the topic 'no-such-2' does not exist"):
        rows.commit(0, rows.write(0, [{"topic": "no-such-2", "value": "a"}]))
    with pytest.raises(ConfigurationError, match="'no-such-3' cannot be read"):
        KafkaRange({"uid": "in", "bootstrap_servers": kafka.bootstrap, "topics": f"{topic},no-such-3"}).open()
    sink.sink().validate(VALUE)
    topics = kafka.asked(lambda client: client.list_topics(timeout=ANSWER_S)).topics
    assert not [name for name in topics if name.startswith(("no-such", epochs))]
    sink.run(0, "a")
    assert kafka.partitions(epochs) == 8


def test_an_empty_key_is_one_and_a_null_is_none(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=8)
    sink = Sink(kafka, tmp_path, columns("key string, value string"), topic=topic)
    sink.commit(0, sink.write(0, [{"key": key, "value": f"{key}{n}"} for n in range(20) for key in ("", None)]))
    found = kafka.messages(topic)
    assert len(found) == 40 and {message.key() for message in found} == {b"", None}
    assert len({message.partition() for message in found if message.key() == b""}) == 1


@pytest.mark.parametrize(
    ("schema", "row", "said"),
    [
        (HEADERS, {"headers": [{"key": None, "value": b"x"}]}, "header"),
        (HEADERS, {"headers": [None]}, "header"),
        ("value string, partition int", {"partition": -5}, "partition"),
        ("value string, timestamp timestamp", {"timestamp": datetime.datetime(1960, 1, 1, tzinfo=UTC)}, "timestamp"),
    ],
)
def test_a_row_that_is_no_message(kafka: Broker, tmp_path: Path, schema: str, row: dict[str, Any], said: str) -> None:
    """Not sent as something else: a negative partition means any to the client, a time before 1970 means now."""
    topic = kafka.topic(partitions=2)
    sink = Sink(kafka, tmp_path, columns(schema), topic=topic)
    with pytest.raises(DataError, match=said):
        sink.commit(0, sink.write(0, [{"value": "a", **row}]))
    assert values(kafka, topic) == []
    assert sink.commit(0, sink.write(0, [{"value": "b"}])) is CommitOutcome.COMMITTED
