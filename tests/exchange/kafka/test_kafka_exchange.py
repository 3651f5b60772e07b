"""The exchange kind `kafka` against a real broker: the suite of all kinds, and what can happen to topics alone."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.errors import ConfigurationError, DataError, FencedError, StateError, StorageError
from spark_ext.exchange import decisions
from spark_ext.exchange.contract import as_text
from spark_ext.exchange.entries import EntryKind
from spark_ext.exchange.pinned import pin, put_back
from spark_ext.model.commits import Claim
from spark_ext.testing.exchange_contract import ExchangeContract
from spark_ext.testing.exchange_driver import WHO, Producer, Reader, numbered
from tests.exchange.kafka.kafka_kit import KafkaPlace, options_of
from tests.servers.kafka import PASSWORD, USER, Broker
from tests.support.waiting import until


@pytest.fixture
def place(kafka: Broker, tmp_path: Path) -> KafkaPlace:
    return KafkaPlace("kafka", str(tmp_path / "flights"), options_of(kafka.bootstrap))


@pytest.mark.core_for("x3_a_decision", "x3_nulls", "x2_a_release")
@pytest.mark.slow(2, "processes that are killed, with a broker")
class TestKafka(ExchangeContract):
    @pytest.fixture
    def place(self, place: KafkaPlace) -> KafkaPlace:
        return place


def test_x9_topics_that_lose_records_are_refused(place: KafkaPlace, kafka: Broker) -> None:
    Producer(place).claim().run(0, 0, 10)
    kafka.set(place.names.rows, retention_ms=1000)
    with pytest.raises(
        ConfigurationError, match=r"has retention.ms=1000, so it would lose records(?s:.*)set retention"
    ):
        Producer(place, 2).claim()
    kafka.set(place.names.rows, retention_ms=-1)
    Producer(place, 2).claim().run(1, 10, 20)
    place.topics.delete_before(place.names.log, {0: 2})
    with pytest.raises(StateError, match="log begins with entry 2, and without the state before it"):
        place.parts().master.log.look()
    kafka.delete(place.names.log)
    with pytest.raises(StateError, match=r"log' was deleted\n"):
        Producer(place, 3).claim()
    kafka.make(place.names.log)
    for act in (Producer(place, 3).claim, place.parts().master.log.look):
        with pytest.raises(StateError, match=r"log' was deleted and created again"):
            act()


def test_x9_a_topic_that_is_created_again_under_a_process_is_noticed(place: KafkaPlace, kafka: Broker) -> None:
    producer = Producer(place).claim()
    producer.run(0, 0, 10)
    for topic in (place.names.rows, place.names.log):
        kafka.delete(topic)
        kafka.make(topic, 2 if topic == place.names.rows else 1)
        with pytest.raises((StateError, StorageError)):
            producer.run(1, 10, 20)
    with pytest.raises(StateError, match="created again"):
        Producer(place, 2).claim()


def test_a_change_of_what_topics_are_made_with_is_refused(place: KafkaPlace, tmp_path: Path) -> None:
    Producer(place).claim().run(0, 0, 10)
    for name, value in (("topic_partitions", "5"), ("topic_prefix", "other"), ("replication_factor", "1")):
        other = KafkaPlace("kafka", place.path, {**place.options, name: value})
        with pytest.raises(ConfigurationError, match=f"created with {name}=.*the job now has {value}"):
            Producer(other, 2).claim()
    Producer(KafkaPlace("kafka", place.path, {**place.options, "chunk_bytes": "1000"}), 2).claim().run(1, 10, 20)
    assert Reader(place).all().ids == list(range(20))


def test_rows_longer_than_a_message_are_divided(place: KafkaPlace, tmp_path: Path) -> None:
    small = KafkaPlace("kafka", place.path, {**place.options, "chunk_bytes": "100"})
    producer = Producer(small).claim()
    producer.run(0, 0, 500, tasks=3)
    producer.run(1, 500, 510)
    runs = [run for entry in producer.parts.master.log.order().entries.values()  # type: ignore[attr-defined]
            for segment in entry.segments for run in segment.runs]  # fmt: skip
    assert max(run.batches for run in runs) > 10
    assert Reader(place, 2).all(100).ids == list(range(510))
    pin(small.parts().master, place.path, 1, 3, f"{place.path}-pinned")
    fresh = small.at(f"{place.path}-fresh")
    put_back(f"{place.path}-pinned", fresh.path, number=9, lineage=1, job_id="job-1", who=WHO)
    assert Reader(fresh).all().ids == list(range(510))


def test_an_entry_that_is_too_large_is_refused(place: KafkaPlace) -> None:
    producer = Producer(place).claim()
    with pytest.raises(DataError, match=r"(?s)log' could not be written.*MSG_SIZE_TOO_LARGE"):
        producer.register("x" * 17_000_000)
    assert producer.register("reader") is not None


def test_what_is_put_back_shares_nothing_and_is_deleted_with_its_folder(place: KafkaPlace, kafka: Broker) -> None:
    Producer(place).claim().run(0, 0, 10)
    pin(place.parts().master, place.path, 1, 2, f"{place.path}-pinned")
    fresh = place.at(f"{place.path}-fresh")
    put_back(f"{place.path}-pinned", fresh.path, number=9, lineage=1, job_id="job-1", who=WHO)
    assert place.draw() != fresh.draw()
    topics = [*(place.names.log, place.names.rows), *(fresh.names.log, fresh.names.rows)]
    fresh.parts().master.delete()
    fresh.parts().master.delete()
    until(lambda: not kafka.partitions(topics[3]), "the topics to be gone")
    assert [kafka.partitions(topic) for topic in topics] == [1, 2, 0, 0]
    assert Reader(place).all().ids == list(range(10))


@pytest.mark.slow(8, "a broker that is killed comes back after some seconds")
def test_x9_a_broker_that_is_away_is_an_outage_of_the_storage(kafka: Broker, tmp_path: Path) -> None:
    """Whatever is done meanwhile; what it has confirmed is there when it is back, and the same objects continue."""
    place = KafkaPlace("kafka", str(tmp_path / "x"), options_of(kafka.bootstrap, request_timeout="1 s"))
    producer, reader = Producer(place).claim(), Reader(place)
    producer.run(0, 0, 10)
    kafka.crash()
    for act in (lambda: producer.run(1, 10, 20), reader.all, producer.parts.master.delete_released):
        with pytest.raises((OSError, StorageError)):
            act()
    kafka.start()
    until(lambda: _again(producer), "the broker to take an epoch")
    assert reader.all().ids == list(range(20))
    found = producer.parts.master.log.look()
    assert found.total == 20 and place.parts().master.log.look() == found


def _again(producer: Producer) -> bool:
    try:
        producer.run(1, 10, 20)
    except (OSError, StorageError):
        return False
    return True


def test_credentials_come_from_references(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    options = options_of(kafka.login, **as_text({"client_options": {**settings, "sasl.password": "env:PASSWORD"}}))
    place = KafkaPlace("kafka", str(tmp_path / "x"), options)
    monkeypatch.setenv("PASSWORD", PASSWORD)
    producer = Producer(place).claim()
    segment = producer.write(0, numbered(0, 10))
    producer.commit(0, [segment])
    assert Reader(place).all().ids == list(range(10))
    stored = [file for file in Path(place.path).rglob("*") if file.is_file() and PASSWORD in file.read_text()]
    assert (stored, PASSWORD in caplog.text) == ([], False)
    (entry,) = (e for e in producer.parts.master.log.order().entries.values() if e.kind is EntryKind.EPOCH)  # type: ignore[attr-defined]
    assert PASSWORD not in entry.to_json()
    monkeypatch.setenv("PASSWORD", "wrong")
    with pytest.raises(ConfigurationError, match="refuse the connection"):
        Producer(place, 2).claim()


def test_x9_copies_of_a_state_directory_share_the_topics_and_one_goes_on(place: KafkaPlace, tmp_path: Path) -> None:
    first = Producer(place).claim()
    first.run(0, 0, 10)
    copy = replace(place, path=str(shutil.copytree(place.path, tmp_path / "copy")))
    Producer(copy, 2).claim().run(1, 10, 20)
    with pytest.raises(FencedError, match="this state is an older copy"):
        first.run(1, 100, 110)
    claim = Claim("flights", "job", "job-1", 3, 0, start=3000, query_id="q", planned=1, starts=frozenset({1000}))
    with pytest.raises(StateError, match="put back from a backup"):
        decisions.refuse_claim(place.parts().master.log.look(), claim, WHO)
