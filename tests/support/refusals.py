"""Helpers for the tests of bad input: checking that something is refused, and a job that writes a Delta table."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.errors import JobFailedError, SparkExtError, from_text
from spark_ext.jobs.job import Job
from spark_ext.ledger.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.jobs import JobHarness
from tests.support.waiting import until


@contextmanager
def refused(kind: type[SparkExtError], *words: str) -> Iterator[list[str]]:
    """Expect an error of that kind, which has all its parts and contains these words.

    Yields a list to which the text of the error is added.
    """
    messages: list[str] = []
    with pytest.raises((SparkExtError, PySparkException)) as caught:
        yield messages
    messages.append(str(caught.value))
    error: BaseException | None = caught.value
    if isinstance(error, PySparkException):
        # An error in code that Spark calls, such as that of `load()`, is embedded in Spark's own error.
        error = from_text(str(error))
    if isinstance(error, JobFailedError):
        assert error.operator and error.kept and error.do, str(error)
        error = error.__cause__
    assert isinstance(error, kind), str(caught.value)
    assert error.operator and error.kept and error.do, str(error)
    for word in words:
        assert word in str(error), str(error)


def broken(point: str, action: Callable[..., object]) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises((OSError, SparkExtError), match=f"fail point {point}"):
        patch.setattr(failpoints, "_passed", Counter())
        patch.setenv(failpoints.VARIABLE, f"{point}=raise")
        action()


def failures(job: Job) -> list[tuple[str, str]]:
    """A job's failures in the ledger, in order: what happened, and which action was taken."""
    rows = Ledger(job.state_directory).table(IncidentRow).rows()
    return [(row.what, row.action) for row in sorted(rows, key=lambda row: row.at) if row.type == "failure"]


def first_epoch(lab: JobHarness) -> None:
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")


def delta_numbers(path: Path) -> list[tuple[str, Any]]:
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(table["channel"].to_pylist(), table["n"].to_pylist(), strict=True))


def delta_job(
    lab: JobHarness, frame: DataFrame, out: str = "out", sink: Mapping[str, str] | None = None, **settings: Any
) -> Job:
    """A job with one query that writes to a Delta table; `sink` has further options of its sink."""
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", **settings)
    writer = frame.writeStream.format("delta_2pc").option("uid", "q-out").option("path", str(lab.folder / out))
    return job.add("q", writer.options(**(sink or {})))


def add_reader(lab: JobHarness, job: Job, frame: DataFrame) -> None:
    job.add("r", frame.writeStream.format("delta_2pc").option("uid", "r-out").option("path", str(lab.folder / "read")))


def await_outage(lab: JobHarness, running: Job, away: Callable[[], object]) -> None:
    """Once `q` and `r` have committed an epoch, take away what they need, and wait until each has restarted twice.

    Then the file `gate` is there.
    """
    until(lambda: all(query.rows > 0 for query in running.snapshot().queries), "an epoch of each query")
    away()
    (lab.folder / "gate").touch()
    incidents = Ledger(running.state_directory).table(IncidentRow)
    reported: list[IncidentRow] = []

    def twice() -> bool:
        reported[:] = [row for row in incidents.rows() if row.type == "failure"]
        return min(sum(f"'{query}'" in row.operator for row in reported) for query in ("q", "r")) >= 2

    until(twice, "a restart of each query beyond the attempts")
    assert not running.done and all(row.action.startswith("restart ") for row in reported), reported
    assert all("[STORAGE]" in row.what or "[COMMIT]" in row.what for row in reported), reported
