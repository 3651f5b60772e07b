"""Phase two of `kafka_2pc`: one transactional producer per sink, kept from epoch to epoch in the committing process.

A `Session` is a producer after `init_transactions`: Kafka has ended the transaction of the previous owner of the id,
and refuses that producer from now on. The committed epochs that the session then read are therefore valid until the
session is refused itself. After any failure it is discarded: the next one finds out what took effect.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.clients.kafka import KafkaOptions, admin, library, partitions, refused_settings, to_error
from spark_ext.errors import NOTHING_VISIBLE, SparkExtError, TransientError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import FenceMark
from spark_ext.sinks.kafka_2pc.epochs import EpochRecord, EpochsTopic
from spark_ext.sinks.kafka_2pc.staging import Staged

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from spark_ext.sinks.contract import Epoch

# Newer clients abort in `close` once more, and warn where that cannot be, as after a fatal error.
warnings.filterwarnings("ignore", "Producer abort_transaction failed during close", RuntimeWarning)

_FENCED: Final = frozenset(
    {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE"}
)
_PURGED: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})  # Discarded because of another message's error
_GOODBYE_S: Final = 2.0  # Limit of a failed session for ending its transaction; otherwise the next session ends it


@dataclass(frozen=True)
class Limits:
    """Limits of transactions and messages."""

    transaction_ms: int  # Time after which the brokers end an abandoned transaction
    message_bytes: int


Check = Callable[[EpochRecord], None]


class Session:
    """A producer that holds a sink's transactional id."""

    def __init__(self, options: KafkaOptions, epochs: EpochsTopic, limits: Limits) -> None:
        who = self._who = epochs.who
        self._kafka = library(who)
        self._options, self._epochs, self._timeout_ms = options, epochs, limits.transaction_ms
        self._seconds = options.request_timeout / 1000
        self._fatal: KafkaError | None = None
        self._failed: list[KafkaError] = []
        self._partitions: dict[str, int] = {}
        settings = options.client(
            who,
            transactional_id=epochs.key,
            transaction_timeout_ms=limits.transaction_ms,
            message_timeout_ms=min(options.request_timeout, limits.transaction_ms),
            delivery_report_only_error=True,
            on_delivery=self._undelivered,
            error_cb=self._error,
        )
        # `on_delivery` and `error_cb` are the library's own names, with their underscores.
        settings["on_delivery"], settings["error_cb"] = settings.pop("on.delivery"), settings.pop("error.cb")
        defaults = {
            "partitioner": "murmur2_random",  # that of Kafka's Java clients, so that keys go to the same partitions
            "message.max.bytes": max(limits.message_bytes + 65_536, 1_000_000),
            "queue.buffering.max.kbytes": max(65_536, 2 * limits.message_bytes // 1024),
            "retry.backoff.ms": 2,  # the first request after a commit is refused for some ms
            "retry.backoff.max.ms": 200,
        }
        try:
            self._producer: Any = self._kafka.Producer({**defaults, **settings})
        except (self._kafka.KafkaException, TypeError, ValueError) as problem:
            raise refused_settings(problem, who) from problem
        try:
            self._take()
            self.record = epochs.latest()
        except BaseException:
            # Left open it would keep requesting the id, and fence off its next owner.
            self.close()
            raise

    def _take(self) -> None:
        limit = time.monotonic() + self._seconds
        try:
            # Two answers: the first names the brokers, the second comes from one of these. Asked for the coordinator
            # earlier, the library drops the request with its first connection, and repeats it after 500 ms.
            with suppress(self._kafka.KafkaException):
                for _ in range(2):
                    self._producer.list_topics(self._epochs.topic, self._seconds)
            self._producer.init_transactions(max(limit - time.monotonic(), 0.1))
        except self._kafka.KafkaException as problem:
            raise self._fault(problem, "the transactional id could not be taken") from problem

    # -- one epoch ----------------------------------------------------------------------------------------------------

    def publish(self, messages: Iterable[pa.RecordBatch], topic: str | None, record: EpochRecord) -> None:
        """Publish all messages and the record in one transaction; without `topic` the messages have a column for it."""
        begun = time.monotonic()
        try:
            self._producer.begin_transaction()
            for batch in messages:
                self._send(batch, topic)
                self._producer.poll(0)
                self._check()
            epochs = self._epochs
            self._when_there_is_room(epochs.topic, record.to_bytes(), epochs.key.encode(), epochs.partition)
            reach(FailPoint.KAFKA_BEFORE_COMMIT)
            self._producer.commit_transaction(self._seconds)
        except (self._kafka.KafkaException, BufferError) as problem:
            fault = self._fault(problem, "the transaction could not be committed", time.monotonic() - begun)
            raise fault from problem
        self.record = record

    def _send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        values = columns["value"].to_pylist()
        keys = columns["key"].to_pylist() if "key" in columns else itertools.repeat(None)
        if columns.keys() <= {"key", "value"}:
            produce = self._producer.produce
            for value, key in zip(values, keys, strict=False):
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._when_there_is_room(topic, value, key, -1)
            return
        topics = columns["topic"].to_pylist() if "topic" in columns else itertools.repeat(topic)
        partitions = _numbers(columns.get("partition"), -1)
        times = _numbers(columns.get("timestamp"), 0)
        headers = map(_pairs, columns["headers"].to_pylist()) if "headers" in columns else itertools.repeat(None)
        for row in zip(topics, values, keys, partitions, times, headers, strict=False):
            self._when_there_is_room(*row)

    def _when_there_is_room(
        self, topic: str | None, value: Any, key: Any, partition: int, timestamp: int = 0, headers: Any = None
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers)
                return
            except BufferError:
                # The client's queue is full; messages that the brokers do not take in time fail, which ends the wait.
                self._producer.poll(0.05)
                self._check()

    def _check(self) -> None:
        if self._failed or self._fatal:
            raise self._kafka.KafkaException(self._fatal or self._failed[0])

    def require(self, staged: Iterable[Staged]) -> None:
        """Refuse topics and partitions that do not exist, before a transaction begins."""
        wanted = _wanted(staged)
        for topic, there in self._lacking(wanted).items():
            raise refused(
                f"the topic '{topic}' has {there} partitions, and a row is for partition {wanted[topic]}"
                if there
                else f"the topic '{topic}' does not exist",
                self._who,
                "create it, or correct the columns 'topic' and 'partition' of the rows",
                kept=NOTHING_VISIBLE,
            )

    def lacking(self, staged: Iterable[Staged]) -> dict[str, int]:
        """The topics that lack a partition of some row, with the number that they have; 0 for a missing topic."""
        return self._lacking(_wanted(staged))

    def _lacking(self, wanted: Mapping[str, int]) -> dict[str, int]:
        unknown = [topic for topic, most in wanted.items() if self._partitions.get(topic, 0) <= max(most, 0)]
        if unknown:
            with admin(self._options, self._who) as client:
                self._partitions |= partitions(client, unknown, self._seconds, self._who, NOTHING_VISIBLE)
        return {
            topic: self._partitions[topic] for topic, most in wanted.items() if self._partitions[topic] <= max(most, 0)
        }

    # -- failures -----------------------------------------------------------------------------------------------------

    def _undelivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.name() not in _PURGED:
            self._failed.append(error)

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = self._fatal or error

    def _fault(self, problem: Exception, what: str, seconds: float = 0) -> SparkExtError:
        """The cause: a message's own error, or a fatal one, is reported by callbacks only, not by the failed call."""
        with suppress(self._kafka.KafkaException):
            self._producer.poll(0)
        error = problem.args[0] if isinstance(problem, self._kafka.KafkaException) else None
        cause = self._fatal or next(iter(self._failed), None) or error
        if cause is None:
            do = "nothing: it will be retried"
            return TransientError(f"{what}: {problem}", operator=self._who, kept=NOTHING_VISIBLE, do=do)
        if cause.name() not in _FENCED and not (error is not None and error.name() in _FENCED):
            return to_error(cause, what, self._who, NOTHING_VISIBLE)
        late = seconds * 1000 >= self._timeout_ms
        return TransientError(
            f"{what}: "
            + (
                f"it took {seconds:.0f} s, longer than the option 'transaction_timeout' of {self._timeout_ms} ms allows"
                if late
                else f"the transactional id '{self._epochs.key}' was taken by another producer"
            )
            + f" ({cause.name()})",
            operator=self._who,
            kept=NOTHING_VISIBLE,
            do="raise transaction_timeout, or lower the rows per epoch"
            if late
            else "nothing: the retry finds out whether a newer incarnation has taken over",
        )

    def close(self) -> None:
        """End the transaction, if one is open, and discard what was not sent."""
        self._producer.purge()
        with suppress(self._kafka.KafkaException):
            self._producer.abort_transaction(_GOODBYE_S)
        # A fatal error is raised again here; it must not hide the one for which the session is closed.
        with suppress(self._kafka.KafkaException):
            self._producer.close()


def _wanted(staged: Iterable[Staged]) -> dict[str, int]:
    """The topics of messages, with the highest partition that a row names; -1: none."""
    wanted: dict[str, int] = {}
    for one in staged:
        for topic, partition in one.topics:
            wanted[topic] = max(wanted.get(topic, -1), partition)
    return wanted


def _numbers(column: pa.Array | None, default: int) -> Iterable[int]:
    if column is None:
        return itertools.repeat(default)
    numbers: list[int] = pc.fill_null(column.cast(pa.int64()), default).to_pylist()
    return numbers


def _pairs(headers: list[Mapping[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return [(header["key"], header["value"]) for header in headers] if headers else None


# -- sessions of this process -----------------------------------------------------------------------------------------

# By brokers and transactional id, with the start that it serves: sink objects are created again for each epoch.
_open: dict[tuple[str, str], tuple[FenceMark, Session]] = {}


def session(
    options: KafkaOptions, epochs: EpochsTopic, limits: Limits, mark: FenceMark, early: Check, check: Check
) -> Session:
    """The session that this process keeps for a start of the job, or a new one.

    `early` and `check` raise if a record forbids this start to continue. `early` is called before any other
    producer is fenced off: open transactions may hide later records, so it must refuse only what they would forbid
    as well. `check` is given the last record, when no other producer can commit any more.
    """
    key = (options.bootstrap_servers, epochs.key)
    if key in _open and _open[key][0] == mark:
        return _open[key][1]
    forget(options, epochs)
    epochs.ensure()
    early(epochs.latest(settled=False))
    fresh = Session(options, epochs, limits)
    try:
        check(fresh.record)
    except BaseException:
        fresh.close()
        raise
    _open[key] = (mark, fresh)
    return fresh


def forget_passed(options: KafkaOptions, epochs: EpochsTopic, epoch: Epoch) -> None:
    """Close the session of this process if another one has committed an epoch since.

    Spark gives the epochs of several queries to several processes by turns, and the last one has taken the id.
    """
    kept = _open.get((options.bootstrap_servers, epochs.key))
    if kept is not None and kept[1].record.epochs.get(epoch.application, -1) < epoch.number - 1:
        forget(options, epochs)


def forget(options: KafkaOptions, epochs: EpochsTopic) -> None:
    """Close the session of this process, if there is one."""
    kept = _open.pop((options.bootstrap_servers, epochs.key), None)
    if kept is not None:
        kept[1].close()
