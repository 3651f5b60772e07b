"""A listener that judges the progress of a job by itself: each row has to be committed in time.

It is told of states and latency markers, says which query is late for its deadline, and since when, and reports what it
finds through the job, as metrics that `/metrics` and OpenTelemetry have as well.

    python examples/gallery/judge_progress.py
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import ClassVar

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.listeners.contract import JobStateListener, LifecycleEvent, MetricsContext

OUT = Path("out/gallery/judge_progress")
LATE: set[str] = set()


class Deadline(JobStateListener):
    """Rows have to be committed within `ms` of being taken up."""

    events: ClassVar[tuple[str, ...]] = ("state", "latency")

    def __init__(self, ms: int) -> None:
        self._ms = ms

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        if event.kind.value == "state":
            context.count("changes_of_state", label=event.new)
            return
        spent = event.details["latency_ms"]
        context.gauge("seconds_to_commit", spent / 1000, label=event.query)
        if spent > self._ms and event.query not in LATE:
            LATE.add(event.query)
            print(f"{event.at:%H:%M:%S} {event.query} took {spent} ms from {event.source}, lag {context.lag}")


def job(spark: SparkSession) -> sx.Job:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "incidents.yaml").write_text(f"listeners:\n  - {{use: '{__name__}:Deadline', options: {{ms: 2000}}}}\n")
    made = sx.Job(
        spark, "watched", state=OUT / "state", incidents=str(OUT / "incidents.yaml"),
        latency="latest", latency_interval=0, metrics=True,
    )  # fmt: skip

    @F.udf("long")
    def looked_up(seq: int) -> int:
        time.sleep(0.05)
        return seq

    def add(name: str, value: Column) -> None:
        rows = spark.readStream.format("datagen").option("uid", f"{name}-rows").option("rows", 100).load()
        writer = rows.select(value.alias("seq")).writeStream.format("delta_2pc")
        made.add(name, writer.option("uid", f"{name}-table").option("path", str(OUT / name)))

    add("quick", F.col("seq"))
    add("slow", looked_up("seq"))
    return made


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    result = job(sx.session("judge-progress")).run(progress=False)
    print(f"{result.state.value}; late: {', '.join(sorted(LATE))}, of {len(result.queries)} queries")


if __name__ == "__main__":
    main()
