"""`kafka_range`: Kafka topics from one offset or time to another; a partition is a channel.

    spark.readStream.format("kafka_range").options(uid="in", bootstrap_servers="kafka:9092", topics="orders").load()

It ends, by default at the end that the log had when the source first started; with `ending=none` it does not end. The
first and last offset of each partition are decided once and stored in the first offset. See `docs/kafka_range.md`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from spark_ext.clients.kafka import admin, library, to_error
from spark_ext.errors import TerminalError, refused
from spark_ext.ingest.typed_rows import check_columns
from spark_ext.masking import logger
from spark_ext.model.offsets import Json, Position
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Committed, Limit
from spark_ext.sources.kafka_range.bounds import (
    Bound,
    TopicPartition,
    after,
    among,
    begins,
    finishes,
    id_of,
    name,
    place_of,
    rest,
)
from spark_ext.sources.kafka_range.brokers import Brokers, ChannelData, check_still, matching
from spark_ext.sources.kafka_range.decoding import decoded
from spark_ext.sources.kafka_range.options import KafkaRangeOptions
from spark_ext.sources.kafka_range.reader import COLUMNS, HEADERS, read
from spark_ext.sources.positions import number_in
from spark_ext.sources.registered import Decoder, Formats, JsonFields
from spark_ext.sources.staged import Cutover

log = logger("spark_ext.kafka")


class KafkaRange(ChannelSource):
    """Partitions as channels. Positions are offsets; a channel's data are topic, partition and end."""

    channels_name = "partitions"
    options_type = KafkaRangeOptions
    options: KafkaRangeOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._brokers = Brokers(self.options, self._who)
        self._known: set[TopicPartition] = set()
        self._begun: bool | None = None
        self._cutover: Cutover | None = None
        self._after: dict[TopicPartition, int] = {}  # where partitions continue at the cutover
        self._expected: dict[str, str | None] = {}  # ids that its topics must have when it begins
        self._ended: dict[TopicPartition, int] = {}
        self._without_end: dict[TopicPartition, int] = {}
        self._formats = Formats(self.options, self._who)

    @classmethod
    def name(cls) -> str:
        """`kafka_range`."""
        return "kafka_range"

    @property
    def _who(self) -> str:
        return f"source '{self.options.uid}' (kafka_range {self.options.pattern or ', '.join(self.options.topics)})"

    def schema(self) -> StructType:
        """The columns of Spark's own Kafka source; a key or value that is decoded has another type.

        JSON has that of the declared fields, or is text.
        """
        fields = [field for field in COLUMNS.fields if self.options.headers or field is not HEADERS]
        return StructType(
            [
                field if (decoder := self._decoder(field.name)) is None else StructField(field.name, decoder.kind)
                for field in fields
            ]
        )

    def _decoder(self, column: str) -> Decoder | None:
        declared = self.declared
        known = declared is not None and column in declared.names
        return self._formats.decoder(column, declared[column].dataType if declared is not None and known else None)

    @property
    def bounded(self) -> bool:
        """True unless `ending=none`."""
        return self.options.end.word != "none"

    @property
    def channels_end(self) -> bool:
        """False: all partitions are in progress at once, so that their ends are in the first offset."""
        return False

    def open(self) -> None:
        """Refuse topics that do not exist, before the query starts."""
        # This process is the driver; it needs no client afterwards.
        with admin(self.options, self._who) as client:
            self._brokers.topics(client)

    def check_cutover(self, partition: int, *, time: bool | None) -> None:
        """A cutover names the topic, the partition and its offset, for a single topic without it; or it is a time."""
        single = self.options.pattern is None and len(self.options.topics) == 1
        if partition == 0 and time is False:
            what = "an offset without its partition says nothing about where a topic continues"
        elif partition == 1 and not single:
            what = "a partition without its topic says nothing about where each of several topics continues"
        elif partition > 2:
            what = f"{partition} columns cannot name a topic and its partition"
        else:
            return
        wanted = ("'partition:offset', " if single else "") + "'topic:partition:offset'"
        raise refused(what, self._who, f"give the stage before it the seam {wanted}, or a column of times")

    def follow(self, cutover: Cutover) -> None:
        """Begin after another source's last offsets, or after its last time and the rows that it has of it."""
        self._cutover, self._after = cutover, after(cutover.offsets, self._who)

    def ids(self) -> Mapping[str, str]:
        """Of the topics, as they are now; none if the brokers give topics no ids."""
        return {topic: one.id for topic, one in self._brokers.topics().items() if one.id is not None}

    def expect(self, ids: Mapping[str, str]) -> None:
        """Refuse to begin with other topics of these names, among those still to be read."""
        pattern = self.options.pattern
        read = self.options.topics if pattern is None else matching(ids, pattern)
        self._expected = {topic: id for topic, id in ids.items() if topic in read}

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Continue with the ends in the first offset; a partition that was added since is read from its beginning."""
        self._check_columns()
        self._begun = bool(known or finished)
        if not self._begun:
            self._formats.check_versions()
        stored = [ChannelData.of(channel.data) for channel in known]
        self._known = {one.place for one in stored}
        self._brokers.ids = {one.place[0]: one.topic_id for one in stored} if self._begun else dict(self._expected)
        self._brokers.watch(self._known)
        self._known |= {place_of(id) for id in finished}

    def _check_columns(self) -> None:
        there = self.schema()
        for field in self.declared or ():
            if field.name not in there.names or there[field.name].dataType != field.dataType:
                what = f"column '{field.name} {field.dataType.simpleString()}' is not one of this source"
                do = f"remove .schema(...), or choose from: {there.simpleString()}"
                if "json" in (self.options.value_format, self.options.key_format):
                    do += "; fields of JSON are declared within its column, such as value struct<id: bigint>"
                raise refused(what, self._who, do)
            if isinstance(self._decoder(field.name), JsonFields):
                check_columns(cast("StructType", field.dataType), self._who)

    def discover(self) -> Iterable[Channel]:
        """The partitions; a bounded source reads only those that it began with."""
        if self._begun and self.bounded:
            return []
        topics = self._brokers.topics()
        places = [(topic, number) for topic in sorted(topics) for number in range(topics[topic].partitions)]
        if self._begun is None and not self.bounded:
            # Called before `resume`: what was read is not known yet.
            return [Channel(id_of(place), 0, ChannelData(place, None, None).to_json()) for place in places]
        self._brokers.check(topics)
        fresh = [place for place in places if place not in self._known]
        if not fresh:
            return []
        # A partition that was added later is read from its first message, wherever the others began.
        start = Bound(word="earliest") if self._begun else self._start(fresh)
        accept = self.options.lost_records == "accept"
        ends = self._brokers.ends(fresh)
        by_cutover = self._cutover is not None and self._cutover.time is not None
        matched = self._cutover is None and self.options.starting_timestamp_unmatched == "refuse"
        ask = self._brokers.offsets
        first = begins(start, fresh, ends, ask, self._who, accept=accept, future=by_cutover, matched=matched)
        if by_cutover and not self._begun:
            first |= self._rest(first)
        grace = self.options.ending_grace
        last = finishes(self.options.end, fresh, ends, ask, self._who, grace=grace)
        self._brokers.watch(fresh, ends.latest)
        ids = self._brokers.ids
        ids |= {place[0]: topics[place[0]].id for place in fresh}
        if not self.bounded:
            self._begun = True
            self._known.update(fresh)
        data = {place: ChannelData(place, last[place], ids[place[0]]).to_json() for place in fresh}
        return [Channel(id_of(place), first[place], data[place]) for place in fresh]

    def _start(self, places: Sequence[TopicPartition]) -> Bound:
        cutover = self._cutover
        if cutover is None:
            return self.options.start
        if cutover.time is not None:
            return Bound(time=cutover.time // 1000 + 1)
        if not self._after:
            return self.options.start
        ends = self._brokers.ends(places)
        own = begins(self.options.start, places, ends, self._brokers.offsets, self._who, accept=True)
        return Bound(offsets=own | among(self._after, places, self._who))

    def _rest(self, later: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Begin earlier where messages of the cutover's own millisecond are left."""
        cutover = self._cutover
        assert cutover is not None and cutover.time is not None
        moment = cutover.time // 1000 * 1000
        accept = self.options.lost_records == "accept"
        there: dict[TopicPartition, list[int]] = {}
        for place, at in self._brokers.offsets(dict.fromkeys(later, moment // 1000)).items():
            if 0 <= at < later[place]:
                names = ("offset", "timestamp")
                for batch in read(
                    self.options, place, at, later[place], names, self._who, accept=accept, bad=self.bad_row
                ):
                    same = batch.filter(pc.equal(batch["timestamp"].cast(pa.int64()), moment))["offset"]
                    if len(same):
                        there.setdefault(place, []).extend(same.to_pylist())
        return rest(there, cutover, self._who)

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
        high = self._brokers.last_high(place) if waits else None
        high = self._brokers.high(place, start, to) if high is None else high
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
                self._brokers.forget(place)
            high = self._brokers.high(place, start, None)
            if high == self._without_end.get(place) and not over:
                return None
            found = self._brokers.offsets({place: wanted})[place]
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
        """An offset, from the first one that is still there up to the channel's end."""
        stored = ChannelData.of(channel.data)
        ends = self._brokers.ends([stored.place])
        most = min(one for one in (ends.latest[stored.place], stored.end) if one is not None)
        least = min(ends.earliest[stored.place], most)
        return number_in(position, least, most, f"an offset of {name(stored.place)}", self._who)

    @property
    def knows_when_written(self) -> bool:
        """True: messages have timestamps, by which the brokers find offsets."""
        return True

    def written_before(self, channel: Channel, position: Position, at: float) -> bool:
        """By the first offset with a timestamp that is not earlier, as the brokers give it, at most a second ago."""
        first = self._brokers.younger_than(ChannelData.of(channel.data).place, at)
        # -1: there is no later message.
        return not 0 <= first <= position

    def latest(self, channel: Channel) -> Position:
        """The end of what is committed, in a list: a new channel without a message must be stored too."""
        return [self._brokers.high(ChannelData.of(channel.data).place, 0, None)]

    def lag(self, channel: Channel, at: Position) -> int | None:
        """Offsets up to the end of what is committed, as it was at most a second ago; markers of transactions count."""
        stored = ChannelData.of(channel.data)
        high = self._brokers.shown_high(stored.place)
        if high is None:
            return None
        left: int = (high if stored.end is None else min(high, stored.end)) - at
        return max(0, left)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The committed messages of a range."""
        stored = ChannelData.of(channel.data)
        columns = (self.declared or self.schema()).names
        accept = self.options.lost_records == "accept"
        decoders = {name: found for name in columns if (found := self._decoder(name)) is not None}
        if decoders:
            self._check_columns()
        wanted = columns if not decoders or "offset" in columns else [*columns, "offset"]
        try:
            for batch in read(
                self.options, stored.place, start, end, wanted, self._who, accept=accept, bad=self.bad_row
            ):
                yield decoded(batch, decoders, columns, stored.place, self.bad_row, self._who) if decoders else batch
        except TerminalError:
            # A topic that is gone or another one is the better explanation of offsets that are not there.
            check_still(self.options, stored.place[0], stored.topic_id, self._who)
            raise
        # After the last message: ids never return, so all of them were of the topic that was planned.
        check_still(self.options, stored.place[0], stored.topic_id, self._who)

    def on_epoch_committed(self, epoch: Committed) -> None:
        """Commit the positions to the consumer group, if one is given."""
        if self.options.group is None or not epoch.positions:
            return
        kafka = library(self._who)
        places = [kafka.TopicPartition(*place_of(id), at) for id, at in epoch.positions.items()]
        try:
            with self._brokers.committer() as consumer:
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
