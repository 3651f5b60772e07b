"""The topic in which `kafka_2pc` records committed epochs: one record per epoch, in the epoch's transaction.

It is compacted, so the last record of each sink is kept forever; offsets of a consumer group expire. All records of a
sink are in one partition, its transactional id's hash modulo a fixed number, whatever partitions are added later.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from spark_ext.clients.kafka import KafkaOptions, admin, answered, library, offsets, partitions, to_error, unanswered
from spark_ext.errors import ConfigurationError, StorageError, refused
from spark_ext.model.commits import FenceMark, not_the_target
from spark_ext.sinks.contract import Claim, Epoch

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PARTITIONS: Final = 8  # Of the topic; must never change
APPLICATIONS: Final = 100  # Queries whose epochs a record keeps: a sink outside a job may serve many in turn
TOPICS: Final = 100  # Number of topics whose ids a record keeps
_VERSION: Final = 1
_KEPT: Final = "the target is unchanged"
_SEGMENT_BYTES: Final = 8 * 1024 * 1024  # Only closed segments are compacted, so a small one keeps the topic small
_WINDOW: Final = 64  # Number of offsets read first, backwards from the end; eight times as many in each further step


@dataclass(frozen=True)
class EpochRecord:
    """What a sink has committed, and for which job."""

    incarnation: int = 0
    start: int = 0  # Random number of the start that has claimed the sink; 0: not known
    job: str = ""
    job_id: str = ""
    epochs: Mapping[str, int] = field(default_factory=dict)  # By `Epoch.application`, the most recent last
    topics: Mapping[str, str] = field(default_factory=dict)  # Ids of the newest lineage's topics by name
    bad_rows: Mapping[str, int] = field(default_factory=dict)  # By `Epoch.application`: mark of its last epoch

    @property
    def mark(self) -> FenceMark:
        """The start that may write."""
        return FenceMark(self.incarnation, self.start)

    def holds(self, epoch: Epoch) -> bool:
        """Whether the epoch, or a later one of its query, is committed."""
        return self.epochs.get(epoch.application, -1) >= epoch.number

    def check_topics(self, found: Mapping[str, str], who: str) -> None:
        """Compare the ids of topics now, "" for one that does not exist, with those that were written before."""
        for topic, identity in self.topics.items():
            if topic in found and found[topic] != identity:
                how = "created again" if found[topic] else "deleted"
                raise not_the_target(f"the topic '{topic}' was {how}", who)

    def mark_of(self, epoch: Epoch) -> int | None:
        """The mark of an epoch's bad rows; None if it has none, or is not the last one of its query."""
        last = self.epochs.get(epoch.application) == epoch.number
        return self.bad_rows.get(epoch.application) if last else None

    def with_epoch(self, epoch: Epoch, topics: Mapping[str, str] | None = None, mark: int | None = None) -> EpochRecord:
        """The record with this epoch as the last one, the ids of its topics, and the mark of its bad rows."""
        others = {name: number for name, number in self.epochs.items() if name != epoch.application}
        kept = dict(list(others.items())[-(APPLICATIONS - 1) :])
        epochs = {**kept, epoch.application: epoch.number}
        known = dict(list({**(topics or {}), **self.topics}.items())[:TOPICS])
        bad_rows = {name: held for name, held in self.bad_rows.items() if name in kept}
        if mark is not None:
            bad_rows[epoch.application] = mark
        return replace(
            self, incarnation=epoch.incarnation, start=epoch.start, epochs=epochs, topics=known, bad_rows=bad_rows
        )

    def claimed(self, claim: Claim, topics: Mapping[str, str]) -> EpochRecord:
        """The record with a new owner, and the ids of the topics as they are now.

        A lineage without epochs has written to no topic yet. It must not be compared with the topics of the lineage
        before it: a reset is what is advised when one of them was deleted and created again.
        """
        owner = replace(self, incarnation=claim.incarnation, start=claim.start, job=claim.job, job_id=claim.job_id)
        written = self.topics if claim.known(self.epochs) else {}
        return replace(owner, topics={**written, **topics})

    def to_bytes(self) -> bytes:
        """The value of the message."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, who: str) -> EpochRecord:
        """Parse a record."""
        try:
            found = json.loads(raw)
            if found.pop("version") == _VERSION:
                return cls(**found)
        except (ValueError, LookupError, TypeError, AttributeError):
            pass
        raise refused(
            "the topic of epochs contains a record that this release does not support",
            who,
            "run the release that wrote it or a newer one, or choose another topic with the option 'epochs_topic'",
            kept=_KEPT,
        )


class EpochsTopic:
    """The topic from the view of one sink."""

    def __init__(self, options: KafkaOptions, topic: str, key: str, who: str) -> None:
        self._options, self.topic, self.key, self.who = options, topic, key, who
        self.partition = zlib.crc32(key.encode()) % PARTITIONS

    @property
    def _seconds(self) -> float:
        return self._options.request_timeout / 1000

    def ensure(self) -> None:
        """Create the topic if it does not exist; refuse one that would lose records."""
        kafka = library(self.who)
        try:
            with admin(self._options, self.who) as client:
                there = self._partitions(client) or self._create(client)
                resource = kafka.admin.ConfigResource(kafka.admin.ResourceType.TOPIC, self.topic)
                asked = client.describe_configs([resource], request_timeout=self._seconds)
                policy = answered(asked[resource], self._seconds)["cleanup.policy"].value
        except (kafka.KafkaException, TimeoutError) as problem:
            raise self._fault(problem, f"the topic of epochs '{self.topic}' could not be described") from problem
        if policy != "compact":
            raise self._refusal(f"has cleanup.policy={policy}, so it would lose what is committed")
        if there < PARTITIONS:
            raise self._refusal(f"has {there} partitions instead of {PARTITIONS}")

    def _partitions(self, client: AdminClient) -> int:
        return partitions(client, [self.topic], self._seconds, self.who, _KEPT)[self.topic]

    def _create(self, client: AdminClient) -> int:
        kafka = library(self.who)
        config = {"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_BYTES)}
        # A replication factor of -1 is the brokers' own default.
        new = kafka.admin.NewTopic(self.topic, num_partitions=PARTITIONS, replication_factor=-1, config=config)
        try:
            answered(client.create_topics([new], request_timeout=self._seconds)[self.topic], self._seconds)
        except kafka.KafkaException as problem:
            if problem.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise
        # Another broker may not know it yet.
        limit = time.monotonic() + self._seconds
        while not (there := self._partitions(client)):
            if time.monotonic() > limit:
                raise TimeoutError
            time.sleep(0.02)
        # The brokers' metadata of the topic is complete only once all partitions have leaders.
        self._offset(client, kafka.admin.OffsetSpec.latest())
        return there

    def latest(self, *, settled: bool = True) -> EpochRecord:
        """The sink's last committed record. It remains valid as long as the sink's producer is not fenced.

        With `settled` it waits for open transactions, which hide all records after them. Without, the record
        may be an older one: it shows that a newer start exists or that an epoch is committed, and never that
        one is missing. Must be false before the transaction of the sink's own predecessor is ended.
        """
        kafka = library(self.who)
        try:
            with admin(self._options, self.who) as client:
                end = self._settled_end(client) if settled else self._offset(client, kafka.admin.OffsetSpec.latest())
                begin = self._offset(client, kafka.admin.OffsetSpec.earliest())
            consumer = kafka.Consumer(
                self._options.client(
                    self.who,
                    group_id="spark-ext",  # required by the library; nothing is ever committed under it
                    enable_auto_commit=False,
                    enable_partition_eof=True,
                    isolation_level="read_committed",
                    fetch_wait_max_ms=10,
                )
            )
            try:
                return self._last(consumer, begin, end)
            finally:
                consumer.close()
        except (kafka.KafkaException, TimeoutError) as problem:
            raise self._fault(problem, "the committed epochs could not be read") from problem

    def _settled_end(self, client: AdminClient) -> int:
        """The partition's end, once no transaction before it is open: an open one hides all records after it."""
        kafka = library(self.who)
        latest = kafka.admin.OffsetSpec.latest()
        written = self._offset(client, latest, committed=False)
        limit = time.monotonic() + self._seconds
        while True:
            settled = self._offset(client, latest)
            if settled >= written:
                return settled
            if time.monotonic() > limit:
                raise StorageError(
                    f"a transaction on the topic of epochs '{self.topic}' has been open for {self._seconds:g} s; "
                    "the committed epochs cannot be read before it ends",
                    operator=self.who,
                    kept=_KEPT,
                    do="wait: the brokers end it after the transaction_timeout of the sink that began it; the "
                    "operation will be retried with back-off",
                )
            time.sleep(0.01)

    def _offset(self, client: AdminClient, spec: Any, *, committed: bool = True) -> int:
        place = (self.topic, self.partition)
        return offsets(client, {place: spec}, self._seconds, committed=committed)[place]

    def _last(self, consumer: Any, begin: int, end: int) -> EpochRecord:
        """Backwards, in growing steps."""
        stop, size = end, _WINDOW
        while stop > begin:
            start = max(begin, stop - size)
            found = self._last_in(consumer, start, stop)
            if found is not None:
                return EpochRecord.from_bytes(found, self.who)
            stop, size = start, size * 8
        return EpochRecord()

    def _last_in(self, consumer: Any, start: int, stop: int) -> bytes | None:
        kafka = library(self.who)
        consumer.assign([kafka.TopicPartition(self.topic, self.partition, start)])
        key, found, at = self.key.encode(), None, start
        limit = time.monotonic() + self._seconds
        while at < stop:
            for message in consumer.consume(1000, 0.02):
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise kafka.KafkaException(error)
                at = message.offset() + (error is None)
                if error is None and message.key() == key and message.offset() < stop:
                    found = message.value()
                limit = time.monotonic() + self._seconds
            if time.monotonic() > limit:
                raise TimeoutError(f"no answer within {self._seconds:g} s")
        return found

    def _fault(self, problem: Exception, what: str) -> Exception:
        if isinstance(problem, TimeoutError):
            return unanswered(self.who, self._seconds, _KEPT, what)
        return to_error(problem.args[0], what, self.who, _KEPT)

    def _refusal(self, how: str) -> ConfigurationError:
        return refused(
            f"the topic of epochs '{self.topic}' {how}",
            self.who,
            f"create it with --partitions {PARTITIONS} --config cleanup.policy=compact, or choose another with the "
            "option 'epochs_topic'",
        )
