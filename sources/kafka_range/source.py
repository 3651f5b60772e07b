"""`kafka_range`: Kafka topics from one offset or time to another; a partition is a channel.

    spark.readStream.format("kafka_range").options(uid="in", bootstrap_servers="kafka:9092", topics="orders").load()

It ends, by default at the end that the log had when the source first started; with `ending=none` it does not end. The
first and last offset of each partition are decided once and stored in the first offset. See `docs/kafka_range.md`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from spark_ext.clients.kafka import (
    RECREATED,
    admin,
    lent,
    library,
    no_topic,
    offsets,
    shared,
    to_error,
    unanswered,
)
from spark_ext.errors import NOTHING_DONE, DataError, SparkExtError, TerminalError, refused
from spark_ext.masking import logger
from spark_ext.model.offsets import Json, Position
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Committed, Limit
from spark_ext.sources.kafka_range.bounds import (
    NOTHING_READ,
    Bound,
    Ends,
    TopicPartition,
    begins,
    finishes,
    id_of,
    name,
    place_of,
)
from spark_ext.sources.kafka_range.decoding import decoded
from spark_ext.sources.kafka_range.formats import Formats
from spark_ext.sources.kafka_range.options import KafkaRangeOptions
from spark_ext.sources.kafka_range.reader import COLUMNS, HEADERS, read
from spark_ext.sources.kafka_range.topics import (
    NO_TOPIC,
    ChannelData,
    Topic,
    check_ids,
    check_still,
    described,
    keeps_state,
    matching,
)
from spark_ext.sources.positions import number_in
from spark_ext.sources.staged import Cutover

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logger("spark_ext.kafka")

_FRESH_S: Final = 0.02
"""How long the ends of partitions are cached, s: Spark asks every 10 ms."""

_KNOWN_S: Final = 1.0
"""How long they count as known where they are only shown, s."""

_OLD_S: Final = 1.0
"""How long the offsets of a time are cached, s."""


class KafkaRange(ChannelSource):
    """Partitions as channels. Positions are offsets; a channel's data are topic, partition and end."""

    options_type = KafkaRangeOptions
    options: KafkaRangeOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._known: set[TopicPartition] = set()
        self._ids: dict[str, str | None] = {}
        """Ids of the topics that were begun."""
        self._begun: bool | None = None
        self._watched: set[TopicPartition] = set()
        self._highs: dict[TopicPartition, int] = {}
        self._asked = 0.0
        self._cutover: Cutover | None = None
        self._ended: dict[TopicPartition, int] = {}
        self._without_end: dict[TopicPartition, int] = {}
        self._old: dict[int, tuple[float, Mapping[TopicPartition, int]]] = {}
        """By age, s: when the brokers were asked, and the first offsets of messages that are younger."""
        self._formats = Formats(self.options, self._who)

    @classmethod
    def name(cls) -> str:
        """`kafka_range`."""
        return "kafka_range"

    @property
    def _who(self) -> str:
        return f"source '{self.options.uid}' (kafka_range {self.options.pattern or ', '.join(self.options.topics)})"

    @property
    def _seconds(self) -> float:
        return self.options.request_timeout / 1000

    def schema(self) -> StructType:
        """The columns of Spark's own Kafka source; a key or value that is decoded has another type.

        Raises:
            ConfigurationError: there is no such schema, or it has no form in Spark.
            StorageError: the registry does not answer.
        """
        fields = [field for field in COLUMNS.fields if self.options.headers or field is not HEADERS]
        return StructType(
            [
                field
                if (decoder := self._formats.decoder(field.name)) is None
                else StructField(field.name, decoder.kind)
                for field in fields
            ]
        )

    # -- planning -------------------------------------------------------------------------------------------

    @property
    def bounded(self) -> bool:
        """True unless `ending=none`."""
        return self.options.end.word != "none"

    @property
    def channels_end(self) -> bool:
        """False: all partitions are in progress at once, so that their ends are in the first offset."""
        return False

    def open(self) -> None:
        """Refuse topics that do not exist, before the query starts.

        Raises:
            ConfigurationError: there is no such topic, or the client is refused.
            StorageError: the brokers do not answer.
        """
        # This process is the driver; it needs no client afterwards.
        with admin(self.options, self._who) as client:
            self._topics(client)

    def follow(self, cutover: Cutover) -> None:
        """Begin after another source's last offsets, or after its last time."""
        self._cutover = cutover

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Continue with the ends in the first offset; a partition that was added since is read from its beginning.

        Raises:
            ConfigurationError: a declared column is not one of the source's.
        """
        self._check_columns()
        self._begun = bool(known or finished)
        if not self._begun:
            self._formats.check_versions()
        stored = [ChannelData.of(channel.data) for channel in known]
        self._known = {one.place for one in stored}
        self._ids = {one.place[0]: one.topic_id for one in stored}
        self._watched = set(self._known)
        self._known |= {place_of(id) for id in finished}

    def _check_columns(self) -> None:
        there = self.schema()
        for field in self.declared or ():
            if field.name not in there.names or there[field.name].dataType != field.dataType:
                raise refused(
                    f"column '{field.name} {field.dataType.simpleString()}' is not one of this source",
                    self._who,
                    f"remove .schema(...), or choose from: {there.simpleString()}",
                )

    def discover(self) -> Iterable[Channel]:
        """The partitions; a bounded source reads only those that it began with."""
        if self._begun and self.bounded:
            return []
        with self._admin() as client:
            topics = self._topics(client)
        places = [(topic, number) for topic in sorted(topics) for number in range(topics[topic].partitions)]
        if self._begun is None and not self.bounded:
            # Called before `resume`: what was read is not known yet.
            return [Channel(id_of(place), 0, ChannelData(place, None, None).to_json()) for place in places]
        self._check_ids(topics)
        fresh = [place for place in places if place not in self._known]
        if not fresh:
            return []
        # A partition that was added later is read from its first message, wherever the others began.
        start = Bound(word="earliest") if self._begun else self._start(fresh)
        accept = self.options.lost_records == "accept"
        ends = self._ends(fresh)
        by_cutover = self._cutover is not None and self._cutover.time is not None
        matched = self._cutover is None and self.options.starting_time_unmatched == "refuse"
        first = begins(start, fresh, ends, self._offsets, self._who, accept=accept, future=by_cutover, matched=matched)
        grace = self.options.ending_grace
        last = finishes(self.options.end, fresh, ends, self._offsets, self._who, grace=grace)
        self._highs.update(ends.latest)
        self._watched.update(fresh)
        self._ids |= {place[0]: topics[place[0]].id for place in fresh}
        if not self.bounded:
            self._begun = True
            self._known.update(fresh)
        data = {place: ChannelData(place, last[place], self._ids[place[0]]).to_json() for place in fresh}
        return [Channel(id_of(place), first[place], data[place]) for place in fresh]

    def _start(self, places: Sequence[TopicPartition]) -> Bound:
        cutover = self._cutover
        if cutover is None:
            return self.options.start
        if cutover.time is not None:
            return Bound(time=cutover.time // 1000 + 1)
        if not cutover.offsets:
            return self.options.start
        ends = self._ends(places)
        own = begins(self.options.start, places, ends, self._offsets, self._who, accept=True)
        named = {(key.rpartition(":")[0], int(key.rpartition(":")[2])): at + 1 for key, at in cutover.offsets.items()}
        return Bound(offsets={place: named.get(place, named.get(("", place[1]), own[place])) for place in places})

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Up to the limit, the channel's end, or what is committed now."""
        stored = ChannelData.of(channel.data)
        place, end = stored.place, stored.end
        waits = end is None and self.options.end.time_of(place) is not None
        if waits:
            end = self._end_by_time(place, start)
        if end is not None and start >= end:
            return Advance(start, finished=True, rows=0, bytes=0)
        limited = limit.rows is not None or limit.bytes is not None
        if channel.begin is not None and limited:
            # New: its first offset stores its beginning and end. Without rows, so that all partitions are part of the
            # first epoch however small its limit, and none is looked up again after a crash.
            return Advance(start, rows=0, bytes=0)
        wanted = [start + number for number in self._most(limit)]
        wanted += [bound for bound in (end, limit.upto[0] if limit.upto else None) if bound is not None]
        to = min(wanted, default=None)
        # Not newer than the one that the search for the end has seen: a message behind the end could be below it.
        high = self._highs[place] if waits else self._high(place, start, to)
        to = high if to is None else max(start, min(to, high))
        rows = to - start
        return Advance(to, finished=to == end, rows=rows, bytes=rows * self.options.message_bytes)

    def _end_by_time(self, place: TopicPartition, start: int) -> int | None:
        """The end of a partition by a time that was in the future, or just past, at its beginning; None: not yet."""
        if place not in self._ended:
            wanted = self.options.end.time_of(place)
            assert wanted is not None
            over = time.time() * 1000 >= wanted + self.options.ending_grace
            if over:
                self._highs.pop(place, None)
            high = self._high(place, start, None)
            if high == self._without_end.get(place) and not over:
                return None
            found = self._offsets({place: wanted})[place]
            if found < 0 and not over:
                self._without_end[place] = high
                return None
            self._ended[place] = high if found < 0 else max(found, start)
        return self._ended[place]

    def _most(self, limit: Limit) -> list[int]:
        by_bytes = None if limit.bytes is None else max(1, limit.bytes // self.options.message_bytes)
        return [number for number in (limit.rows, by_bytes) if number is not None]

    @property
    def least_tasks(self) -> int:
        """The option `min_partitions`."""
        return self.options.min_partitions or 0

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """Anywhere, with `min_partitions`; else a partition is read in order."""
        parts = min(parts, end - start) if self.options.min_partitions is not None else 1
        cuts = [start + (end - start) * part // parts for part in range(parts + 1)] if parts > 1 else [start, end]
        return list(pairwise(cuts))

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """An offset, from the first one that is still there up to the channel's end.

        Raises:
            ConfigurationError: it is another one.
            StorageError: the brokers do not answer.
        """
        stored = ChannelData.of(channel.data)
        ends = self._ends([stored.place])
        most = min(one for one in (ends.latest[stored.place], stored.end) if one is not None)
        least = min(ends.earliest[stored.place], most)
        return number_in(position, least, most, f"an offset of {name(stored.place)}", self._who)

    @property
    def knows_when_written(self) -> bool:
        """True: messages have timestamps, by which the brokers find offsets."""
        return True

    def written_before(self, channel: Channel, position: Position, at: float) -> bool:
        """By the first offset with a timestamp that is not earlier, as the brokers give it, at most a second ago."""
        place = ChannelData.of(channel.data).place
        # Limits for rows of different ages may be in force at once.
        age = round(time.time() - at)
        asked, found = self._old.get(age, (0.0, {}))
        if place not in found or time.monotonic() - asked > _OLD_S:
            found = self._offsets(dict.fromkeys({place, *self._watched}, int(at * 1000)))
            self._old[age] = time.monotonic(), found
        # -1: there is no later message.
        return not 0 <= found[place] <= position

    def latest(self, channel: Channel) -> Position:
        """The end of what is committed, in a list: a new channel without a message must be stored too."""
        return [self._high(ChannelData.of(channel.data).place, 0, None)]

    def lag(self, channel: Channel, at: Position) -> int | None:
        """Offsets up to the end of what is committed, as it was at most a second ago; markers of transactions count."""
        stored = ChannelData.of(channel.data)
        if time.monotonic() - self._asked > _KNOWN_S:
            self._high(stored.place, 0, None)
        ends = [end for end in (self._highs.get(stored.place), stored.end) if end is not None]
        return max(0, min(ends) - at) if stored.place in self._highs else None

    def _high(self, place: TopicPartition, start: int, enough: int | None) -> int:
        """The end of what is committed; a cached one if that is enough."""
        known = self._highs.get(place)
        if known is None or (known < enough if enough is not None else True):
            now = time.monotonic()
            if known is None or now - self._asked > _FRESH_S:
                found = self._offsets({place: "latest" for place in {place, *self._watched}})
                if any(self._highs.get(one) != high for one, high in found.items()):
                    # After the ends, so that they are those of the topics that were begun.
                    self._check_ids(None)
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

    # -- reading --------------------------------------------------------------------------------------------

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The committed messages of a range.

        Raises:
            DataError: retention has deleted the range, or the topic is no longer the one that was planned, or a key or
                value cannot be decoded.
            StorageError: the brokers or the registry do not answer.
        """
        stored = ChannelData.of(channel.data)
        columns = (self.declared or self.schema()).names
        accept = self.options.lost_records == "accept"
        decoders = {name: found for name in columns if (found := self._formats.decoder(name)) is not None}
        if decoders:
            self._check_columns()
        wanted = columns if not decoders or "offset" in columns else [*columns, "offset"]
        try:
            for batch in read(self.options, stored.place, start, end, wanted, self._who, accept=accept):
                yield decoded(batch, decoders, columns, stored.place, self.bad_row, self._who) if decoders else batch
        except TerminalError:
            # A topic that is gone or another one is the better explanation of offsets that are not there.
            check_still(self.options, stored.place[0], stored.topic_id, self._who)
            raise
        # After the last message: ids never return, so all of them were of the topic that was planned.
        check_still(self.options, stored.place[0], stored.topic_id, self._who)

    # -- what is safe ---------------------------------------------------------------------------------------

    def on_epoch_committed(self, epoch: Committed) -> None:
        """Commit the positions to the consumer group, if one is given.

        Raises:
            SparkExtError: the positions of the last epoch could not be committed; those of others the next epoch
                commits.
        """
        if self.options.group is None or not epoch.positions:
            return
        kafka = library(self._who)
        places = [kafka.TopicPartition(*place_of(id), at) for id, at in epoch.positions.items()]
        try:
            with lent(self._committer) as consumer:
                answers = consumer.commit(offsets=places, asynchronous=False)
            problem = next((one.error for one in answers if one.error is not None), None)
        except kafka.KafkaException as failure:
            problem = failure.args[0]
        if problem is None:
            return
        what = f"the positions of group '{self.options.group}' could not be committed"
        error = to_error(problem, what, self._who, "everything that was committed")
        if epoch.final:
            raise error
        log.warning("%s", error)

    # -- the brokers ----------------------------------------------------------------------------------------

    def _admin(self) -> AbstractContextManager[AdminClient]:
        return lent(shared("plan", self.options.client(self._who), lambda: admin(self.options, self._who)))

    @property
    def _committer(self) -> Any:
        own = self.options.client(self._who, group_id=self.options.group, enable_auto_commit=False)
        return shared("commit", own, lambda: library(self._who).Consumer(own))

    def _topics(self, client: AdminClient) -> dict[str, Topic]:
        """The topics to read; with a pattern, without those that keep state, unless they are wanted or were begun."""
        pattern = self.options.pattern
        names = self.options.topics if pattern is None else matching(self._listed(client), pattern)
        found = described(client, names, self._seconds, self._who, NOTHING_DONE)
        if pattern is not None:
            every = self.options.internal_topics
            found = {
                name: one for name, one in found.items() if every or name in self._ids or not keeps_state(name, one)
            }
        elif missing := [name for name in names if name not in found]:
            self._check_ids(found)
            raise no_topic(missing[0], "read", self._who, NOTHING_DONE)
        if not found and self.bounded:
            raise refused(f"no topic's name matches '{pattern}'", self._who, "correct the option 'pattern'")
        return found

    def _listed(self, client: AdminClient) -> list[str]:
        kafka = library(self._who)
        try:
            return list(client.list_topics(timeout=self._seconds).topics)
        except kafka.KafkaException as problem:
            raise self._fault(problem, "the topics could not be listed") from problem

    def _check_ids(self, topics: Mapping[str, Topic] | None) -> None:
        """Refuse topics that are no longer those that were begun; without `topics` the brokers are asked."""
        if topics is None:
            with self._admin() as client:
                topics = described(client, list(self._ids), self._seconds, self._who, NOTHING_READ)
        check_ids(self._ids, topics, self._who)
        # An older version has not stored them: from now on they are known, as long as this planner runs.
        self._ids = {topic: id or topics[topic].id for topic, id in self._ids.items()}

    def _ends(self, places: Sequence[TopicPartition]) -> Ends:
        return Ends(self._offsets(dict.fromkeys(places, "earliest")), self._offsets(dict.fromkeys(places, "latest")))

    def _offsets(self, wanted: Mapping[TopicPartition, str | int]) -> dict[TopicPartition, int]:
        kafka = library(self._who)
        of = kafka.admin.OffsetSpec
        words = {"earliest": of.earliest(), "latest": of.latest()}
        specs = {
            place: words[spec] if isinstance(spec, str) else of.for_timestamp(spec) for place, spec in wanted.items()
        }
        try:
            with self._admin() as client:
                return offsets(client, specs, self._seconds)
        except kafka.KafkaException as problem:
            if problem.args[0].name() in NO_TOPIC:
                self._check_ids(None)
            raise self._fault(problem, "the ends of partitions could not be looked up") from problem
        except TimeoutError as problem:
            raise unanswered(self._who, self._seconds, NOTHING_READ) from problem

    def _fault(self, problem: Exception, what: str) -> SparkExtError:
        return to_error(problem.args[0], what, self._who, "everything that was committed")
