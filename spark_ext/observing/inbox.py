"""Spark's events about queries of others, on their way to the observing thread: a bounded queue.

Spark delivers events of all listeners on one thread, and the event of a start on the query's own thread, which waits.
Neither is kept waiting: an event that finds the queue full is counted, and what it would have said is found by looking.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_ext.masking import logger
from spark_ext.observing.foreign_query import Run
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.checkpoint_directory import is_of_job
from spark_ext.spark.watching import attendance, worker_daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

log = logger("spark_ext.observing")

CAPACITY: Final = 4_096
"""Events that may wait."""


@dataclass(frozen=True)
class Report:
    """An epoch is done: Spark's JSON."""

    text: str


@dataclass(frozen=True)
class Over:
    """A run has ended."""

    run_id: str


Event = Run | Report | Over


class Inbox:
    """Takes the events of a session's queries; see `QueryEvents`. Its methods never wait and never raise.

    Args:
        state: the Observer's state directory, lent to the tasks of queries so that they can be asked for stacks; "":
            they are not.
        parts: whether tasks of queries are to say how long the user's code ran.
    """

    def __init__(
        self,
        spark: SparkSession,
        streams: StreamingQueryManager,
        state: str,
        wake: threading.Event,
        capacity: int = CAPACITY,
        *,
        parts: bool = False,
    ) -> None:
        self.dropped = 0
        """Events that found no room."""
        self._spark, self._backend = spark, backend_of(spark)
        self._streams = streams
        self._lent = {worker_daemon.TIMES: "true"} if parts else {}
        self._state = state
        self._wake = wake
        self._events: queue.Queue[Event] = queue.Queue(capacity)
        self._closed = False

    def close(self) -> None:
        """Take no further events."""
        self._closed = True

    def taken(self) -> Iterator[Event]:
        """The events that wait, oldest first."""
        while True:
            try:
                yield self._events.get_nowait()
            except queue.Empty:
                return

    # -- on Spark's threads -------------------------------------------------------------------------------------------

    def started(self, query_id: str, run_id: str) -> None:
        """A query is being started, on its own thread."""
        if self._closed:
            return
        try:
            query = self._backend.query(self._streams, query_id)
            run = None if query is None else run_of(query, time.time())
            if run is None or run.run_id != run_id:
                return  # found by the next look
            asked = {attendance.PROPERTY: self._state, attendance.QUERY: query_id} if self._state else {}
            if lent := {**asked, **self._lent}:
                self._backend.set_task_properties(self._spark, query_id, lent)
            self._put(run)
        except Exception as problem:
            log.info("missed the start of query %s; the next poll will find it: %s", query_id, problem)
            self._wake.set()

    def progressed(self, report: str) -> None:
        """An epoch is done."""
        self._put(Report(report))

    def terminated(self, query_id: str, run_id: str) -> None:
        """A run has ended."""
        self._put(Over(run_id))

    def _put(self, event: Event) -> None:
        if self._closed:
            return
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self.dropped += 1
        self._wake.set()


def run_of(query: StreamingQuery, began: float, *, found: bool = False) -> Run | None:
    """A query's run; None if it is one of a job, which watches it itself.

    Args:
        began: when, s since 1970.
        found: whether it ran before it was noticed.
    """
    checkpoint = backend_of(query).checkpoint(query)
    if is_of_job(checkpoint):
        return None
    return Run(query, str(query.id), str(query.runId), query.name or "", checkpoint, began, found)
