"""Clients of Kafka are closed by the thread that used them: librdkafka aborts if one of its own threads closes one."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from spark_ext.clients.kafka import KafkaOptions, admin, kept
from spark_ext.errors import StorageError

# Nothing listens at this port.
OPTIONS = KafkaOptions(bootstrap_servers="127.0.0.1:1", request_timeout=200)


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


def test_a_client_for_the_process_is_connected_once_per_purpose_and_settings() -> None:
    first = kept(OPTIONS, "plan", object)
    assert kept(OPTIONS.model_copy(update={"request_timeout": 1}), "plan", object) is first
    assert kept(OPTIONS, "commit a", object) is not first
    assert kept(OPTIONS.model_copy(update={"client_options": {"client.id": "x"}}), "plan", object) is not first
