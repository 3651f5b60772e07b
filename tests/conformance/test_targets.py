"""Conformance, "Identity over time": a job's state and its target have to fit when the job starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.errors import SparkExtError
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.sinks.runtime.position import remembered
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from tests.support.jobs import JobHarness
from tests.support.waiting import until

COUNTS: dict[str, Any] = {"counts": "100", "max_rows_per_epoch": 20}


def into_table(lab: JobHarness, uid: str = "q-out") -> Job:
    """A job of five epochs into a Delta table; after the first it waits for the gate."""
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    frame = lab.source(**COUNTS, gate=lab.folder / "gate")
    return made.add("q", frame.writeStream.format("delta_2pc").option("uid", uid).option("path", str(table(lab))))


def table(lab: JobHarness) -> Path:
    return lab.folder / "table"


def ids(lab: JobHarness) -> list[int]:
    return sorted(DeltaTable(table(lab)).to_pyarrow_table().column("n").to_pylist())


def half_read(lab: JobHarness) -> None:
    job = into_table(lab).start()
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")
    job.stop()
    (lab.folder / "gate").touch()


def refused(job: Job, match: str) -> SparkExtError:
    with pytest.raises(SparkExtError, match=match) as failure:
        job.run(progress=False)
    return failure.value


@pytest.mark.core
def test_i3_a_job_whose_temporary_folder_is_cleaned_continues_exactly(lab: JobHarness) -> None:
    job = into_table(lab).start()
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")
    place = registry.folder_of(lab.spark)
    shutil.rmtree(place)
    (lab.folder / "gate").touch()
    assert job.await_termination(120).finished
    assert ids(lab) == list(range(100))
    fences = DeltaTable(table(lab))
    ledger = Ledger(str(lab.folder / "state"))
    started = ledger.jobs()[0]
    assert (fences.transaction_version("fence:q-out"), fences.transaction_version("start:q-out")) == (
        1,
        started.start_id,
    )
    assert all(len(row.offsets) and row.offsets[0]["lineage"] == 1 for row in ledger.table(EpochRow).rows())


@pytest.mark.core
@pytest.mark.slow(14, "four starts of a job, and the session's first query")
def test_i4_state_put_back_from_a_backup_is_refused(lab: JobHarness) -> None:
    half_read(lab)
    shutil.copytree(lab.folder / "state", lab.folder / "backup")
    assert into_table(lab).run(progress=False).finished
    shutil.rmtree(lab.folder / "state")
    (lab.folder / "backup").rename(lab.folder / "state")
    refused(into_table(lab), "incarnation 2 of the job has been started twice")
    refused(into_table(lab), "the target is ahead of this state: it holds epoch 4, and the newest .* planned is 0")
    assert ids(lab) == list(range(100))


@pytest.mark.core
def test_i7_a_table_deleted_while_the_job_is_stopped_is_refused_and_reset_is_the_way_out(lab: JobHarness) -> None:
    half_read(lab)
    assert remembered(str(lab.checkpoint())) is not None
    shutil.rmtree(table(lab))
    failure = refused(into_table(lab), "not the target that was claimed")
    assert "job.reset(" in str(failure)
    assert not table(lab).exists()
    into_table(lab).reset("q", "its table was deleted by mistake")
    assert into_table(lab).run(progress=False).finished
    assert ids(lab) == list(range(100))
