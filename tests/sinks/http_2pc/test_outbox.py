"""The outbox of `http_2pc` as a table that others change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ext.errors import StateError
from spark_ext.sinks.contract import Claim, Epoch, Task
from spark_ext.sinks.http_2pc.chunks import ChunkRule
from spark_ext.sinks.http_2pc.outbox import Outbox
from spark_ext.sinks.http_2pc.outbox_pieces import stage
from spark_ext.storage import Location
from spark_ext.testing.sink_driver import NUMBERS, numbered, table

CLAIM = Claim("out", "job", "job-1", 1, 0, start=71, query_id="q", planned=9)


def opened(folder: Path) -> Outbox:
    return Outbox(Location.of(str(folder), {}), "out", "sink 'out'")


def sent(folder: Path, number: int, previous: int | None) -> None:
    """Record an epoch of one row, and that the receiver has it."""
    outbox, claim = opened(folder), CLAIM
    task = Task("out", "q", number, 0, 0, claim.incarnation, 0, claim.start)
    batches = iter(table(NUMBERS, numbered(number, number + 1)).to_batches())
    epoch = Epoch("out", 0, "q", number, claim.incarnation, start=claim.start, previous=previous)
    files = stage(outbox.location, NUMBERS, batches, task, ChunkRule(10, 1000, "lines"), "sink 'out'")
    if outbox.decide(epoch, files or ()):
        outbox.settle(epoch)


def recorded(folder: Path, claim: Claim, cut: ChunkRule) -> list[str]:
    """The keys of an epoch of two rows that a job has recorded, as a later start of it finds them."""
    outbox = opened(folder)
    outbox.claim(claim)
    task = Task("out", "q", 0, 0, 0, claim.incarnation, 0, claim.start)
    batches = iter(table(NUMBERS, numbered(0, 2)).to_batches())
    files = stage(outbox.location, NUMBERS, batches, task, cut, "sink 'out'")
    assert outbox.decide(Epoch("out", 0, "q", 0, claim.incarnation, start=claim.start), files or ())
    later = replace(claim, incarnation=claim.incarnation + 1, start=claim.start + 1)
    opened(folder).claim(later)
    epoch = Epoch("out", 0, "q", 0, later.incarnation, start=later.start)
    return [chunk.key(epoch) for chunk in opened(folder).decided(epoch)]


def test_keys_of_two_jobs_differ(tmp_path: Path) -> None:
    """Two jobs that were restored from one savepoint have lineage, query id and epoch in common."""
    cut, other = ChunkRule(1, 1000, "lines"), replace(CLAIM, job_id="job-2")
    first, second = recorded(tmp_path / "first", CLAIM, cut), recorded(tmp_path / "second", other, cut)
    assert len({*first, *second}) == 4
    assert first == recorded(tmp_path / "again", CLAIM, cut)


def test_a_restore_that_brings_the_epochs_back_is_the_way_out(tmp_path: Path) -> None:
    """The error advised to put the outbox back, and the RESTORE by which that is done was refused as well."""
    opened(tmp_path).claim(CLAIM)
    sent(tmp_path, 0, None)
    sent(tmp_path, 1, 0)
    newest = DeltaTable(tmp_path).version()
    # The files of epochs that were sent are gone.
    DeltaTable(tmp_path).restore(1, ignore_missing_files=True)
    with pytest.raises(StateError, match=f"RESTORE the table to version {newest}, the newest one that has all"):
        sent(tmp_path, 2, 1)
    with pytest.raises(StateError, match=f"RESTORE the table to version {newest}, the newest one that has all"):
        opened(tmp_path).claim(replace(CLAIM, incarnation=2, start=72, previous=1))
    DeltaTable(tmp_path).restore(newest, ignore_missing_files=True)
    sent(tmp_path, 2, 1)
    opened(tmp_path).claim(replace(CLAIM, incarnation=2, start=72, previous=2))
