"""Rows that are distributed by key: through an exchange to another query, and by Flink's `keyBy`, to the end of a job.

Both sides generate the rows, distribute them by key over two tasks, and write them, exactly once, to files: Parquet by
`delta_2pc` here, text by Flink's file sink. The rate is that of whole jobs without their start: here from the first
commit of the first query to the last commit of the second.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks import _flink
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import session, warm_up, workplace
from spark_ext.spark.logs.spark_log import SparkLog

ROUNDS = 3
ROWS = 5_000_000
EPOCHS = 5


def run(rounds: int = ROUNDS) -> Figures:
    with session("keyed_rows") as spark:
        warm_up(lambda: (_ours(spark), _theirs()))
        rates = beside(("exchange", "Flink"), rounds, lambda side: _theirs() if side == "Flink" else _ours(spark))
    samples = {side: Sample.of(values, "rows/s") for side, values in rates.items()}
    yield Figure(
        "keyed_rows", f"rows per second of {ROWS:,} rows that are distributed by key and written: exchange / Flink",
        samples["exchange"].median / samples["Flink"].median, Aim(">=", 1.0), samples, {"epochs": EPOCHS},
    )  # fmt: skip


def _ours(spark: SparkSession) -> float:
    with workplace() as folder:
        per_epoch = ROWS // EPOCHS
        reader = spark.readStream.format("datagen").options(uid="in", rows=ROWS, channels=2, keys=10_000)
        rows = reader.option("max_rows_per_epoch", per_epoch).load().select("id", "key", "value")
        job = sx.Job(spark, "bench", state=folder / "state")
        keyed = job.exchange("keyed", partitions=2, key="key")
        job.add("first", keyed.write(rows))
        out = keyed.read("keyed-in").writeStream.format("delta_2pc").option("uid", "out")
        job.add("second", out.option("path", str(folder / "out")))
        job.run(progress=False)
        return _rate(folder, per_epoch)


def _rate(folder: Path, first: int) -> float:
    """Rows per second without the first epoch of the first query, in which workers start."""
    logs = [SparkLog(str(folder / "state" / "queries" / name / "checkpoint")) for name in ("first", "second")]
    begin = logs[0].committed_at(0)
    end = max(logs[1].committed_at(epoch) or 0.0 for epoch in logs[1].commits())
    assert begin is not None
    return (ROWS - first) / (end - begin)


def _theirs() -> float:
    arguments = (f"n={ROWS}", "interval=1000", "keyed=true", "sink=csvbulk")
    return float(_flink.once("bounded", arguments)["emitRowsPerSec"])
