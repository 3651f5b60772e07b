"""Phase one of `kafka_2pc`: tasks write their messages to Arrow files in a folder that driver and executors share.

The name of a file identifies its owner: incarnation, query, epoch, partition, attempt. So the files of dead
incarnations can be found.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.sift import Bad, behind, sift, text_of
from spark_ext.errors import NOTHING_VISIBLE, DataError, PreparedLostError, StorageError, refused
from spark_ext.sinks.contract import Task
from spark_ext.storage import Folder, LocalFolder, folder_at, local_path

HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

_TEXT: Final = (T.StringType, T.BinaryType)
# Columns that a query may have, the types of each, and the type in which it is staged.
_COLUMNS: Final[dict[str, tuple[tuple[type[T.DataType], ...], pa.DataType]]] = {
    "key": (_TEXT, pa.binary()),
    "value": (_TEXT, pa.binary()),
    "headers": ((T.ArrayType,), HEADERS),
    "topic": ((T.StringType,), pa.string()),
    "partition": ((T.IntegerType,), pa.int32()),
    "timestamp": ((T.TimestampType,), pa.timestamp("ms", "UTC")),
}
_HEADER_NAMES: Final = ["key", "value"]
_NAME: Final = re.compile(r"i(?P<incarnation>\d+)-.*\.arrow")


@dataclass(frozen=True)
class Staged:
    """The messages that one task has prepared."""

    path: str  # A local path or a URI
    rows: int
    topics: tuple[tuple[str, int], ...]  # Each topic in it, with the highest partition that a row names; -1: none
    host: str  # The machine that wrote it; for error messages


def check_columns(schema: T.StructType, topic: str | None, who: str, encoded: Collection[str] = ()) -> None:
    """Refuse rows that are not messages for `topic`; None: the rows have a column for it."""
    for column in schema:
        types = _COLUMNS.get(column.name, ((), None))[0]
        right = isinstance(column.dataType, types) if types else False
        if column.name == "headers" and right:
            right = _are_headers(column.dataType)
        if not right and column.name not in encoded:
            array = "array<struct<key: string, value: binary>>"
            wanted = array if column.name == "headers" else " or ".join(kind().simpleString() for kind in types)
            raise refused(
                f"column '{column.name}' has the type {column.dataType.simpleString()}"
                + (f", it must be {wanted}" if types else ", and is not a column of a message"),
                who,
                f"select the columns of a message: {', '.join(_COLUMNS)}; for example to_json(struct('*')) AS value",
            )
    if "value" not in schema.names:
        raise refused("column 'value' does not exist", who, "select it")
    if topic is None and "topic" not in schema.names:
        what = "column 'topic' does not exist, and the option 'topic' is not set"
        raise refused(what, who, "select it, or name the topic with the option 'topic'")


def _are_headers(given: T.DataType) -> bool:
    inner = given.elementType if isinstance(given, T.ArrayType) else None
    if not isinstance(inner, T.StructType) or inner.names != _HEADER_NAMES:
        return False
    return isinstance(inner["key"].dataType, T.StringType) and isinstance(inner["value"].dataType, T.BinaryType)


def folder_of(folder: str) -> Folder:
    """The folder at a path or URI."""
    local = local_path(folder)
    return folder_at(folder) if local is None else LocalFolder(local.expanduser().absolute())


class Staging:
    """The folder of one sink, by a local path or a URI."""

    def __init__(self, folder: str, who: str) -> None:
        self._folder, self._who = folder.rstrip("/"), who

    def write(
        self,
        batches: Iterator[pa.RecordBatch],
        task: Task,
        topic: str | None,
        max_bytes: int,
        bad: Bad | None = None,
        encode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    ) -> Staged | None:
        """Write a task's messages as a file; None without messages. Without `topic` the rows have a column for it."""
        # Attempt numbers start again with each Spark application, and two copies of a state share all the others.
        place = f"{task.query_id}-{task.lineage}-{task.epoch}-{task.partition}-{task.attempt}"
        name = f"i{task.incarnation}-{place}-{secrets.token_hex(8)}.arrow"
        folder = folder_of(self._folder)
        topics, rows = dict[str, int](), 0
        stream: pa.NativeFile | None = None
        writer: pa.RecordBatchStreamWriter | None = None
        try:
            for messages in self._checked(batches, task, topic, max_bytes, bad, encode):
                _note_topics(messages, topic, topics)
                if writer is None:
                    stream = folder.open_output(name)
                    writer = pa.ipc.new_stream(stream, messages.schema)
                writer.write_batch(messages)
                rows += messages.num_rows
            if writer is None or stream is None:
                return None
            writer.close()
            stream.close()
        except OSError as problem:
            raise StorageError(
                f"the staged file '{folder.uri}/{name}' could not be written: {problem}",
                operator=self._who,
                kept=NOTHING_VISIBLE,
                do="check the folder of the option 'staging' (space, permissions); the epoch will be retried",
            ) from problem
        return Staged(f"{self._folder}/{name}", rows, tuple(sorted(topics.items())), socket.gethostname())

    def _checked(
        self,
        batches: Iterator[pa.RecordBatch],
        task: Task,
        topic: str | None,
        max_bytes: int,
        bad: Bad | None,
        encode: Callable[[pa.RecordBatch], pa.RecordBatch] | None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows as messages."""

        def checked(rows: pa.RecordBatch) -> pa.RecordBatch:
            messages = _messages(rows if encode is None else encode(rows), topic)
            self._check(messages, max_bytes, task)
            return messages

        first = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                yield checked(batch)
            except DataError:
                if bad is None:
                    raise
                yield from sift(batch, checked, DataError, behind(bad, first))
            first += batch.num_rows

    def _check(self, messages: pa.RecordBatch, max_bytes: int, task: Task) -> None:
        size = pc.fill_null(pc.binary_length(messages["value"]), 0)
        if "key" in messages.schema.names:
            size = pc.add(size, pc.fill_null(pc.binary_length(messages["key"]), 0))
        largest = pc.max(size).as_py()
        wrong, do = _no_message(messages), "correct or filter such rows in the query"
        if largest > max_bytes:
            wrong = f"a message has {largest} bytes, more than the {max_bytes} of the option 'max_message_bytes'"
            do = "make the messages smaller, or raise max_message_bytes and the topic's max.message.bytes"
        elif "topic" in messages.schema.names and messages["topic"].null_count:
            wrong = "a row has no topic: its column 'topic' is null, and the option 'topic' is not set"
            do = "filter such rows, or name the topic with the option 'topic'"
        if wrong is not None:
            where = f"{self._who}, epoch {task.epoch}, partition {task.partition}"
            raise DataError(wrong, operator=where, kept=NOTHING_VISIBLE, do=do)

    def read_all(self, staged: Iterable[Staged]) -> Iterator[pa.RecordBatch]:
        """The messages of all tasks; see `read`."""
        for one in staged:
            yield from self.read(one)

    def read(self, staged: Staged) -> Iterator[pa.RecordBatch]:
        """The messages of a task."""
        folder, _, name = staged.path.rpartition("/")
        rows = 0
        try:
            with folder_of(folder).open_input(name) as stream, pa.ipc.open_stream(stream) as reader:
                for batch in reader:
                    rows += batch.num_rows
                    yield batch
        except pa.ArrowInvalid as problem:
            raise self._lost(staged, f"cannot be read: {problem}") from problem
        except FileNotFoundError as problem:
            if staged.host == socket.gethostname():
                raise self._lost(staged, "is missing") from problem
            raise refused(
                f"the staged file '{staged.path}', written on {staged.host}, does not exist on {socket.gethostname()}",
                self._who,
                "set the option 'staging' to a folder that driver and executors share; if it is shared, find out what "
                "deletes files in it",
                kept=NOTHING_VISIBLE,
            ) from problem
        if rows != staged.rows:
            # A stream that was truncated between two batches looks complete.
            raise self._lost(staged, f"has {rows} of {staged.rows} messages")

    def _lost(self, staged: Staged, how: str) -> PreparedLostError:
        return PreparedLostError(
            f"the messages that a task had staged are lost: the file '{staged.path}' {how}",
            operator=self._who,
            kept=NOTHING_VISIBLE,
            do="nothing: the epoch will be retried from its source; if it occurs again, find out what deletes or "
            "truncates files in the folder of the option 'staging'",
        )

    def remove(self, staged: Sequence[Staged]) -> None:
        """Delete what is committed. The next claim deletes files that could not be deleted."""
        for one in staged:
            folder, _, name = one.path.rpartition("/")
            with suppress(OSError):
                folder_of(folder).delete(name)

    def clean(self, incarnation: int) -> None:
        """Delete what earlier incarnations have left."""
        folder = folder_of(self._folder)
        try:
            for name in folder.names():
                found = _NAME.fullmatch(name)
                if found is not None and int(found["incarnation"]) < incarnation:
                    folder.delete(name)
        except OSError as problem:
            raise StorageError(
                f"the staging folder '{self._folder}' could not be cleaned: {problem}",
                operator=self._who,
                kept=NOTHING_VISIBLE,
                do="check the folder's permissions and start again",
            ) from problem


def _messages(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """A batch in the staged types; the option `topic` replaces the column."""
    names = [name for name in batch.schema.names if not (name == "topic" and topic is not None)]
    # A time between two milliseconds is truncated, as in Spark's own sink.
    columns = [batch.column(name).cast(_COLUMNS[name][1], safe=name != "timestamp") for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _no_message(messages: pa.RecordBatch) -> str | None:
    """What no message can have, or None; the client would misinterpret some of it."""
    columns = dict(zip(messages.schema.names, messages.columns, strict=True))
    least = pc.min(columns["partition"]).as_py() if "partition" in columns else None
    if least is not None and least < 0:
        return f"a row is for partition {least}; use null to let the client choose"
    first = pc.min(columns["timestamp"].cast(pa.int64())).as_py() if "timestamp" in columns else None
    if first is not None and first <= 0:
        return "a row's timestamp is not after 1970-01-01 00:00 UTC, as messages require; use null for the current time"
    if "headers" in columns:
        headers = columns["headers"].flatten()
        if pc.struct_field(headers, "key").null_count:
            return "a row has a header that is null, or whose key is"
    return None


def _note_topics(messages: pa.RecordBatch, topic: str | None, topics: dict[str, int]) -> None:
    if topic is None:
        names = messages["topic"]
    elif "partition" in messages.schema.names:
        names = pa.repeat(topic, messages.num_rows)
    else:
        topics.setdefault(topic, -1)
        return
    if "partition" not in messages.schema.names:
        for name in pc.unique(names).to_pylist():
            topics.setdefault(name, -1)
        return
    table = pa.table({"topic": names, "partition": messages["partition"]})
    for row in table.group_by("topic").aggregate([("partition", "max")]).to_pylist():
        highest = -1 if row["partition_max"] is None else row["partition_max"]
        topics[row["topic"]] = max(topics.get(row["topic"], -1), highest)


class Astray:
    """The messages of an epoch that go nowhere; without `topic` they have a column for it."""

    def __init__(self, lacking: Mapping[str, int], topic: str | None) -> None:
        self._lacking, self._topic = lacking, topic

    def without(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The other messages, in order."""
        return messages.filter(pc.invert(self._mask(messages)))

    def give(self, messages: pa.RecordBatch, bad: Callable[[BadRow], object]) -> None:
        """Give away those of a batch."""
        found = messages.filter(self._mask(messages))
        for number in range(found.num_rows):
            row = found.slice(number, 1)
            topic = self._topic if self._topic is not None else row["topic"][0].as_py()
            there = self._lacking[topic]
            reason = f"the topic '{topic}' does not exist"
            if there:
                partition = row["partition"][0].as_py()
                reason = f"the topic '{topic}' has {there} partitions, and the row is for partition {partition}"
            bad(BadRow(None, reason, text_of(_readable(row))))

    def _mask(self, messages: pa.RecordBatch) -> pa.Array:
        mask = pa.repeat(False, messages.num_rows)
        for topic, there in self._lacking.items():
            if self._topic is None:
                mine = pc.equal(messages["topic"], topic)
            else:
                mine = pa.repeat(topic == self._topic, messages.num_rows)
            if there:
                mine = pc.and_(mine, pc.fill_null(pc.greater_equal(messages["partition"], there), False))
            mask = pc.or_(mask, mine)
        return mask


def _readable(row: pa.RecordBatch) -> pa.RecordBatch:
    """Key and value as texts, if they are."""
    columns = []
    for column in row.columns:
        if pa.types.is_binary(column.type):
            with suppress(pa.ArrowInvalid):
                column = column.cast(pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=row.schema.names)
