"""What the tests of bad input share: how a refusal is checked, and a job into a Delta table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

import spark_ext as sx
from spark_ext.errors import JobFailedError, SparkExtError, from_text
from spark_ext.jobs.job import Job
from spark_ext.ledger.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.spark.spark_log import SparkLog
from tests.support.jobs import JobHarness
from tests.support.waiting import until


@contextmanager
def refused(kind: type[SparkExtError], *words: str) -> Iterator[list[str]]:
    """What happens inside is refused by an error of that kind, which has all its parts and these words in it.

    Gives a list that holds all that was told, once it was.
    """
    told: list[str] = []
    with pytest.raises((SparkExtError, PySparkException)) as caught:
        yield told
    told.append(str(caught.value))
    error: BaseException | None = caught.value
    if isinstance(error, PySparkException):
        # What Spark itself called, such as `load()`, comes back in Spark's error, with ours in it.
        error = from_text(str(error))
    if isinstance(error, JobFailedError):
        assert error.operator and error.kept and error.do, str(error)
        error = error.__cause__
    assert isinstance(error, kind), str(caught.value)
    assert error.operator and error.kept and error.do, str(error)
    for word in words:
        assert word in str(error), str(error)


def failures(job: Job) -> list[tuple[str, str]]:
    """What the ledger has of a job's failures, in order: what happened, and what was done."""
    rows = Ledger(job.state_directory).table(IncidentRow).rows()
    return [(row.what, row.action) for row in sorted(rows, key=lambda row: row.at) if row.type == "failure"]


def first_epoch(lab: JobHarness) -> None:
    """Wait until one epoch has been committed."""
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")


def delta_numbers(path: Path) -> list[tuple[str, Any]]:
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(table["channel"].to_pylist(), table["n"].to_pylist(), strict=True))


def delta_job(lab: JobHarness, frame: DataFrame, out: str = "out", **settings: Any) -> Job:
    """A job of one query into a Delta table."""
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", **settings)
    writer = frame.writeStream.format("delta_2pc").option("uid", "q-out").option("path", str(lab.folder / out))
    return job.add("q", writer)
