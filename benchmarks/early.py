"""What it costs to show open windows at the end of a run, beside emitting them there.

A run of some epochs that leaves windows open is made in three ways, alternately: as it is, with `emit="early"`, and
with `emit="all"`. The figure divides what the second and the third take beyond the first, in CPU time of the JVM and
the workers, which other load on the machine changes least.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import cpu_seconds, session, warm_up, workplace
from spark_ext.jobs.run_options import Emit

ROUNDS = 10
EPOCHS, ROWS, KEYS = 4, 500_000, 20_000  # rows of an epoch, and windows that they leave open
SIDES: tuple[Emit, ...] = ("closed", "early", "all")


def run(rounds: int = ROUNDS) -> Figures:
    with session("early") as spark, workplace() as folder:
        (folder / "in").mkdir()
        for number in range(EPOCHS):
            pq.write_table(_table(number), folder / "in" / f"{number}.parquet")
        warm_up(lambda: [_spent(spark, folder / "in", side) for side in SIDES])
        found = beside(SIDES, rounds, lambda side: _spent(spark, folder / "in", side))
    added = {
        name: Sample.of([more - less for more, less in zip(those, found["closed"], strict=True)], "s")
        for name, those in (("showing", found["early"]), ("emitting", found["all"]))
    }
    yield Figure(
        "early_emission", f"CPU time, at the end of a run: to show {KEYS:,} open windows / to emit them",
        added["showing"].median / added["emitting"].median, Aim("<=", 1.5),
        {**added, "the whole run": Sample.of(found["closed"], "s")},
        {"epochs": EPOCHS, "rows": ROWS, "share of the run": round(
            added["showing"].median / statistics.median(found["closed"]), 3)},
        divided=("showing", "emitting"),
    )  # fmt: skip


def _table(number: int) -> pa.Table:
    keys = np.arange(ROWS, dtype=np.int64) * 7919 % KEYS
    moments = np.datetime64("2026-01-01T00:00:00", "us") + (np.arange(ROWS) + number) % 1000 * np.timedelta64(1, "s")
    return pa.table({"key": keys, "at": pa.array(moments).cast(pa.timestamp("us", "UTC")), "amount": keys * 0.5})


def _spent(spark: SparkSession, data: Path, side: Emit) -> float:
    """CPU time of a run, s."""
    rows = spark.readStream.format("files").options(uid="in", path=str(data), watch="true", readers="1")
    rows = rows.option("max_rows_per_epoch", ROWS).schema("key bigint, at timestamp, amount double")
    sums = (
        sx.with_watermark(rows.load(), "at", "1 hour")
        .groupBy(F.window("at", "1 hour"), "key")
        .agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
        .select(F.col("window.start").alias("start"), "key", "rows", "amount")
    )
    with workplace() as folder:
        into = {"uid": "out", "path": str(folder / "table"), "mode": "upsert", "key": "start,key"}
        job = sx.Job(spark, "bench", state=folder / "state")
        job.add("q", sums.writeStream.format("delta_2pc").options(**into))
        before = cpu_seconds()
        result = job.run(until="now", emit=side, progress=False)
        spent = cpu_seconds() - before
    shown = result.query("q").early_rows or 0
    if result.rows != EPOCHS * ROWS or shown != (KEYS if side == "early" else 0):
        raise AssertionError(f"{result.rows} rows were read, and {shown} windows shown")
    return spent
