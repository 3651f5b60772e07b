"""Reads a range of a partition's offsets as Arrow batches; runs on executors.

Offsets have gaps: markers of transactions, aborted messages, messages removed by compaction. So a range ends at the
first message behind it, or where the consumer reports the end of the log.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from spark_ext.clients.kafka import (
    RECREATED,
    KafkaOptions,
    admin,
    discard,
    library,
    offsets,
    refused_settings,
    shared,
    to_error,
    unanswered,
)
from spark_ext.errors import DataError
from spark_ext.sources.contract import BadRow
from spark_ext.sources.kafka_range.bounds import NOTHING_READ, TopicPartition, lost, name

if TYPE_CHECKING:
    from confluent_kafka import Message

BATCH: Final = 10_000

HEADERS: Final = T.StructField(
    "headers", T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
)
COLUMNS: Final = T.StructType(  # the columns of Spark's own Kafka source, in its order
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

_HEADER: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_TIMES: Final = ("timestamp", "timestampType")


def _arrays(messages: Sequence[Message], place: TopicPartition, names: Sequence[str], of: Any) -> list[pa.Array]:
    """Messages as columns. `of` is their class, whose methods are mapped: no Python frame per message."""
    times = np.empty((0, 2), np.int64)
    if not set(_TIMES).isdisjoint(names):
        pairs = chain.from_iterable(map(of.timestamp, messages))
        times = np.fromiter(pairs, np.int64, 2 * len(messages)).reshape(-1, 2)
    return [_array(column, messages, place, times, of) for column in names]


def _array(
    column: str, messages: Sequence[Message], place: TopicPartition, times: npt.NDArray[np.int64], of: Any
) -> pa.Array:
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
            # The library counts from 1, with 0 for a message without a time; Kafka and Spark count from 0.
            return pa.array((times[:, 0] - 1).astype(np.int32))
        case _:
            pairs: Iterator[Any] = map(of.headers, messages)
            return pa.array(
                [found and [{"key": key, "value": value} for key, value in found] for found in pairs], _HEADER
            )


Bad = Callable[[BadRow, DataError], object]  # takes a bad row, and the error that is raised if none is allowed


def _readable(messages: Sequence[Message], place: TopicPartition, who: str, bad: Bad) -> list[Message]:
    """The messages whose headers can be read; the others are bad rows."""
    good = []
    for message in messages:
        try:
            message.headers()
        except (SystemError, UnicodeDecodeError):  # the library reads a key as UTF-8
            offset = message.offset()
            error = DataError(
                f"a header of the message at offset {offset} of {name(place)} has a key that is not UTF-8",
                operator=who,
                kept=NOTHING_READ,
                do="load the source without headers, or with on_bad_row=quarantine",
            )
            position = {"topic": place[0], "partition": place[1], "offset": offset}
            bad(BadRow(position, "headers: a key is not UTF-8", message.value()), error)
        else:
            good.append(message)
    return good


def _consumer(options: KafkaOptions, who: str) -> Any:
    """The process's consumer: connecting takes longer than reading a small range."""
    kafka = library(who)
    defaults = {
        "fetch.wait.max.ms": 10,  # the wait at the end of the log
        # Messages fetched beyond a range are discarded, so only as many as keep the reader busy.
        "queued.max.messages.kbytes": 8 * 1024,
        "queued.min.messages": 1_000_000,
        "fetch.message.max.bytes": 2 * 1024 * 1024,
        "fetch.queue.backoff.ms": 2,  # the pause when the queue is full; a second by default
    }
    own = options.client(
        who,
        group_id="spark-ext",  # required by the library; nothing is ever committed under it
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        isolation_level="read_committed",
        auto_offset_reset="error",
    )
    settings = {**defaults, **own}
    try:
        return shared("read", settings, lambda: kafka.Consumer(settings))
    except (kafka.KafkaException, TypeError, ValueError) as problem:
        raise refused_settings(problem, who) from problem


def read(
    options: KafkaOptions,
    place: TopicPartition,
    start: int,
    end: int,
    names: Sequence[str],
    who: str,
    *,
    accept: bool,
    bad: Bad,
) -> Iterator[pa.RecordBatch]:
    """The committed messages of the offsets [start, end), in order; `accept` skips what retention has deleted."""
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
                good = _readable(good, place, who, bad) if HEADERS.name in names else good
                arrays = _arrays(good, place, names, kafka.Message) if good else []
            if messages:
                limit = time.monotonic() + seconds
            elif time.monotonic() > limit:
                what = f"{name(place)} could not be read at offset {at}, before {end}"
                raise unanswered(who, seconds, NOTHING_READ, what)
            if arrays:
                yield pa.RecordBatch.from_arrays(arrays, names=list(names))
            if problem is not None:
                if problem.name() not in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                    raise to_error(problem, f"{name(place)} could not be read", who, NOTHING_READ)
                at = _continue_at(options, place, at, who, accept=accept)
                # Assigning a partition again after its error aborts the process at some later moment (librdkafka 2.13:
                # "Assertion `rktp->rktp_started' failed").
                discard(consumer)
                consumer = _consumer(options, who)
                consumer.assign([kafka.TopicPartition(*place, at)])
        done = True
    except kafka.KafkaException as problem:
        raise to_error(problem.args[0], f"{name(place)} could not be read", who, NOTHING_READ) from problem
    finally:
        if done:
            consumer.unassign()
        else:
            discard(consumer)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend Python's cyclic garbage collector: many messages at once trigger it often, and have no cycles."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _sorted(messages: Sequence[Message], at: int, end: int) -> tuple[list[Message], int, Any]:
    """The messages of the range, the next offset to read, and an error other than the end of the log."""
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


def _continue_at(options: KafkaOptions, place: TopicPartition, at: int, who: str, *, accept: bool) -> int:
    kafka = library(who)
    seconds = options.request_timeout / 1000
    try:
        with admin(options, who) as client:
            low = offsets(client, {place: kafka.admin.OffsetSpec.earliest()}, seconds)[place]
            high = offsets(client, {place: kafka.admin.OffsetSpec.latest()}, seconds)[place]
    except TimeoutError as problem:
        raise unanswered(who, seconds, NOTHING_READ) from problem
    if low <= at:
        raise DataError(
            f"{name(place)} has the offsets {low} to {high - 1}, but the next to read is {at}: it is not the topic "
            "that was read before",
            operator=who,
            kept=NOTHING_READ,
            do=RECREATED,
        )
    if not accept:
        raise lost(place, at, low, who)
    return low
