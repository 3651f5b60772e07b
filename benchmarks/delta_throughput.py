"""`delta_2pc` against Spark's own Delta sink on 10 M rows: the cost of writing a row.

The rows come from Spark's own `rate-micro-batch` source in four epochs of 2.5 M. The time is that of whole epochs, from
planning to Spark's record of the commit. An additional first epoch, in which workers start, is not counted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import cpu_seconds, run_epochs, session, warm_up, workplace

ROUNDS = 5
ROWS = 2_500_000
EPOCHS = 4
SINKS = ("delta_2pc", "delta")


def run(rounds: int = ROUNDS) -> Figures:
    with session("delta_throughput") as spark:
        measure = partial(_measured, spark)
        if rounds > 1:  # the first round compiles
            warm_up(lambda: [measure(sink) for sink in SINKS])
        found = beside(SINKS, max(1, rounds - 1), measure)
    ours, delta = (Sample.of([one["rate"] for one in found[sink]], "M rows/s") for sink in SINKS)
    yield Figure(
        "delta_throughput",
        f"rows per second on {EPOCHS * ROWS:,} rows: delta_2pc / Spark's Delta sink",
        ours.median / delta.median,
        Aim(">=", 1.1),
        {"delta_2pc": ours, "Spark's Delta sink": delta},
        {
            "rows": EPOCHS * ROWS,
            "epochs": EPOCHS,
            "share of addBatch in the time": {
                sink: round(median(one["part"] for one in runs), 2) for sink, runs in found.items()
            },
            "CPU time of a query": {
                sink: Sample.of([one["cpu"] for one in runs], "s").to_json() for sink, runs in found.items()
            },
        },
        divided=("delta_2pc", "Spark's Delta sink"),
    )


def _measured(spark: SparkSession, sink: str) -> dict[str, float]:
    """M rows/s of the epochs that count, the part of addBatch in their time, and the CPU time of the query, s."""
    with workplace() as folder:
        before = cpu_seconds()
        seconds, writing = _seconds(spark, sink, folder)
        spent = cpu_seconds() - before
    return {"rate": EPOCHS * ROWS / seconds / 1e6, "part": writing / seconds, "cpu": spent}


def _seconds(spark: SparkSession, sink: str, folder: Path) -> tuple[float, float]:
    """Time of the epochs that count, and the share of addBatch in it."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    frame = rows.selectExpr(
        "value as id", "timestamp as ts", "cast(value % 1000 as int) as key", "value * 0.5 as value"
    )
    writer = frame.writeStream.format(sink).option("path", str(folder / "table"))
    if sink == "delta_2pc":
        writer = writer.option("uid", "out")
    reports = run_epochs(writer, folder / "checkpoint", EPOCHS)
    counted = [report for report in reports if report["batchId"] >= 1]
    assert sum(report["numInputRows"] for report in counted) == EPOCHS * ROWS
    written = sum(pq.read_metadata(path).num_rows for path in (folder / "table").rglob("*.parquet"))
    assert written >= (EPOCHS + 1) * ROWS, f"{sink} wrote {written} rows"
    times = [report["durationMs"] for report in counted]
    return sum(time["triggerExecution"] for time in times) / 1000, sum(time["addBatch"] for time in times) / 1000
