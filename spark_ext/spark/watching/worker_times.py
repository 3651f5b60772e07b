"""Lets a Python worker say how long the user's code ran, without the time in which it waited for rows or for room.

pyspark's worker reports how long it took from its first look for a row to its last answer, which Spark shows as
`pythonProcessingTime`. Most of that may be waiting: for a source that is slow, or for a JVM that is busy with rows
that it was given. In tasks of a query with `PROPERTY` the report is the rest.

`tests/spark/test_worker_times.py` pins what this relies on: whence pyspark's `main` takes its serializers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import IO, Any, Final

PROPERTY: Final = "spark_ext.parts"
"""Local property of the tasks of a query whose epochs are divided."""

_GIVERS: Final = ("read_udfs", "read_udtf")
"""Functions of `pyspark.worker` that return function, profiler, deserializer and serializer of a task."""

_waited = 0.0
"""In this task so far, s."""


class _Waiting:
    """A stream to or from the JVM; the time of each call is time spent waiting."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def closed(self) -> bool:
        """Whether the stream is closed; pyarrow asks the class for it."""
        return self._stream.closed

    def read(self, size: int = -1) -> Any:
        """Read, as the stream does."""
        return _timed(self._stream.read, size)

    def readinto(self, buffer: Any) -> Any:
        """Read into a buffer, as the stream does."""
        return _timed(self._stream.readinto, buffer)  # type: ignore[attr-defined]

    def write(self, data: Any) -> Any:
        """Write, as the stream does."""
        return _timed(self._stream.write, data)

    def flush(self) -> None:
        """Flush, as the stream does."""
        _timed(self._stream.flush)


class _Serializer:
    """A serializer of pyspark's, on streams that are timed."""

    def __init__(self, serializer: Any) -> None:
        self._serializer = serializer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serializer, name)

    def load_stream(self, stream: IO[bytes]) -> Any:
        """The rows of a task."""
        return self._serializer.load_stream(_Waiting(stream))

    def dump_stream(self, rows: Iterable[Any], stream: IO[bytes]) -> Any:
        """Answer with rows."""
        return self._serializer.dump_stream(rows, _Waiting(stream))


def install() -> None:
    """Let the tasks of this process, and of those that it forks, report so. To be called once, before `main` runs."""
    from pyspark import worker

    for name in _GIVERS:
        setattr(worker, name, _of(getattr(worker, name)))
    as_shipped: Callable[..., None] = worker.report_times

    def report_times(outfile: IO[bytes], boot: float, init: float, finish: float, processing_ms: int) -> None:
        global _waited
        waited, _waited = _waited, 0.0
        as_shipped(outfile, boot, init, finish, max(0, processing_ms - round(waited * 1000)))

    worker.report_times = report_times


def _of(giver: Callable[..., tuple[Any, Any, Any, Any]]) -> Callable[..., tuple[Any, Any, Any, Any]]:
    def given(*args: Any, **named: Any) -> tuple[Any, Any, Any, Any]:
        global _waited
        _waited = 0.0
        function, profiler, deserializer, serializer = giver(*args, **named)
        if not _wanted():
            return function, profiler, deserializer, serializer
        return function, profiler, _Serializer(deserializer), _Serializer(serializer)

    return given


def _wanted() -> bool:
    from pyspark import TaskContext

    task = TaskContext.get()
    return task is not None and task.getLocalProperty(PROPERTY) is not None


def _timed(call: Callable[..., Any], *args: Any) -> Any:
    global _waited
    began = time.perf_counter()
    try:
        return call(*args)
    finally:
        _waited += time.perf_counter() - began
