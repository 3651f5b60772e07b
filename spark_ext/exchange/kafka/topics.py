"""The two topics of an exchange, and what is asked of the brokers about them. The clients are those of the process.

topics.json   in the exchange's folder: a draw, which makes the topics' names unlike those of every other exchange; how
              they were created; and once they are there, their ids, by which one that is created again is recognised
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from spark_ext.clients.kafka import (
    NO_TOPIC,
    SETTLING,
    KafkaOptions,
    admin,
    answered,
    deleted,
    described,
    lent,
    library,
    refused_settings,
    shared,
    to_error,
    unanswered,
)
from spark_ext.clients.library import referenced
from spark_ext.errors import RESET, SparkExtError, StateError, refused
from spark_ext.exchange.contract import KindOptions
from spark_ext.failpoints import FailPoint, reach
from spark_ext.options import Bytes, Milliseconds

if TYPE_CHECKING:
    from spark_ext.storage import Folder

FILE: Final = "topics.json"
LOG_BYTES: Final = 16 * 1024 * 1024  # the largest record of the log: an entry with the runs of all segments of an epoch
OVERHEAD: Final = 64 * 1024  # of a message, at most
KEPT: Final = "everything that was committed"
FOREVER: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_BATCH: Final = 10_000
_SETTLING: Final = SETTLING | {"_UNKNOWN_PARTITION"}
_GONE: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})

_MADE_WITH: Final = ("topic_prefix", "topic_partitions", "replication_factor", "min_insync_replicas")
"""Options that the topics were created with: a change would have no effect, so it is refused."""

_locks: Final = defaultdict[str, RLock](RLock)
"""One use at a time of each client, as one that fails is closed."""


class KafkaExchangeOptions(KindOptions, KafkaOptions):
    """Options of the exchange kind `kafka`."""

    request_timeout: Milliseconds = Field(default=10_000, gt=0)
    """Time limit for an answer of the brokers, ms."""
    topic_prefix: str = Field(default="spark-ext", pattern=r"^[A-Za-z0-9._-]{1,80}$")
    """How the names of the exchange's two topics begin."""
    topic_partitions: int = Field(default=4, gt=0, le=1000)
    """Number of partitions of the topic of rows. More of them spread the load over brokers; the number of the
    exchange's partitions is independent of it."""
    replication_factor: int = Field(default=-1, ge=-1)
    """Replicas of the topics. -1: the brokers' default."""
    min_insync_replicas: int | None = Field(default=None, gt=0)
    """How many replicas must have a record before it counts as written. None: the brokers' default."""
    chunk_bytes: Bytes = Field(default=900 * 1024, gt=0, le=LOG_BYTES)
    """Largest message of rows, bytes; longer runs of rows are divided. Must be below `message.max.bytes` of the
    brokers."""

    def client(self, who: str, **own: Any) -> dict[str, Any]:
        """See `KafkaOptions.client`; a setting may also name where its value is, `env:NAME` or `file:PATH`."""
        given = super().client(who, **own)
        return {name: referenced(one, name, who) if isinstance(one, str) else one for name, one in given.items()}


@dataclass(frozen=True)
class TopicNames:
    """The topics of one exchange."""

    exchange: str
    draw: str
    made_with: Mapping[str, Any]
    ids: Mapping[str, str] | None = None  # by name; None: they are not all there yet

    @property
    def log(self) -> str:
        """The topic of the log."""
        return self._named("log")

    @property
    def rows(self) -> str:
        """The topic of the rows."""
        return self._named("rows")

    @property
    def partitions(self) -> int:
        """Of the topic of rows."""
        return int(self.made_with["topic_partitions"])

    def _named(self, what: str) -> str:
        name = f"{self.made_with['topic_prefix']}.{self.exchange}.{self.draw}.{what}"
        return name.replace("~", "-")  # which Kafka does not allow


class Topics:
    """The topics of the exchange in a folder."""

    def __init__(self, folder: Folder, options: KafkaExchangeOptions, who: str) -> None:
        self.options, self.who = options, who
        self._folder = folder

    @property
    def _seconds(self) -> float:
        return self.options.request_timeout / 1000

    # -- which they are -----------------------------------------------------------------------------------------------

    def drawn(self) -> TopicNames | None:
        """Their names, whether they are there or not; None: not drawn yet."""
        content = self._folder.find(FILE)
        if content is None:
            return None
        try:
            return TopicNames(**json.loads(content))
        except (ValueError, TypeError):
            raise self._other(f"its file {FILE} is damaged") from None

    def found(self) -> TopicNames | None:
        """The topics; None: they are not there yet."""
        names = self.drawn()
        return None if names is None or names.ids is None else names

    def required(self) -> TopicNames:
        """The topics of an exchange that has to be there."""
        names = self.found()
        if names is None:
            raise FileNotFoundError(f"no exchange found at {self._folder.uri}")
        return names

    def make(self, exchange: str) -> None:
        """Create them unless they are there, and refuse what would lose records."""
        names = self.drawn()
        if names is None:
            drawn = TopicNames(exchange, secrets.token_hex(8), self._made_with)
            self._folder.create_once(FILE, json.dumps(asdict(drawn)), durable=True)
            names = self.drawn()
            assert names is not None
        for option, value in self._made_with.items():
            if names.made_with[option] != value:
                what = f"the topics were created with {option}={names.made_with[option]}, and the job now has {value}"
                raise refused(what, self.who, "put the option back, or use an exchange of another name", kept=KEPT)
        if names.ids is None:
            with self._asking("the topics could not be created") as client:
                self._create(client, names)
            for topic, size in ((names.log, 1), (names.rows, names.partitions)):
                for partition in range(size):
                    self.ends(topic, partition)  # which has an answer once the partition has a leader
            names = replace(names, ids=self._ids(names))
            self._folder.write(FILE, json.dumps(asdict(names)), durable=True)
        self.check(names)
        self._check_settings(names)

    @property
    def _made_with(self) -> dict[str, Any]:
        return self.options.model_dump(include=set(_MADE_WITH))

    def _create(self, client: Any, names: TopicNames) -> None:
        kafka, options = library(self.who), self.options
        config = {**FOREVER, "max.message.bytes": str(LOG_BYTES + OVERHEAD)}
        if options.min_insync_replicas is not None:
            config["min.insync.replicas"] = str(options.min_insync_replicas)
        sizes = {names.log: 1, names.rows: options.topic_partitions}
        wanted = [
            kafka.admin.NewTopic(topic, size, options.replication_factor, config=config)
            for topic, size in sizes.items()
        ]
        for answer in client.create_topics(wanted, request_timeout=self._seconds).values():
            try:
                answered(answer, self._seconds)
            except kafka.KafkaException as problem:
                if problem.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise
        limit = time.monotonic() + self._seconds
        while len(self._ids(names)) < 2:  # another broker may not know them yet
            if time.monotonic() > limit:
                raise TimeoutError
            time.sleep(0.02)

    def _ids(self, names: TopicNames) -> dict[str, str]:
        with self._asking("the topics could not be described") as client:
            found = described(client, [names.log, names.rows], self._seconds, self.who, KEPT)
        return {topic: str(one.topic_id) for topic, one in found.items()}

    def check(self, names: TopicNames) -> None:
        """Refuse topics that are not those that were created."""
        found = self._ids(names)
        for topic, id in (names.ids or {}).items():
            if found.get(topic) != id:
                again = " and created again" if topic in found else ""
                raise self._other(f"its topic '{topic}' was deleted{again}")

    def _check_settings(self, names: TopicNames) -> None:
        kafka = library(self.who)
        resources = [
            kafka.admin.ConfigResource(kafka.admin.ResourceType.TOPIC, name) for name in (names.log, names.rows)
        ]
        with self._asking("the topics' settings could not be read") as client:
            asked = client.describe_configs(resources, request_timeout=self._seconds)
            found = {resource.name: answered(answer, self._seconds) for resource, answer in asked.items()}
        for topic, settings in found.items():
            for name, value in FOREVER.items():
                if settings[name].value != value:
                    what = f"the topic '{topic}' has {name}={settings[name].value}, so it would lose records"
                    raise refused(what, self.who, f"set {name}={value} for the topic", kept=KEPT)

    def delete(self) -> None:
        """Delete them, with all that is in them."""
        names, kafka = self.drawn(), library(self.who)
        if names is None:
            return
        with self._asking("the topics could not be deleted") as client:
            asked = client.delete_topics([names.log, names.rows], request_timeout=self._seconds)
            for answer in asked.values():
                try:
                    answered(answer, self._seconds)
                except kafka.KafkaException as problem:
                    if problem.args[0].name() not in NO_TOPIC:
                        raise

    # -- records ------------------------------------------------------------------------------------------------------

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The offsets of the first record and after the last one."""
        kafka = library(self.who)
        with self._consumer(f"the ends of '{topic}' could not be looked up") as consumer:
            place, limit = kafka.TopicPartition(topic, partition), time.monotonic() + self._seconds
            while True:
                try:
                    low, high = consumer.get_watermark_offsets(place, timeout=self._seconds)
                    return int(low), int(high)
                except kafka.KafkaException as problem:
                    if problem.args[0].name() not in _SETTLING or time.monotonic() > limit:
                        raise
                    time.sleep(0.02)

    def read(
        self, topic: str, partition: int, start: int, end: int, key: bytes | None = None, count: int | None = None
    ) -> list[tuple[int, bytes, bytes]]:
        """Offset, key and value of the records in [start, end), in order; of one `key`, up to `count`.

        Raises:
            FileNotFoundError: records from `start` on are not there any more.
        """
        kafka = library(self.who)
        found: list[tuple[int, bytes, bytes]] = []
        with self._consumer(f"'{topic}' could not be read at offset {start}") as consumer:
            consumer.assign([kafka.TopicPartition(topic, partition, start)])
            at, limit = start, time.monotonic() + self._seconds
            while at < end and (count is None or len(found) < count):
                messages = consumer.consume(1, 0.5)
                if messages:
                    messages += consumer.consume(min(_BATCH, end - at), 0)
                    limit = time.monotonic() + self._seconds
                elif time.monotonic() > limit:
                    raise TimeoutError
                for message in messages:
                    error = message.error()
                    if error is not None and error.name() in _GONE:
                        raise FileNotFoundError(f"offset {at} of '{topic}' is not there any more")
                    if error is not None:
                        raise kafka.KafkaException(error)
                    at = message.offset() + 1
                    if at <= end and key in (None, message.key()):
                        found.append((message.offset(), message.key(), message.value()))
            consumer.unassign()
        return found[:count]

    def send(self, topic: str, partition: int, records: Iterable[tuple[bytes, bytes]]) -> list[int]:
        """Write records in order; their offsets. After an error they may be there, or be there later."""
        kafka = library(self.who)
        offsets: list[int] = []
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                failed.append(error)

        sent = 0
        with self._producer(f"'{topic}' could not be written") as producer:
            try:
                for key, value in records:
                    while not failed:
                        try:
                            producer.produce(topic, value, key, partition, on_delivery=delivered)
                            break
                        except BufferError:
                            producer.poll(0.05)
                    producer.poll(0)
                    sent += 1
                while not failed and len(offsets) < sent:
                    producer.poll(0.1)
                if failed:
                    raise kafka.KafkaException(failed[0])
            except BaseException:
                producer.purge()
                raise
        reach(FailPoint.EXCHANGE_SENT)
        return offsets

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Delete the records of partitions before offsets."""
        kafka = library(self.who)
        wanted = [kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        with self._asking(f"records of '{topic}' could not be deleted") as client:
            deleted(client, wanted, self._seconds)

    # -- clients ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _consumer(self, what: str) -> Iterator[Any]:
        own = {
            "queued.max.messages.kbytes": 8 * 1024,
            "queued.min.messages": 100_000,
            "fetch.message.max.bytes": 2 * 1024 * 1024,
            **self.options.client(
                self.who,
                group_id="spark-ext",  # required by the library; nothing is ever committed under it
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                isolation_level="read_uncommitted",
                auto_offset_reset="error",
                fetch_wait_max_ms=10,
            ),
        }
        with self._client("exchange-read", own, "Consumer", what) as consumer:
            yield consumer

    @contextmanager
    def _producer(self, what: str) -> Iterator[Any]:
        own = {
            "linger.ms": 0,
            "message.max.bytes": LOG_BYTES + OVERHEAD,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 500,
            **self.options.client(
                self.who,
                enable_idempotence=True,  # with it, all replicas in sync confirm, and a retry keeps the order
                message_timeout_ms=self.options.request_timeout,
            ),
        }
        with self._client("exchange-write", own, "Producer", what) as producer:
            yield producer

    @contextmanager
    def _client(self, purpose: str, settings: Mapping[str, Any], kind: str, what: str) -> Iterator[Any]:
        kafka = library(self.who)
        with _locks[purpose]:
            try:
                client = shared(purpose, settings, lambda: getattr(kafka, kind)(dict(settings)))
            except (kafka.KafkaException, TypeError, ValueError) as problem:
                raise refused_settings(problem, self.who) from problem
            with self._faults(what), lent(client) as one:
                yield one

    @contextmanager
    def _asking(self, what: str) -> Iterator[Any]:
        settings, purpose = self.options.client(self.who), "exchange-ask"
        with _locks[purpose]:
            client = shared(purpose, settings, lambda: admin(self.options, self.who))
            with self._faults(what), lent(client) as one:
                yield one

    @contextmanager
    def _faults(self, what: str) -> Iterator[None]:
        kafka = library(self.who)
        try:
            yield
        except TimeoutError as problem:
            raise unanswered(self.who, self._seconds, KEPT, what) from problem
        except kafka.KafkaException as problem:
            raise self._fault(problem.args[0], what) from problem

    def _fault(self, error: Any, what: str) -> SparkExtError:
        if error.name() in NO_TOPIC:
            names = self.found()
            if names is not None:
                self.check(names)
            return unanswered(self.who, self._seconds, KEPT, f"{what}: {error.str()}")
        return to_error(error, what, self.who, KEPT)

    def _other(self, what: str) -> StateError:
        return StateError(
            f"the exchange has lost its rows: {what}",
            operator=self.who,
            kept="nothing was read or written",
            do=f"restore the job from a savepoint, or discard the history of the query that writes it with {RESET}, "
            "after deleting the exchange's folder",
        )
