"""What the other queries of a job notice when one of them fails and is restarted.

Three queries read one exchange. A function of one of them raises now and then; it is restarted each time. Of the other
two, the time in which they were not RUNNING counts as downtime, and their longest gap between two commits around each
restart is compared with the longest one in as long a time before it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import committed_at, session, until, workplace
from spark_ext.spark.spark_log import SparkLog

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

ROUNDS = 5
WINDOW_S = 8.0
NEIGHBOURS = ("one", "two")


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many restarts."""
    with session("neighbours") as spark, workplace() as folder:
        down, before, around = _measure(spark, folder, rounds)
    gaps = {"undisturbed": Sample.of(before, "s"), "around a restart": Sample.of(around, "s")}
    return [
        Figure(
            "neighbours_downtime",
            "neighbours",
            "seconds in which the other queries of a job were not RUNNING while one was restarted, in all",
            down,
            Aim("<=", 0.0),
            gaps,
            {"restarts": rounds},
        ),
        Figure(
            "neighbours_gap",
            "neighbours",
            f"longest gap between commits of the other queries, {WINDOW_S:g} s: around a restart / before it",
            gaps["around a restart"].median / gaps["undisturbed"].median,
            Aim("<=", 1.5),
            gaps,
        ),
    ]


def _measure(spark: SparkSession, folder: Path, rounds: int) -> tuple[float, list[float], list[float]]:
    broken = str(folder / "broken")

    def raises(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            if Path(broken).exists():
                Path(broken).unlink()
                raise RuntimeError("this function is broken once")
            yield frame

    reader = spark.readStream.format("datagen").options(uid="in", rows_per_second=500, channels=2)
    job = sx.Job(spark, "bench", state=folder / "state", restart_attempts=10)
    exchange = job.exchange("rows", partitions=2)
    job.add("producer", exchange.write(reader.load().select("id", "key")))
    fails = exchange.read("fails-in").mapInPandas(raises, "id long, key long")
    job.add("fails", fails.writeStream.format("noop"))
    for name in NEIGHBOURS:
        job.add(name, exchange.read(f"{name}-in").writeStream.format("noop"))
    job.start()
    before, around = [], []
    try:
        until(lambda: min(query.rows for query in job.snapshot().queries) > 5_000, "all queries are under way")
        begin = time.time()
        for number in range(rounds):
            time.sleep(WINDOW_S)
            before.append(_gap(folder, time.time() - WINDOW_S))
            Path(broken).touch()
            then = time.time()
            restarted = number + 1
            until(lambda wanted=restarted: _restarts(job) >= wanted, "the query has been restarted")  # type: ignore[misc]
            time.sleep(max(0.0, then + WINDOW_S - time.time()))
            around.append(_gap(folder, then))
    finally:
        job.stop(60)
    assert median(before) > 0
    return _downtime(job, begin), before, around


def _restarts(job: sx.Job) -> int:
    incidents = job.ledger.incidents().where("operator like '%fails%'").count()
    return incidents if job.snapshot().query("fails").state.value == "RUNNING" else 0


def _gap(folder: Path, begin: float) -> float:
    """The longest time between two commits of a neighbour since then, s; the longer one of both."""
    found = 0.0
    for name in NEIGHBOURS:
        checkpoint = folder / "state" / "queries" / name / "checkpoint"
        at = sorted(committed_at(checkpoint, epoch) for epoch in SparkLog(str(checkpoint)).commits()[:-1])
        inside = [moment for moment in at if moment >= begin]
        found = max(found, *(later - earlier for earlier, later in itertools.pairwise(inside)), 0.0)
    return found


def _downtime(job: sx.Job, begin: float) -> float:
    """How long neighbours were in another state than RUNNING after a moment and before the stop, s."""
    total = 0.0
    for name in (*NEIGHBOURS, "producer"):
        rows = job.ledger.execution_states().where(f"operator = '{name}'").orderBy("since").collect()
        for row, following in itertools.pairwise(rows):
            if row["state"] != "RUNNING" and row["since"].timestamp() >= begin:
                total += (following["since"] - row["since"]).total_seconds()
    return total
