"""Lets a Python worker add to its failure what it knows of it; see `failures.record`.

pyspark passes a failure on as text, by a function that each of its workers imports. `install` replaces it with one that
writes the same text and a record of the exceptions after it.
"""

from __future__ import annotations

import sys
from typing import IO, Any, Final, cast

from pyspark import util

from spark_ext.failures import record

_NAME: Final = "handle_worker_exception"
_as_shipped: Final = util.handle_worker_exception


class _WithRecord:
    """The stream to the JVM, into which the text of a failure is written with a record after it."""

    def __init__(self, stream: IO[bytes], written: str) -> None:
        self._stream = stream
        self._written = written.encode()
        self._writes = 0

    def write(self, given: bytes) -> int:
        """Write what pyspark writes: a number that says that this is a failure, the text's length, the text."""
        self._writes += 1
        if self._writes == 2:
            length = int.from_bytes(given, "big", signed=True) + len(self._written)
            return self._stream.write(length.to_bytes(4, "big", signed=True))
        if self._writes == 3:
            return self._stream.write(given + self._written)
        return self._stream.write(given)


def handle_worker_exception(e: BaseException, outfile: IO[bytes], hide_traceback: bool | None = None) -> None:
    """What pyspark does with a failure of a worker, and a record of the exceptions."""
    try:
        written = record.written(e)
    except Exception:  # the failure itself matters more
        written = ""
    _as_shipped(e, cast("IO[Any]", _WithRecord(outfile, written)) if written else outfile, hide_traceback)


_IMPORTERS: Final = (
    "pyspark.util",
    "pyspark.worker",
    "pyspark.sql.worker.utils",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "__main__",
)
"""Modules that have the function under its name, once they are imported."""


def install() -> None:
    """Let this process, and those that it forks, add records to failures. May be called again at any time."""
    for name in _IMPORTERS:
        module = sys.modules.get(name)
        if getattr(module, _NAME, None) is _as_shipped:
            setattr(module, _NAME, handle_worker_exception)
