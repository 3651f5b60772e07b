"""A `Job` against `writeStream.start()` of the same operators: the cost of supervision.

Both sides run the `steps` source into `delta_2pc`, alternately: large epochs for the throughput, small ones for the
cost per epoch. The time is that between the commits of two epochs in Spark's own commit log, so it includes everything
that happens between epochs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._operators import steps
from benchmarks._spark import checkpoint_of, commit_file, mean_epoch, session, start, until, warm_up, workplace

ROUNDS = 7
SIDES = ("plain", "job")
LARGE = {"rows": 1_000_000, "steps": 7}
LARGE_WARM = 2
SMALL = {"rows": 500, "steps": 45}
SMALL_WARM = 5
CHANNELS = 2
PARTS = ("throughput", "epoch")  # what is measured: large epochs, small ones
ALLOWED_MS = 5.0  # maximum time that a job may add to an epoch


def run(rounds: int = ROUNDS) -> Figures:
    with session("job_overhead") as spark:
        warm_up(lambda: _seconds(spark, "job", SMALL, SMALL_WARM))
        for part in PARTS:
            size, warm = (LARGE, LARGE_WARM) if part == "throughput" else (SMALL, SMALL_WARM)
            seconds = beside(SIDES, rounds, partial(_seconds, spark, size=size, warm=warm))
            yield (_throughput if part == "throughput" else _epoch)(seconds)


def _throughput(seconds: dict[str, list[float]]) -> Figure:
    rates = {side: [CHANNELS * LARGE["rows"] / one / 1e6 for one in found] for side, found in seconds.items()}
    plain, job = (Sample.of(rates[side], "M rows/s") for side in SIDES)
    pairs = Sample.of(in_pairs(rates["job"], rates["plain"]), "x")
    return Figure(
        "job_throughput", "rows per second in large epochs: Job / writeStream.start() of the same operators",
        job.median / plain.median, Aim(">=", 0.99), {"writeStream.start()": plain, "Job": job},
        {"rows per epoch": CHANNELS * LARGE["rows"], "ratio of each pair": pairs.to_json()},
    )  # fmt: skip


def _epoch(seconds: dict[str, list[float]]) -> Figure:
    periods = {side: [1000 * one for one in found] for side, found in seconds.items()}
    plain, job = (Sample.of(periods[side], "ms") for side in SIDES)
    added = Sample.of([ours - theirs for theirs, ours in zip(periods["plain"], periods["job"], strict=True)], "ms")
    return Figure(
        "job_epoch",
        f"time per small epoch: Job / writeStream.start(); the aim is the ratio at {ALLOWED_MS:g} ms more",
        job.median / plain.median,
        Aim("<=", 1 + ALLOWED_MS / plain.median),
        {"writeStream.start()": plain, "Job": job, "added in each pair": added},
        {
            "added by the medians, ms": round(job.median - plain.median, 2),
            "epochs per run": SMALL["steps"] - SMALL_WARM,
            "rows per epoch": CHANNELS * SMALL["rows"],
        },
        divided=("Job", "writeStream.start()"),
    )


def _seconds(spark: SparkSession, side: str, size: dict[str, int], warm: int) -> float:
    """Mean time from commit to commit, s."""
    with workplace() as folder:
        frame = steps(spark, uid="in", channels=CHANNELS, **size)
        writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table"))
        last = size["steps"] - 1
        checkpoint = (_job if side == "job" else _plain)(spark, writer, folder, last)
        return mean_epoch(checkpoint, warm, last)


def _plain(spark: Any, writer: DataStreamWriter, folder: Path, last: int) -> Path:
    checkpoint = folder / "checkpoint"
    query = start(writer, checkpoint)
    until(commit_file(checkpoint, last).exists, f"epoch {last} has committed", query)
    query.stop()
    return checkpoint


def _job(spark: SparkSession, writer: DataStreamWriter, folder: Path, last: int) -> Path:
    sx.Job(spark, "bench", state=folder / "state").add("q", writer).run(progress=False)
    return checkpoint_of(folder / "state")
