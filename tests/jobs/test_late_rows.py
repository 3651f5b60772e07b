"""Rows that come after the watermark has passed them are dropped by Spark, and named by the job."""

import json

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.jobs.result import JobResult
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.views.status import read_status
from tests.support.jobs import JobHarness


def arrive(lab: JobHarness, name: str, *times: str) -> None:
    (lab.folder / "in").mkdir(exist_ok=True)
    lines = (json.dumps({"at": f"2026-03-01T{time}:00Z"}) for time in times)
    (lab.folder / "in" / f"{name}.json").write_text("\n".join(lines))


def run(lab: JobHarness, **how: str) -> JobResult:
    reader = lab.spark.readStream.format("files").schema("at timestamp")
    rows = reader.options(uid="in", path=str(lab.folder / "in"), format="json", watch="true").load()
    windows = sx.with_watermark(rows, "at", "1 hour").groupBy(F.window("at", "1 hour")).agg(F.count("*").alias("n"))
    out = windows.selectExpr("hour(window.start) AS hour", "n").writeStream.format("delta_2pc")
    job = sx.Job(lab.spark, "hours", state=lab.folder / "state")
    job.add("q", out.options(uid="out", path=str(lab.folder / "out")))
    return job.run(until="now", progress=False, **how)  # type: ignore[arg-type]


@pytest.mark.core
def test_a_row_that_is_too_late_is_named_wherever_rows_are(lab: JobHarness) -> None:
    arrive(lab, "first", "08:10", "09:10", "12:10")
    first = run(lab)
    assert first.query("q").late_rows == 0 and "late" not in str(first)
    late = ("08:30", "08:40", "08:50")  # the watermark is at 11:10
    arrive(lab, "second", *late, "12:20", "13:30")
    second = run(lab, emit="all")
    # Spark counts what its partial aggregation has made of them: one.
    assert second.finished and 1 == second.query("q").late_rows < len(late)
    assert "at least 1 late row dropped" in str(second)
    assert second.to_json()["queries"][0]["late_rows"] == 1
    table = DeltaTable(lab.folder / "out").to_pyarrow_table()
    assert {row["hour"]: row["n"] for row in table.to_pylist()} == {8: 1, 9: 1, 12: 2, 13: 1}
    status = read_status(str(lab.folder / "state"))
    assert [query.late_rows for query in status.queries] == [1]
    assert status.to_json()["queries"][0]["late_rows"] == 1
    epochs = Ledger(str(lab.folder / "state")).table(EpochRow).rows()
    assert sum(row.late_rows or 0 for row in epochs) == 1
