"""Supervision of a query while Spark's log cannot be read: nothing is decided without facts, and nothing is lost."""

import threading
from pathlib import Path
from typing import Any

import pytest

from spark_ext.errors import StateError, StorageError
from spark_ext.ledger.schema import EpochRow, FinishedRow, IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.queries.observer import LIST_EVERY
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.worker import Worker
from spark_ext.spark.backend.contract import OwnEnd
from spark_ext.spark.session import registry
from tests.queries.fakes import STALE, Bench, Storage, position
from tests.support.waiting import until

PASSING = RuntimeError("py4j: a task was lost")
END = 10.0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage().under_spark_log(monkeypatch)


def outages(bench: Bench) -> list[str]:
    return [row.what for row in bench.rows(IncidentRow) if row.type == "storage"]


def test_a_log_that_cannot_be_read_is_read_again(tmp_path: Path, disk: Storage) -> None:
    bench = Bench(tmp_path).started()
    for outage in (1, 2):
        disk.problem = STALE
        for _ in range(100):
            bench.tick(0.1)
        assert bench.state() is State.RUNNING and len(outages(bench)) == outage
        assert "Stale file handle" in outages(bench)[-1] and bench.run.checkpoint in outages(bench)[-1]
        disk.problem = None
        bench.query.commit(position(finished=outage))
        bench.tick(1.0)
        assert bench.run.committed == outage - 1
    bench.run.observe_late()
    assert [row.epoch for row in bench.rows(EpochRow)] == [0, 1]


@pytest.mark.parametrize("attempts", [0, 3])
def test_an_outage_that_lasts_fails_the_query(tmp_path: Path, disk: Storage, attempts: int) -> None:
    bench = Bench(tmp_path, outage_patience=60_000, restart_attempts=attempts).started()
    disk.problem = STALE
    for _ in range(60):
        bench.tick(1.0)
    assert bench.state() is State.RUNNING
    bench.tick(1.0)
    assert bench.state() is State.FAILED and not bench.query.running
    assert isinstance(bench.run.error, StorageError)
    assert f"{bench.run.checkpoint}, could not be read, for 60 s: OSError: [Errno 116]" in bench.run.error.what
    assert "outage_patience" in bench.run.error.do
    assert [row.type for row in bench.rows(IncidentRow)] == ["storage", "failure"]


def test_without_patience_a_look_is_repeated_like_a_restart(tmp_path: Path, disk: Storage) -> None:
    bench = Bench(tmp_path, outage_patience=0, restart_attempts=2).started()
    disk.problem = STALE
    for state in (State.RUNNING, State.RUNNING, State.FAILED):
        bench.tick(1.0)
        assert bench.state() is state


def test_an_error_that_is_none_of_storage_is_raised(tmp_path: Path, disk: Storage) -> None:
    bench = Bench(tmp_path).started()
    disk.problem = StateError("Spark's offset log has version v3")
    with pytest.raises(StateError, match="version v3"):
        bench.tick()


def test_an_end_waits_until_earlier_commits_are_known(tmp_path: Path, disk: Storage) -> None:
    bench = Bench(tmp_path).started()
    bench.query.commit(position(ended=True))
    bench.query.end(PASSING)
    disk.problem = STALE
    bench.tick()
    bench.tick(1.0)
    assert bench.state() is State.RUNNING
    disk.problem = None
    bench.tick(1.0)
    assert bench.state() is State.FINISHING


def test_an_end_is_not_lost_with_a_failed_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was planned cannot be read."""
    disk = Storage().under_spark_log(monkeypatch, "newest_offsets")
    bench = Bench(tmp_path, natives=["rate"], sources=[], available_now=True).started()
    bench.query.commit({"logOffset": 1})
    bench.query.end(own=OwnEnd(found_nothing=True, one_epoch=False))
    disk.problem = STALE
    bench.tick()
    assert (bench.state(), bench.query.starts) == (State.RUNNING, 1)
    disk.problem = None
    bench.tick(1.0)
    bench.tick()
    assert bench.state() is State.SUSPENDED


@pytest.mark.parametrize("ended", [False, True])
def test_a_stop_does_not_wait_for_the_end_of_an_outage(tmp_path: Path, disk: Storage, ended: bool) -> None:
    bench = Bench(tmp_path).started()
    disk.problem = STALE
    bench.tick()
    if ended:
        bench.query.end(PASSING)
    bench.run.request_stop()
    bench.tick()
    assert bench.state() is State.CANCELED and not bench.query.running


def test_a_failed_poll_is_repeated_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Storage().under_spark_log(monkeypatch, "offsets")
    bench = Bench(tmp_path).started()
    for finished in (1, 2, 3):
        bench.query.commit(position(finished=finished))
    look = disk.look

    def fail_at_the_third() -> None:
        disk.problem = STALE if disk.looks == 2 else None
        look()

    monkeypatch.setattr(disk, "look", fail_at_the_third)
    bench.tick()
    assert bench.run.committed == -1 and len(outages(bench)) == 1
    bench.tick(1.0)
    assert (bench.run.committed, bench.run.figures.epochs) == (2, 3)
    bench.run.observe_late()
    assert [row.epoch for row in bench.rows(EpochRow)] == [0, 1, 2]
    assert [row.sequence for row in bench.rows(FinishedRow)] == [1, 2, 3]


def test_an_epoch_whose_time_cannot_be_read_keeps_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Storage().under_spark_log(monkeypatch, "committed_at")
    bench = Bench(tmp_path).started()
    bench.query.commit(position())
    disk.problem = STALE
    with pytest.raises(OSError, match="Stale"):
        bench.run.observe_late()
    disk.problem = None
    bench.run.observe_late()
    assert [row.epoch for row in bench.rows(EpochRow)] == [0]


def test_what_is_known_is_written_although_the_last_look_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Storage().under_spark_log(monkeypatch, "is_committed")
    bench = Bench(tmp_path).started()
    bench.commits(position())
    disk.problem = STALE
    with pytest.raises(OSError, match="Stale"):
        bench.run.observe_late()
    assert [row.epoch for row in bench.rows(EpochRow)] == [0]


def test_a_listing_that_fails_alone_is_one_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Storage().under_spark_log(monkeypatch, "newest_commit")
    bench = Bench(tmp_path).started()
    disk.problem = STALE
    for _ in range(20):
        bench.tick(LIST_EVERY / 2)
    assert len(outages(bench)) == 1


def test_a_canceled_restart_never_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, claiming = threading.Event(), threading.Event()

    def claim(operators: OperatorHooks) -> None:
        claiming.set()
        assert gate.wait(END)

    monkeypatch.setattr(OperatorHooks, "claim", claim)
    bench = Bench(tmp_path, worker=Worker("q", threading.Event().set))
    bench.run.restore(None)
    bench.run.resume_final()
    bench.run.ensure_running()
    assert claiming.wait(END)
    bench.run.cancel("it did not stop in time")
    bench.run.release()
    # The stop that is under way when it is given up has its own reference.
    stopped: list[int] = []
    worker: Any = bench.worker
    last = worker._last

    def count() -> None:
        last()
        stopped.append(1)

    monkeypatch.setattr(worker, "_last", count)
    gate.set()
    until(lambda: len(stopped) == 1, "the last command, behind the one that was under way", END)
    assert not bench.query.started
    assert registry.lookup("in", bench.context.registry) is None
