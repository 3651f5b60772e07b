"""Small epochs of a job whose source and sink collect bad rows against those of the same job failing on them.

`bad_rows` measures what the rows cost; this measures what an epoch costs, when there is nothing to collect: CSV files
into `delta_2pc`. Both sides run alternately, either first in turns. The time is that between the commits of two epochs
in Spark's own commit log, which includes what the job does between epochs.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._spark import checkpoint_of, mean_epoch, session, warm_up, workplace

ROUNDS = 10
SIDES = ("fail", "quarantine")
EPOCHS, WARM = 60, 10
ROWS = 500  # of an epoch


def run(rounds: int = ROUNDS) -> Figures:
    with session("bad_rows_epochs") as spark, workplace() as folder:
        lines = (f"{n},{n * 0.5},key-{n % 100}\n" for n in range(ROWS * EPOCHS))
        (folder / "in").mkdir()
        (folder / "in" / "0.csv").write_text("".join(lines))
        warm_up(lambda: [_epoch(spark, side, folder / "in") for side in SIDES])
        times = beside(SIDES, rounds, lambda side: _epoch(spark, side, folder / "in"))
    sides = {side: Sample.of(times[side], "ms") for side in SIDES}
    yield Figure(
        "bad_rows_epochs", "time per small epoch without bad rows: source and sink collect them / fail on them",
        statistics.median(in_pairs(times["quarantine"], times["fail"])), Aim("<=", 1.02), sides,
        {"rows per epoch": ROWS, "epochs per run": EPOCHS - WARM},
    )  # fmt: skip


def _epoch(spark: SparkSession, side: str, data: Path) -> float:
    """Mean time from commit to commit, ms."""
    options = {"uid": "in", "path": str(data), "max_rows_per_epoch": str(ROWS), "on_bad_row": side}
    rows = spark.readStream.format("files").schema("id bigint, value double, tag string").options(**options).load()
    with workplace() as folder:
        writer = rows.writeStream.format("delta_2pc").options(uid="out", path=str(folder / "table"), on_bad_row=side)
        result = sx.Job(spark, "bench", state=folder / "state").add("q", writer).run(progress=False)
        if result.rows != ROWS * EPOCHS or result.epochs < EPOCHS:
            raise AssertionError(f"{result.rows} rows in {result.epochs} epochs were written")
        return 1000 * mean_epoch(checkpoint_of(folder / "state"), WARM, EPOCHS - 1)
