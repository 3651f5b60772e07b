"""What the brokers say of the topics that a `kafka_range` reads: which there are, where they end, and offsets of times.

The ends of all watched partitions come with one request, and are kept for a moment: Spark asks every 10 ms. A topic
that is deleted and created again has the same name, and its offsets count from 0 again: only its id tells.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_ext.clients import kafka as clients
from spark_ext.clients.kafka import (
    NO_TOPIC,
    RECREATED,
    KafkaOptions,
    admin,
    lent,
    library,
    no_topic,
    offsets,
    shared,
    to_error,
    unanswered,
)
from spark_ext.errors import NOTHING_DONE, DataError, SparkExtError, refused
from spark_ext.sources.kafka_range.bounds import NOTHING_READ, Ends, TopicPartition, name
from spark_ext.sources.kafka_range.options import KafkaRangeOptions

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_FRESH_S: Final = 0.02  # how long the ends of partitions are cached, s
_KNOWN_S: Final = 1.0  # how long they count as known where they are only shown, s
_OLD_S: Final = 1.0  # how long the offsets of a time are cached, s

_STATE: Final = frozenset({"_schemas", "spark-ext-epochs"})
"""Topics of a schema registry and of `kafka_2pc`, by their usual names: to the brokers they are like any other."""


@dataclass(frozen=True)
class Topic:
    """A topic that exists."""

    partitions: int
    id: str | None  # None: the brokers give topics no ids (before Kafka 2.8)
    internal: bool  # whether Kafka keeps its own state in it, such as `__consumer_offsets`


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


class Brokers:
    """The brokers, as the planner of one source asks them. Holds no connection: clients are lent for each request."""

    def __init__(self, options: KafkaRangeOptions, who: str) -> None:
        self._options, self._who = options, who
        self.ids: dict[str, str | None] = {}  # ids of the topics that were begun, or have to be; None: not known
        self._watched: set[TopicPartition] = set()
        self._highs: dict[TopicPartition, int] = {}
        self._asked = 0.0
        self._old: dict[int, tuple[float, Mapping[TopicPartition, int]]] = {}
        """By age, s: when the brokers were asked, and the first offsets of messages that are younger."""

    @property
    def _seconds(self) -> float:
        return self._options.request_timeout / 1000

    # -- topics ---------------------------------------------------------------------------------------------

    def topics(self, own: AdminClient | None = None) -> dict[str, Topic]:
        """The topics to read; with a pattern, without those that keep state, unless they are wanted or were begun."""
        if own is None:
            with self._admin() as client:
                return self.topics(client)
        pattern = self._options.pattern
        names = self._options.topics if pattern is None else matching(self._listed(own), pattern)
        found = described(own, names, self._seconds, self._who, NOTHING_DONE)
        if pattern is not None:
            every = self._options.internal_topics
            found = {
                name: one for name, one in found.items() if every or name in self.ids or not keeps_state(name, one)
            }
        elif missing := [name for name in names if name not in found]:
            self.check(found)
            raise no_topic(missing[0], "read", self._who, NOTHING_DONE)
        if not found and self._options.end.word != "none":
            raise refused(f"no topic's name matches '{pattern}'", self._who, "correct the option 'pattern'")
        return found

    def _listed(self, client: AdminClient) -> list[str]:
        kafka = library(self._who)
        try:
            return list(client.list_topics(timeout=self._seconds).topics)
        except kafka.KafkaException as problem:
            raise self._fault(problem, "the topics could not be listed") from problem

    def check(self, topics: Mapping[str, Topic] | None) -> None:
        """Refuse topics that are no longer those that were begun; None asks the brokers."""
        if topics is None:
            with self._admin() as client:
                topics = described(client, list(self.ids), self._seconds, self._who, NOTHING_READ)
        check_ids(self.ids, topics, self._who)

    # -- where partitions end -------------------------------------------------------------------------------

    def watch(self, places: Iterable[TopicPartition], highs: Mapping[TopicPartition, int] | None = None) -> None:
        """Ask for the ends of these partitions too whenever one is needed; `highs` are known already."""
        self._watched.update(places)
        self._highs.update(highs or {})

    def forget(self, place: TopicPartition) -> None:
        """Ask again when the end of a partition is needed next."""
        self._highs.pop(place, None)

    def high(self, place: TopicPartition, start: int, enough: int | None) -> int:
        """The end of what is committed in a partition: 20 ms old at most, or older and at least `enough`."""
        known = self._highs.get(place)
        if known is None or (known < enough if enough is not None else True):
            now = time.monotonic()
            if known is None or now - self._asked > _FRESH_S:
                found = self.offsets({place: "latest" for place in {place, *self._watched}})
                if any(self._highs.get(one) != high for one, high in found.items()):
                    # After the ends, so that they are those of the topics that were begun.
                    self.check(None)
                self._highs |= found
                self._asked = now
        high = self._highs[place]
        if high < start:
            raise DataError(
                f"{name(place)} ends at offset {high}, but was read up to {start}: it is not the topic that was read "
                "before",
                operator=self._who,
                kept=NOTHING_READ,
                do=RECREATED,
            )
        return high

    def last_high(self, place: TopicPartition) -> int | None:
        """The end that was asked for last; None: none was."""
        return self._highs.get(place)

    def shown_high(self, place: TopicPartition) -> int | None:
        """The end as it was within the last second; None: it is not known."""
        if time.monotonic() - self._asked > _KNOWN_S:
            self.high(place, 0, None)
        return self._highs.get(place)

    def ends(self, places: Sequence[TopicPartition]) -> Ends:
        """The beginnings and ends of partitions."""
        return Ends(self.offsets(dict.fromkeys(places, "earliest")), self.offsets(dict.fromkeys(places, "latest")))

    # -- offsets of times -----------------------------------------------------------------------------------

    def younger_than(self, place: TopicPartition, at: float) -> int:
        """The first offset with a timestamp (s since 1970 UTC) that is not earlier, as of the last second; -1: none."""
        # Limits for rows of different ages may be in force at once.
        age = round(time.time() - at)
        asked, found = self._old.get(age, (0.0, {}))
        if place not in found or time.monotonic() - asked > _OLD_S:
            found = self.offsets(dict.fromkeys({place, *self._watched}, int(at * 1000)))
            self._old[age] = time.monotonic(), found
        return found[place]

    def offsets(self, wanted: Mapping[TopicPartition, str | int]) -> dict[TopicPartition, int]:
        """Offsets by partition: `earliest`, `latest`, or the first at or after a time, ms since 1970; -1: none."""
        kafka = library(self._who)
        of = kafka.admin.OffsetSpec
        words = {"earliest": of.earliest(), "latest": of.latest()}
        specs = {
            # Negative times stand for other questions, such as -1 for the end.
            place: words[spec] if isinstance(spec, str) else of.for_timestamp(max(spec, 0))
            for place, spec in wanted.items()
        }
        try:
            with self._admin() as client:
                return offsets(client, specs, self._seconds)
        except kafka.KafkaException as problem:
            if problem.args[0].name() in NO_TOPIC:
                self.check(None)
            raise self._fault(problem, "the ends of partitions could not be looked up") from problem
        except TimeoutError as problem:
            raise unanswered(self._who, self._seconds, NOTHING_READ) from problem

    # -- clients --------------------------------------------------------------------------------------------

    def _admin(self) -> AbstractContextManager[AdminClient]:
        return lent(shared("plan", self._options.client(self._who), lambda: admin(self._options, self._who)))

    def committer(self) -> AbstractContextManager[Any]:
        """A consumer that commits for the option `group`."""
        own = self._options.client(self._who, group_id=self._options.group, enable_auto_commit=False)
        return lent(shared("commit", own, lambda: library(self._who).Consumer(own)))

    def _fault(self, problem: Exception, what: str) -> SparkExtError:
        return to_error(problem.args[0], what, self._who, "everything that was committed")


def described(client: AdminClient, topics: Collection[str], seconds: float, who: str, kept: str) -> dict[str, Topic]:
    """Those of the topics that exist."""
    found = clients.described(client, topics, seconds, who, kept)
    ids = {name: str(one.topic_id) for name, one in found.items()}
    return {
        name: Topic(len(one.partitions), ids[name] if ids[name].strip("A=") else None, bool(one.is_internal))
        for name, one in found.items()
    }


def matching(names: Collection[str], pattern: str) -> list[str]:
    """Those names that a pattern matches as a whole."""
    return [name for name in names if re.fullmatch(pattern, name)]


def keeps_state(name: str, topic: Topic) -> bool:
    """Whether a topic holds state of Kafka or of a tool; by convention such a name begins with two underlines."""
    return topic.internal or name in _STATE or name.startswith("__")


def check_ids(known: Mapping[str, str | None], found: Mapping[str, Topic], who: str) -> None:
    """Refuse topics that are gone, or that are others with the same names; an id is None where the brokers had none."""
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
