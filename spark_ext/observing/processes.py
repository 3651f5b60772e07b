"""The stacks of all processes of a job, asked for at the same time: what does not answer keeps nobody else waiting."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_ext.model.dumps import Section, stacks
from spark_ext.queries.samples import Samples
from spark_ext.spark.backend.diagnosis import DRIVER
from spark_ext.spark.watching.activity import ActivityReader
from spark_ext.spark.watching.thread_dumps import ThreadDumps, python_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.observing.watchable import Watchable

WITHIN: Final = 15.0
"""How long all of it may take, s."""

MOST_EXECUTORS: Final = 16
"""Maximum number of executors that are asked."""

MOST_QUERIES: Final = 8
"""Maximum number of queries whose Python processes are asked."""

SILENT: Final = "it does not answer"


@dataclass
class Answer:
    """What somebody who was asked has said, if he has."""

    sections: tuple[Section, ...] | None = None


def all_stacks(
    spark: SparkSession, state: str, runs: Sequence[Watchable], *, asked: bool, over: Callable[[], bool]
) -> list[Section]:
    """The stacks of the driver's two processes, of executors and of Python workers.

    Args:
        asked: whether they leave notes by which they can be asked.
        over: whether nobody waits any more.
    """
    here = f"{socket.gethostname()}, process {os.getpid()}"
    found = [Section(f"driver's Python process, {here}", stacks(python_threads()))]
    questions: list[tuple[str, Callable[[], Sequence[Section]]]] = [("JVMs", lambda: _jvms(spark))]
    if asked:
        samples = Samples(state, over)
        for run in [run for run in runs if run.in_spark is not None][:MOST_QUERIES]:
            questions.append((_workers_of(run), partial(_workers, samples, run)))
    answers = [_in_background(action) for _, action in questions]
    by = time.monotonic() + WITHIN
    for (title, _), (thread, answer) in zip(questions, answers, strict=True):
        thread.join(max(0.0, by - time.monotonic()))
        found += answer.sections or (Section(title, SILENT),)
    return found


def _in_background(action: Callable[[], Sequence[Section]]) -> tuple[threading.Thread, Answer]:
    answer = Answer()

    def ask() -> None:
        try:
            answer.sections = tuple(action())
        except Exception as problem:
            answer.sections = (Section("no stacks", f"{type(problem).__name__}: {problem}"),)

    thread = threading.Thread(target=ask, name="spark-ext-dump-stacks", daemon=True)
    thread.start()
    return thread, answer


def _jvms(spark: SparkSession) -> list[Section]:
    executors = [one.id for one in ActivityReader(spark).executors() if one.active and one.id != DRIVER]
    texts = ThreadDumps(spark).texts([DRIVER, *executors[:MOST_EXECUTORS]])
    found = []
    for executor, text in texts.items():
        title = "driver's JVM" if executor == DRIVER else f"executor {executor}"
        found.append(Section(title, SILENT if text is None else text))
    return found


def _workers_of(run: Watchable) -> str:
    return f"Python workers of {run.who}"


def _workers(samples: Samples, run: Watchable) -> list[Section]:
    found = samples.take(run.sampled_as, stacks=True)
    if not found:
        return [Section(_workers_of(run), "none has answered: there may be none")]
    return [Section(f"{one.who}, of {run.who}", stacks(one.threads)) for one in found]
