"""A job of small epochs that is run with different settings, alternately, and whose endpoint is scraped meanwhile."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from benchmarks._figures import Sample
from benchmarks._operators import steps
from benchmarks._spark import checkpoint_of, commit_file, until, warm_up, working_seconds, workplace
from spark_ext.metrics import exporters
from tests.servers.ports import free_ports

WARM = 5  # epochs of each run that do not count
REST = 20  # epochs behind those that count, so that the job's processes are there when the last of them is committed
ROWS = 500  # rows of an epoch
Settings = Callable[[str, Path, int], Mapping[str, Any]]
"""The settings of a job, by side, for a folder of its own and a port that is free; `metrics_port` is scraped."""


def periods(
    spark: SparkSession,
    sides: Sequence[str],
    rounds: int,
    settings: Settings,
    *,
    epochs: int,
    every: float,
    query: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    scraped: Callable[[float], object] = lambda ms: None,
) -> dict[str, list[float]]:
    """The CPU time of an epoch of each round, ms, by side: of the driver, the JVM and the workers.

    Sides run in their order and in reverse, alternately, each also once before. `every` is the pause between scrapes,
    s.
    """

    def run(side: str) -> float:
        (port,) = free_ports(1)
        with workplace() as folder:
            given = settings(side, folder, port)
            due = time.monotonic()

            def committed(epoch: int) -> bool:
                nonlocal due
                if "metrics_port" in given and time.monotonic() >= due:
                    due = time.monotonic() + every
                    begin = time.perf_counter()
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
                    scraped(1000 * (time.perf_counter() - begin))
                return commit_file(checkpoint_of(folder / "state"), epoch).exists()

            frame = query(steps(spark, uid="in", channels=2, rows=ROWS, steps=WARM + epochs + REST))
            writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table"))
            job = sx.Job(spark, "bench", state=folder / "state", **given).add("q", writer).start()
            until(lambda: committed(WARM - 1), "the first epochs are committed", job)
            before = working_seconds()
            until(lambda: committed(WARM + epochs - 1), "the epochs that count are committed", job)
            spent = working_seconds() - before
            job.stop()
            job.await_termination()
            exporters.close_all()
            return 1000 * spent / epochs

    warm_up(lambda: [run(side) for side in sides])
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            found[side].append(run(side))
    return found


def samples(found: Mapping[str, Sequence[float]], without: str, with_it: str) -> dict[str, Sample]:
    added = [late - early for early, late in zip(found[without], found[with_it], strict=True)]
    return {
        without: Sample.of(found[without], "ms"),
        with_it: Sample.of(found[with_it], "ms"),
        "added in each pair": Sample.of(added, "ms"),
    }
