"""What the broker of the tests tells of itself."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from tests.servers.kafka import Broker
from tests.servers.kafka_reader import ABORTED, COMMITTED, ONGOING
from tests.support.waiting import until


def test_a_transactions_state_is_read_from_the_brokers_disk(kafka: Broker) -> None:
    """So a broker is not crashed between a commit and its markers."""
    topic = kafka.topic()
    producer: Any = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for finish, state in ((producer.commit_transaction, COMMITTED), (producer.abort_transaction, ABORTED)):
        producer.begin_transaction()
        producer.produce(topic, b"a")
        assert producer.flush(60) == 0
        until(lambda: kafka.transactions()[topic] == ONGOING, "the transaction is open")
        finish(60)
        until(lambda state=state: kafka.transactions()[topic] == state, "its end to be in all partitions")  # type: ignore[misc]
    producer.close()


def test_a_commit_survives_a_crash_right_after_it(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.send_in_transaction(topic, ["a"])
    kafka.restart()
    assert [message.value() for message in kafka.messages(topic)] == [b"a"]
