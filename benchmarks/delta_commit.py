"""`delta_2pc` against Spark's own Delta sink on small epochs: the cost of one commit.

Four sinks take the same rows from Spark's own `rate-micro-batch` source, alternately. The time is Spark's `addBatch`,
which includes the tasks and the sink's commit.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from tempfile import mkdtemp

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import run_epochs, session, workplace

ROUNDS = 5
EPOCHS = 10
WARM = 3  # first epochs of a query, in which workers start and code is compiled
ROWS = 1000
SINKS = ("delta_2pc", "delta", "nothing", "noop")


def run(rounds: int = ROUNDS) -> Figures:
    with session("delta_commit") as spark, workplace() as folder:
        times = beside(SINKS, rounds, lambda sink: _epochs(spark, sink, Path(mkdtemp(dir=folder))))
    samples = {sink: Sample.of([*chain(*values)], "ms") for sink, values in times.items()}
    ours, delta, python, jvm = (samples[sink].median for sink in SINKS)
    sides = {
        "delta_2pc": samples["delta_2pc"], "Spark's Delta sink": samples["delta"],
        "Python sink that does nothing": samples["nothing"], "Spark's noop": samples["noop"],
    }  # fmt: skip
    size = {"rows per epoch": ROWS, "rounds": rounds, "epochs per round": EPOCHS, "left out at first": WARM}
    yield Figure(
        "delta_commit", "median addBatch of a small epoch: Spark's Delta sink / delta_2pc", delta / ours,
        Aim(">=", 4.5), sides, size, divided=("Spark's Delta sink", "delta_2pc"),
    )  # fmt: skip
    yield Figure(
        "delta_commit_above_noop",
        "the same above a Python sink that does nothing: (Spark's Delta sink - nothing) / (delta_2pc - nothing)",
        (delta - python) / max(ours - python, 0.1), Aim(">=", 10), sides,
        {**size, "above Spark's JVM noop instead": round((delta - jvm) / (ours - jvm), 2)},
    )  # fmt: skip


def _epochs(spark: SparkSession, sink: str, folder: Path) -> list[float]:
    reports = run_epochs(_writer(spark, sink, folder / "table"), folder / "checkpoint", WARM + EPOCHS - 1)
    return [float(report["durationMs"]["addBatch"]) for report in reports if report["batchId"] >= WARM]


def _writer(spark: SparkSession, sink: str, table: Path) -> DataStreamWriter:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    writer = rows.writeStream.format(sink)
    if sink == "delta_2pc":
        writer = writer.option("uid", "out")
    return writer.option("path", str(table)) if sink.startswith("delta") else writer
