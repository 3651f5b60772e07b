"""Takes dumps: the stacks of all processes of a job, and the heap of its driver's JVM, for one incident each.

A dump is taken on a thread of its own, which exists while there is work. Callers wait for their dump, and so do, for a
limited time, the end of the job and of its process. A failed dump does not affect the job.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import SparkExtError, StorageError
from spark_ext.masking import logger, mask
from spark_ext.model.dumps import Section, document, is_dumped, seen, stacks
from spark_ext.observing.dump_folder import HEAP, STACKS, UNFINISHED, DumpFolder, refuse_heap
from spark_ext.queries.samples import Samples
from spark_ext.spark.backend.diagnosis import DRIVER
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.watching.activity import ActivityReader
from spark_ext.spark.watching.thread_dumps import ThreadDumps, python_threads
from spark_ext.storage import move

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.incidents.types import Incident
    from spark_ext.queries.watched import Watchable
    from spark_ext.settings import JobSettings


log = logger("spark_ext.job")

STACKS_WITHIN: Final = 15.0  # how long all stacks may take, s
MOST_EXECUTORS: Final = 16  # that are asked for stacks
MOST_QUERIES: Final = 8  # whose Python processes are asked for stacks
SILENT: Final = "it does not answer"
ABSENT: Final = "a client of Spark Connect has no JVM to ask"
HEAP_WITHIN: Final = 120.0  # how long the heap is waited for, s. Nothing can end a JVM's writing of it
END_WITHIN: Final = 5.0  # s for which the end of a job waits for stacks; less than it has for its last rows

PATIENCE: Final = STACKS_WITHIN + HEAP_WITHIN  # default time that a caller waits for a dump, s
MOST_WAITING: Final = 4  # how many incidents may wait for their dump; further ones have none
MOST_KNOWN: Final = 10_000  # how many incidents are remembered, so that each has one dump
LARGER: Final = 2  # times as large as the heap in use its file may be: references and headers take more room there


@dataclass
class _Asked:
    """A dump to be taken."""

    name: str
    why: str
    query: str  # whose Python workers are asked; "": those of all queries
    heap: bool
    at: datetime
    seen: tuple[Section, ...] = ()  # stacks that are known already
    stacked: threading.Event = field(default_factory=threading.Event)  # its stacks are written, or never will be
    done: threading.Event = field(default_factory=threading.Event)
    problem: Exception | None = None


class Dumps:
    """The dumps of one start of a job. Safe for several threads."""

    def __init__(
        self, spark: SparkSession, job: str, state: str, settings: JobSettings, runs: Callable[[], Sequence[Watchable]]
    ) -> None:
        self._spark = spark
        self._job = job
        self._state = state
        self._monitored = settings.monitor_interval > 0
        self._heap = settings.dumps == "heap"
        self._size = settings.dumps_size
        self._folder = DumpFolder(state, settings.dumps_kept, settings.dumps_size)
        self._runs = runs
        self._known: dict[str, None] = {}
        self._queue: deque[_Asked] = deque()
        self._now: _Asked | None = None
        self._over = False
        self._lock = threading.Lock()

    def noted(self, incident: Incident, evidence: Any) -> Any:
        """Have a dump taken if an incident is one for that, and it has none yet. Waits for nothing.

        Returns the evidence, with the dump's path under `dump`.
        """
        if not is_dumped(incident):
            return evidence
        name = incident.incident_id
        with self._lock:
            if name not in self._known:
                why = f"{incident.operator}: {incident.what}"
                if not self._put(_Asked(name, why, incident.query, self._heap, incident.at, seen(evidence))):
                    return evidence
        path = {"dump": self._folder.path(name)}
        if evidence is None:
            return path
        return {**evidence, **path} if isinstance(evidence, Mapping) else evidence

    def take(self, why: str, *, heap: bool, timeout: float) -> str:
        """Take a dump, if wanted with the heap of the driver's JVM, and wait for it; returns its path or URI."""
        operator = f"job '{self._job}', dump"
        if heap:
            refuse_heap(self._state, operator)
        at = datetime.now(timezone.utc)
        asked = _Asked(f"asked-{at:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}", why, "", heap, at)
        with self._lock:
            accepted = self._put(asked)
        if not accepted:
            raise StorageError(
                "too many dumps are in progress", operator=operator, kept="the job continues", do="try again later"
            )
        if not asked.done.wait(timeout):
            raise TimeoutError(f"the dump {self._folder.path(asked.name)} is not complete after {timeout:g} s")
        if asked.problem is not None:
            if isinstance(asked.problem, SparkExtError):
                raise asked.problem
            raise StorageError(
                f"the dump is not complete: {asked.problem}",
                operator=operator,
                kept="the job continues",
                do=f"look at {self._folder.path(asked.name)}, and at the space and permissions there",
            ) from asked.problem
        return self._folder.path(asked.name)

    def finish(self, within: float = END_WITHIN) -> None:
        """The job has ended: no further dump is taken. Waits for the stacks of one, while Spark is still there."""
        with self._lock:
            self._over = True
            now = self._now
        if now is not None and not now.stacked.wait(within):
            log.warning("job '%s' has ended before the stacks of the dump %s were written", self._job, now.name)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _put(self, asked: _Asked) -> bool:
        if self._over or len(self._queue) >= MOST_WAITING:
            return False
        self._known[asked.name] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._queue.append(asked)
        if self._now is None:
            self._now = asked
            # No daemon: a process that ends because its job has failed waits for the dump that says why.
            threading.Thread(target=self._work, name=f"spark-ext-dumps-{self._job}", daemon=False).start()
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._now = None
                    return
                asked = self._now = self._queue.popleft()
            try:
                self._take(asked)
            except Exception as problem:
                asked.problem = problem
                log.warning("job '%s': the dump %s is not complete: %s", self._job, asked.name, problem)
            finally:
                asked.stacked.set()
                asked.done.set()

    def _take(self, asked: _Asked) -> None:
        if self._folder.there(asked.name):
            return  # of an earlier start, in which the incident was open
        runs = [run for run in self._runs() if asked.query in ("", run.uid)]
        sections = all_stacks(self._spark, self._state, runs, asked=self._monitored, over=lambda: False)
        taken = datetime.now(timezone.utc)
        head = f"{asked.why}\n\nnoticed at {asked.at:%Y-%m-%d %H:%M:%S} UTC, stacks of {taken:%Y-%m-%d %H:%M:%S} UTC"
        about = {"at": taken.timestamp(), "job": self._job, "why": mask(asked.why)}
        self._folder.write(asked.name, about, mask(document(head, [*asked.seen, *sections])))
        log.warning("job '%s': stacks of all processes are in %s/%s", self._job, self._folder.path(asked.name), STACKS)
        asked.stacked.set()
        if asked.heap:
            self._take_heap(asked)

    def _take_heap(self, asked: _Asked) -> None:
        """Write the heap beside the stacks."""
        place = self._folder.local(asked.name)
        assert place is not None  # refused when the job was created
        used = backend_of(self._spark).diagnosis(self._spark).heap_used()
        free = shutil.disk_usage(place).free
        if used > self._size:
            raise OSError(f"{used:,} bytes of the heap are in use, and dumps_size is {self._size:,}")
        if LARGER * used > free:
            raise OSError(f"{used:,} bytes of the heap are in use, and {free:,} are free on the disk")
        self._folder.make_room(used, besides=asked.name)
        failed: list[Exception] = []

        def write() -> None:
            try:
                self._write_heap(place, asked.name)
            except Exception as problem:
                failed.append(problem)

        thread = threading.Thread(target=write, name=f"spark-ext-dumps-{self._job}-heap", daemon=True)
        thread.start()
        thread.join(HEAP_WITHIN)
        if thread.is_alive():
            raise OSError(f"the JVM has not written its heap within {HEAP_WITHIN:g} s; it may still do so")
        if failed:
            raise failed[0]

    def _write_heap(self, place: Path, name: str) -> None:
        draft = place / UNFINISHED
        try:
            backend_of(self._spark).diagnosis(self._spark).write_heap(draft)
            size = draft.stat().st_size
            if size > self._size:
                raise OSError(f"the heap has {size:,} bytes, and dumps_size is {self._size:,}")
            move(draft, place / HEAP)
        except Exception:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._folder.make_room(0, besides=name)
        log.warning("job '%s': the heap of the driver's JVM is in %s: %s bytes", self._job, place / HEAP, f"{size:,}")


def all_stacks(
    spark: SparkSession, state: str, runs: Sequence[Watchable], *, asked: bool, over: Callable[[], bool]
) -> list[Section]:
    """The stacks of the driver's two processes, of executors and of Python workers.

    `asked`: they leave notes by which they can be asked. `over`: whether nobody waits any more.
    """
    here = f"{socket.gethostname()}, process {os.getpid()}"
    found = [Section(f"driver's Python process, {here}", stacks(python_threads()))]
    questions: list[tuple[str, Callable[[], list[Section]]]] = [("JVMs", lambda: _jvms(spark))]
    if asked:
        samples = Samples(state, over)
        for run in [run for run in runs if run.in_spark is not None][:MOST_QUERIES]:
            questions.append((_workers_of(run), partial(_workers, samples, run)))
    answers = [_in_background(action) for _, action in questions]
    by = time.monotonic() + STACKS_WITHIN
    for (title, _), (thread, answer) in zip(questions, answers, strict=True):
        thread.join(max(0.0, by - time.monotonic()))
        found += answer or [Section(title, SILENT)]
    return found


def _in_background(action: Callable[[], list[Section]]) -> tuple[threading.Thread, list[Section]]:
    """The thread, and the answer, which is empty until it has come."""
    answer: list[Section] = []

    def ask() -> None:
        try:
            answer.extend(action())
        except Exception as problem:
            answer.append(Section("no stacks", f"{type(problem).__name__}: {problem}"))

    thread = threading.Thread(target=ask, name="spark-ext-dump-stacks", daemon=True)
    thread.start()
    return thread, answer


def _jvms(spark: SparkSession) -> list[Section]:
    executors = [one.id for one in ActivityReader(spark).executors() if one.active and one.id != DRIVER]
    texts = ThreadDumps(spark).texts([DRIVER, *executors[:MOST_EXECUTORS]])
    found = []
    for executor, text in texts.items():
        title = "driver's JVM" if executor == DRIVER else f"executor {executor}"
        found.append(Section(title, SILENT if text is None else text or ABSENT))
    return found


def _workers_of(run: Watchable) -> str:
    return f"Python workers of {run.operator}"


def _workers(samples: Samples, run: Watchable) -> list[Section]:
    found = samples.take(run.sampled_as, stacks=True)
    if not found:
        return [Section(_workers_of(run), "none has answered: there may be none")]
    return [Section(f"{one.who}, of {run.operator}", stacks(one.threads)) for one in found]
