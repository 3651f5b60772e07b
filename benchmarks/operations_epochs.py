"""Small epochs of a job with all that watches it on against those of the same job with all of it off.

On: the monitor, heartbeats, incidents and lifecycle events with a listener, metrics that are scraped once a second, and
processes that can be asked for their stacks. Everything: also latency markers with their histogram, the parts of
epochs, and dumps of stacks. Off: none of these. All sides run the `steps` source through a Python function into
`delta_2pc`, alternately. A run takes seconds, and the parts of epochs are looked for as after the first minutes of a
job: once in ten seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks._figures import Aim, Figure, Figures
from benchmarks._spark import session
from benchmarks._watched import periods, samples
from spark_ext.observing import sampler

ROUNDS = 8  # even, so that no side profits more from a JVM that still compiles
SIDES = ("off", "on", "everything")
EPOCHS = 60  # of a run that count
SCRAPE_EVERY = 1.0  # pause between two scrapes, s
AIM = 1.01  # maximum ratio of an epoch's CPU time

LISTENER = """
listeners:
  - use: log
    events: [state, source, checkpoint, job, epoch, latency]
"""


def run(rounds: int = ROUNDS) -> Figures:
    sampler.ALLOWED = 0.0  # type: ignore[misc]
    with session("operations_epochs") as spark:
        found = periods(spark, SIDES, rounds, _settings, epochs=EPOCHS, every=SCRAPE_EVERY, query=_with_function)
    yield _figure("operations_epochs", "monitor, heartbeat, incidents and metrics on / off", found, "on")
    yield _figure("operations_everything", "these, latency markers, parts of epochs, dumps / off", found, "everything")


def _figure(name: str, what: str, found: dict[str, list[float]], side: str) -> Figure:
    sides = samples(found, "off", side)
    ratio = sides[side].median / sides["off"].median
    sizes = {"epochs per run": EPOCHS}
    return Figure(name, f"CPU time per small epoch: {what}", ratio, Aim("<=", AIM), sides, sizes)


def _with_function(rows: DataFrame) -> DataFrame:
    @F.udf("long")
    def same(value: int) -> int:
        return value

    return rows.withColumn("same", same(F.lit(1)))


def _settings(side: str, folder: Path, port: int) -> dict[str, Any]:
    if side == "off":
        return {"monitor_interval": 0, "heartbeat": 0}
    (folder / "incidents.yaml").write_text(LISTENER)
    on = {"metrics_port": port, "incidents": str(folder / "incidents.yaml")}
    return on if side == "on" else {**on, "latency": "histogram", "epoch_parts": True, "dumps": "stacks"}
