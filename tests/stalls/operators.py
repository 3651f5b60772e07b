"""Operators and functions that stop in the middle when a file says so, and continue when it has gone.

They stop as real ones do: in a sleep, on a lock that nobody releases, on a socket that nobody writes to. A thread of
theirs waits for the file to go, so that a test need not kill what it has stopped.
"""

import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ext.sinks.contract import CommitOutcome, Epoch, Task
from spark_ext.sources.contract import Advance, Channel, Limit
from tests.support.operators import Folder, FolderOptions, Numbers, NumbersOptions


def stop_here(flags: str, point: str) -> None:
    flag = Path(flags) / point
    if not flags or not flag.exists():
        return
    how = flag.read_text()
    if how == "computes":
        # Seen from outside it is not stuck, only slow.
        while flag.exists():
            sum(range(100_000))
        return
    release: Callable[[], object]
    if how == "lock":
        lock = threading.Lock()
        lock.acquire()
        release = lock.release
        wait: Callable[[], object] = lock.acquire
    elif how == "socket":
        mine, other = socket.socketpair()
        release, wait = (lambda: other.send(b"x")), (lambda: mine.recv(1))
    elif how == "sleep":
        left, right = socket.socketpair()
        release, wait = (lambda: right.send(b"x")), (lambda: select.select([left], [], [], 3600))
    elif how == "disk":
        # A file that does not answer, as on a lost mount.
        place = Path(tempfile.mkdtemp()) / "file"
        os.mkfifo(place)
        release, wait = (lambda: place.write_text("x")), place.read_text
    else:
        raise ValueError(how)

    def watch() -> None:
        while flag.exists():
            time.sleep(0.3)
        release()

    threading.Thread(target=watch, daemon=True).start()
    wait()


def sleeps_for_each_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for _ in range(batch.num_rows):
            time.sleep(0.08)
        yield batch


@contextmanager
def stopped_at(flags: Path, point: str, how: str) -> Iterator[None]:
    draft = flags / f".{point}"
    draft.write_text(how)
    draft.rename(flags / point)
    try:
        yield
    finally:
        (flags / point).unlink()


class StoppingOptions(NumbersOptions):
    flags: str = ""
    work: float = 0.0  # how long each part of an epoch is read, s


class StoppingNumbers(Numbers):
    options_type = StoppingOptions
    options: StoppingOptions

    @classmethod
    def name(cls) -> str:
        return "stopping_numbers"

    def advance(self, channel: Channel, start: Any, limit: Limit) -> Advance:
        stop_here(self.options.flags, "plan")
        return super().advance(channel, start, limit)

    def read(self, channel: Channel, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        # As a server does that answers slowly.
        time.sleep(self.options.work / 2)
        stop_here(self.options.flags, "read")
        time.sleep(self.options.work / 2)
        yield from super().read(channel, start, end)


class StoppingFolderOptions(FolderOptions):
    flags: str = ""


class StoppingFolder(Folder):
    options_type = StoppingFolderOptions
    options: StoppingFolderOptions

    @classmethod
    def name(cls) -> str:
        return "stopping_folder"

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Any:
        stop_here(self.options.flags, "write")
        return super().write(schema, batches, task)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        stop_here(self.options.flags, "commit")
        return super().commit(schema, epoch, prepared)
