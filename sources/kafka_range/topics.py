"""Topics as the brokers know them: partitions, ids, and whether they are Kafka's own.

A topic that is deleted and created again has the same name, and its offsets count from 0 again. Only its id says that
it is another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_ext.clients.kafka import RECREATED, KafkaOptions, admin, answered, lent, shared, to_error, unanswered
from spark_ext.errors import DataError
from spark_ext.sources.kafka_range.bounds import NOTHING_READ, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

NO_TOPIC: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
"""librdkafka's names of the errors of a topic or partition that does not exist."""


_STATE: Final = frozenset({"_schemas", "spark-ext-epochs"})
"""Topics of a schema registry and of `kafka_2pc`, by their usual names: to the brokers they are like any other."""


@dataclass(frozen=True)
class Topic:
    """A topic that exists."""

    partitions: int
    id: str | None
    """None: the brokers give topics no ids (before Kafka 2.8)."""
    internal: bool
    """Whether Kafka keeps its own state in it, such as `__consumer_offsets`."""


@dataclass(frozen=True)
class ChannelData:
    """What is stored with a channel."""

    place: TopicPartition
    end: int | None
    topic_id: str | None

    @classmethod
    def of(cls, data: Any) -> ChannelData:
        """From a channel."""
        topic, number, end, topic_id = data
        return cls((topic, number), end, topic_id)

    def to_json(self) -> list[Any]:
        """For a channel."""
        return [*self.place, self.end, self.topic_id]


def described(client: AdminClient, topics: Collection[str], seconds: float, who: str, kept: str) -> dict[str, Topic]:
    """Those of the topics that exist. Asking does not create a topic, as asking for its metadata does by default."""
    import confluent_kafka as kafka

    if not topics:
        return {}
    asked = client.describe_topics(kafka.TopicCollection(list(topics)), request_timeout=seconds)
    found: dict[str, Topic] = {}
    for name, answer in asked.items():
        try:
            one = answered(answer, seconds + 1)
        except TimeoutError as problem:
            raise unanswered(who, seconds, kept) from problem
        except kafka.KafkaException as problem:
            if problem.args[0].name() not in NO_TOPIC:
                raise to_error(problem.args[0], f"topic '{name}' could not be described", who, kept) from problem
            continue
        id = str(one.topic_id)
        found[name] = Topic(len(one.partitions), id if id.strip("A=") else None, bool(one.is_internal))
    return found


def matching(names: Collection[str], pattern: str) -> list[str]:
    """Those names that a pattern matches as a whole."""
    return [name for name in names if re.fullmatch(pattern, name)]


def keeps_state(name: str, topic: Topic) -> bool:
    """Whether a topic holds the state of Kafka or of a tool, and not messages of an application.

    Two underlines are by convention the beginning of such a name.
    """
    return topic.internal or name in _STATE or name.startswith("__")


def check_ids(known: Mapping[str, str | None], found: Mapping[str, Topic], who: str) -> None:
    """Refuse topics that are gone, or that are others with the same names than those that were begun.

    Args:
        known: ids by topic, of those that were begun or have to be; None: the brokers had none.
    """
    for topic, id in known.items():
        one = found.get(topic)
        if one is None or (id is not None and one.id is not None and one.id != id):
            what = "was deleted" if one is None else "was deleted and created again: it is not the topic that was there"
            raise DataError(f"topic '{topic}' {what} before", operator=who, kept=NOTHING_READ, do=RECREATED)


def check_still(options: KafkaOptions, topic: str, id: str | None, who: str) -> None:
    """After a read: refuse what was read if the topic is no longer the one that was planned."""
    if id is None:
        return
    seconds = options.request_timeout / 1000
    with lent(shared("plan", options.client(who), lambda: admin(options, who))) as client:
        check_ids({topic: id}, described(client, [topic], seconds, who, NOTHING_READ), who)
