"""Small epochs of a job whose source and sink collect bad rows against those of the same job failing on them.

`bad_rows` measures what the rows cost; this measures what an epoch costs, when there is nothing to collect: CSV files
into `delta_2pc`. Both sides run alternately, either first in turns. The time is that between the commits of two epochs
in Spark's own commit log, which includes what the job does between epochs.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import counted, mean_epoch, session, workplace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 10
SIDES = ("fail", "quarantine")
EPOCHS, WARM = 60, 10
ROWS = 500
"""Of an epoch."""


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    with session("bad_rows_epochs") as spark, workplace() as folder:
        lines = (f"{n},{n * 0.5},key-{n % 100}\n" for n in range(ROWS * EPOCHS))
        (folder / "in").mkdir()
        (folder / "in" / "0.csv").write_text("".join(lines))
        for round_, counts in counted(rounds):
            for side in SIDES[:: -1 if round_ % 2 else 1]:
                with workplace() as place:
                    taken = _epoch(spark, side, folder / "in", place)
                if counts:
                    times[side].append(taken)
    sides = {side: Sample.of(times[side], "ms") for side in SIDES}
    pairs = [ours / theirs for theirs, ours in zip(*times.values(), strict=True)]
    return [
        Figure(
            "bad_rows_epochs",
            "bad_rows_epochs",
            "time per small epoch without bad rows: source and sink collect them / fail on them",
            statistics.median(pairs),
            Aim("<=", 1.02),
            sides,
            {"rows per epoch": ROWS, "epochs per run": EPOCHS - WARM},
        )
    ]


def _epoch(spark: SparkSession, side: str, data: Path, folder: Path) -> float:
    """Mean time from commit to commit, ms."""
    options = {"uid": "in", "path": str(data), "max_rows_per_epoch": str(ROWS), "on_bad_row": side}
    rows = spark.readStream.format("files").schema("id bigint, value double, tag string").options(**options).load()
    writer = rows.writeStream.format("delta_2pc").options(uid="out", path=str(folder / "table"), on_bad_row=side)
    job = sx.Job(spark, "bench", state=folder / "state").add("q", writer)
    result = job.run(progress=False)
    checkpoint = folder / "state" / "queries" / "q" / "checkpoint"
    if result.rows != ROWS * EPOCHS or result.epochs < EPOCHS:
        raise AssertionError(f"{result.rows} rows in {result.epochs} epochs were written")
    return 1000 * mean_epoch(checkpoint, WARM, EPOCHS - 1)
