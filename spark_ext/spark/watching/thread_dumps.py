"""Stacks of the JVMs of a Spark application and of this Python process; asked of Spark, which needs no free slot.

`tests/spark/test_activity.py` pins what is relied on.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psutil

from spark_ext.failures.evidence import Frame
from spark_ext.failures.owners import owner_of_file
from spark_ext.model.stacks import Thread, java_thread
from spark_ext.spark.backend.diagnosis import Json
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

WITHIN: Final = 3.0  # how long executors may take to answer, s; one that is frozen does not
_TASK: Final = re.compile(r"Executor task launch worker for task .* in stage (?P<stage>\d+)\.")


class ThreadDumps:
    """Takes stacks."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = backend_of(spark).diagnosis(spark)

    def of(self, executors: Iterable[str]) -> dict[str, tuple[Thread, ...] | None]:
        """The threads of executors, asked at the same time; None for one that does not answer."""
        return {
            executor: None if threads is None else tuple(_thread(one) for one in threads)
            for executor, threads in self._all(executors).items()
        }

    def deadlocked(self) -> tuple[str, ...]:
        """Names of the threads of the driver's JVM that wait for each other for good."""
        return self._spark.deadlocked()

    def texts(self, executors: Iterable[str]) -> dict[str, str | None]:
        """The same as text, with the state of each thread, and the locks that it holds and waits for."""
        return {
            executor: None if threads is None else "\n".join(map(_text, threads))
            for executor, threads in self._all(executors).items()
        }

    def _all(self, executors: Iterable[str]) -> dict[str, list[Json] | None]:
        asked = {executor: self._asked(executor) for executor in executors}
        found: dict[str, list[Json] | None] = {}
        by = time.monotonic() + WITHIN
        for executor, answer in asked.items():
            try:
                found[executor] = answer.result(max(0.0, by - time.monotonic()))
            except Exception:
                found[executor] = None
        return found

    def _asked(self, executor: str) -> Future[list[Json] | None]:
        answer: Future[list[Json] | None] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._spark.threads(executor))
            except BaseException as problem:
                answer.set_exception(problem)

        # One that hangs is left behind: Spark itself gives up after two minutes.
        threading.Thread(target=ask, name=f"spark-ext-stacks-{executor}", daemon=True).start()
        return answer


def _thread(given: Json) -> Thread:
    return java_thread(given["threadName"], given["threadState"], _lines(given))


def _text(given: Json) -> str:
    blocked = given.get("blockedByThreadId")
    by = "" if blocked is None else f", blocked by thread {blocked}"
    lines = [part for line in _lines(given) for part in line.rstrip().split("\n")]
    stack = "".join(f"    {part.strip() if part.startswith(chr(9)) else f'at {part}'}\n" for part in lines)
    return f'"{given["threadName"]}" {given["threadId"]} {given["threadState"]}{by}\n{stack}'


def _lines(given: Json) -> list[str]:
    stack = given["stackTrace"]
    lines: list[str] = stack["elems"] if isinstance(stack, dict) else stack
    return lines


def tasks_of(threads: Iterable[Thread], stages: Iterable[int]) -> tuple[Thread, ...]:
    """The threads of an executor that run tasks of some stages."""
    wanted = {str(stage) for stage in stages}
    return tuple(one for one in threads if (match := _TASK.match(one.name)) is not None and match["stage"] in wanted)


def query_thread(threads: Iterable[Thread], run_id: str) -> tuple[Thread, ...]:
    """The thread of the driver that runs a streaming query."""
    begin = "stream execution thread for "
    return tuple(one for one in threads if one.name.startswith(begin) and run_id in one.name)


def called_from_java() -> tuple[Thread, ...]:
    """The threads of this process that the JVM has called, as for the function of a `foreachBatch`; with CPU times."""
    times = {one.id: one.user_time + one.system_time for one in psutil.Process().threads()}
    natives = {thread.name: thread.native_id for thread in threading.enumerate()}
    return tuple(
        replace(thread, cpu=times.get(natives.get(thread.name) or 0))
        for thread in python_threads()
        if any("py4j" in frame.file and frame.function == "_call_proxy" for frame in thread.frames)
    )


def python_threads() -> tuple[Thread, ...]:
    """All threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in _current_frames().items():
        # Not `extract_stack`, which reads the lines of all files.
        stack = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
        frames = tuple(
            Frame(owner_of_file(entry.filename), entry.filename, entry.lineno or 0, entry.name) for entry in stack
        )
        found.append(Thread(names.get(ident, str(ident)), frames))
    return tuple(found)


def _current_frames() -> dict[int, FrameType]:
    """The frame of each thread.

    Up to Python 3.11 the interpreter makes this table under a lock that ending threads need. A garbage collection
    within it may end one, and the process then stands still for good (https://github.com/python/cpython/issues/106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()
