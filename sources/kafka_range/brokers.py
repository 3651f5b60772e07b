"""What the brokers say of the topics that a `kafka_range` reads: which there are, where they end, and offsets of times.

The ends of all watched partitions come with one request, and are kept for a moment: Spark asks every 10 ms.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from spark_ext.clients.kafka import RECREATED, admin, lent, library, no_topic, offsets, shared, to_error, unanswered
from spark_ext.errors import NOTHING_DONE, DataError, SparkExtError, refused
from spark_ext.sources.kafka_range.bounds import NOTHING_READ, Ends, TopicPartition, name
from spark_ext.sources.kafka_range.options import KafkaRangeOptions
from spark_ext.sources.kafka_range.topics import NO_TOPIC, Topic, check_ids, described, keeps_state, matching

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_FRESH_S: Final = 0.02
"""How long the ends of partitions are cached, s."""

_KNOWN_S: Final = 1.0
"""How long they count as known where they are only shown, s."""

_OLD_S: Final = 1.0
"""How long the offsets of a time are cached, s."""


class Brokers:
    """The brokers, as the planner of one source asks them. Holds no connection: clients are lent for each request."""

    def __init__(self, options: KafkaRangeOptions, who: str) -> None:
        self._options, self._who = options, who
        self.ids: dict[str, str | None] = {}
        """Ids of the topics that were begun, or have to be; None: not known."""
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
        """The topics to read; with a pattern, without those that keep state, unless they are wanted or were begun.

        Args:
            own: a client to ask with; None: the process's.
        """
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
        """Refuse topics that are no longer those that were begun.

        Args:
            topics: those that there are; None: the brokers are asked.
        """
        if topics is None:
            with self._admin() as client:
                topics = described(client, list(self.ids), self._seconds, self._who, NOTHING_READ)
        check_ids(self.ids, topics, self._who)

    # -- where partitions end -------------------------------------------------------------------------------

    def watch(self, places: Iterable[TopicPartition], highs: Mapping[TopicPartition, int] | None = None) -> None:
        """Ask for the ends of these partitions too whenever one is needed.

        Args:
            highs: their ends, if they have just been asked for.
        """
        self._watched.update(places)
        self._highs.update(highs or {})

    def forget(self, place: TopicPartition) -> None:
        """Ask again when the end of a partition is needed next."""
        self._highs.pop(place, None)

    def high(self, place: TopicPartition, start: int, enough: int | None) -> int:
        """The end of what is committed in a partition, as it was within the last 20 ms.

        Args:
            enough: an end that would do, however long ago it was asked for; None: the newest is wanted.
        """
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
        """The first offset of a partition with a timestamp that is not earlier, as of the last second; -1: none.

        Args:
            at: seconds since 1970 UTC.
        """
        # Limits for rows of different ages may be in force at once.
        age = round(time.time() - at)
        asked, found = self._old.get(age, (0.0, {}))
        if place not in found or time.monotonic() - asked > _OLD_S:
            found = self.offsets(dict.fromkeys({place, *self._watched}, int(at * 1000)))
            self._old[age] = time.monotonic(), found
        return found[place]

    def offsets(self, wanted: Mapping[TopicPartition, str | int]) -> dict[TopicPartition, int]:
        """Offsets of partitions.

        Args:
            wanted: by partition `earliest`, `latest`, or a time, ms since 1970 UTC, for the first message that is not
                earlier; -1 in the answer if all are.
        """
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
