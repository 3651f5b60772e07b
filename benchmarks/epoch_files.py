"""An epoch of a `Job` whose files are written in its own way, against Spark's default.

Both sides are the same job of small epochs, `steps` into a sink that does nothing, without state and with four
partitions of windows; one has Spark's default class as the user's choice, which a job keeps. Rounds alternate. The time
is that between the commits of two epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._operators import steps
from benchmarks._spark import mean_epoch, session, warm_up, workplace
from spark_ext.spark.backend.contract import FILE_MANAGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 5
DEFAULT = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
SIDES = {"Spark's default": DEFAULT, "Job": None}
STEPS = {"stateless": 30, "stateful": 15}
WARM = 5
PARTITIONS = 4
ROWS = 500
AIM = 0.9


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    periods: dict[str, dict[str, list[float]]] = {kind: {side: [] for side in SIDES} for kind in STEPS}
    with session("epoch_files", {"spark.sql.shuffle.partitions": str(PARTITIONS)}) as spark:
        warm_up(lambda: [_ms(spark, kind, "Job") for kind in STEPS])
        for number in range(rounds):
            for kind in STEPS:
                for side in list(SIDES)[:: 1 if number % 2 else -1]:
                    periods[kind][side].append(_ms(spark, kind, side))
    return [_figure(kind, periods[kind]) for kind in STEPS]


def _figure(kind: str, periods: dict[str, list[float]]) -> Figure:
    default, job = (Sample.of(periods[side], "ms") for side in SIDES)
    pairs = Sample.of([ours / theirs for theirs, ours in zip(*periods.values(), strict=True)], "x")
    what = "without state" if kind == "stateless" else f"with {PARTITIONS} partitions of state"
    return Figure(
        f"epoch_files_{kind}",
        "epoch_files",
        f"time per small epoch {what}: a Job / the same with Spark's default for the files of a checkpoint",
        job.median / default.median,
        Aim("<=", AIM),
        {"Spark's default": default, "Job": job},
        {"epochs per run": STEPS[kind] - WARM, "rows per epoch": ROWS, "ratio of each pair": pairs.to_json()},
    )


def _ms(spark: SparkSession, kind: str, side: str) -> float:
    """Mean time from commit to commit, ms."""
    chosen = SIDES[side]
    if chosen is None:
        spark.conf.unset(FILE_MANAGER)
    else:
        spark.conf.set(FILE_MANAGER, chosen)
    last = STEPS[kind] - 1
    with workplace() as folder:
        frame = steps(spark, uid="in", channels=1, rows=ROWS, steps=STEPS[kind])
        if kind == "stateful":
            frame = sx.with_watermark(frame, "ts", "1 minute").groupBy(F.window("ts", "1 minute"), "key").count()
        writer = frame.writeStream.format("noop")
        sx.Job(spark, "bench", state=folder / "state").add("q", writer).run(progress=False)
        checkpoint = folder / "state" / "queries" / "q" / "checkpoint"
        # The epoch before the first one that counts: the time begins with its commit.
        return 1000 * mean_epoch(checkpoint, WARM, last)
