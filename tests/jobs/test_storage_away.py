"""The coordinator while the storage of the state directory fails or hangs: the job rides it out, or ends in order."""

import errno
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_ext.errors import EnvironmentProblem, FencedError, StorageError
from spark_ext.jobs import coordinator as coordinator_module
from spark_ext.jobs import ending
from spark_ext.jobs.snapshot import job_snapshot
from spark_ext.ledger.schema import IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.observing import upkeep
from spark_ext.queries.launcher import Registrations
from spark_ext.queries.run import QueryRun
from spark_ext.storage import LocalFolder
from tests.jobs.test_coordinator import FakeJob
from tests.queries.fakes import STALE, Storage, position
from tests.support.coordinated import END
from tests.support.jobs import JobHarness
from tests.support.waiting import until

AWAY = StorageError("reading ledger table 'jobs' failed: 503 Slow Down")


class WatchedJob(FakeJob):
    """It also knows whether it was released."""

    def __init__(self, folder: Path, *at_end: Callable[[], object], **settings: Any) -> None:
        self.last_actions: list[str] = []
        super().__init__(folder, (*at_end, partial(self.last_actions.append, "listener removed")), **settings)

    def is_canceled(self) -> bool:
        assert self.coordinator.join(END)
        return self.states() == (State.CANCELED,) * 3 and self.released() and self.a.writer.ended == ["CANCELED"]

    def storage_incidents(self) -> list[str]:
        return [row.what for row in self.a.ledger.of(IncidentRow) if row.type == "storage"]

    def stop_in_spark(self) -> None:
        for bench in (self.a, self.b):
            bench.query.stop()

    def released(self) -> bool:
        """Whether the next start in this process finds nothing of it."""
        registered = any(run.launcher.registrations._there for run in self.coordinator.runs)
        return self.last_actions == ["listener removed"] and self.a.writer.forgotten and not registered


def looked(storage: Storage, times: int) -> None:
    before = storage.looks
    until(lambda: storage.looks >= before + times, "further looks", END)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage().under_spark_log(monkeypatch)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the fence, and giving up, without long waits."""
    monkeypatch.setattr(upkeep, "FENCE_EVERY", 0.01)
    monkeypatch.setattr(ending, "AT_LEAST", 0.05)
    monkeypatch.setattr(ending, "CLOSE_WITHIN", 0.2)
    monkeypatch.setattr(coordinator_module, "ANSWER_WITHIN", 0.2)


def test_a_job_outlasts_storage_that_fails_for_a_moment(tmp_path: Path, disk: Storage) -> None:
    job = WatchedJob(tmp_path, restart_backoff=1)
    job.start()
    disk.problem = STALE
    looked(disk, 10)
    assert job.states() == (State.RUNNING,) * 3
    disk.problem = None
    job.a.query.commit(position())
    until(lambda: job.a.run.committed == 0, "the epoch", END)
    job.coordinator.stop()
    assert job.coordinator.join(END) and job.coordinator.failure is None
    assert len(job.storage_incidents()) == 2, "one of each query"


def test_storage_that_keeps_failing_fails_the_job_cleanly(tmp_path: Path, disk: Storage) -> None:
    """Neither the last look, which raises as well, nor anything else keeps the incarnation from being released."""
    job = WatchedJob(tmp_path, restart_backoff=1, outage_patience=50)
    job.start()
    disk.problem = STALE
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.FAILED
    failure = job.coordinator.failure
    assert isinstance(failure, StorageError) and "could not be read" in failure.what
    assert "Stale file handle" in failure.what and "queries/" in failure.what
    assert job.released() and job.a.writer.ended == ["FAILED"]
    assert not job.a.query.running and not job.b.query.running


def test_a_step_of_the_end_that_fails_skips_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: QueryRun) -> None:
        raise OSError(f"the last look of {run.spec.uid}")

    def refuse() -> None:
        raise RuntimeError("py4j: gone")

    monkeypatch.setattr(QueryRun, "observe_late", fail)
    job = WatchedJob(tmp_path, refuse)
    job.start()
    job.coordinator.stop()
    assert job.is_canceled()
    assert job.coordinator.failure is None, "a job that was stopped has not failed"
    shown = job_snapshot("state", datetime.now(timezone.utc), job.a.context, job.coordinator)
    assert "the last look at query 'a' failed: OSError: the last look of a" in shown.error


def test_a_file_system_without_links_is_refused(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: LocalFolder, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    made = lab.job(lab.source(counts="10"))
    monkeypatch.setattr(LocalFolder, "_link", refuse)
    with pytest.raises(EnvironmentProblem, match="lacks hard links, with which commits are made"):
        made.run(progress=False)
    assert not list((lab.folder / "state").iterdir())


def test_a_refused_start_releases_all_its_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though one registration cannot be withdrawn."""
    job = WatchedJob(tmp_path)
    withdraw = Registrations.withdraw
    failures = [STALE]

    def fail_once(registered: Registrations) -> None:
        if failures:
            raise failures.pop()
        withdraw(registered)

    monkeypatch.setattr(Registrations, "withdraw", fail_once)
    job.coordinator.refuse()
    assert job.coordinator.done.is_set() and job.states() == (State.CANCELED,) * 3
    assert job.b.run.launcher.registrations._withdrawn


@pytest.mark.parametrize("problem", [AWAY, STALE])
def test_a_look_at_the_fence_that_fails_is_repeated(tmp_path: Path, problem: Exception) -> None:
    job = WatchedJob(tmp_path, restart_backoff=1)
    job.start()
    job.a.ledger.storage.problem = problem
    looked(job.a.ledger.storage, 5)
    assert job.coordinator.state is State.RUNNING
    job.a.ledger.storage.problem = None
    job.a.ledger.newest = 2
    assert job.coordinator.join(END)
    assert isinstance(job.coordinator.failure, FencedError)


def test_a_look_at_the_fence_that_keeps_failing_fails_the_job(tmp_path: Path) -> None:
    job = WatchedJob(tmp_path, restart_backoff=1, outage_patience=50)
    job.a.ledger.storage.problem = AWAY
    job.start()
    assert job.coordinator.join(END)
    failure = job.coordinator.failure
    assert isinstance(failure, StorageError) and failure.operator == "job 'lab'"
    assert "the newest incarnation in the ledger could not be read" in failure.what and "503" in failure.what
    assert job.coordinator.state is State.FAILED and job.released()
    assert len(job.storage_incidents()) == 1


def test_the_look_for_a_stop_from_outside_repeats_until_it_works(tmp_path: Path) -> None:
    """All queries have ended, and whether a newer incarnation has ended them is still to be found out."""
    job = WatchedJob(tmp_path, restart_backoff=1)
    job.start()
    storage = job.a.ledger.storage
    storage.problem, job.a.ledger.newest = AWAY, 2
    job.stop_in_spark()
    looked(storage, 3)
    storage.problem = None
    assert job.coordinator.join(END)
    assert isinstance(job.coordinator.failure, FencedError)


@pytest.mark.parametrize("asked", [True, False])
def test_a_look_at_the_fence_that_hangs_is_given_up(tmp_path: Path, asked: bool) -> None:
    """Without a stop it is waited for as long as one may take."""
    job = WatchedJob(tmp_path, stop_timeout=60_000 if asked else 100)
    job.start()
    storage = job.a.ledger.storage
    storage.answers.clear()
    looked(storage, 1)
    if asked:
        job.coordinator.stop(0.1)
    else:
        job.stop_in_spark()
    assert job.is_canceled()
    storage.answers.set()


def test_last_rows_that_hang_do_not_keep_the_incarnation(tmp_path: Path) -> None:
    job = WatchedJob(tmp_path)
    job.start()
    job.a.writer.storage.answers.clear()
    job.coordinator.stop(0.1)
    assert job.coordinator.join(END)
    assert job.states() == (State.CANCELED,) * 3 and job.released() and not job.a.writer.ended
    job.a.writer.storage.answers.set()
    until(lambda: job.a.writer.ended == ["CANCELED"], "the end, late", END)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_hanging_look_at_sparks_log_is_given_up(
    tmp_path: Path, disk: Storage, monkeypatch: pytest.MonkeyPatch, at_the_end: bool
) -> None:
    """It is taken on the coordinator's thread."""
    job = WatchedJob(tmp_path)
    if at_the_end:
        late = QueryRun.observe_late

        def hang_first(run: QueryRun) -> None:
            if run is job.a.run:
                disk.answers.clear()
            late(run)

        monkeypatch.setattr(QueryRun, "observe_late", hang_first)
    job.start()
    if not at_the_end:
        disk.answers.clear()
        looked(disk, 1)
    job.coordinator.stop(0.1)
    assert job.is_canceled()
    if not at_the_end:
        assert "the storage did not answer" in job.a.run.reason
        assert job.a.states()[-1] == job.entered()[-1] == "CANCELED"
    until(lambda: not job.a.query.running and not job.b.query.running, "the stops of Spark's queries", END)
    disk.answers.set()
    job.coordinator._thread.join(END)
    assert not job.coordinator._thread.is_alive() and job.coordinator.failure is None
    assert job.states() == (State.CANCELED,) * 3 and job.a.writer.ended == ["CANCELED"], "it changes nothing any more"


def test_a_thread_that_answers_is_not_given_up(tmp_path: Path) -> None:
    """Also when the stop was asked for long before it was started, and when the last rows take their time."""
    job = WatchedJob(tmp_path, partial(threading.Event().wait, 0.15))
    job.coordinator.stop(0.0)
    assert not job.coordinator.done.wait(0.3), "the start is still under way"
    job.coordinator.start()
    assert job.coordinator.join(END)
    assert not job.coordinator._given_up and job.states() == (State.CANCELED,) * 3
    assert job.a.run.reason == "stopped"
