"""Small epochs of a job with all that watches it on against those of the same job with all of it off.

On: the monitor, heartbeats, incidents with a listener, metrics that are scraped once a second, and processes that can
be asked for their stacks. Off: none of these. Both sides run the `steps` source through a Python function into
`delta_2pc`, alternately.
"""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._operators import steps
from benchmarks._spark import committed_at, session, workplace
from spark_ext.metrics import endpoint
from tests.servers.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROUNDS = 7
SIDES = ("off", "on")
SIZE = {"rows": 500, "steps": 65}
WARM = 5
SCRAPE_EVERY = 1.0
"""Pause between two scrapes, s."""

AIM = 1.01
"""Maximum ratio of an epoch's time."""

LISTENER = """
listeners:
  - use: log
"""


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    periods: dict[str, list[float]] = {side: [] for side in SIDES}
    with session("operations_epochs") as spark:
        _period(spark, "on")  # compiles
        for number in range(rounds):
            for side in SIDES if number % 2 else reversed(SIDES):
                periods[side].append(1000 * _period(spark, side))
    off, on = (Sample.of(periods[side], "ms") for side in SIDES)
    added = Sample.of([with_it - without for without, with_it in zip(*periods.values(), strict=True)], "ms")
    return [
        Figure(
            "operations_epochs",
            "operations_epochs",
            "time per small epoch: monitor, heartbeat, incidents and metrics on / off",
            on.median / off.median,
            Aim("<=", AIM),
            {"off": off, "on": on, "added in each pair": added},
            {"epochs per run": SIZE["steps"] - WARM},
        )
    ]


def _settings(side: str, folder: Path, port: int) -> dict[str, Any]:
    if side == "off":
        return {"monitor_interval": 0, "heartbeat": 0}
    (folder / "incidents.yaml").write_text(LISTENER)
    return {"metrics_port": port, "incidents": str(folder / "incidents.yaml")}


def _period(spark: SparkSession, side: str) -> float:
    """Mean time from commit to commit, s."""
    (port,) = free_ports(1)

    @F.udf("long")
    def same(value: int) -> int:
        return value

    with workplace() as folder:
        frame = steps(spark, uid="in", channels=2, **SIZE)
        frame = frame.withColumn("same", same(F.lit(1)))
        writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table"))
        job = sx.Job(spark, "bench", state=folder / "state", **_settings(side, folder, port)).add("q", writer)
        job.start()
        while not job.wait(SCRAPE_EVERY):
            if side == "on":
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
        job.await_termination()
        endpoint.close_all()
        checkpoint, last = folder / "state" / "queries" / "q" / "checkpoint", SIZE["steps"] - 1
        # The epoch before the first one that counts: the time begins with its commit.
        return (committed_at(checkpoint, last) - committed_at(checkpoint, WARM - 1)) / (last - WARM + 1)
