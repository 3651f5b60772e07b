"""Conformance, "In flight" and X5: checkpoints of linked queries while rows wait between them. One test per line."""

import json
from collections import Counter
from pathlib import Path

import pytest

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.failpoints import FailPoint
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExchangeRow, IncidentRow
from tests.support.jobs import JobHarness, expected
from tests.support.saved import ALL, Chain, held
from tests.support.waiting import until


@pytest.fixture
def waiting(lab: JobHarness) -> Chain:
    """A job of two linked queries: the second one stands still until the file `release` is there."""
    return Chain(lab.spark, lab.folder)


def checkpoints(folder: Path) -> list[CheckpointRow]:
    return sorted(Ledger(str(folder / "state")).table(CheckpointRow).rows([("query", "=", "")]), key=lambda row: row.at)


def release(chain: Chain) -> None:
    for name in ("gate", "release"):
        (chain.folder / name).touch()


@pytest.mark.core_for("[turned unaligned]")
@pytest.mark.parametrize("mode", ["unaligned", "aligned", "turned unaligned"])
@pytest.mark.slow(20, "runs two linked queries to their end twice")
def test_u1_no_row_is_lost_or_repeated_whatever_the_mode(waiting: Chain, mode: str) -> None:
    """A savepoint while rows are in flight; the job fails, continues, ends, is put back, and ends again."""
    job = waiting.job(aligned_timeout="200 ms") if mode == "turned unaligned" else waiting.job()
    job.start()
    until(lambda: job.snapshot().query("rows").rows >= 60, "the exchange has rows")
    if mode == "aligned":
        release(waiting)  # it waits for what is in flight
    job.savepoint(waiting.savepoint, aligned=mode != "unaligned")
    release(waiting)
    assert job.await_termination().finished
    assert waiting.written() == ALL
    taken = [row for row in checkpoints(waiting.folder) if row.kind == "savepoint" and row.status == "COMPLETED"]
    assert [row.mode for row in taken] == ["aligned" if mode == "aligned" else "unaligned"]
    assert ((taken[0].rows_in_flight or 0) > 0) is (mode != "aligned")
    again = waiting.job().restore(waiting.savepoint)
    assert set(waiting.written()) <= set(ALL)
    assert again.run(progress=False).finished
    assert waiting.written() == ALL


@pytest.mark.core
def test_u3_one_failed_write_fails_that_checkpoint_only(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones are complete; of the retained ones only the newest is kept, and each has its rows in the ledger.

    What a driver that was killed has left half-way of another one disturbs none of them, and is deleted.
    """
    monkeypatch.setattr(failpoints, "_passed", Counter[str]())
    monkeypatch.setenv(failpoints.VARIABLE, f"{FailPoint.SAVEPOINT_BEFORE_MANIFEST}=raise")
    folder = lab.folder / "state" / "checkpoints"
    stray = folder / "7" / "queries" / "second" / "checkpoint" / "commits" / "3"  # of a driver that was killed
    stray.parent.mkdir(parents=True)
    stray.touch()
    job = sx.Job(lab.spark, "kept", state=lab.folder / "state", retained_checkpoints=1, checkpoint_interval="100 ms")
    x = job.exchange("x", partitions=2)
    job.add("first", x.write(lab.source(counts="1,1", live="true", rate=200)))
    lab.add(job, x.read("x-in"), query="second", out="out")
    job.start()
    try:
        until(lambda: [row.status for row in checkpoints(lab.folder)].count("COMPLETED") >= 3, "three are complete")
    finally:
        job.stop()
    rows = checkpoints(lab.folder)
    failed = [row for row in rows if row.status == "FAILED"]
    complete = [row.checkpoint_id for row in rows if row.status == "COMPLETED" and row.path is not None]
    released = [row.checkpoint_id for row in rows if row.status == "RELEASED"]
    assert len(failed) == 1 and FailPoint.SAVEPOINT_BEFORE_MANIFEST in failed[0].reason
    assert failed[0].checkpoint_id < complete[0]
    assert all(row.triggered_at <= row.at for row in rows if row.triggered_at is not None)
    kept = {int(path.parent.name) for path in folder.glob("*/manifest.json")}
    assert kept == {complete[-1]}
    assert failed[0].checkpoint_id > 7 and not stray.exists(), "the number of a half-written one is not used again"
    assert set(complete) - kept <= set(released) <= set(complete)
    assert {row.checkpoint_id for row in lab.ledger.table(ExchangeRow).rows([("event", "=", "held")])} == set(complete)
    assert len(lab.ledger.table(IncidentRow).rows([("type", "=", "checkpoint")])) == 1


def test_u6_an_unaligned_one_does_not_grow_with_the_backlog(waiting: Chain) -> None:
    """Rows in flight are named by two numbers, and no file of theirs is written again."""
    job = waiting.job(aligned_timeout=0, checkpoint_interval="1 hour")
    job.start()
    sizes, counts = [], []
    try:
        for rows in (60, 160):
            wanted = rows
            until(lambda: job.snapshot().query("rows").rows >= wanted, "the rows are in the exchange")  # noqa: B023
            until(lambda: job.snapshot().query("unique").rows > 0, "the consumer stands still in the middle of them")
            data = waiting.folder / "state" / "exchanges" / "x" / "data"
            before = sorted(data.iterdir())
            number = job.checkpoint(60)
            assert sorted(data.iterdir()) == before
            (row,) = [
                one for one in checkpoints(waiting.folder) if one.checkpoint_id == number and one.status == "COMPLETED"
            ]
            sizes.append(len(json.dumps(dict(row.metadata)["exchanges"])))
            counts.append(row.rows_in_flight or 0)
            (waiting.folder / "gate").touch()
    finally:
        job.stop()
    assert counts[1] >= counts[0] + 100
    assert [row.status for row in checkpoints(waiting.folder)] == ["COMPLETED"] * 2, "no barrier was sent"
    assert abs(sizes[1] - sizes[0]) <= 4, "digits"


@pytest.mark.core
def test_u7_a_bound_on_what_is_in_flight_slows_the_producer(lab: JobHarness) -> None:
    """Never more than the bound and one epoch lie between the queries, by what the consumer has committed."""
    gate = lab.folder / "gate"
    job = sx.Job(lab.spark, "bound", state=lab.folder / "state")
    x = job.exchange("x", partitions=2, max_in_flight=100)
    job.add("fast", x.write(lab.source(counts="300", max_rows_per_epoch=50)))
    lab.add(job, held(x.read("x-in", max_rows_per_epoch=60), gate, 50), query="slow", out="out")
    job.start()
    try:
        until(lambda: "held back by query 'slow'" in job.snapshot().query("fast").reason, "the producer stands still")
    finally:
        gate.touch()
    assert job.await_termination(300).finished
    assert lab.numbers() == expected(300)
    epochs = lab.ledger.table(EpochRow).rows()
    read_at = [(row.committed_at, row.input_rows or 0) for row in epochs if row.query == "slow"]
    written_at = sorted((row.committed_at, row.input_rows or 0) for row in epochs if row.query == "fast")
    in_flight, written = [], 0
    for at, rows in written_at:
        written += rows
        # The planner has seen what was committed when the epoch before was.
        in_flight.append(written - sum(rows for moment, rows in read_at if moment <= at))
    assert 100 <= max(in_flight) <= 100 + 50


@pytest.mark.core
def test_x5_two_kinds_in_one_job_and_a_consumer_that_comes_first(lab: JobHarness) -> None:
    """The second exchange is read from the start; the query that writes it is built when another one has finished."""
    job = sx.Job(lab.spark, "kinds", state=lab.folder / "state")
    first = job.exchange("first", partitions=3, key="n", kind="arrow")
    second = job.exchange("second", partitions=2, kind="delta", schema="channel string, n bigint, ts timestamp")
    job.add("in", first.write(lab.source(counts="40,25", max_rows_per_epoch=20)))
    rows = first.read("first-in")
    job.add("pass", lambda: second.write(rows), after="ends")
    lab.add(job, lab.source("rates", counts="5"), query="ends", out="ends")
    lab.add(job, second.read("second-in"), query="last", out="out")
    assert job.run(progress=False).finished
    assert lab.numbers() == expected(40, 25)
    registered = lab.ledger.table(ExchangeRow).rows([("event", "=", "registered")])
    before_it_was_built = ("first", "")
    readers = {(row.exchange, row.query) for row in registered}
    assert readers == {before_it_was_built, ("first", "pass"), ("second", "last")}
    sealed = lab.ledger.table(ExchangeRow).rows([("event", "=", "sealed")])
    assert sorted(row.exchange for row in sealed) == ["first", "second"], "each once"
