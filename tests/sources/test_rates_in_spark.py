"""A rate limit in a real query whose trigger ends when there is nothing to read."""

import time
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.model.offsets import Json, SourceOffset
from spark_ext.sources.runtime.directives import planned_sources
from tests.support.jobs import register
from tests.support.operators import rows
from tests.support.waiting import until

COUNT = 5_000


def available_now(spark: SparkSession, folder: Path, most: int) -> Job:
    source = spark.readStream.format("datagen").options(uid="in", rows=COUNT, max_rows_per_epoch=most)
    job = sx.Job(spark, "lab", state=folder / "state")
    writer = source.load().select("id").writeStream.format("folder").trigger(availableNow=True)
    job.add("q", writer.option("uid", "out").option("path", str(folder / "out")))
    return job


def planned(folder: Path) -> SourceOffset | None:
    return planned_sources(str(folder / "state" / "queries" / "q" / "checkpoint")).get("in")


def limit(folder: Path, value: Json) -> int:
    (found,) = ControlLog(Ledger(str(folder / "state"))).accept([Request("rate_limit", "source:in", value)])
    assert isinstance(found, Accepted)
    return found.event.sequence


def test_a_limited_available_now_run_waits_stops_and_reads_all(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    job = available_now(spark, tmp_path, 50)
    job.start()
    until(lambda: planned(tmp_path), "the first epoch is planned")
    sequence = limit(tmp_path, {"rows_per_second": 0.001})
    until(lambda: (found := planned(tmp_path)) is not None and found.control >= sequence, "the limit is in force")
    before = planned(tmp_path)
    time.sleep(1.5)  # nothing is to happen
    assert planned(tmp_path) == before, "it waits, and does not end"
    assert before is not None and before.running, "the rest is left"
    # Another event is obeyed while it waits for tokens.
    sequence = limit(tmp_path, {"rows_per_second": 0.002})
    until(lambda: (found := planned(tmp_path)) is not None and found.control >= sequence, "the limit has changed", 20)
    begin = time.monotonic()
    job.stop(60)
    assert time.monotonic() - begin < 20
    limit(tmp_path, {"rows_per_second": 100_000})
    assert available_now(spark, tmp_path, COUNT).run(progress=False).state == "FINISHED"
    assert sorted(row["id"] for row in rows(tmp_path / "out")) == list(range(COUNT))
