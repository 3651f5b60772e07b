"""Events that functions emit: written down by tasks, and counted once their epoch is committed.

Each task appends its events to a file of its own beside the query's checkpoint,
`emitted/<epoch>/<start>/<stage>_<partition>_<attempt>_<process>.jsonl`. Once the epoch is committed the job takes, of
its newest start, one attempt of each task: a task that was retried, speculated on or replayed has emitted once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from spark_ext.control import current
from spark_ext.control.current import EpochContext
from spark_ext.control.requests import Request
from spark_ext.errors import DataError, StateError, StorageError
from spark_ext.model.control import JOB
from spark_ext.model.control_kinds import BadValue, checked, kinds
from spark_ext.model.offsets import Json
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import local_path

FOLDER: Final = "emitted"  # the folder in the checkpoint directory
MOST: Final = 1_000  # events that one task may emit in an epoch
_NAME: Final = re.compile(r"(-?\d+)_(-?\d+)_(\d+)_(\d+)\.jsonl")


@dataclass(frozen=True, order=True)
class Part:
    """What one process of one attempt of a task has emitted."""

    stage: int  # -1: in the driver, by `foreachBatch`
    partition: int  # -1: in the driver
    attempt: int  # Spark's number of the attempt; one that began later has a greater one
    process: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.stage}_{self.partition}_{self.attempt}_{self.process}.jsonl"

    @classmethod
    def parse(cls, name: str) -> Part | None:
        """Read the name of a file; None if it is not one of these."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(*map(int, found.groups()))


class _Out:
    """The file of the task that runs in this process."""

    def __init__(self, place: EpochContext, part: Part) -> None:
        self.key = (place, part)
        self._place = place
        self._count = 0
        folder = local_path(place.checkpoint)
        if folder is None:
            raise StateError(
                "events cannot be emitted: the state directory is in an object store, where no file can be appended to",
                operator=place.operator,
                kept="nothing was emitted; nothing of this epoch was committed",
                do="use a state directory on a shared file system, or write the events as rows of the query",
            )
        if not (folder / "offsets").is_dir():
            raise StateError(
                "events cannot be emitted: the query's checkpoint directory is not there on this machine",
                operator=place.operator,
                kept="nothing was emitted; nothing of this epoch was committed",
                do=f"make {place.checkpoint} available under this path on all machines of the cluster",
            )
        file = folder / FOLDER / str(place.number) / place.start / part.name
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, line: str) -> None:
        if self._count >= MOST:
            raise DataError(
                f"a task has emitted more than {MOST} events in an epoch",
                operator=self._place.operator,
                kept="everything up to the previous epoch; nothing of this one was committed",
                do="emit one event for many rows, or write them as rows of the query",
            )
        content = f"{line}\n".encode()
        if os.write(self._file, content) != len(content):
            raise OSError("the disk is full")
        self._count += 1

    def close(self) -> None:
        os.close(self._file)


_lock = threading.Lock()
_out: _Out | None = None


def emit(type: str, value: Json = None) -> None:
    """Send an event of your own to the functions of all queries of the job, once the calling code's epoch is committed.

    The event is then accepted as a `broadcast` to the job. It counts once, however often its task runs: for each task
    of an epoch one attempt counts, that of the start that was the last to run it. So an epoch that is not committed
    emits nothing, and the function has to emit the same for the same rows. An action that `foreachBatch` runs twice
    emits twice.

    May be called in functions that run in tasks (UDFs, `mapInArrow`, a source's `read`, a sink's `write`) and in
    `foreachBatch`.

    Args:
        type: functions read events by it; 1 to 200 characters.
        value: any JSON of at most 65,536 bytes.

    Raises:
        DataError: the value is not JSON or is too large; the task has emitted 1,000 events in this epoch.
        StateError: the calling code belongs to no task of a job; the state directory is in an object store.
        StorageError: the event cannot be written.
    """
    global _out
    place, part = _where()
    try:
        stored = checked(kinds()["broadcast"], JOB, {"type": type, "value": value})
    except BadValue as problem:
        raise DataError(
            f"an event of type {str(type)[:100]!r} cannot be emitted: {problem}",
            operator=place.operator,
            kept="everything up to the previous epoch; nothing of this one was committed",
            do="correct the value in the function that emits it, and start the job again",
        ) from problem
    with _lock:
        try:
            if _out is None or _out.key != (place, part):
                if _out is not None:
                    _out.close()
                _out = None
                _out = _Out(place, part)
            _out.add(json.dumps(stored))
        except OSError as problem:
            raise StorageError(
                f"an event cannot be written: {problem}",
                operator=place.operator,
                kept="everything up to the previous epoch; nothing of this one was committed",
                do=f"make {place.checkpoint} writable on all machines of the cluster; the epoch is tried again",
            ) from problem


def _where() -> tuple[EpochContext, Part]:
    context, place = TaskContext.get(), current.of_task()
    if context is not None and place is not None:
        return place, Part(context.stageId(), context.partitionId(), context.taskAttemptId(), os.getpid())
    place = current.of_driver() if context is None else None
    if place is None:
        raise StateError(
            "an event was emitted outside of the tasks of a job",
            operator="sx.control.emit",
            kept="nothing was emitted",
            do="call it in a function that Spark runs for the rows of a job's query, in a source's read, a sink's "
            "write, or in foreachBatch; elsewhere use job.control",
        )
    return place, Part(-1, -1, 0, os.getpid())


# -- collection -------------------------------------------------------------------------------------------------------


def chosen(found: Mapping[Part, int]) -> list[Part]:
    """The parts that count, in the order of their events: for each task those of one attempt. Pure.

    That is the one that has emitted most: an attempt that was killed has emitted less than one that has ended. Of equal
    ones the first counts. `found` has the number of events of each part, all of one start of one epoch.
    """
    tasks: dict[tuple[int, int], dict[int, int]] = {}
    for part, count in found.items():
        attempts = tasks.setdefault((part.stage, part.partition), {})
        attempts[part.attempt] = attempts.get(part.attempt, 0) + count
    best = {task: max(attempts, key=lambda one: (attempts[one], -one)) for task, attempts in tasks.items()}
    return sorted(part for part in found if best[part.stage, part.partition] == part.attempt)


def collect(checkpoint: str, query: str, number: int) -> list[Request]:
    """What a committed epoch has emitted, in the order in which it is to be accepted; the same each time."""
    log = SparkLog(checkpoint)
    start = max(log.names(f"{FOLDER}/{number}"), default=None)
    if start is None:
        return []
    folder = f"{FOLDER}/{number}/{start}"
    found = filter(None, map(Part.parse, log.names(folder)))
    parts = {part: _lines(log.read(f"{folder}/{part.name}")) for part in found}
    return [
        Request("broadcast", "job", json.loads(line), requested_by=f"query:{query}", origin="emit")
        for part in chosen({part: len(lines) for part, lines in parts.items()})
        for line in parts[part]
    ]


def discard(checkpoint: str, upto: int) -> None:
    """Remove what epochs have emitted, once it is accepted."""
    _remove(checkpoint, (number for number in SparkLog(checkpoint).numbers(FOLDER) if number <= upto))


def discard_uncommitted(checkpoint: str) -> None:
    """Before a start: remove what earlier ones have emitted in uncommitted epochs. This one decides on them."""
    log = SparkLog(checkpoint)
    there = log.numbers(FOLDER)
    if there:
        newest = log.newest_commit()
        _remove(checkpoint, (number for number in there if newest is None or number > newest))


def _remove(checkpoint: str, numbers: Iterable[int]) -> None:
    folder = local_path(checkpoint)
    if folder is not None:
        for number in numbers:
            # A task that was given up may still be writing; what it leaves is never counted.
            shutil.rmtree(folder / FOLDER / str(number), ignore_errors=True)


def _lines(text: str | None) -> list[str]:
    """The complete lines of a file: a process that was killed may leave a part of one behind them."""
    return (text or "").split("\n")[:-1]
