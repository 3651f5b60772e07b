"""A `Job` against `writeStream.start()` of the same operators: the cost of supervision.

Both sides run the `steps` source into `delta_2pc`, alternately: large epochs for the throughput, small ones for the
cost per epoch. The time is that between the commits of two epochs in Spark's own commit log, so it includes everything
that happens between epochs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._operators import steps
from benchmarks._spark import commit_file, mean_epoch, session, start, until, warm_up, workplace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROUNDS = 7
SIDES = ("plain", "job")

LARGE = {"rows": 1_000_000, "steps": 7}
LARGE_WARM = 2
SMALL = {"rows": 500, "steps": 45}
SMALL_WARM = 5
CHANNELS = 2
PARTS = ("throughput", "epoch")
"""What is measured: large epochs, small ones."""

ALLOWED_MS = 5.0
"""Maximum time that a job may add to an epoch."""


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    periods: dict[str, list[float]] = {side: [] for side in SIDES}
    with session("job_overhead") as spark:
        warm_up(lambda: _seconds(spark, "job", SMALL, SMALL_WARM))
        for _ in range(rounds):
            for part in PARTS:
                for side in SIDES:
                    if part == "throughput":
                        seconds = _seconds(spark, side, LARGE, LARGE_WARM)
                        rates[side].append(CHANNELS * LARGE["rows"] / seconds / 1e6)
                    else:
                        periods[side].append(1000 * _seconds(spark, side, SMALL, SMALL_WARM))
    return [_throughput(rates) if part == "throughput" else _epoch(periods) for part in PARTS]


def _throughput(rates: dict[str, list[float]]) -> Figure:
    plain, job = (Sample.of(rates[side], "M rows/s") for side in SIDES)
    pairs = Sample.of([ours / theirs for theirs, ours in zip(rates["plain"], rates["job"], strict=True)], "x")
    return Figure(
        "job_throughput",
        "job_overhead",
        "rows per second in large epochs: Job / writeStream.start() of the same operators",
        job.median / plain.median,
        Aim(">=", 0.99),
        {"writeStream.start()": plain, "Job": job},
        {"rows per epoch": CHANNELS * LARGE["rows"], "ratio of each pair": pairs.to_json()},
    )


def _epoch(periods: dict[str, list[float]]) -> Figure:
    plain, job = (Sample.of(periods[side], "ms") for side in SIDES)
    added = Sample.of([ours - theirs for theirs, ours in zip(periods["plain"], periods["job"], strict=True)], "ms")
    return Figure(
        "job_epoch",
        "job_overhead",
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
    return folder / "state" / "queries" / "q" / "checkpoint"
