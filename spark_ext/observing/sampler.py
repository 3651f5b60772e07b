"""Looks at most once a second at what Spark has measured of the newest epochs, to divide their time into parts.

On a thread of its own: it is on the path of no epoch, and a JVM that does not answer holds nobody. An epoch that was
too short to be looked at is divided as one near it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from spark_ext.masking import logger
from spark_ext.model.epoch_parts import attributed
from spark_ext.spark.watching.epoch_times import EpochTimes, newest_epochs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.watched import Watchable

log = logger("spark_ext.job")

EVERY: Final = 1.0  # how often an epoch of one query is looked at at most, s
SHARE: Final = 0.005  # of the time of a driver, what looking may take in the long run
ALLOWED: Final = 1.0  # what it may take beyond that, s: a job that has just begun is looked at often
MOST: Final = 0.1  # most that a look at a query counts, s: a busy machine, or a JVM that still compiles, takes longer

AGAIN: Final = 0.25  # when it is looked for again if Spark's store did not have it yet, s
AT_ONCE: Final = 10  # most queries that are sampled in one second; with more of them each is sampled less often

NOTICED: Final = EVERY / AT_ONCE  # s between two checks whether a query has committed an epoch, which asks nobody


class Sampler:
    """The thread that looks."""

    def __init__(self, spark: SparkSession, context: WatchContext, runs: Callable[[], Sequence[Watchable]]) -> None:
        self._spark = spark
        self._context = context
        self._runs = runs
        self._next: dict[str, float] = {}  # by uid of a query, when it may be looked at
        self._over = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._loop, name=f"spark-ext-parts-{context.job}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._over.set()

    def _loop(self) -> None:
        times: EpochTimes | None = None
        pause, begun, spent = NOTICED, time.monotonic(), 0.0
        while not self._over.wait(pause):
            now, pause = time.monotonic(), NOTICED
            due = [run for run in self._runs() if _is_due(run) and self._next.get(run.uid, 0.0) <= now]
            due = sorted(due, key=lambda run: self._next.get(run.uid, 0.0))[:AT_ONCE]
            if not due:
                continue
            pause *= len(due)
            self._next |= {run.uid: now + EVERY for run in due}
            try:
                times = times or EpochTimes(self._spark)
                self._poll(times, due)
            except Exception as problem:
                # Spark may be ending, or may not have kept the epoch; nothing depends on it.
                if not self._warned and not self._over.is_set():
                    log.info("job '%s': could not read the parts of epochs: %s", self._context.job, problem)
                self._warned = True
            spent += min(time.monotonic() - now, MOST * len(due))
            pause = max(pause, (spent - ALLOWED) / SHARE - (time.monotonic() - begun))

    def _poll(self, times: EpochTimes, due: Sequence[Watchable]) -> None:
        found = newest_epochs(times.jobs(len(due)), {run.figures.run_id: run.committed for run in due})
        for run in due:
            jobs = found.get(run.figures.run_id)
            known = run.figures.sample
            if jobs is None or (known is not None and known.epoch >= jobs[0].epoch):
                self._next[run.uid] += AGAIN - EVERY
            elif not self._over.is_set():
                one, in_function = times.read(jobs), run.figures.in_function
                run.figures.sampled(attributed(one.epoch, one.jobs, one.stages, one.plan, in_function=in_function))
        self._context.wake.set()


def _is_due(run: Watchable) -> bool:
    figures = run.figures
    known = -1 if figures.sample is None else figures.sample.epoch
    return run.live and bool(figures.run_id) and run.committed > known
