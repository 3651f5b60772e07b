"""What three rules cost that every row passes: Parquet files into `delta_2pc`, one epoch, with rules and without.

Both sides run alternately, either first in turns. The figure is the median of the ratios of the pairs' CPU times, of
the JVM and the workers, which other load on the machine changes least.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._spark import cpu_seconds, session, warm_up, workplace

ROUNDS = 10
FILES, ROWS = 4, 1_500_000  # rows of a file
SIDES = ("plain", "rules")
RULES = {"positive": "amount > 0", "named": "tag LIKE 'key-%'", "known": "id IS NOT NULL AND id < 1e12"}


def run(rounds: int = ROUNDS) -> Figures:
    with session("rules") as spark, workplace() as folder:
        (folder / "in").mkdir()
        for number in range(FILES):
            pq.write_table(_table(number * ROWS), folder / "in" / f"{number}.parquet")
        warm_up(lambda: [_spent(spark, folder / "in", side) for side in SIDES])
        found = beside(SIDES, rounds, lambda side: _spent(spark, folder / "in", side))
    yield Figure(
        "rules", "CPU time of a job from Parquet files into a Delta table: three rules that all rows pass / none",
        statistics.median(in_pairs(found["rules"], found["plain"])), Aim("<=", 1.02),
        {side: Sample.of(times, "s") for side, times in found.items()}, {"rows": FILES * ROWS},
    )  # fmt: skip


def _table(first: int) -> pa.Table:
    ids = range(first, first + ROWS)
    tags = [f"key-{n % 1000}" for n in ids]
    return pa.table({"id": pa.array(ids), "amount": pa.array([n * 0.5 + 1 for n in ids]), "tag": pa.array(tags)})


def _spent(spark: SparkSession, data: Path, side: str) -> float:
    """CPU time of a run, s."""
    rows = spark.readStream.format("files").options(uid="in", path=str(data))
    frame = rows.schema("id bigint, amount double, tag string").load()
    for name, predicate in RULES.items() if side == "rules" else ():
        frame = sx.expect(frame, name, predicate, on_fail="quarantine")
    with workplace() as folder:
        writer = frame.writeStream.format("delta_2pc").options(uid="out", path=str(folder / "table"))
        job = sx.Job(spark, "bench", state=folder / "state").add("q", writer.option("on_bad_row", "quarantine"))
        before = cpu_seconds()
        result = job.run(progress=False)
        spent = cpu_seconds() - before
    if result.rows != FILES * ROWS or result.query("q").bad_rows:
        raise AssertionError(f"{result.rows} rows were read, and {result.query('q').bad_rows} are bad")
    return spent
