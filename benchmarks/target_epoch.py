"""The duration of epochs under the setting `target_epoch`, while a user function becomes ten times as slow.

The function pauses for a time per row. Each round runs a job until its epochs have settled, takes the median of the
next ones, makes the function slow, lets the epochs settle again, and takes the median once more.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import checkpoint_of, committed_at, session, until, workplace
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 2
TARGET_S = 2.0
FAST, SLOW = 20e-6, 200e-6  # pause per row, s
SETTLING, MEASURED = 6, 6  # epochs that do not count after each change, and that do


def run(rounds: int = ROUNDS) -> Figures:
    fast, slow = [], []
    with session("target_epoch") as spark:
        for _ in range(rounds):
            before, after = _epochs(spark)
            fast += before
            slow += after
    samples = {"fast": Sample.of(fast, "s"), "ten times as slow": Sample.of(slow, "s")}
    worst = max(abs(sample.median / TARGET_S - 1) for sample in samples.values())
    yield Figure(
        "target_epoch",
        f"deviation of epochs from a target of {TARGET_S:g} s, before or after a function slows tenfold", worst,
        Aim("<=", 0.25), samples, {"pause per row, us": [FAST * 1e6, SLOW * 1e6]},
    )  # fmt: skip


def _epochs(spark: SparkSession) -> tuple[list[float], list[float]]:
    """Durations of epochs before and after the change, from commit to commit, s."""
    with workplace() as folder:
        gate = str(folder / "slow")

        def pause(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                time.sleep(len(frame) * (SLOW if Path(gate).exists() else FAST))
                yield frame

        reader = spark.readStream.format("datagen").options(uid="in", rows=50_000_000, channels=1)
        rows = reader.load().select("id", "key").mapInPandas(pause, "id long, key long")
        job = sx.Job(spark, "bench", state=folder / "state", target_epoch=f"{TARGET_S:g} s")
        job.add("q", rows.writeStream.format("noop"))
        job.start()
        try:
            checkpoint = checkpoint_of(folder / "state")
            before = _next(checkpoint, job)
            Path(gate).touch()
            return before, _next(checkpoint, job)
        finally:
            job.stop(60)


def _next(checkpoint: Path, job: sx.Job) -> list[float]:
    log = SparkLog(str(checkpoint))
    newest = log.newest_commit()
    first = (-1 if newest is None else newest) + SETTLING
    until(lambda: (log.newest_commit() or 0) >= first + MEASURED, "enough epochs are committed", job)
    at = [committed_at(checkpoint, first + number) for number in range(MEASURED + 1)]
    found = [end - begin for begin, end in itertools.pairwise(at)]
    assert median(found) > 0
    return found
