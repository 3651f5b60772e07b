"""How long a checkpoint of a whole job takes while rows wait in an exchange, beside Flink's under backpressure.

A producer has written all of its rows; a consumer takes a fixed time for an epoch and is that much behind. Of each size
of backlog some unaligned checkpoints are taken, and then an aligned one, which has to wait for the backlog. All times
are those of `job.checkpoint()`: from the request to the row in the ledger. Flink's are from its trigger to completion,
of unaligned checkpoints behind a slow function (`benchmarks/flink`, case `backpressure`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks import _flink
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import session, until, warm_up, workplace

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 2
TAKEN = 5  # unaligned checkpoints of each backlog and round; the first does not count


@dataclass(frozen=True)
class Size:
    """A backlog, and how its consumer reads it."""

    rows: int
    rows_per_epoch: int
    seconds_per_epoch: float

    def __str__(self) -> str:
        return f"{self.rows:,} rows, epochs of {self.seconds_per_epoch:g} s"


SIZES = (Size(10_000, 2_500, 0.5), Size(300_000, 75_000, 3.0), Size(3_000_000, 1_000_000, 20.0))


def run(rounds: int = ROUNDS) -> Figures:
    unaligned: dict[Size, list[float]] = {size: [] for size in SIZES}
    aligned: dict[Size, list[float]] = {size: [] for size in SIZES}
    theirs: list[float] = []
    with session("checkpoint_time") as spark:
        warm_up(lambda: _unaligned(spark, SIZES[0]))
        for number in range(rounds):
            taken = _flink.once("backpressure", ("mode=unaligned", "segment=32kb"))
            theirs.append(float(taken["endToEndMedianMs"]))  # behind a slow function, as ours
            for size in SIZES if number % 2 else SIZES[::-1]:
                unaligned[size] += _unaligned(spark, size)
                aligned[size].append(_aligned(spark, size))
    ours = {size: Sample.of(unaligned[size], "ms") for size in SIZES}
    least, most = ours[SIZES[0]], ours[SIZES[-1]]
    waited = Sample.of(aligned[SIZES[-1]], "ms")
    flink = Sample.of(theirs, "ms")
    every = {f"unaligned, {size}": sample for size, sample in ours.items()}
    every |= {f"aligned, {size}": Sample.of(times, "ms") for size, times in aligned.items()}
    yield Figure(
        "checkpoint_flat", f"an unaligned checkpoint of a job with {SIZES[-1]} in flight / with {SIZES[0]}",
        most.median / least.median, Aim("<=", 1.2), every,
    )  # fmt: skip
    yield Figure(
        "checkpoint_unaligned", f"{SIZES[-1]} in flight: an aligned checkpoint / an unaligned one",
        waited.median / most.median, Aim(">=", 100.0), {"aligned": waited, "unaligned": most},
    )  # fmt: skip
    yield Figure(
        "checkpoint_flink", "an unaligned checkpoint under the largest backlog: a job here / Flink",
        most.median / flink.median, Aim("<=", 4.0), {"Job": most, "Flink": flink},
    )  # fmt: skip


def _job(spark: SparkSession, folder: Path, size: Size, **settings: Any) -> sx.Job:
    pause = size.seconds_per_epoch

    def slow(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        time.sleep(pause)
        yield from frames

    job = sx.Job(spark, "bench", state=folder / "state", checkpoint_interval="1 hour", **settings)
    exchange = job.exchange("rows", partitions=2)
    reader = spark.readStream.format("datagen").options(uid="in", rows=size.rows, channels=2)
    live = spark.readStream.format("datagen").options(uid="live", rows_per_second=1, channels=1).load()
    job.add("producer", exchange.write(reader.load().union(live).select("id", "key")))
    read = exchange.read("in-slow", max_rows_per_epoch=size.rows_per_epoch).coalesce(1)
    return job.add("consumer", read.mapInPandas(slow, "id long, key long").writeStream.format("noop"))


def _begin(job: sx.Job, size: Size) -> None:
    """Start the job; all rows are in the exchange, and the consumer is in its first epoch that is slow."""
    job.start()
    until(lambda: job.snapshot().query("producer").rows >= size.rows, "the backlog is written", job)
    until(lambda: job.snapshot().query("consumer").rows > 0, "the consumer is under way", job)


def _unaligned(spark: SparkSession, size: Size) -> list[float]:
    """Times of some unaligned checkpoints, ms."""
    with workplace() as folder:
        job = _job(spark, folder, size, aligned_timeout=0)
        _begin(job, size)
        try:
            return [_timed(job) for _ in range(TAKEN)][1:]
        finally:
            job.stop(60)


def _aligned(spark: SparkSession, size: Size) -> float:
    with workplace() as folder:
        job = _job(spark, folder, size)
        _begin(job, size)
        try:
            return _timed(job)
        finally:
            job.stop(60)


def _timed(job: sx.Job) -> float:
    begin = time.monotonic()
    job.checkpoint(600)
    return 1000 * (time.monotonic() - begin)
