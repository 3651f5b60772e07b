"""Looks at what Spark does for those queries of a job that have just been started, or are late, or do not stop.

On a thread of its own, because a JVM that is busy with itself does not answer. It looks at nothing while every query
commits epochs at its usual pace, and at one that waits for data more and more seldom.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.failures.labels import FailureType, Origin
from spark_ext.failures.text import evidence_of_text
from spark_ext.masking import logger
from spark_ext.model.behind import Standing, Trend
from spark_ext.model.execution import Phase
from spark_ext.observing.stalls import Stalls
from spark_ext.spark.watching.activity import Activity, ActivityReader, look_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.model.execution import Cluster
    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.watched import Watchable
    from spark_ext.spark.watching.activity import Executor, Job

log = logger("spark_ext.job")

LATE: Final = 1.0  # a query that has committed nothing for so long is looked at, s
SELDOM: Final = 5.0  # one that waits for data is looked at again after this time at the latest, s


@dataclass
class _Pace:
    """When a query is looked at next."""

    moved_at: float
    at: float
    wait: float


class Monitor:
    """The thread that looks."""

    def __init__(self, spark: SparkSession, context: WatchContext, runs: Callable[[], Sequence[Watchable]]) -> None:
        self._spark = spark
        self._context = context
        self._runs = runs
        self._every = context.settings.monitor_interval / 1000
        self._paces: dict[str, _Pace] = {}
        self._over = threading.Event()
        self._warned = False
        self._reader: ActivityReader | None = None
        self._thread = threading.Thread(target=self._loop, name=f"spark-ext-monitor-{context.job}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._over.set()

    def _read(self) -> ActivityReader:
        if self._reader is None:
            self._reader = ActivityReader(self._spark)
        return self._reader

    def _loop(self) -> None:
        stalls = Stalls(self._spark, self._context, self._over.is_set, self._read)
        losses = Losses(self._context, self._runs, self._read)
        backlogs = Backlogs(self._context)
        while not self._over.wait(self._every):
            for run in self._runs():
                stalls.look_at_stop(run)
                stalls.look_at_pressure(run, self._runs())
            due = [run for run in self._runs() if self._is_due(run, time.monotonic())]
            try:
                activity = self._read().read() if due else None
                if activity is not None:
                    self._poll(due, activity, stalls)
                executors = losses.look(activity)
                if executors is not None:
                    cluster = Activity(datetime.now(timezone.utc), executors=executors).cluster
                    backlogs.look(self._runs(), cluster, time.monotonic())
            except Exception as problem:
                # Spark may be ending; what it does is then not known, and nothing depends on it.
                if not self._warned and not self._over.is_set():
                    log.info("job '%s': could not read Spark's activity: %s", self._context.job, problem)
                self._warned = True

    def _is_due(self, run: Watchable, now: float) -> bool:
        if not run.live:
            return False
        watched = run.watched
        pace = self._paces.get(run.uid)
        if pace is None or pace.moved_at != watched.moved_at:
            pace = self._paces[run.uid] = _Pace(watched.moved_at, 0.0, self._every)
        late = not watched.progress.settled or now - watched.moved_at >= LATE
        return late and now >= pace.at

    def _poll(self, due: Sequence[Watchable], activity: Activity, stalls: Stalls) -> None:
        for run in due:
            query = run.in_spark
            if query is None:
                continue
            look = look_at(query, activity)
            pace = self._paces[run.uid]
            idle = look.phase is Phase.IDLE and run.watched.progress.settled
            pace.wait = min(SELDOM, 2 * pace.wait) if idle else self._every
            pace.at = time.monotonic() + pace.wait - self._every / 2
            run.watched.polled(look)
            stalls.look(run, look, activity)
        self._context.wake.set()


EVERY: Final = 5.0  # how often the executors are looked at, s
_SPARKS: Final = "org.apache.spark.SparkException"
PATIENCE: Final = 60.0  # how long a Spark job may need for the repetition of its tasks, s
_INTENDED: Final = re.compile(r"killed by (?:the )?driver|idle|decommission|Cluster manager shut|scale", re.IGNORECASE)
"""Reasons for which Spark removes an executor on purpose."""


class Losses:
    """Looks at executors and repeated tasks; for the monitor's thread."""

    def __init__(
        self, context: WatchContext, runs: Callable[[], Sequence[Watchable]], reader: Callable[[], ActivityReader]
    ) -> None:
        self._context = context
        self._runs = runs
        self._read = reader
        self._at = 0.0
        self._first = True
        self._gone: set[str] = set()  # executors whose loss is known
        self._failed = 0  # attempts of tasks that had failed at the last look
        self._until = 0.0  # until when repeated tasks are looked for: those of a lost executor count for none
        self._jobs: set[int] = set()  # Spark jobs whose repeated tasks are recorded

    def look(self, activity: Activity | None) -> tuple[Executor, ...] | None:
        """Look, if it is time; `activity` is that of the application, if it has just been read.

        Returns the executors; None: it was not time.
        """
        now = time.monotonic()
        if now < self._at:
            return None
        self._at = now + EVERY
        executors = self._read().executors() if activity is None else activity.executors
        first, self._first = self._first, False
        for one in executors:
            if not one.active and one.id not in self._gone:
                self._gone.add(one.id)
                # What was lost before the job began is no incident of it.
                if not first and not _INTENDED.search(one.removed):
                    self._lost(one)
                    self._until = now + PATIENCE
        failed = sum(one.failed for one in executors)
        if failed != self._failed and not first:
            self._until = now + PATIENCE
        if now < self._until:
            for job in self._read().survived():
                if job.id not in self._jobs:
                    self._jobs.add(job.id)
                    self._repeated(job)
        self._failed = failed
        return tuple(executors)

    def _lost(self, executor: Executor) -> None:
        why = executor.removed or "Spark does not say why"
        # As in a failure that an executor's loss has led to: the rules know what its exit means.
        text = f"{_SPARKS}: ExecutorLostFailure (executor {executor.id} exited) Reason: {why}"
        evidence = evidence_of_text(text)
        assert evidence is not None
        labels = self._context.classifier.judge(evidence).labels
        what = f"executor {executor.id} on {executor.host} was lost: {why}"
        self._context.write_behind.incident(
            f"job '{self._context.job}'", "executor_lost", what, "Spark repeats its tasks", None, labels
        )

    def _repeated(self, job: Job) -> None:
        run = next((run for run in self._runs() if run.in_spark and str(run.in_spark.runId) == job.group), None)
        if run is None:
            return
        reason = self._read().reason(job.stages)
        # Spark names no class of its own for an executor that was lost.
        evidence = evidence_of_text(f"{_SPARKS}: {reason}" if reason.startswith("ExecutorLost") else reason)
        labels = {} if evidence is None else self._context.classifier.judge(evidence).labels
        first = reason.partition("\n")[0] or "Spark does not say why"
        attempts = "an attempt" if job.failed == 1 else f"{job.failed} attempts"
        self._context.write_behind.incident(
            run.operator,
            "task_retried",
            f"{attempts} of a task failed: {first}",
            "Spark has repeated it",
            {"stack": reason} if reason else None,
            labels,
        )


class Backlogs:
    """Finds queries that fall behind; for the monitor's thread, which looks every `EVERY` seconds."""

    def __init__(self, context: WatchContext) -> None:
        self._context = context
        self._trends: dict[str, Trend] = {}

    def look(self, runs: Sequence[Watchable], cluster: Cluster, now: float) -> None:
        """Look at all queries of a job; `now` in s, monotonic."""
        busy = 0 < cluster.slots <= cluster.busy
        for run in runs:
            trend = self._trends[run.uid] = self._trends.get(run.uid, Trend()).after(_standing(run, now, busy=busy))
            recent = [ms for _, ms in tuple(run.figures.recent)]
            if recent and trend.falls_behind(sum(recent) / len(recent)):
                self._report(run, trend, cluster)
            elif trend.recovers or not run.live:
                for one in self._open(run.uid):
                    self._context.write_behind.incidents.resolve(one, "it reads more than arrives")

    def _open(self, uid: str) -> list[str]:
        found = self._context.write_behind.incidents.open(uid)
        return [one.incident.incident_id for one in found if one.incident.type == "behind"]

    def _report(self, run: Watchable, trend: Trend, cluster: Cluster) -> None:
        if self._open(run.uid):
            return
        first, last = trend.standings[0], trend.standings[-1]
        what = (
            f"it falls behind: {last.lag:,} rows are still to be read, {last.lag - first.lag:,} more than "
            f"{trend.seconds:.0f} s ago, although it has read {last.read - first.read:,} meanwhile; all "
            f"{cluster.slots} slots are busy"
        )
        self._context.write_behind.incident(
            run.operator,
            "behind",
            what,
            "reported",
            {"lag": [first.lag, last.lag], "seconds": trend.seconds, "read": last.read - first.read},
            {"type": FailureType.RESOURCE.value, "origin": Origin.USER.value},
        )


def _standing(run: Watchable, now: float, *, busy: bool) -> Standing | None:
    lag = run.figures.lag.rows
    if lag is None or not run.live or run.watched.paused:
        return None
    return Standing(now, run.committed, lag, run.figures.input_rows, busy)
