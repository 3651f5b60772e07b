"""Finds the queries of a job that make no progress, and what holds them; and what holds up a stop.

On the monitor's thread the clock of each query is kept; what takes seconds, to ask processes and executors for CPU
times and stacks, is done on a thread that is started when a clock has run out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.masking import logger
from spark_ext.model.execution import Look, Phase
from spark_ext.model.holders import Holder, holder
from spark_ext.model.stacks import Sample
from spark_ext.model.stalls import WEAK, Marks, Moves, StallClock, moves, patience
from spark_ext.queries.samples import Samples
from spark_ext.queries.watched import Stall
from spark_ext.spark.thread_dumps import DRIVER, ThreadDumps, called_from_java, query_thread, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.observing.watchable import Watchable
    from spark_ext.queries.context import WatchContext
    from spark_ext.spark.activity import Activity, ActivityReader

log = logger("spark_ext.job")

BETWEEN: Final = 1.0
"""Time between two samples, s."""

AHEAD: Final = 2.0
"""A query is examined so long before its patience has run out, s: samples take that long. At most half of it."""

STOP_WITHIN: Final = 3.0
"""A stop of Spark's query that takes longer is looked into, s."""

MOST_EXECUTORS: Final = 16
"""So many executors are asked for their stacks."""


@dataclass
class _Watch:
    """What is known of one query."""

    clock: StallClock = field(default_factory=StallClock)
    stalled: bool = False
    epochs: set[int] = field(default_factory=set)
    """That were stalled: how long they took says nothing about others."""
    examined_at: float = 0.0
    """When it was examined last, s, monotonic."""
    stop_since: float | None = None
    """Since when Spark has been stopping it, s, monotonic."""
    stop_found: bool = False


class Stalls:
    """Watches the queries of a job; for the monitor's thread.

    Args:
        spark: the job's session.
        context: the job's.
        over: whether the job has ended.
        reader: reads what Spark is doing.
    """

    def __init__(
        self, spark: SparkSession, context: WatchContext, over: Callable[[], bool], reader: Callable[[], ActivityReader]
    ) -> None:
        self._spark = spark
        self._over = over
        self._context = context
        self._samples = Samples(context.state, over)
        fixed = context.settings.stall_after
        self._fixed = None if fixed is None else fixed / 1000
        self._watches: dict[str, _Watch] = {}
        self._lock = threading.Lock()
        self._dumps: ThreadDumps | None = None
        self._read = reader

    def look(self, run: Watchable, look: Look, activity: Activity) -> None:
        """Continue the clock of a query, and examine it when that has run out.

        Args:
            run: the query.
            look: what Spark says of it.
            activity: of the application.
        """
        query = run.in_spark
        assert query is not None
        watch = self._watches.setdefault(run.uid, _Watch())
        now = time.monotonic()
        marks = _marks(run, look, activity, str(query.runId))
        before = watch.clock
        watch.clock = before.after(look, marks, now, paused=run.watched.paused)
        if watch.clock is not before and watch.stalled:
            watch.stalled = False
            run.watched.examined(None)
        usual = [ms for epoch, ms in tuple(run.figures.recent) if epoch not in watch.epochs]
        limit = patience(usual, self._fixed)
        due = max(limit - AHEAD, limit / 2)
        if watch.clock.still(now) >= due and now - watch.examined_at >= limit and self._lock.acquire(blocking=False):
            watch.examined_at = now
            self._in_background(run, look, watch, limit)

    def look_at_stop(self, run: Watchable) -> None:
        """See whether Spark has been stopping a query for too long."""
        watch = self._watches.setdefault(run.uid, _Watch())
        now = time.monotonic()
        if run.busy != "stop":
            watch.stop_since = None
            return
        if watch.stop_since is None:
            watch.stop_since, watch.stop_found = now, False
        elif not watch.stop_found and now - watch.stop_since >= STOP_WITHIN and self._lock.acquire(blocking=False):
            watch.stop_found = True
            self._in_background(run, None, watch, 0.0)

    # -- in the background --------------------------------------------------------------------------------------------

    def _in_background(self, run: Watchable, look: Look | None, watch: _Watch, limit: float) -> None:
        def work() -> None:
            try:
                if look is None:
                    self._examine_stop(run, watch)
                else:
                    self._examine(run, look, watch, limit)
            except Exception as problem:
                if not self._over():
                    log.info("%s: it could not be examined: %s", run.who, problem)
            finally:
                self._lock.release()

        threading.Thread(target=work, name=f"spark-ext-samples-{run.uid}", daemon=True).start()

    def _examine(self, run: Watchable, look: Look, watch: _Watch, limit: float) -> None:
        clock, begun = watch.clock, time.monotonic()
        before = self._sample(run, stacks=False)
        time.sleep(BETWEEN)
        after = self._sample(run, stacks=True)
        marks, examined_at = clock.marks, time.monotonic()
        while watch.clock is clock and clock.still(time.monotonic()) < limit and not self._over():
            time.sleep(0.05)
        if watch.clock is not clock or marks is None or run.committed != marks.epoch or self._over() or not run.live:
            return
        now = time.monotonic()
        moved = moves(before, after, examined_at - begun)
        if moved == Moves.YES:
            watch.clock = clock.moved(now)
            if watch.stalled:
                watch.stalled = False
                run.watched.examined(None)
        elif not watch.stalled and (moved == Moves.NOT or clock.still(now) >= WEAK * limit):
            watch.stalled = True
            watch.epochs.add(run.committed + 1)
            run.watched.examined(_stall(holder(look.phase, after), clock.still(now), "stall"))

    def _examine_stop(self, run: Watchable, watch: _Watch) -> None:
        since = watch.stop_since
        found = holder(Phase.EPOCH, self._sample(run, stacks=True))
        if since is not None and run.busy == "stop":
            run.watched.examined(_stall(found, time.monotonic() - since, "stop_blocked"))

    def _sample(self, run: Watchable, *, stacks: bool) -> Sample:
        query = run.in_spark
        assert query is not None
        activity = self._read().read()
        active = [one.id for one in activity.executors if one.active]
        self._dumps = self._dumps or ThreadDumps(self._spark)
        threads = self._dumps.of([DRIVER, *[one for one in active if one != DRIVER][:MOST_EXECUTORS]])
        run_id = str(query.runId)
        stages = [stage.id for stage in activity.stages_of(run_id)]
        return Sample(
            workers=self._samples.take(run.sampled_as, stacks=stacks),
            driver=query_thread(threads[DRIVER] or (), run_id),
            python=called_from_java() if stacks else (),
            tasks=tuple(task for found in threads.values() for task in tasks_of(found or (), stages)),
            silent=tuple(executor for executor, found in threads.items() if found is None),
        )


def _marks(run: Watchable, look: Look, activity: Activity, run_id: str) -> Marks:
    tasks = look.tasks
    return Marks(
        epoch=run.committed,
        phase=look.phase,
        jobs=tuple(job.id for job in activity.jobs if job.group == run_id),
        done=0 if tasks is None else tasks.done,
        failed=0 if tasks is None else tasks.failed,
        running=0 if tasks is None else tasks.running,
        records=sum(stage.records for stage in activity.stages_of(run_id)),
    )


def _stall(found: Holder, seconds: float, kind: str) -> Stall:
    return Stall(kind, datetime.now(timezone.utc) - timedelta(seconds=seconds), found)
