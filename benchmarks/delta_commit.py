"""`delta_2pc` against Spark's own Delta sink on small epochs: the cost of one commit.

Four sinks take the same rows from Spark's own `rate-micro-batch` source, alternately. The time is Spark's `addBatch`,
which includes the tasks and the sink's commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import run_epochs, session, workplace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROUNDS = 5
EPOCHS = 10
WARM = 3
"""First epochs of a query, in which workers start and code is compiled."""
ROWS = 1000

SINKS = ("delta_2pc", "delta", "nothing", "noop")


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    times: dict[str, list[float]] = {sink: [] for sink in SINKS}
    with session("delta_commit") as spark, workplace() as folder:
        for round_ in range(rounds):
            for sink in SINKS:
                times[sink] += _epochs(spark, sink, folder / f"{sink}-{round_}")
    samples = {sink: Sample.of(values, "ms") for sink, values in times.items()}
    ours, delta, python, jvm = (samples[sink].median for sink in SINKS)
    sides = {
        "delta_2pc": samples["delta_2pc"],
        "Spark's Delta sink": samples["delta"],
        "Python sink that does nothing": samples["nothing"],
        "Spark's noop": samples["noop"],
    }
    size = {"rows per epoch": ROWS, "rounds": rounds, "epochs per round": EPOCHS, "left out at first": WARM}
    return [
        Figure(
            "delta_commit",
            "delta_commit",
            "median addBatch of a small epoch: Spark's Delta sink / delta_2pc",
            delta / ours,
            Aim(">=", 4.5),
            sides,
            size,
            divided=("Spark's Delta sink", "delta_2pc"),
        ),
        Figure(
            "delta_commit_above_noop",
            "delta_commit",
            "the same above a Python sink that does nothing: (Spark's Delta sink - nothing) / (delta_2pc - nothing)",
            (delta - python) / max(ours - python, 0.1),
            Aim(">=", 10),
            sides,
            {**size, "above Spark's JVM noop instead": round((delta - jvm) / (ours - jvm), 2)},
        ),
    ]


def _epochs(spark: SparkSession, sink: str, folder: Path) -> list[float]:
    reports = run_epochs(_writer(spark, sink, folder / "table"), folder / "checkpoint", WARM + EPOCHS - 1)
    return [float(report["durationMs"]["addBatch"]) for report in reports if report["batchId"] >= WARM]


def _writer(spark: SparkSession, sink: str, table: Path) -> DataStreamWriter:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    writer = rows.writeStream.format(sink)
    if sink == "delta_2pc":
        writer = writer.option("uid", "out")
    return writer.option("path", str(table)) if sink.startswith("delta") else writer
