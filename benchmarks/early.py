"""What it costs to show open windows at the end of a run: beside an epoch that changes the same windows.

A run of some epochs that leaves windows open is made in three ways, alternately: as it is, with `emit="early"`, and
with one epoch more. The figure divides what the second and the third take beyond the first, in CPU time of the JVM and
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

ROUNDS = 10
EPOCHS, ROWS, KEYS = 4, 500_000, 20_000  # rows of an epoch, and windows that they leave open
SIDES = ("closed", "early", "one more")


def run(rounds: int = ROUNDS) -> Figures:
    with session("early") as spark, workplace() as folder:
        for files in (EPOCHS, EPOCHS + 1):
            (folder / str(files)).mkdir()
            for number in range(files):
                pq.write_table(_table(number), folder / str(files) / f"{number}.parquet")
        warm_up(lambda: [_spent(spark, folder, side) for side in SIDES])
        found = beside(SIDES, rounds, lambda side: _spent(spark, folder, side))
    added = {
        name: Sample.of([more - less for more, less in zip(found[side], found["closed"], strict=True)], "s")
        for name, side in (("showing", "early"), ("an epoch", "one more"))
    }
    yield Figure(
        "early_emission", f"CPU time: to show {KEYS:,} open windows / to read and count an epoch of {ROWS:,} rows",
        added["showing"].median / added["an epoch"].median, Aim("<=", 1.0),
        {**added, "the whole run": Sample.of(found["closed"], "s")},
        {"epochs": EPOCHS, "rows": ROWS, "share of the run": round(
            added["showing"].median / statistics.median(found["closed"]), 3)},
        divided=("showing", "an epoch"),
    )  # fmt: skip


def _table(number: int) -> pa.Table:
    keys = np.arange(ROWS, dtype=np.int64) * 7919 % KEYS
    moments = np.datetime64("2026-01-01T00:00:00", "us") + (np.arange(ROWS) + number) % 1000 * np.timedelta64(1, "s")
    return pa.table({"key": keys, "at": pa.array(moments).cast(pa.timestamp("us", "UTC")), "amount": keys * 0.5})


def _spent(spark: SparkSession, data: Path, side: str) -> float:
    """CPU time of a run, s."""
    files = EPOCHS + (side == "one more")
    rows = spark.readStream.format("files").options(uid="in", path=str(data / str(files)), watch="true", readers="1")
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
        result = job.run(until="now", emit="early" if side == "early" else "closed", progress=False)
        spent = cpu_seconds() - before
    shown = result.query("q").early_rows or 0
    if result.rows != files * ROWS or shown != (KEYS if side == "early" else 0):
        raise AssertionError(f"{result.rows} rows were read, and {shown} windows shown")
    return spent
