"""An epoch of a `Job` whose files are written in its own way, against Spark's default.

Both sides are the same job of small epochs, `steps` into a sink that does nothing, without state and with four
partitions of windows; one has Spark's default class as the user's choice, which a job keeps. Rounds alternate. The time
is that between the commits of two epochs.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._operators import steps
from benchmarks._spark import checkpoint_of, mean_epoch, session, warm_up, workplace
from spark_ext.spark.backend.contract import FILE_MANAGER

ROUNDS = 5
DEFAULT = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
SIDES = {"Spark's default": DEFAULT, "Job": None}
STEPS = {"stateless": 30, "stateful": 15}
WARM = 5
PARTITIONS = 4
ROWS = 500
AIM = 0.9


def run(rounds: int = ROUNDS) -> Figures:
    with session("epoch_files", {"spark.sql.shuffle.partitions": str(PARTITIONS)}) as spark:
        warm_up(lambda: [_ms(spark, kind, "Job") for kind in STEPS])
        periods = {kind: beside(list(SIDES), rounds, partial(_ms, spark, kind)) for kind in STEPS}
    return [_figure(kind, periods[kind]) for kind in STEPS]


def _figure(kind: str, periods: dict[str, list[float]]) -> Figure:
    default, job = (Sample.of(periods[side], "ms") for side in SIDES)
    pairs = Sample.of(in_pairs(periods["Job"], periods["Spark's default"]), "x")
    what = "without state" if kind == "stateless" else f"with {PARTITIONS} partitions of state"
    return Figure(
        f"epoch_files_{kind}",
        f"time per small epoch {what}: a Job / the same with Spark's default for the files of a checkpoint",
        job.median / default.median, Aim("<=", AIM), {"Spark's default": default, "Job": job},
        {"epochs per run": STEPS[kind] - WARM, "rows per epoch": ROWS, "ratio of each pair": pairs.to_json()},
    )  # fmt: skip


def _ms(spark: SparkSession, kind: str, side: str) -> float:
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
        checkpoint = checkpoint_of(folder / "state")
        # The epoch before the first one that counts: the time begins with its commit.
        return 1000 * mean_epoch(checkpoint, WARM, last)
