"""`job.as_of` reads the outputs of a checkpoint, and no other table that has taken their place."""

import shutil

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import spark_ext as sx
from spark_ext.errors import CheckpointError
from tests.support.jobs import JobHarness, numbers
from tests.support.refusals import refused
from tests.support.waiting import until


def test_a_table_that_was_deleted_and_made_anew(lab: JobHarness) -> None:
    place, gate = lab.folder / "table", lab.folder / "gate"
    rows = numbers(lab.spark, "in", counts="30", max_rows_per_epoch=10, gate=gate).select("n")
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    job.add("q", rows.writeStream.format("delta_2pc").option("uid", "out").option("path", str(place))).start()
    until(lambda: job.snapshot().query("q").rows > 0, "the first epoch")
    number = job.checkpoint(120)
    gate.touch()
    assert job.await_termination(300).finished
    held = sorted(row["n"] for row in job.as_of(number).read("out").collect())
    assert held == list(range(len(held))) and 0 < len(held) < 30
    newest = DeltaTable(str(place)).version()
    shutil.move(place, lab.folder / "aside")
    for n in range(newest + 1):
        write_deltalake(str(place), pa.table({"n": [100 + n]}), mode="append")
    with refused(CheckpointError, f"is not the one of checkpoint {number}", "sink 'out'"):
        job.as_of(number).read("out")
    shutil.rmtree(place)
    write_deltalake(str(place), pa.table({"n": [100]}))
    with refused(CheckpointError, "cannot be loaded"):
        job.as_of(number).read("out")
    shutil.rmtree(place)
    shutil.copytree(lab.folder / "aside", place)
    for file in (place / "_delta_log").glob("*.json"):
        if int(file.stem) > 0:
            file.unlink()  # as a backup of version 0 has it
    for n in range(newest):
        write_deltalake(str(place), pa.table({"n": [100 + n]}), mode="append")
    with refused(CheckpointError, f"is not the one of checkpoint {number}, which held epoch", "sink 'out'"):
        job.as_of(number).read("out")
    shutil.rmtree(place)
    shutil.move(lab.folder / "aside", place)
    assert sorted(row["n"] for row in job.as_of(number).read("out").collect()) == held
