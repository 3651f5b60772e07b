"""`delta_2pc` against Spark's own Delta sink on 10 M rows: the cost of writing a row.

The rows come from Spark's own `rate-micro-batch` source in four epochs of 2.5 M. The time is that of whole epochs, from
planning to Spark's record of the commit. An additional first epoch, in which workers start, is not counted.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import cpu_seconds, run_epochs, session, workplace

ROUNDS = 5
ROWS = 2_500_000
EPOCHS = 4
SINKS = ("delta_2pc", "delta")


def run(rounds: int = ROUNDS) -> Figures:
    rates: dict[str, list[float]] = {sink: [] for sink in SINKS}
    parts: dict[str, list[float]] = {sink: [] for sink in SINKS}
    cpu: dict[str, list[float]] = {sink: [] for sink in SINKS}
    with session("delta_throughput") as spark:
        for round_ in range(rounds):
            for sink in SINKS:
                with workplace() as folder:
                    before = cpu_seconds()
                    seconds, writing = _seconds(spark, sink, folder)
                    spent = cpu_seconds() - before
                if round_ or rounds == 1:  # the first round compiles
                    rates[sink].append(EPOCHS * ROWS / seconds / 1e6)
                    parts[sink].append(writing / seconds)
                    cpu[sink].append(spent)
    ours, delta = (Sample.of(rates[sink], "M rows/s") for sink in SINKS)
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
                sink: round(Sample.of(values, "").median, 2) for sink, values in parts.items()
            },
            "CPU time of a query": {sink: Sample.of(values, "s").to_json() for sink, values in cpu.items()},
        },
        divided=("delta_2pc", "Spark's Delta sink"),
    )


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
