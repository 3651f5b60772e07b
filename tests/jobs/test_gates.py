"""Queries behind others, with fake queries: when they are built, what they mean for the job, the order of the end."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ext.errors import DataError, TransientError
from spark_ext.jobs.composition import Gate
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import UntilNow
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.run import QueryRun
from spark_ext.queries.worker import Worker
from tests.queries.fakes import Bench, position
from tests.support.coordinated import END, coordinated, execution_of, without_hooks
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_hooks(monkeypatch, "claim", "open")


class GatedJob:
    """The query `b` waits for `a`; `c` reads what `a` writes."""

    def __init__(self, folder: Path, build: Callable[[], None] = lambda: None, **context: Any) -> None:
        self.a = Bench(folder, query="a", worker=Worker("a", self.wake), until=context.pop("until", None))
        self.a.context = replace(self.a.context, **context)
        self.b = Bench(folder, query="b", worker=Worker("b", self.wake), around=self.a, sources=["b-in"])
        self.c = Bench(folder, query="c", worker=Worker("c", self.wake), around=self.a, sources=["c-in"])
        self.recorded: list[str] = []

        def built(gate: Gate) -> QueryRun:
            assert self.a.run.state is State.FINISHED, "not before"
            assert threading.current_thread().name.startswith("spark-ext-gates"), "it may take time"
            build()
            return self.b.run

        gate = Gate("b", ("a",), lambda: None)
        begin: Callable[[QueryRun], None] = lambda run: run.begin_late(lambda: self.recorded.append(run.spec.uid))  # noqa: E731
        c = QueryNode("c", (Reader("x", "c-in"),))
        graph = JobGraph((QueryNode("a", (), ("x",)), c, QueryNode("b", after=("a",))))
        self.execution = execution_of([self.a.run, self.c.run], graph, {"b": ("a",)})
        self.coordinator, self.parts = coordinated(
            self.a.context, self.a.ledger, self.execution, gates=[gate], build=built, begin=begin
        )
        for bench in (self.a, self.c):
            bench.started()
        until(lambda: not any(self._idle(bench) for bench in (self.a, self.c)), "the starts")
        self.coordinator.start()

    def _idle(self, bench: Bench) -> str:
        bench.run.deliver()
        return bench.run.busy

    def wake(self) -> None:
        self.a.context.wake.set()

    def state(self) -> State:
        return self.coordinator.state

    def finished(self) -> list[str]:
        return [row.operator for row in self.a.rows(ExecutionStateRow) if row.state == "FINISHED" and row.operator]


def test_a_query_is_built_when_the_other_has_finished(tmp_path: Path) -> None:
    job = GatedJob(tmp_path)
    assert [run.spec.uid for run in job.coordinator.runs] == ["a", "c"], "it counts in no state"
    job.c.query.commit(position("c-in", ended=True))
    until(lambda: job.c.run.state is State.FINISHING, "the end of c")
    job.a.query.commit(position(ended=True))
    # The job's state follows from those of its queries, a moment later.
    until(lambda: job.b.run.state is job.state() is State.RUNNING, "the start of b")
    assert job.recorded == ["b"] and not job.execution.waiting
    job.b.query.commit(position("b-in", ended=True))
    assert job.coordinator.join(END)
    assert job.state() is State.FINISHED
    assert job.finished() == ["a", "c", "b"], "c had all its input first: queries finish in the order of the flow"


def test_a_drain_leaves_gated_queries_to_the_next_run(tmp_path: Path) -> None:
    job = GatedJob(tmp_path, until=UntilNow(), drain=1)
    for query, uid in ((job.a, "in"), (job.c, "c-in")):
        query.query.commit(position(uid, ended=True))
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.SUSPENDED and job.finished() == ["a", "c"]
    assert job.b.query.starts == 0 and list(job.execution.waiting) == ["b"]


def test_a_stop_leaves_out_what_is_not_built(tmp_path: Path) -> None:
    job = GatedJob(tmp_path)
    job.coordinator.stop()
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.CANCELED and job.b.query.starts == 0


def test_a_failure_of_the_other_query_ends_the_job_without_it(tmp_path: Path) -> None:
    """It can never be built."""
    job = GatedJob(tmp_path)
    job.a.query.end(DataError("the file is truncated"))
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.FAILED and job.b.query.starts == 0


def test_what_cannot_be_built_fails_the_job_by_name(tmp_path: Path) -> None:
    def build() -> None:
        raise KeyError("dimension")

    job = GatedJob(tmp_path, build)
    job.a.query.commit(position(ended=True))
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.FAILED
    failure = job.coordinator.failure
    assert failure is not None and "query 'b'" in failure.operator and "KeyError" in failure.what
    (incident,) = job.a.rows(IncidentRow)
    states = [row for row in job.a.rows(ExecutionStateRow) if not row.operator and row.state in ("FAILING", "FAILED")]
    assert states and {row.incident for row in states} == {incident.incident_id} and "KeyError" in incident.what
    assert (incident.labels["type"], incident.labels["origin"]) == ("USER_CODE", "user")


def test_a_start_that_fails_is_tried_again_with_all_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late query is started like one that has failed: alone, and it may not run before its target is claimed."""
    claims = []

    def claim(hooks: OperatorHooks) -> None:
        claims.append(hooks)
        if len(claims) == 1:
            raise TransientError("the server is restarting")

    monkeypatch.setattr(OperatorHooks, "claim", claim)
    job = GatedJob(tmp_path)
    job.a.query.commit(position(ended=True))
    until(lambda: job.b.run.state is State.RUNNING, "the second start of b")
    assert len(claims) == 2 and job.recorded == ["b"] and job.b.query.starts == 1
    job.coordinator.stop()
    assert job.coordinator.join(END)
