"""A hook of one query that does not return, and the epochs of another query of the same job.

Each round runs the job twice, in changing order: the second query's end has a hook that returns at once, or one that
sleeps for longer than the measurement takes. The rate is that of the first query's commits in a window that begins when
the hook has been called, so the second query's own epochs are over on both sides.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._operators import steps
from benchmarks._spark import committed_at, session, until, warm_up, workplace
from spark_ext.model.lifecycle import State
from spark_ext.spark.logs.spark_log import SparkLog

ROUNDS = 5
SIDES = ("free", "blocked")
SLEEP_S = 60
WINDOW_S = 20.0
WARM_S = 5.0
ROWS = 500


def run(rounds: int = ROUNDS) -> Figures:
    with session("blocked") as spark:
        warm_up(lambda: _rate(spark, "free"))
        rates = beside(SIDES, rounds, lambda side: _rate(spark, side))
    free, blocked = (Sample.of(rates[side], "epochs/s") for side in SIDES)
    yield Figure(
        "blocked_query",
        f"epochs per second of a query beside one whose hook sleeps for {SLEEP_S} s / beside one that has ended",
        blocked.median / free.median,
        Aim(">=", 0.98),
        {"the other has ended": free, "the other's hook sleeps": blocked},
        {"window, s": WINDOW_S, "rows per epoch": ROWS},
    )


def _rate(spark: SparkSession, side: str) -> float:
    with workplace() as folder:
        job = sx.Job(spark, "bench", state=folder / "state")
        endless = steps(spark, uid="endless", steps=1_000_000, channels=1, rows=ROWS)
        ending = steps(spark, uid="ending", steps=2, channels=1, rows=1, hook_s=SLEEP_S if side == "blocked" else 0)
        for name, frame in (("measured", endless), ("other", ending)):
            writer = frame.writeStream.format("delta_2pc").option("uid", f"{name}-out")
            job.add(name, writer.option("path", str(folder / name)))
        job.start()
        try:
            wanted = State.FINISHING if side == "blocked" else State.FINISHED
            until(lambda: job.snapshot().query("other").state is wanted, f"the other query to be {wanted.value}", job)
            time.sleep(WARM_S)
            return _measured(folder / "state" / "queries" / "measured" / "checkpoint")
        finally:
            job.stop(5)


def _measured(checkpoint: Path) -> float:
    log = SparkLog(str(checkpoint))
    until(lambda: log.newest_commit() is not None, "an epoch is committed")
    first = log.newest_commit() or 0
    begin = committed_at(checkpoint, first)  # Spark deletes old commits: after the window it may be gone
    time.sleep(WINDOW_S)
    until(lambda: (log.newest_commit() or 0) > first, "an epoch is committed")
    last = log.newest_commit() or 0
    return (last - first) / (committed_at(checkpoint, last) - begin)
