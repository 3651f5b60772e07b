"""A rescale after a failure: the epoch that was interrupted is completed first, and nothing else is read."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobFailedError
from spark_ext.jobs.job import Job
from spark_ext.spark.epoch_files import state_partitions
from spark_ext.spark.spark_log import SparkLog
from tests.support.jobs import JobHarness, expected
from tests.support.waiting import until


def job(lab: JobHarness, live: str = "false", **settings: Any) -> Job:
    # Spark takes a row of 1970 for late: its watermark begins there.
    rows = lab.source(counts="40,40", max_rows_per_epoch=30, live=live).withColumn(
        "ts", F.expr("ts + interval 1 second")
    )
    return lab.job(sx.with_watermark(rows, "ts", "1 minute").dropDuplicates(["channel", "n", "ts"]), **settings)


def test_an_epoch_in_doubt_is_completed_before_a_rescale(lab: JobHarness) -> None:
    """The sink has committed it, and Spark has not. Its rows are not written again under another number."""
    with pytest.raises(JobFailedError, match="between the sink's commit and Spark's"):
        job(lab, sink_lost_epoch=1, restart_attempts=0).run(progress=False)
    log = SparkLog(str(lab.checkpoint()))
    assert (log.newest_commit(), log.newest_offsets()) == (0, 1)
    written = lab.numbers()

    changed = job(lab)
    changed.rescale("q", 3)
    assert lab.numbers() == written, "the epoch is known, and no other one has run"
    # Spark has added an epoch without rows, with the new partitions.
    newest = log.newest_commit()
    assert newest is not None and newest == log.newest_offsets()
    assert state_partitions(str(lab.checkpoint()), newest) == 3

    assert changed.run(progress=False).finished
    assert lab.numbers() == expected(40, 40)
    repeated = [event for event in lab.events("commit") if event["repeat"]]
    assert [event["epoch"] for event in repeated] == [1]


def test_a_query_that_was_built_late_is_no_obstacle(lab: JobHarness) -> None:
    """It has begun, and whether the job still has it is known once it is built."""

    def late() -> Any:
        writer = lab.source("late-in", counts="5,1", live="true").writeStream.format("folder")
        return writer.option("uid", "late-out").option("path", str(lab.folder / "late"))

    def gated() -> Job:
        made = job(lab, live="true")
        lab.add(made, lab.source("first-in", counts="5"), query="first", out="first")
        return made.add("late", late, after="first")

    made = gated().start()
    try:
        until(lambda: len(made.snapshot().queries) == 3 and made.snapshot().query("late").rows > 0, "it has begun")
    finally:
        made.stop()
    log = SparkLog(str(lab.checkpoint()))
    gated().rescale("q", 3)
    newest = log.newest_commit()
    assert newest is not None and state_partitions(str(lab.checkpoint()), newest) == 3


def test_what_no_start_accepts_is_not_rescaled_either(lab: JobHarness) -> None:
    with pytest.raises(JobFailedError):
        job(lab, sink_lost_epoch=1, restart_attempts=0).run(progress=False)
    with pytest.raises(ConfigurationError, match="'other' was not in this query before"):
        lab.job(lab.source("other", counts="40")).rescale("q", 3)
    assert state_partitions(str(lab.checkpoint()), 1) == 2
    assert SparkLog(str(lab.checkpoint())).newest_commit() == 0
