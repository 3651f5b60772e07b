"""The exchange `kafka`: rows and log in two topics that the folder names. See docs/exchange-kinds.md."""

from __future__ import annotations

from typing import Any, ClassVar

from spark_ext.clients.kafka import library
from spark_ext.exchange.contract import ExchangeKind, Parts
from spark_ext.exchange.kafka.master import KafkaMaster
from spark_ext.exchange.kafka.segments import KafkaReader, KafkaWriter
from spark_ext.exchange.kafka.topics import KafkaExchangeOptions, Topics
from spark_ext.storage import Location


class KafkaKind(ExchangeKind[KafkaExchangeOptions]):
    """See the module."""

    name: ClassVar[str] = "kafka"
    options_type: ClassVar[type[Any]] = KafkaExchangeOptions

    def parts(self, place: str, options: KafkaExchangeOptions, operator: str) -> Parts:
        """See `ExchangeKind.parts`."""
        library(operator)
        folder = Location.of(place, {}).folder
        topics = Topics(folder, options, operator)
        return Parts(KafkaMaster(folder, topics, operator), KafkaWriter(topics), KafkaReader(topics))
