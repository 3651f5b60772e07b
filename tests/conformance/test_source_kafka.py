"""Conformance of `kafka_range`, on a real broker: it runs the contract kit."""

import pytest

from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_queries import SourceQueryContract
from tests.servers.kafka import Broker
from tests.sources.kafka_range.kafka_kit import KafkaWorld


@pytest.fixture(scope="module")
def topic(kafka_of_process: Broker) -> str:
    return KafkaWorld.fill(kafka_of_process)


@pytest.mark.core_for("latest")
class TestKafkaRange(SourceContract):
    @pytest.fixture(params=["latest", "none"])
    def world(self, kafka: Broker, topic: str, request: pytest.FixtureRequest) -> SourceWorld:
        return KafkaWorld(kafka, topic, ending=request.param, headers="true")


class TestKafkaRangeInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, kafka: Broker, topic: str) -> SourceWorld:
        return KafkaWorld(kafka, topic)
