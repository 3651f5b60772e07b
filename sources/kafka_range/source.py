"""`kafka_range`: Kafka topics from one offset or time to another; a partition is a channel.

    spark.readStream.format("kafka_range").options(uid="in", bootstrap_servers="kafka:9092", topics="orders").load()

It ends, by default at the end that the log had when the source first started; with `ending=none` it does not end. The
first and last offset of each partition are decided once and stored in the first offset. See `docs/kafka_range.md`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator, model_validator
from pyspark.sql.types import StructType

from spark_ext.clients.kafka import (
    RECREATED,
    KafkaOptions,
    admin,
    lent,
    library,
    no_topic,
    offsets,
    partitions,
    shared,
    to_error,
    unanswered,
)
from spark_ext.errors import NOTHING_DONE, DataError, SparkExtError, refused
from spark_ext.masking import logger
from spark_ext.model.offsets import Position
from spark_ext.options import Bytes, Milliseconds, Names
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Committed, Limit, SourceOptions
from spark_ext.sources.kafka_range.bounds import (
    NOTHING_READ,
    Bound,
    Ends,
    TopicPartition,
    begins,
    finishes,
    id_of,
    name,
    options_of,
    place_of,
)
from spark_ext.sources.kafka_range.reader import COLUMNS, HEADERS, read
from spark_ext.sources.staged import Cutover

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logger("spark_ext.kafka")

_FRESH_S: Final = 0.02
"""How long the ends of partitions are cached, s: Spark asks every 10 ms."""


class KafkaRangeOptions(SourceOptions, KafkaOptions):
    """Options of `kafka_range`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"client_options"})

    identity_fields: ClassVar[frozenset[str]] = frozenset({"bootstrap_servers", "pattern", "topics"})

    topics: Names = ()
    """Names of the topics to read, comma-separated."""
    pattern: str | None = None
    """Regular expression of the names of the topics to read, instead of `topics`."""
    starting: str | None = None
    """`earliest` (default), `latest`, or offsets by partition: `{"orders": {"0": 23, "1": -2}}`; -2 is earliest."""
    starting_time: str | None = None
    """Begin with the first message at or after a time: ISO 8601 or ms, one for all or by partition."""
    ending: str | None = None
    """`latest` (default), `none`, or offsets by partition, exclusive; -1 is latest."""
    ending_time: str | None = None
    """End before the first message at or after a time: ISO 8601 or ms, one for all or by partition. A future time is
    awaited; a partition without such a message ends at its end `ending_grace` after that time."""
    ending_grace: Milliseconds = 5_000
    """How long after `ending_time` older messages may still arrive, ms."""
    lost_records: Literal["refuse", "accept"] = "refuse"
    """Whether records that retention deleted before they were read stop the query, or are skipped."""
    headers: bool = False
    """Whether to add a column `headers`."""
    group: str | None = Field(default=None, min_length=1)
    """Consumer group to which committed positions are written, for Kafka's own tools; never read."""
    message_bytes: Bytes = Field(default=1024, gt=0)
    """Assumed size of a message for `max_bytes_per_epoch`, bytes: sizes are not known before reading."""

    _bounds: tuple[Bound, Bound] = PrivateAttr()

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as problem:
            raise ValueError(f"this is not a regular expression: {problem}") from None
        return value

    @model_validator(mode="after")
    def _together(self) -> KafkaRangeOptions:
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("give either topics or pattern")
        self._bounds = options_of(self.model_dump())
        return self

    @property
    def start(self) -> Bound:
        """The beginning of partitions."""
        return self._bounds[0]

    @property
    def end(self) -> Bound:
        """The end of partitions."""
        return self._bounds[1]


class KafkaRange(ChannelSource):
    """Partitions as channels. Positions are offsets; a channel's data are topic, partition and end."""

    options_type = KafkaRangeOptions
    options: KafkaRangeOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._known: set[TopicPartition] = set()
        self._begun: bool | None = None
        self._watched: set[TopicPartition] = set()
        self._highs: dict[TopicPartition, int] = {}
        self._asked = 0.0
        self._cutover: Cutover | None = None
        self._ended: dict[TopicPartition, int] = {}
        self._without_end: dict[TopicPartition, int] = {}

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
        """The columns of Spark's own Kafka source."""
        return StructType([field for field in COLUMNS.fields if self.options.headers or field is not HEADERS])

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
            self._places(client)

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
        self._known = {(channel.data[0], channel.data[1]) for channel in known}
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
            places = self._places(client)
        if self._begun is None and not self.bounded:
            # Called before `resume`: what was read is not known yet.
            return [Channel(id_of(place), 0, [*place, None]) for place in places]
        fresh = [place for place in places if place not in self._known]
        if not fresh:
            return []
        # A partition that was added later is read from its first message, wherever the others began.
        start = Bound(word="earliest") if self._begun else self._start(fresh)
        accept = self.options.lost_records == "accept"
        ends = self._ends(fresh)
        first = begins(start, fresh, ends, self._offsets, self._who, accept=accept)
        grace = self.options.ending_grace
        last = finishes(self.options.end, fresh, ends, self._offsets, self._who, grace=grace)
        self._highs.update(ends.latest)
        self._watched.update(fresh)
        if not self.bounded:
            self._begun = True
            self._known.update(fresh)
        return [Channel(id_of(place), first[place], [*place, last[place]]) for place in fresh]

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
        topic, partition, end = channel.data
        place = (topic, partition)
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

    def latest(self, channel: Channel) -> Position:
        """The end of what is committed, in a list: a new channel without a message must be stored too."""
        return [self._high((channel.data[0], channel.data[1]), 0, None)]

    def _high(self, place: TopicPartition, start: int, enough: int | None) -> int:
        """The end of what is committed; a cached one if that is enough."""
        known = self._highs.get(place)
        if known is None or (known < enough if enough is not None else True):
            now = time.monotonic()
            if known is None or now - self._asked > _FRESH_S:
                self._highs |= self._offsets({place: "latest" for place in {place, *self._watched}})
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
        """The committed messages of a range."""
        topic, partition, _ = channel.data
        columns = (self.declared or self.schema()).names
        accept = self.options.lost_records == "accept"
        yield from read(self.options, (topic, partition), start, end, columns, self._who, accept=accept)

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

    def _places(self, client: AdminClient) -> list[TopicPartition]:
        """All partitions of the topics."""
        topics = self._matching(client) if self.options.pattern is not None else self.options.topics
        found = partitions(client, topics, self._seconds, self._who, NOTHING_DONE) if topics else {}
        for topic, count in found.items():
            if not count:
                raise no_topic(topic, "read", self._who, NOTHING_DONE)
        if not found and self.bounded:
            pattern = self.options.pattern
            raise refused(f"no topic's name matches '{pattern}'", self._who, "correct the option 'pattern'")
        return [(topic, number) for topic in sorted(found) for number in range(found[topic])]

    def _matching(self, client: AdminClient) -> list[str]:
        kafka, pattern = library(self._who), str(self.options.pattern)
        try:
            topics = client.list_topics(timeout=self._seconds).topics
        except kafka.KafkaException as problem:
            raise self._fault(problem, "the topics could not be listed") from problem
        return [topic for topic in topics if re.fullmatch(pattern, topic)]

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
            raise self._fault(problem, "the ends of partitions could not be looked up") from problem
        except TimeoutError as problem:
            raise unanswered(self._who, self._seconds, NOTHING_READ) from problem

    def _fault(self, problem: Exception, what: str) -> SparkExtError:
        return to_error(problem.args[0], what, self._who, "everything that was committed")
