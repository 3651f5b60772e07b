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
from benchmarks._spark import checkpoint_of, mean_epoch, warm_up, workplace
from spark_ext.metrics import exporters
from tests.servers.ports import free_ports

WARM = 5  # epochs of each run that do not count
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
    """The time from commit to commit of each round, ms, by side.

    Sides run in their order and in reverse, alternately, each also once before. `every` is the pause between scrapes,
    s.
    """

    def run(side: str) -> float:
        (port,) = free_ports(1)
        with workplace() as folder:
            given = settings(side, folder, port)
            frame = query(steps(spark, uid="in", channels=2, rows=ROWS, steps=epochs + WARM))
            writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table"))
            job = sx.Job(spark, "bench", state=folder / "state", **given).add("q", writer).start()
            while not job.wait(every):
                if "metrics_port" in given:
                    begin = time.perf_counter()
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
                    scraped(1000 * (time.perf_counter() - begin))
            job.await_termination()
            exporters.close_all()
            checkpoint = checkpoint_of(folder / "state")
            return 1000 * mean_epoch(checkpoint, WARM, epochs + WARM - 1)

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
