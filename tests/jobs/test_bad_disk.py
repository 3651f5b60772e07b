"""A disk that is read-only or full, under the state directory or the output: reported plainly, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ext.errors import StateError, StorageError
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from tests.support.disks import fill, remount, small_disk
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import delta_job, delta_numbers, first_epoch, refused
from tests.support.waiting import until

QUICK = {"commit_attempts": "2", "commit_backoff": "10 ms"}
"""Options of a sink whose target does not get better by waiting for it."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    with small_disk(tmp_path / "disk", "4m") as place:
        yield place


@pytest.fixture
def on_disk(spark: SparkSession, disk: Path, tmp_path: Path) -> JobHarness:
    """A job with state and output on the small disk, its event log elsewhere."""
    lab = JobHarness(spark, disk)
    lab.log = str(tmp_path / "events.jsonl")
    return lab


def test_a_read_only_disk(on_disk: JobHarness, disk: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    source: dict[str, Any] = {"counts": "100", "max_rows_per_epoch": 20, "gate": gate}
    first = on_disk.job(on_disk.source(**source)).start()
    first_epoch(on_disk)
    # Refused while a file is open for writing: the ledger may be in the middle of a commit.
    until(lambda: remount(disk, "ro"), "the disk to be read-only")
    gate.touch()
    with refused(StateError, "job 'lab'", "ead-only file system", "writable"):
        first.await_termination(300)
    with refused(StateError, str(disk / "state"), "read-only", "mount it writable"):
        on_disk.job(on_disk.source(**source)).start()
    assert on_disk.numbers() == expected(20)
    assert remount(disk, "rw")
    assert on_disk.job(on_disk.source(**source)).run(progress=False).finished
    assert on_disk.numbers() == expected(100)


def test_a_read_only_disk_under_the_output(lab: JobHarness, disk: Path) -> None:
    assert remount(disk, "ro")
    frame = lab.source(counts="10").select("channel", "n")
    with refused(StorageError, "sink 'q-out'", str(disk / "out"), "ead-only file system"):
        delta_job(lab, frame, out="disk/out", sink=QUICK).start()
    assert remount(disk, "rw")
    assert delta_job(lab, frame, out="disk/out").run(progress=False).finished
    assert delta_numbers(disk / "out") == expected(10)


def test_a_full_disk(on_disk: JobHarness, disk: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def job() -> Job:
        frame = on_disk.source(counts="100", max_rows_per_epoch=20, gate=gate)
        return on_disk.job(frame, restart_attempts=1, restart_backoff="10 ms", outage_patience=0)

    running = job().start()
    epochs = Ledger(running.state_directory).table(EpochRow)
    until(lambda: len(epochs.rows()) == 1, "the first epoch to be in the ledger")
    filling = fill(disk)
    gate.touch()
    with refused(StorageError, "job 'lab'", "query 'q'", "o space left on", "free space"):
        running.await_termination(300)
    assert on_disk.numbers() == expected(20)
    filling.unlink()
    assert job().run(progress=False).finished
    assert on_disk.numbers() == expected(100)


def test_a_full_disk_under_the_output(lab: JobHarness, disk: Path) -> None:
    gate = lab.folder / "gate"

    def job() -> Job:
        frame = lab.source(counts="100", max_rows_per_epoch=20, gate=gate).select("channel", "n")
        return delta_job(lab, frame, out="disk/out", sink=QUICK, restart_attempts=0)

    running = job().start()
    first_epoch(lab)
    filling = fill(disk)
    gate.touch()
    with refused(StorageError, "sink 'q-out'", "o space left on", "space"):
        running.await_termination(300)
    assert delta_numbers(disk / "out") == expected(20)
    filling.unlink()
    assert job().run(progress=False).finished
    assert delta_numbers(disk / "out") == expected(100)
