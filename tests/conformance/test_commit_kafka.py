"""Conformance, "Commit", of `kafka_2pc`, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import cloudpickle

from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.servers.kafka import Broker
from tests.sinks.kafka_2pc import kafka_kit
from tests.sinks.kafka_2pc.kafka_kit import ImpatientTarget, KafkaTarget


def _target(kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest, patience: str) -> SinkTarget:
    # A broker that does not take messages is waited for, up to the time-out.
    return ImpatientTarget(kafka, tmp_path, patience) if "_c8_" in request.node.name else KafkaTarget(kafka, tmp_path)


@pytest.mark.core
class TestKafka2pc(SinkContract):
    @pytest.fixture
    def target(self, kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> SinkTarget:
        return _target(kafka, tmp_path, request, "2 s")


class TestKafka2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> SinkTarget:
        cloudpickle.register_pickle_by_value(kafka_kit)
        # The next start's three attempts have to last until the broker has ended what it was asked while frozen.
        return _target(kafka, tmp_path, request, "3 s")
