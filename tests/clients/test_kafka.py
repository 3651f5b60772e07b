"""Clients of Kafka are closed by the thread that used them: librdkafka aborts if one of its own threads closes one."""

import gc
import sys
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_ext.clients.kafka import KafkaOptions, admin, deleted, lent, shared
from spark_ext.errors import StorageError

# Nothing listens at this port.
OPTIONS = KafkaOptions(bootstrap_servers="127.0.0.1:1", request_timeout=200)


class Closing:
    closed = False

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_a_client_without_an_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[AdminClient] = []
    close = AdminClient.__exit__

    def exit_(client: AdminClient, *args: Any) -> None:
        closed.append(client)
        close(client, *args)

    monkeypatch.setattr(AdminClient, "__exit__", exit_)
    with pytest.raises(StorageError, match="no broker could be reached"), admin(OPTIONS, "test"):
        pass
    assert len(closed) == 1


def test_a_shared_client_connects_once_per_purpose_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that have changed in the environment are other settings."""
    monkeypatch.setenv("SECRET", "old")
    options = OPTIONS.model_copy(update={"client_options": {"sasl.password": "${SECRET}"}})
    first = shared("plan", options.client("test"), Closing)
    assert shared("plan", options.client("test"), Closing) is first
    assert shared("read", options.client("test"), Closing) is not first
    monkeypatch.setenv("SECRET", "new")
    assert shared("plan", options.client("test"), Closing) is not first


def test_a_client_whose_request_failed_is_closed_and_replaced() -> None:
    """It may never connect again: librdkafka's issue 5301."""
    with lent(shared("lent", {}, Closing)) as first:
        pass
    assert shared("lent", {}, Closing) is first
    with pytest.raises(TimeoutError), lent(first):
        raise TimeoutError
    assert first.closed
    assert shared("lent", {}, Closing) is not first


def test_a_deletion_of_records_leaves_its_list_alone() -> None:
    """As confluent-kafka does not: its issue 2275, which damages memory."""
    before = [TopicPartition("orders", 0, 1)]
    references = sys.getrefcount(before)
    with AdminClient(OPTIONS.client("test")) as client:
        for _ in range(10):
            with pytest.raises((TimeoutError, KafkaException)):
                deleted(client, before, 0.01)
    gc.collect()  # an answer that failed holds the frames that asked for it
    assert sys.getrefcount(before) == references
