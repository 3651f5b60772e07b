"""An exchange in a real broker, for the contract kit."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from spark_ext.exchange.kafka.order import Stored
from spark_ext.exchange.kafka.topics import KafkaExchangeOptions, TopicNames, Topics
from spark_ext.failpoints import FailPoint
from spark_ext.storage import LocalFolder
from spark_ext.testing.exchange_driver import WHO, Place


def options_of(bootstrap: str, **more: str) -> Mapping[str, str]:
    return {"bootstrap_servers": bootstrap, "topic_partitions": "2", **more}


@dataclass(frozen=True)
class KafkaPlace(Place):
    in_order: ClassVar[bool] = True
    points: ClassVar[tuple[str, ...]] = (FailPoint.EXCHANGE_SENT,)
    damageable: ClassVar[bool] = False

    @property
    def topics(self) -> Topics:
        return Topics(LocalFolder(Path(self.path)), KafkaExchangeOptions.parse("kafka", self.options, WHO), WHO)

    @property
    def names(self) -> TopicNames:
        return self.topics.required()

    def stored(self) -> set[str]:
        topics, names = self.topics, self.topics.found()
        last: dict[tuple[bytes, int], int] = {}
        for partition in range(names.partitions if names is not None else 0):
            low, high = topics.ends(self.names.rows, partition)
            for offset, key, _ in topics.read(self.names.rows, partition, low, high):
                last[key, partition] = offset
        return {Stored(key.decode(), partition, offset).name for (key, partition), offset in last.items()}

    def lose(self, segment: str) -> None:
        place = Stored.of(segment)
        self.topics.delete_before(self.names.rows, {place.partition: place.end + 1})

    def draw(self) -> str:
        return str(json.loads(Path(self.path, "topics.json").read_text())["draw"])
