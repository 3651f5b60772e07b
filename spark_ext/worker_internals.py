"""The workers' half of the door to Spark: pyspark's internals that sources, sinks, schemas and Python workers use.

What a version of Spark does not have, or has in another form, costs the feature that needs it, and never a worker.

The driver's half is `spark_ext.spark.backend`, whose `private_names` lists the names of both. Each function imports
what it needs, never py4j, which a client of Spark Connect does not have.
"""

from __future__ import annotations

import base64
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from inspect import signature
from typing import IO, TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import DataType, StructType

# -- rows and their types ---------------------------------------------------------------------------------------------


def to_arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type in which Spark passes a type to Python, or a PySparkTypeError; timestamps are in UTC."""
    from pyspark.sql.pandas import types

    return types.to_arrow_type(kind, **_in_utc(types.to_arrow_type))


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark passes to Python and expects from it; timestamps are in UTC."""
    from pyspark.sql.pandas import types

    return types.to_arrow_schema(schema, **_in_utc(types.to_arrow_schema))


def _in_utc(function: Callable[..., Any]) -> dict[str, Any]:
    """The argument for timestamps in UTC, which are the default of older versions."""
    return {"timezone": "UTC"} if _has(function, "timezone") else {}


@cache
def _has(function: Callable[..., Any], parameter: str) -> bool:
    return parameter in signature(function).parameters


def from_arrow_type(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type, or a PySparkTypeError."""
    from pyspark.sql.pandas import types

    return types.from_arrow_type(kind, prefer_timestamp_ntz=True)  # before 4.2 it reads them as those with a zone


def rows_of(batch: pa.RecordBatch, schema: StructType) -> list[Row]:
    """The rows of a batch, as a function of the user's gets them."""
    import pyarrow as pa
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    return list(ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), schema))


def table_of(rows: list[Any], schema: StructType) -> pa.Table:
    """Rows that a function of the user's has returned, dicts or tuples, as Arrow."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    return LocalDataToArrowConversion.convert(rows, schema, False)


def pickled(value: object) -> bytes:
    """A value as Spark sends it to Python workers."""
    from pyspark import cloudpickle

    return cast("bytes", cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def unpickled(content: bytes) -> Any:
    """A value that was sent by `pickled`."""
    from pyspark import cloudpickle

    return cloudpickle.loads(content)


def pickle_by_value(module: ModuleType) -> None:
    """Send what a module defines to workers whole, as they cannot import it."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


# -- properties of tasks ----------------------------------------------------------------------------------------------

# Over Spark Connect a query's tasks inherit nothing of the client's but tags, into whose names Spark puts its own.
_TAGS: Final = "spark.job.tags"
_TAG: Final = "spark-ext-properties-"


def encoded_properties(properties: Mapping[str, str]) -> str:
    """A tag that tells tasks their properties."""
    return _TAG + base64.urlsafe_b64encode(json.dumps(properties).encode()).decode()


def in_task() -> bool:
    """Whether the calling code is part of a task."""
    from pyspark import TaskContext

    return TaskContext.get() is not None


def task_property(name: str) -> str | None:
    """A property of the present task, of Spark's or of the job's; None if it has none, or this is not a task."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return None
    found = task.getLocalProperty(name)
    return _of_tags(task.getLocalProperty(_TAGS) or "").get(name) if found is None else found


@lru_cache(maxsize=16)
def _of_tags(tags: str) -> Mapping[str, str]:
    encoded = [tag.partition(_TAG)[2] for tag in tags.split(",") if _TAG in tag]
    return json.loads(base64.urlsafe_b64decode(encoded[0])) if encoded else {}


# -- functions of a worker that are replaced --------------------------------------------------------------------------

_HANDLER: Final = "handle_worker_exception"  # passes a failure on to the JVM as text

_STREAM: Final = "outfile"  # its parameter for the stream to the JVM

_handler: Callable[..., None] | None = None  # pyspark's own, once it was replaced


def extend_failures(text_of: Callable[[BaseException], str]) -> None:
    """Let the failures of this process, and of those that it forks, end with a further text.

    May be called again at any time. What `text_of` raises is ignored: the failure itself matters more.
    """
    global _handler
    from pyspark import util

    shipped = _handler or getattr(util, _HANDLER, None)
    if shipped is None or not _has(shipped, _STREAM):
        return
    _handler = as_shipped = shipped
    expected = signature(as_shipped)

    def handle_worker_exception(*args: Any, **named: Any) -> None:
        given = expected.bind(*args, **named)
        with suppress(Exception):
            if text := text_of(args[0]):
                given.arguments[_STREAM] = _Extended(given.arguments[_STREAM], text)
        as_shipped(*given.args, **given.kwargs)

    # Programs that have imported it have it under their own name; which these are differs between versions.
    for name, module in list(sys.modules.items()):
        if name.startswith(("pyspark.", "__main__")) and getattr(module, _HANDLER, None) is as_shipped:
            setattr(module, _HANDLER, handle_worker_exception)


class _Extended:
    """The stream to the JVM, into which a failure is written: a number that says so, the text's length, the text."""

    def __init__(self, stream: IO[bytes], text: str) -> None:
        self._stream = stream
        self._text = text.encode()
        self._writes = 0

    def write(self, given: bytes) -> int:
        self._writes += 1
        if self._writes == 2:
            length = int.from_bytes(given, "big", signed=True) + len(self._text)
            return self._stream.write(length.to_bytes(4, "big", signed=True))
        return self._stream.write(given + self._text if self._writes == 3 else given)


def before_each_task(action: Callable[[], None]) -> None:
    """Have each task of this process, and of those that it forks, call an action before its function."""
    from pyspark import worker

    as_shipped = getattr(worker, "setup_broadcasts", None)
    if as_shipped is None:
        return

    def setup_broadcasts(*args: Any, **named: Any) -> None:
        as_shipped(*args, **named)
        action()

    worker.setup_broadcasts = setup_broadcasts


# Functions of `pyspark.worker` that return function, profiler, deserializer and serializer of a task.
_GIVERS: Final = ("read_udfs", "read_udtf")
_READ_AHEAD: Final = "SPARK_PIPELINED_UDF"  # set in the environment of workers
_PROCESSING: Final = "processing_time_ms"  # a parameter of `report_times`
_waited = 0.0  # in this task so far, s


def report_without_waiting(wanted: Callable[[], bool]) -> None:
    """Let tasks report how long the user's code ran, without the time in which it waited for rows or for room.

    pyspark's worker reports how long it took from its first look for a row to its last answer, which Spark shows as
    `pythonProcessingTime`. Most of that may be waiting: for a slow source, or for a JVM that is busy with its rows.

    To be called once, before the worker's `main` runs; `wanted` says in a task whether it should.
    """
    from pyspark import worker

    as_shipped: Callable[..., None] | None = getattr(worker, "report_times", None)
    if as_shipped is None or not _has(as_shipped, _PROCESSING):
        return  # before 4.2 a worker does not report it
    expected = signature(as_shipped)
    for name in filter(partial(hasattr, worker), _GIVERS):
        setattr(worker, name, _with_timed_streams(getattr(worker, name), wanted))

    def report_times(*args: Any, **named: Any) -> None:
        global _waited
        waited, _waited = _waited, 0.0
        given = expected.bind(*args, **named)
        given.arguments[_PROCESSING] = max(0, given.arguments[_PROCESSING] - round(waited * 1000))
        as_shipped(*given.args, **given.kwargs)

    worker.report_times = report_times


def _with_timed_streams(giver: Callable[..., Any], wanted: Callable[[], bool]) -> Callable[..., Any]:
    def given(*args: Any, **named: Any) -> Any:
        global _waited
        _waited = 0.0
        made = giver(*args, **named)
        # Rows that 4.3 reads ahead, on a thread of its own, are not waited for alone.
        if not (isinstance(made, tuple) and len(made) == 4 and wanted()) or os.environ.get(_READ_AHEAD) == "1":
            return made
        function, profiler, deserializer, serializer = made
        return function, profiler, _TimedSerializer(deserializer), _TimedSerializer(serializer)

    return given


class _TimedSerializer:
    def __init__(self, serializer: Any) -> None:
        self._serializer = serializer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serializer, name)

    def load_stream(self, stream: IO[bytes]) -> Any:
        return self._serializer.load_stream(_TimedStream(stream))

    def dump_stream(self, rows: Iterable[Any], stream: IO[bytes]) -> Any:
        return self._serializer.dump_stream(rows, _TimedStream(stream))


class _TimedStream:
    """A stream to or from the JVM; the time of each call is time spent waiting."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def closed(self) -> bool:
        return self._stream.closed  # pyarrow asks the class for it

    def read(self, size: int = -1) -> Any:
        return _timed(self._stream.read, size)

    def readinto(self, buffer: Any) -> Any:
        return _timed(self._stream.readinto, buffer)  # type: ignore[attr-defined]

    def write(self, data: Any) -> Any:
        return _timed(self._stream.write, data)

    def flush(self) -> None:
        _timed(self._stream.flush)


def _timed(call: Callable[..., Any], *args: Any) -> Any:
    global _waited
    began = time.perf_counter()
    try:
        return call(*args)
    finally:
        _waited += time.perf_counter() - began


def run_daemon() -> None:
    """Fork Python workers until Spark ends this process: what the program `pyspark.daemon` does."""
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
