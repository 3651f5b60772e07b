"""The coordinator with fake queries and a ledger in memory: what one query's end means for the others and the job."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from spark_ext.control.job_events import request
from spark_ext.errors import DataError, FencedError, StorageError
from spark_ext.jobs.ending import EndRequest
from spark_ext.jobs.starting.start import in_all
from spark_ext.ledger.schema import CheckpointRow, ControlTransitionRow, ExecutionStateRow, IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.run import QueryRun
from spark_ext.queries.worker import Worker
from tests.queries.fakes import Bench, position
from tests.support.coordinated import END, coordinated, execution_of, without_hooks
from tests.support.waiting import until


class FakeJob:
    """A job of two queries, with its coordinator's thread."""

    def __init__(self, folder: Path, at_end: Sequence[Callable[[], object]] = (), **settings: Any) -> None:
        self.a = Bench(folder, query="a", worker=Worker("a", self.wake), **settings)
        self.b = Bench(folder, query="b", worker=Worker("b", self.wake), around=self.a, natives=["rate"], sources=[])
        self.execution = execution_of([self.a.run, self.b.run])
        self.coordinator, self.parts = coordinated(self.a.context, self.a.ledger, self.execution, at_end=at_end)

    def wake(self) -> None:
        self.a.context.wake.set()

    def start(self) -> None:
        for bench in (self.a, self.b):
            bench.started()
        in_all((self.a.run, self.b.run), _nothing, self.a.context, self.coordinator, END)
        self.coordinator.start()

    def states(self) -> tuple[State, State, State]:
        return self.coordinator.state, self.a.run.state, self.b.run.state

    def entered(self) -> list[str]:
        return [row.state for row in self.a.rows(ExecutionStateRow) if row.operator == ""]


def _nothing(run: QueryRun) -> None:
    """A command that gives nothing to do."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    without_hooks(monkeypatch)
    return FakeJob(tmp_path)


def test_a_drain_is_in_force_for_a_query_that_is_built_later(job: FakeJob) -> None:
    """Also if another one, which has left the job, had been reset: new queries have the newest lineage."""
    context = job.a.context
    asked = EndRequest(replace(context, incarnation=replace(context.incarnation, lineage=5)), job.execution)
    asked.drain()
    assert asked.drained(5) and not asked.drained(6)


def test_a_drained_job_finishes_and_its_drain_is_acknowledged(job: FakeJob) -> None:
    job.start()
    job.b.query.commit({"logOffset": 1})
    until(lambda: job.b.run.committed == 0, "the epoch")
    request(job.a.context.control, "job", "drain")
    job.parts.request.drain()
    job.a.query.commit(position(ended=True))
    assert job.coordinator.join(END)
    assert job.states() == (State.FINISHED,) * 3
    assert [row.status for row in job.a.rows(ControlTransitionRow)] == ["acknowledged"]
    assert [state for state in job.entered() if state != "FINISHING"] == ["RUNNING", "FINISHED"]
    finals = {row.query: row.checkpoint_id for row in job.a.rows(CheckpointRow) if row.kind == "final"}
    assert set(finals) == {"a", "b"} and len(set(finals.values())) == 2


def test_a_query_that_fails_for_good_ends_the_others(job: FakeJob) -> None:
    job.start()
    job.a.query.end(DataError("the file is truncated"))
    assert job.coordinator.join(END)
    assert job.states() == (State.FAILED, State.FAILED, State.CANCELED)
    assert isinstance(job.coordinator.failure, DataError)
    assert job.entered() == ["RUNNING", "FAILING", "FAILED"]


def test_a_stop_cancels_all(job: FakeJob) -> None:
    job.start()
    job.coordinator.stop()
    assert job.coordinator.join(END)
    assert job.states() == (State.CANCELED,) * 3 and job.coordinator.failure is None
    assert not job.a.query.running and not job.b.query.running


def test_a_query_stopped_by_a_newer_incarnation_abandons_the_job(job: FakeJob) -> None:
    job.start()
    job.a.ledger.newest = 2
    job.a.query.stop()
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.FAILED and isinstance(job.coordinator.failure, FencedError)
    assert job.b.run.state is State.FAILED and not job.b.query.running
    assert "FAILED" not in job.b.states() and "FAILED" not in job.entered(), "the ledger has another owner"


def test_a_ledger_table_taken_by_a_newer_start_names_the_job(job: FakeJob) -> None:
    """Whichever of a query and the ledger notices first."""
    job.a.writer.failures = [FencedError("incarnation 2 has been started", operator="ledger table 'epochs' at /x")]
    job.start()
    assert job.coordinator.join(END)
    failure = job.coordinator.failure
    assert isinstance(failure, FencedError)
    assert failure.operator == f"job '{job.a.context.job}', ledger table 'epochs' at /x"


def test_an_unrecordable_final_checkpoint_fails_its_query(tmp_path: Path, job: FakeJob) -> None:
    """When it may not be tried again; else it takes the way of every failure."""
    for attempts, end in ((0, State.FAILED), (3, State.FINISHED)):
        job = FakeJob(tmp_path / str(attempts), restart_attempts=attempts)
        job.start()
        until(lambda job=job: job.entered() == ["RUNNING"], "the start's rows")  # type: ignore[misc]
        job.a.writer.failures = [StorageError("the disk is full")]
        job.a.query.commit(position(ended=True))
        until(lambda job=job, end=end: job.a.run.state is end, "the end of the query")  # type: ignore[misc]
        if end is State.FINISHED:
            assert [row.action for row in job.a.rows(IncidentRow)] == ["restart 1 in 100 ms"]
            job.coordinator.stop()
        assert job.coordinator.join(END)
        assert job.states()[1:] == (end, State.CANCELED)
        assert isinstance(job.coordinator.failure, StorageError) == (end is State.FAILED)


def test_a_cut_holds_the_last_committed_epoch_of_each_query(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, checkpoint_interval=1)
    job.start()
    job.a.query.commit(position())
    job.b.query.commit({"logOffset": 1})
    job.b.query.commit({"logOffset": 2})

    def cuts() -> list[dict[str, int]]:
        rows = [row for row in job.a.rows(CheckpointRow) if row.kind == "periodic"]
        return [{uid: part["epoch"] for uid, part in row.metadata["queries"].items()} for row in rows]

    until(lambda: {"a": 0, "b": 1} in cuts(), "the cut")
    job.coordinator.stop()
    assert job.coordinator.join(END)
    assert cuts()[-1] == {"a": 0, "b": 1}, "a cut that is like the last is not recorded again"
    assert all(one != other for one, other in zip(cuts(), cuts()[1:], strict=False))


def test_a_hook_that_does_not_return_delays_no_other_query(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that takes in the epochs of all queries runs no hook."""
    gate, entered = threading.Event(), threading.Event()

    def hook(operators: OperatorHooks) -> None:
        entered.set()
        assert gate.wait(END)

    monkeypatch.setattr(OperatorHooks, "end_of_input", hook)
    job.start()
    job.a.query.commit(position(ended=True))
    assert entered.wait(END)
    for epoch in range(3):
        job.b.query.commit({"logOffset": epoch})
        until(lambda epoch=epoch: job.b.run.committed == epoch, "the other query's epoch", END)  # type: ignore[misc]
    assert job.a.run.state is State.FINISHING
    gate.set()
    until(lambda: job.a.run.state is State.FINISHED, "the end of the query", END)
    job.coordinator.stop()
    assert job.coordinator.join(END)
    assert job.states() == (State.CANCELED, State.FINISHED, State.CANCELED)
    assert job.a.writer.ended == ["CANCELED"]


def held(bench: Bench) -> threading.Event:
    """The stop of a query waits for it."""
    gate, stop = threading.Event(), bench.query.stop
    bench.query.stop = lambda: (gate.wait(END), stop())[1]  # type: ignore[method-assign]
    return gate


def test_a_stop_that_does_not_return_is_given_up_and_reported(job: FakeJob) -> None:
    """A job is at its end when all its queries are; none is left RUNNING."""
    gate = held(job.a)
    job.start()
    job.coordinator.stop(0.5)
    until(lambda: job.b.run.state is State.CANCELED, "the other query's end", END)
    assert job.coordinator.join(END)
    assert job.states() == (State.CANCELED,) * 3
    assert "it did not stop in time: 'stop' was under way" in job.a.run.reason
    assert job.a.states()[-1] == job.b.states()[-1] == job.entered()[-1] == "CANCELED"
    gate.set()
    until(lambda: not job.a.query.running, "the stop, late", END)


def test_two_queries_that_end_in_turn_are_both_canceled(job: FakeJob) -> None:
    """The coordinator does not leave with the first one."""
    gate = held(job.b)
    job.start()
    job.coordinator.stop()
    until(lambda: job.a.run.state is State.CANCELED, "the first end", END)
    assert not job.coordinator.join(0.2) and job.coordinator.state is State.RUNNING
    gate.set()
    assert job.coordinator.join(END)
    assert job.states() == (State.CANCELED,) * 3
    assert job.b.states()[-1] == "CANCELED"


def test_a_drain_that_an_earlier_run_accepted_is_in_force(job: FakeJob) -> None:
    """So that a query with Spark's own sources does not run on after a crash."""
    request(job.a.context.control, "job", "drain")
    again, parts = coordinated(replace(job.a.context, drain=1), job.a.ledger, job.execution)
    drained = parts.request.drained
    assert drained(1) and not drained(2) and not job.parts.request.drained(1)
    job.coordinator = again
    job.start()
    until(lambda: job.b.run.state is State.FINISHED, "the end of the query with Spark's own source", END)
    assert job.a.run.state is State.RUNNING
    job.a.query.commit(position(ended=True))
    assert again.join(END)
    assert [row.status for row in job.a.rows(ControlTransitionRow)] == ["acknowledged"]


def test_a_start_that_is_stopped_ends_as_canceled(job: FakeJob) -> None:
    """A claim is under way: the rest of the start is left out."""
    gate = threading.Event()
    job.a.worker.do("claim", lambda: gate.wait(END), lambda _: None)
    job.coordinator.stop(0.3)
    for command in ("open", "start"):
        in_all(job.coordinator.runs, methodcaller(command), job.a.context, job.coordinator, END)
    job.coordinator.start()
    assert job.coordinator.join(END)
    assert job.states() == (State.CANCELED,) * 3 and not job.a.query.started
    assert "'claim' was under way" in job.a.run.reason and job.b.run.reason == "stopped"
    gate.set()


def test_a_claim_that_does_not_return_is_refused_by_name(job: FakeJob) -> None:
    gate = threading.Event()
    job.a.worker.do("claim", lambda: gate.wait(END), lambda _: None)
    with pytest.raises(StorageError, match=r"the step 'claim' of the start did not end within 0\.1 s") as refused:
        in_all(job.coordinator.runs, _nothing, job.a.context, job.coordinator, 0.1)
    assert "query 'a'" in refused.value.operator
    job.coordinator.refuse()
    assert job.states() == (State.CANCELED,) * 3
    gate.set()
