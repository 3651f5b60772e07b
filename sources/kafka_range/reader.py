"""Reads a range of a partition's offsets as Arrow batches; runs on executors.

Offsets have gaps: markers of transactions, aborted messages, what compaction has removed. So a range ends where a
message behind it comes, or where the consumer says that the log ends.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from spark_ext.clients.kafka import KafkaOptions, admin, library, offsets, refused_settings, told, unanswered
from spark_ext.errors import DataError, StorageError
from spark_ext.sources.kafka_range.bounds import Place, lost, name

if TYPE_CHECKING:
    from confluent_kafka import Message

BATCH: Final = 10_000
"""Most messages of a batch."""

KEPT: Final = "all that was committed; nothing of this epoch was read"

HEADERS: Final = T.StructField(
    "headers", T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
)
COLUMNS: Final = T.StructType(
    [
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("timestampType", T.IntegerType()),
        HEADERS,
    ]
)
"""Those of Spark's own Kafka source, in its order."""

_HEADER: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

_TIMES: Final = ("timestamp", "timestampType")


def _arrays(messages: Sequence[Message], place: Place, names: Sequence[str], of: Any) -> list[pa.Array]:
    """Messages as columns. `of` is their class, whose methods are mapped: no frame of Python for each message."""
    times = np.empty((0, 2), np.int64)
    if not set(_TIMES).isdisjoint(names):
        pairs = chain.from_iterable(map(of.timestamp, messages))
        times = np.fromiter(pairs, np.int64, 2 * len(messages)).reshape(-1, 2)
    return [_array(column, messages, place, times, of) for column in names]


def _array(column: str, messages: Sequence[Message], place: Place, times: npt.NDArray[np.int64], of: Any) -> pa.Array:
    match column:
        case "key":
            return pa.array(list(map(of.key, messages)), pa.binary())
        case "value":
            return pa.array(list(map(of.value, messages)), pa.binary())
        case "topic":
            return pa.repeat(pa.scalar(place[0]), len(messages))
        case "partition":
            return pa.repeat(pa.scalar(place[1], pa.int32()), len(messages))
        case "offset":
            return pa.array(np.fromiter(map(of.offset, messages), np.int64, len(messages)))
        case "timestamp":
            return pa.array(times[:, 1], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        case "timestampType":
            # The library counts from 1, with 0 for a message without a time; Kafka and Spark from 0.
            return pa.array((times[:, 0] - 1).astype(np.int32))
        case _:
            return pa.array([_headers(message) for message in messages], _HEADER)


def _headers(message: Message) -> list[dict[str, Any]] | None:
    found: Any = message.headers()
    return [{"key": key, "value": value} for key, value in found] if found else None


_consumers: dict[tuple[str, str], Any] = {}
"""Of this process, by brokers and settings: a connection costs more than a small range."""


def _consumer(options: KafkaOptions, who: str) -> Any:
    key = (options.bootstrap_servers, repr(sorted(options.client_options.items())))
    if key not in _consumers:
        kafka = library(who)
        own = options.client(
            who,
            group_id="spark-ext",  # asked for by the library; nothing is ever committed under it
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
            auto_offset_reset="error",
        )
        defaults = {
            "fetch.wait.max.ms": 10,  # how long the end of the log is waited for
            # What is fetched beyond a range is thrown away, so not more ahead than keeps reading busy.
            "queued.max.messages.kbytes": 8 * 1024,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 2 * 1024 * 1024,
            "fetch.queue.backoff.ms": 2,  # how long fetching rests when so much waits: a second, if nobody says
        }
        try:
            _consumers[key] = kafka.Consumer({**defaults, **own})
        except (kafka.KafkaException, TypeError, ValueError) as problem:
            raise refused_settings(problem, who) from problem
    return _consumers[key]


def _forget(consumer: Any) -> None:
    for key, kept in list(_consumers.items()):
        if kept is consumer:
            del _consumers[key]
    consumer.close()


def read(
    options: KafkaOptions,
    place: Place,
    start: int,
    end: int,
    names: Sequence[str],
    who: str,
    *,
    accept: bool,
) -> Iterator[pa.RecordBatch]:
    """The committed messages of the offsets [start, end), in order.

    Args:
        options: how to reach the brokers.
        place: topic and partition.
        start: the first offset.
        end: behind the last one.
        names: which columns of `COLUMNS`.
        who: for messages.
        accept: whether what retention has removed is passed over.

    Raises:
        DataError: retention has removed the range, or the topic is another one of the same name.
        StorageError: no answer.
    """
    kafka = library(who)
    consumer = _consumer(options, who)
    seconds = options.request_timeout / 1000
    done = False
    try:
        consumer.assign([kafka.TopicPartition(*place, start)])
        at, limit = start, time.monotonic() + seconds
        while at < end:
            with _no_collection():
                messages = consumer.consume(1, 0.5)
                if messages and end - at > 1:
                    # The rest of what has arrived, without waiting for a full batch.
                    messages += consumer.consume(min(BATCH, end - at) - 1, 0)
                good, at, problem = _sorted(messages, at, end)
                arrays = _arrays(good, place, names, kafka.Message) if good else []
            if messages:
                limit = time.monotonic() + seconds
            elif time.monotonic() > limit:
                raise StorageError(
                    f"{name(place)} gave no answer for {seconds:g} s at offset {at}, before {end}",
                    operator=who,
                    kept=KEPT,
                    do="see to the brokers and the network; the epoch is repeated",
                )
            if arrays:
                yield pa.RecordBatch.from_arrays(arrays, names=list(names))
            if problem is not None:
                if problem.name() not in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                    raise told(problem, f"{name(place)} could not be read", who, KEPT)
                at = _where_it_goes_on(options, place, at, who, accept=accept)
                # A consumer that was assigned a partition again after its error has aborted the process (librdkafka
                # 2.13: "Assertion `rktp->rktp_started' failed"), at some later moment.
                _forget(consumer)
                consumer = _consumer(options, who)
                consumer.assign([kafka.TopicPartition(*place, at)])
        done = True
    except kafka.KafkaException as problem:
        raise told(problem.args[0], f"{name(place)} could not be read", who, KEPT) from problem
    finally:
        if done:
            consumer.unassign()
        else:
            _forget(consumer)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for cycles: so many messages at once set it off again and again, and have none."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _sorted(messages: Sequence[Message], at: int, end: int) -> tuple[list[Message], int, Any]:
    """The messages of the range, where reading stands then, and an error that is none of the log's end."""
    if messages and messages[-1].error() is None and messages[0].error() is None:
        last = messages[-1].offset()
        if last is not None and last < end and not any(one.error() for one in messages):
            return list(messages), last + 1, None
    good: list[Message] = []
    for one in messages:
        error, offset = one.error(), one.offset() or 0
        if error is not None and error.name() != "_PARTITION_EOF":
            return good, at, error
        if offset >= end:
            return good, end, None
        at = offset if error is not None else offset + 1
        if error is None:
            good.append(one)
    return good, at, None


def _where_it_goes_on(options: KafkaOptions, place: Place, at: int, who: str, *, accept: bool) -> int:
    kafka = library(who)
    client = admin(options, who)
    seconds = options.request_timeout / 1000
    try:
        low = offsets(client, {place: kafka.admin.OffsetSpec.earliest()}, seconds)[place]
        high = offsets(client, {place: kafka.admin.OffsetSpec.latest()}, seconds)[place]
    except TimeoutError as problem:
        raise unanswered(who, seconds, KEPT) from problem
    if low <= at:
        raise DataError(
            f"{name(place)} has the offsets {low} to {high - 1}, and {at} is to be read: it is not the topic that was "
            "read before",
            operator=who,
            kept=KEPT,
            do="a topic that was deleted and created anew is read by a source with a new uid",
        )
    if not accept:
        raise lost(place, at, low, who)
    return low
