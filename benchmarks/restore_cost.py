"""What a savepoint and its restore cost for each kind of exchange: the same rows in flight, the same state.

A job is stopped while all of its rows wait in an exchange. Of it a savepoint is taken, which is restored as another
job; rounds alternate between the kinds. The savepoint of `arrow` is linked, so its bytes are those of the same files.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import session, until, warm_up, workplace

ROUNDS = 3
ROWS = 2_000_000
KINDS = ("arrow", "delta")


@dataclass(frozen=True)
class Cost:
    savepoint: float  # s
    restore: float  # s
    megabytes: float


def run(rounds: int = ROUNDS) -> Figures:
    with session("restore_cost") as spark:
        warm_up(lambda: _cost(spark, KINDS[0], 1_000))
        found = beside(KINDS, rounds, lambda kind: _cost(spark, kind, ROWS))
    figures = []
    for name, part, unit in (("time", "restore", "s"), ("savepoint", "savepoint", "s"), ("bytes", "megabytes", "MB")):
        samples = {kind: Sample.of([getattr(cost, part) for cost in found[kind]], unit) for kind in KINDS}
        figures.append(
            Figure(
                f"restore_{name}", f"{ROWS:,} rows in flight, {part} ({unit}): exchange of the kind arrow / delta",
                samples["arrow"].median / samples["delta"].median, Aim("<=", 2.0 if unit == "MB" else 1.0), samples,
            )
        )  # fmt: skip
    return figures


def _cost(spark: SparkSession, kind: str, rows: int) -> Cost:
    with workplace() as folder:
        job = _job(spark, folder / "first", kind, rows)
        job.start()
        until(lambda: job.snapshot().query("producer").rows >= rows, "all rows are in the exchange", job)
        job.stop(60)
        begin = time.monotonic()
        job.savepoint(folder / "savepoint")
        taken = time.monotonic()
        shutil.rmtree(folder / "first")  # nothing of the first job is needed
        restored = _job(spark, folder / "second", kind, rows).restore(folder / "savepoint")
        assert restored.state_directory
        size = sum(file.stat().st_size for file in (folder / "savepoint").rglob("*") if file.is_file())
        return Cost(taken - begin, time.monotonic() - taken, size / 1e6)


def _job(spark: SparkSession, folder: Path, kind: str, rows: int) -> sx.Job:
    reader = spark.readStream.format("datagen").options(uid="in", rows=rows, channels=2)
    live = spark.readStream.format("datagen").options(uid="live", rows_per_second=1e-5, channels=1).load()
    generated = reader.option("max_rows_per_epoch", max(1, rows // 4)).load()
    job = sx.Job(spark, "bench", state=folder / "state")
    exchange = job.exchange("rows", partitions=4, key="key", kind=kind)
    job.add("producer", exchange.write(generated.union(live).select("id", "key", "value")))
    # A consumer that has hardly begun: one row an epoch.
    read = exchange.read("in-slow", max_rows_per_epoch=4)
    return job.add("consumer", read.writeStream.format("noop"))
