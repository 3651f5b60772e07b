"""Finds the queries of a job that make no progress or too little, and what holds them; and what holds up a stop.

On the monitor's thread the clock of each query is kept; what takes seconds, to ask processes and executors for CPU
times and stacks, is done on a thread that is started when a clock has run out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_ext.failures.labels import FailureType, Origin
from spark_ext.masking import logger
from spark_ext.model.execution import Look, Phase
from spark_ext.model.holders import Holder, holder
from spark_ext.model.lifecycle import State
from spark_ext.model.pressure import strained_after
from spark_ext.model.slow import EpochClock, SlowEpoch, Usual, advance, is_slow, planned_rows, slowed_by
from spark_ext.model.stacks import Sample, WorkerSample, certain, unmoved
from spark_ext.model.stalls import Marks, Moves, StallClock, moves, patience, weak_patience
from spark_ext.queries.samples import Samples
from spark_ext.queries.watched import Stall
from spark_ext.spark.backend.diagnosis import DRIVER, NO_DIAGNOSIS
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.watching.activity import look_at
from spark_ext.spark.watching.attendance import attending
from spark_ext.spark.watching.local_workers import LocalWorkers
from spark_ext.spark.watching.thread_dumps import ThreadDumps, called_from_java, query_thread, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.model.pressure import Hold
    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.watched import Watchable
    from spark_ext.spark.watching.activity import Activity, ActivityReader

log = logger("spark_ext.job")

BETWEEN: Final = 1.0  # time between two samples, s
AHEAD: Final = 2.0  # s before the end of its patience at which a query is examined; at most half of it

MEASURED: Final = 10  # number of epochs whose advance of offsets is read
SAMPLED_WITHIN: Final = 15.0  # s for which a consumer that plans no epoch is waited for
SAMPLES: Final = 3  # number of samples of a slow epoch: it moves, so one does not show where it spends its time
STOP_WITHIN: Final = 3.0  # a stop of Spark's query that takes longer is looked into, s
MOST_EXECUTORS: Final = 16  # maximum number of executors that are asked for their stacks


@dataclass
class _Watch:
    """What is known of one query."""

    clock: StallClock = field(default_factory=StallClock)
    stalled: bool = False
    epochs: set[int] = field(default_factory=set)  # that were stalled: how long they took says nothing about others
    examined_at: float = 0.0  # when it was examined last, s, monotonic
    epoch: EpochClock = field(default_factory=EpochClock)
    size: tuple[int, float | None] | None = None  # an epoch and its rows, if these are known
    slow: int | None = None  # the newest epoch that was found slow
    stop_since: float | None = None  # since when Spark has been stopping it, s, monotonic
    stop_found: bool = False
    pressed_at: float = float("-inf")  # when the consumer that holds it back was sampled last, s, monotonic


class Stalls:
    """Watches the queries of a job, until it has ended (`over`); for the monitor's thread."""

    def __init__(
        self, spark: SparkSession, context: WatchContext, over: Callable[[], bool], reader: Callable[[], ActivityReader]
    ) -> None:
        self._spark = spark
        self._over = over
        self._context = context
        self._samples = Samples(context.state, over)
        fixed = context.settings.stall_after
        self._fixed = None if fixed is None else fixed / 1000
        self._factor = context.settings.slow_factor
        self._watches: dict[str, _Watch] = {}
        self._lock = threading.Lock()
        self._slow_lock = threading.Lock()
        self._dumps: ThreadDumps | None = None
        self._local: LocalWorkers | None = None
        self._read = reader
        self._sees = backend_of(spark).diagnosis(spark) is not NO_DIAGNOSIS

    def look(self, run: Watchable, look: Look, activity: Activity) -> None:
        """Continue the clock of a query, and examine it when that has run out."""
        if not self._sees:
            return  # each long epoch would be a stall
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
            self._in_background(run, lambda: self._examine(run, look, watch, limit))
        self._look_at_epoch(run, look, activity, watch, now)

    def _look_at_epoch(self, run: Watchable, look: Look, activity: Activity, watch: _Watch, now: float) -> None:
        """Continue the clock of the epoch, and find what it is in when it is slow; an epoch that is stalled is not."""
        watch.epoch = watch.epoch.after(look, run.committed, now)
        number, known = run.committed + 1, _usual(run, watch)
        if number == watch.slow or number in watch.epochs:
            return
        size = watch.size
        sized = size is not None and size[0] == number
        rows = size[1] if size is not None and sized else 0.0
        if rows is None or not is_slow(watch.epoch.worked, known, rows, self._factor):
            return
        if self._slow_lock.acquire(blocking=False):
            examine: Callable[[], object] = partial(self._examine_epoch, run, look, watch, watch.epoch)
            # Its size is read from the checkpoint first, which may take a while.
            self._in_background(run, examine if sized else partial(self._rows, run, watch), lock=self._slow_lock)

    def look_at_pressure(self, run: Watchable, runs: Sequence[Watchable]) -> None:
        """See whether the consumers of what a query writes hold it back for too long, and what the slowest one does."""
        pressure = run.watched.pressure
        hold = pressure.hold
        consumer = None if hold is None else next((one for one in runs if one.uid == hold.by), None)
        if hold is None or consumer is None or not self._sees or _waits_on_purpose(consumer):
            return
        watch = self._watches.setdefault(run.uid, _Watch())
        limit = strained_after([ms for _, ms in tuple(consumer.figures.recent)], self._fixed)
        now = time.monotonic()
        due = pressure.strain >= limit and now - watch.pressed_at >= limit
        if due and self._slow_lock.acquire(blocking=False):
            watch.pressed_at = now
            self._in_background(run, partial(self._examine_consumer, run, consumer, hold), lock=self._slow_lock)

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
            self._in_background(run, lambda: self._examine_stop(run, watch))

    # -- in the background --------------------------------------------------------------------------------------------

    def _in_background(
        self, run: Watchable, examine: Callable[[], object], *, lock: threading.Lock | None = None
    ) -> None:
        def work() -> None:
            try:
                examine()
            except Exception as problem:
                if not self._over():
                    log.info("%s: it could not be examined: %s", run.operator, problem)
            finally:
                (lock or self._lock).release()

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
        elif not watch.stalled and (moved == Moves.NOT or self._has_waited(run, watch, limit, clock.still(now))):
            watch.stalled = True
            watch.epochs.add(run.committed + 1)
            after = unmoved(before, after, examined_at - begun)
            run.watched.examined(_stall(holder(look.phase, after), clock.still(now), "stall"))

    def _has_waited(self, run: Watchable, watch: _Watch, limit: float, still: float) -> bool:
        """Whether a query has made next to no progress for too long."""
        if still < weak_patience(limit, None):
            return False
        known, rows = _usual(run, watch), self._rows(run, watch)
        return still >= weak_patience(limit, None if known is None else known.expected(rows or 0.0))

    def _rows(self, run: Watchable, watch: _Watch) -> float | None:
        """How many rows the present epoch has; None: unknown."""
        number, query = run.committed + 1, run.in_spark
        if watch.size is None or watch.size[0] != number:
            assert query is not None
            watch.size = number, None  # should it not be readable
            logged = SparkLog(backend_of(query).checkpoint(query))
            watch.size = number, _planned(logged, number, dict(run.figures.recent_rows))
        return watch.size[1]

    def _examine_epoch(self, run: Watchable, look: Look, watch: _Watch, clock: EpochClock) -> None:
        known, rows = _usual(run, watch), self._rows(run, watch)
        if known is None or rows is None or run.committed != clock.epoch:
            return
        watch.slow = run.committed + 1
        samples: list[Sample] = []
        while len(samples) < SAMPLES and not any(sample.silent for sample in samples):
            if samples:
                time.sleep(BETWEEN)
            sample = self._sample(run, stacks=True)
            if run.committed != clock.epoch or self._over() or not run.live:
                break  # it has ended, or been ended, meanwhile
            samples.append(sample)
        if not samples or run.committed + 1 in watch.epochs or self._over() or not run.live:
            return
        found = slowed_by(look.phase, samples)
        slow = SlowEpoch(clock.worked, known.expected(rows), round(rows), found)
        run.watched.examined(_stall(found, clock.worked, "slow", slow))

    def _examine_consumer(self, run: Watchable, consumer: Watchable, hold: Hold) -> None:
        """Sample the consumer in its epochs: between two of them it does nothing."""
        samples: list[Sample] = []
        by = time.monotonic() + SAMPLED_WITHIN
        while len(samples) < SAMPLES and time.monotonic() < by and not self._over():
            query = consumer.in_spark
            if query is not None and consumer.live and look_at(query, self._read().read()).phase is Phase.EPOCH:
                samples.append(self._sample(consumer, stacks=True))
            time.sleep(BETWEEN)
        strain = run.watched.pressure.strain
        if self._over() or not strain or not run.live:
            return
        state = consumer.watched.shown.state.value
        idle = Holder(FailureType.SYSTEM, Origin.SPARK, f"the state {state}, and works on no epoch")
        found = slowed_by(Phase.EPOCH, samples) if samples else idle
        run.watched.examined(_stall(found, strain, "backpressure", hold=hold))

    def _examine_stop(self, run: Watchable, watch: _Watch) -> None:
        since = watch.stop_since
        found = holder(Phase.EPOCH, certain(self._sample(run, stacks=True)))
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
        workers = self._samples.take(run.sampled_as, stacks=stacks)
        unnoted, refused = self._without_notes(activity, run_id)
        stuck = self._dumps.deadlocked() if stacks else ()
        noted = any(one.role == "task" for one in workers)
        if stacks and self._local is not None:
            workers = self._local.completed(workers)
        return Sample(
            workers=(*workers, *unnoted),
            driver=query_thread(threads[DRIVER] or (), run_id),
            python=called_from_java(),
            tasks=tuple(task for found in threads.values() for task in tasks_of(found or (), stages)),
            silent=tuple(executor for executor, found in threads.items() if found is None),
            deadlocked=tuple(one for one in threads[DRIVER] or () if one.name in stuck),
            no_stacks="" if noted else refused,
        )

    def _without_notes(self, activity: Activity, run_id: str) -> tuple[tuple[WorkerSample, ...], str]:
        """What Python workers do that leave no notes, and why others have no stack."""
        others = {job.group for job in activity.jobs} - {run_id}
        alone = {"task"} if not others else set()
        try:
            self._local = self._local or LocalWorkers(self._spark)
            if len(self._spark.streams.active) == 1:
                alone |= {"planner", "committer"}
            found = self._local.take(besides=attending(self._context.state), alone=alone)
        except Exception as problem:
            return (), f"{type(problem).__name__}: {problem}"
        if any(one.active and one.id != DRIVER for one in activity.executors):
            return found, "those of executors are asked only if they leave notes"
        why = next((one.no_stack for one in found if one.no_stack), self._local.refused)
        return found, why or ("it may be that of another query" if others else "")


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


def _planned(log: SparkLog, number: int, rows: Mapping[int, int]) -> float | None:
    """How many rows an epoch has; None: unknown."""
    recent = [epoch for epoch in rows if epoch < number][-MEASURED:]
    logged = {epoch: log.offsets(epoch) for epoch in {number, *recent, *(epoch - 1 for epoch in [*recent, number])}}
    far = {epoch: _advance(logged.get(epoch - 1), logged[epoch]) for epoch in [*recent, number]}
    return planned_rows([(far[epoch] or 0.0, rows[epoch]) for epoch in recent], far[number])


def _advance(before: LoggedOffsets | None, after: LoggedOffsets | None) -> float | None:
    return None if before is None or after is None else advance(before, after)


def _usual(run: Watchable, watch: _Watch) -> Usual | None:
    rows = dict(run.figures.recent_rows)
    return Usual.of(
        [(ms, rows[epoch]) for epoch, ms in tuple(run.figures.recent) if epoch in rows and epoch not in watch.epochs]
    )


def _waits_on_purpose(run: Watchable) -> bool:
    """Whether somebody has paused a query, or an incident of its own says already why it does not move."""
    watched = run.watched
    return watched.paused or watched.stall is not None or watched.shown.state is State.SCHEDULING


def _stall(found: Holder, seconds: float, kind: str, slow: SlowEpoch | None = None, hold: Hold | None = None) -> Stall:
    return Stall(kind, datetime.now(timezone.utc) - timedelta(seconds=seconds), found, slow, hold)
