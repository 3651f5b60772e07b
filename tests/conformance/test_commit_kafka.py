"""Conformance, "Commit", of `kafka_2pc`, on a real broker."""

from pathlib import Path

import pytest
from pyspark import cloudpickle

from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.servers.kafka import Broker
from tests.sinks.kafka_2pc import kafka_kit
from tests.sinks.kafka_2pc.kafka_kit import KafkaTarget


@pytest.mark.core
class TestKafka2pc(SinkContract):
    @pytest.fixture
    def target(self, kafka: Broker, tmp_path: Path) -> SinkTarget:
        return KafkaTarget(kafka, tmp_path)


class TestKafka2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> SinkTarget:
        cloudpickle.register_pickle_by_value(kafka_kit)
        if "_c8_" not in request.node.name:
            return KafkaTarget(kafka, tmp_path)
        # The next start's three attempts have to last until the broker has ended what it was asked while frozen.
        return KafkaTarget(kafka, tmp_path, "3 s")
