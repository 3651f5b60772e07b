"""100 rows per second for a minute into each sink, an epoch a second: does it keep up, and how long does a commit take?

A `Job` writes the rows of `datagen`, at a fixed rate, to each sink in turn. A sink keeps up with an epoch if the epoch
ends before the next one is due. The ratio is that of the slowest epochs (p99) to the second that each may take.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import session, workplace
from benchmarks._targets import TARGETS, Target

SECONDS = 60  # epochs per round
ROWS = 100  # rows per second
INTERVAL = "1 s"
WARM = 5  # number of first epochs that are not counted, in which workers and connections start


def run(rounds: int = 1) -> Figures:
    with session("sustained") as spark:
        return [_figure(spark, name, target, rounds) for name, target in TARGETS.items()]


def _figure(spark: SparkSession, name: str, target: Target, rounds: int) -> Figure:
    epochs = [epoch for _ in range(rounds) for epoch in _epochs(spark, target)]
    whole = Sample.of([epoch["triggerExecution"] for epoch in epochs], "ms")
    batch = Sample.of([epoch["addBatch"] for epoch in epochs], "ms")
    return Figure(
        f"sustained_{name}",
        f"an epoch of {ROWS} rows into {name}, p99 / the second until the next one is due",
        whole.percentile(99) / 1000,
        Aim("<", 1),
        {"whole epoch": whole, "tasks and commit": batch},
        {
            f"{part}, {percent}": round(sample.percentile(number), 1)
            for part, sample in (("whole epoch", whole), ("tasks and commit", batch))
            for percent, number in (("p50", 50), ("p99", 99))
        },
    )


def _epochs(spark: SparkSession, target: Target) -> list[dict[str, float]]:
    """Spark's durations of each epoch with rows, except the first ones, ms."""
    with workplace() as folder, target.open(folder) as options:
        rows = spark.readStream.format("datagen").options(uid="in", rows=ROWS * SECONDS, rows_per_second=ROWS).load()
        writer = rows.selectExpr(*target.columns).writeStream.format(target.sink).options(uid="out", **options)
        job = sx.Job(spark, "sustained", state=folder / "state", interval=INTERVAL).add("q", writer).start()
        (query,) = spark.streams.active
        job.await_termination()
        reports = [dict(report) for report in query.recentProgress]
    return [report["durationMs"] for report in reports if report["numInputRows"] and report["batchId"] >= WARM]
