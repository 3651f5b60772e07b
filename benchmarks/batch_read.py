"""A batch read of `files` against a streaming read of the same Parquet files, whole in one epoch.

The rows go to Spark's `noop`, which discards them. The batch read is measured from its call to its return, planning
included; of the stream the time of its epoch counts, as in `files_throughput`, or from its start to the commit.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import run_epochs, session, warm_up, workplace
from benchmarks.files_throughput import write

ROUNDS = 8
SIDES = ("batch", "stream")
FILES = 16
ROWS = 625_000  # rows per file; 10 M in total


def run(rounds: int = ROUNDS) -> Figures:
    with session("batch_read") as spark, workplace() as folder:
        size = write(folder / "data", FILES, ROWS)

        def measure(side: str) -> tuple[float, float]:
            return _batch(spark, folder / "data") if side == "batch" else _stream(spark, folder / "data")

        warm_up(lambda: [measure(side) for side in SIDES])
        found = beside(SIDES, rounds, measure)
    batch = Sample.of([whole for whole, _ in found["batch"]], "s")
    for name, of, number in (("batch_read", "from its start to its commit", 0), ("batch_read_epoch", "its epoch", 1)):
        stream = Sample.of([times[number] for times in found["stream"]], "s")
        yield Figure(
            name,
            f"seconds to read the same {FILES * ROWS:,} rows of Parquet by `files`: batch / streaming, {of}",
            batch.median / stream.median,
            Aim("<=", 1.0),
            {"batch": batch, "stream": stream},
            {"rows": FILES * ROWS, "files": FILES, "bytes": size},
            divided=("batch", "stream"),
        )


def _batch(spark: SparkSession, data: Path) -> tuple[float, float]:
    begin = time.monotonic()
    spark.read.format("files").option("path", str(data)).load().write.format("noop").mode("append").save()
    taken = time.monotonic() - begin
    return taken, taken


def _stream(spark: SparkSession, data: Path) -> tuple[float, float]:
    """From its start to its commit, and the time of the epoch alone."""
    with workplace() as folder:
        begin = time.time()
        frame = spark.readStream.format("files").option("uid", "in").option("path", str(data)).load()
        reports = run_epochs(frame.writeStream.format("noop"), folder / "checkpoint", 0)
        committed = (folder / "checkpoint" / "commits" / "0").stat().st_mtime
        assert reports[0]["numInputRows"] == FILES * ROWS
        return committed - begin, reports[0]["durationMs"]["triggerExecution"] / 1000
