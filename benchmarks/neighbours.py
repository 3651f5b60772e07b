"""What the other queries of a job notice when one of them fails and is restarted.

Three queries read one exchange. In a function of one of them a connection breaks now and then, after which it is
restarted. Of the other two, the time in which they neither ran nor waited for a core counts as downtime, and their
longest gap between two commits around each restart is compared with the longest one in as long a time before it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import committed_at, session, until, workplace
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 5
WINDOW_S = 8.0
UNDER_WAY = 5_000  # rows that each query has read before the first window
RATE = 500  # rows per second
NEIGHBOURS = ("one", "two")
UP = ("RUNNING", "SCHEDULING")
"""States that are no downtime. Who waits for one of the two cores has not stopped: the gap shows how long it waits."""


def run(rounds: int = ROUNDS) -> Figures:
    with session("neighbours") as spark, workplace() as folder:
        down, before, around = _measure(spark, folder, rounds)
    gaps = {"undisturbed": Sample.of(before, "s"), "around a restart": Sample.of(around, "s")}
    yield Figure(
        "neighbours_downtime", "seconds in which the other queries of a job were down while one was restarted, in all",
        down, Aim("<=", 0.0), gaps, {"restarts": rounds},
    )  # fmt: skip
    yield Figure(
        "neighbours_gap",
        f"longest gap between commits of the other queries, {WINDOW_S:g} s: around a restart / before it",
        gaps["around a restart"].median / gaps["undisturbed"].median, Aim("<=", 1.5), gaps,
    )  # fmt: skip


def _measure(spark: SparkSession, folder: Path, rounds: int) -> tuple[float, list[float], list[float]]:
    broken = str(folder / "broken")

    def raises(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            if Path(broken).exists():
                Path(broken).unlink()
                raise ConnectionError("broken once")  # a fault of the function itself would stop the query
            yield frame

    reader = spark.readStream.format("datagen").options(uid="in", rows_per_second=RATE, channels=2)
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
        until(lambda: min(query.rows for query in job.snapshot().queries) > UNDER_WAY, "all queries are under way", job)
        begin = time.time()
        for number in range(rounds):
            before.append(_gap(folder, time.time()))
            Path(broken).touch()
            then = time.time()
            restarted = number + 1
            until(lambda wanted=restarted: _restarts(job) >= wanted, "the query has been restarted", job)  # type: ignore[misc]
            around.append(_gap(folder, then))
        end = time.time()
    finally:
        job.stop(60)
    assert median(before) > 0
    return _downtime(job, begin, end), before, around


def _restarts(job: sx.Job) -> int:
    incidents = job.ledger.incidents().where("operator like '%fails%'").count()
    return incidents if job.snapshot().query("fails").state.value == "RUNNING" else 0


def _gap(folder: Path, begin: float) -> float:
    """The longest time between two commits of a neighbour in the window since then, s; the longer one of both."""
    time.sleep(max(0.0, begin + WINDOW_S - time.time()))
    found = 0.0
    for name in NEIGHBOURS:
        until(lambda name=name: len(_commits(folder, name, begin)) > 1, f"{name} commits epochs")  # type: ignore[misc]
        found = max(found, *(later - earlier for earlier, later in itertools.pairwise(_commits(folder, name, begin))))
    return found


def _commits(folder: Path, name: str, begin: float) -> list[float]:
    checkpoint = folder / "state" / "queries" / name / "checkpoint"
    at = sorted(committed_at(checkpoint, epoch) for epoch in SparkLog(str(checkpoint)).commits()[:-1])
    return [moment for moment in at if moment >= begin]


def _downtime(job: sx.Job, begin: float, end: float) -> float:
    """How long neighbours were down between two moments, s."""
    total = 0.0
    for name in (*NEIGHBOURS, "producer"):
        rows = job.ledger.execution_states().where(f"operator = '{name}'").orderBy("since").collect()
        for row, following in itertools.pairwise(rows):
            if row["state"] not in UP:
                since, until_then = row["since"].timestamp(), following["since"].timestamp()
                total += max(0.0, min(until_then, end) - max(since, begin))
    return total
