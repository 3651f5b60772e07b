"""Aligned checkpoints of a running job, with fake queries: what is recorded, and what becomes of those who wait."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ext.errors import CheckpointError, ConfigurationError
from spark_ext.jobs.checkpointing.savepoint_requests import CheckpointRequest, CompletionGate
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow, IncidentRow
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import Running, SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.queries.observer import RECENT
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.worker import Outcome, Worker
from tests.queries.fakes import Bench, position
from tests.support.coordinated import END, RecordedAtOnce, coordinated, execution_of, without_hooks
from tests.support.waiting import until

Linked = Callable[..., "LinkedJob"]

GRAPH = JobGraph((QueryNode("a", (), ("x",)), QueryNode("c", (Reader("x", "c-in"),))))


class LinkedJob:
    """The query `c` reads what `a` writes. Both may have sources of Spark's own as well."""

    def __init__(
        self, folder: Path, *, natives: tuple[str, ...] = (), sources: tuple[str, ...] = ("in",),
        c_natives: tuple[str, ...] = (), graph: JobGraph = GRAPH,
        waiting: Mapping[str, tuple[str, ...]] | None = None, pins: "Pins | None" = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.a = Bench(folder, query="a", worker=Worker("a", self.wake), sources=sources, natives=natives, **settings)
        c_worker = Worker("c", self.wake)
        self.c = Bench(folder, query="c", worker=c_worker, around=self.a, sources=[], fed=["c-in"], natives=c_natives)
        context = replace(self.a.context, first_checkpoint=7)
        self.execution = execution_of([self.a.run, self.c.run], graph, waiting)
        self.recorded = RecordedAtOnce(context)
        self.coordinator, self.parts = coordinated(
            context, self.a.ledger, self.execution, savepoints=pins or self.recorded
        )
        for bench in (self.a, self.c):
            bench.started()
            until(lambda bench=bench: not self._busy(bench), "the start")  # type: ignore[misc]
        self.coordinator.start()

    def _busy(self, bench: Bench) -> str:
        bench.run.deliver()
        return bench.run.busy

    def wake(self) -> None:
        self.a.context.wake.set()

    def ask(self) -> CheckpointRequest:
        """Ask for a checkpoint, and wait until it is triggered."""
        asked = self.parts.aligned.request()
        until(lambda: asked.done.is_set() or self.rows("TRIGGERED"), "the trigger")
        return asked

    def rows(self, status: str) -> list[CheckpointRow]:
        return [row for row in self.a.rows(CheckpointRow) if row.mode == "aligned" and row.status == status]

    def stop(self) -> None:
        self.coordinator.stop()
        assert self.coordinator.join(END)


def at(uid: str, barrier: int, row: int) -> SourceOffset:
    return SourceOffset(uid, running={"0": Running(row)}, barrier=barrier)


@pytest.fixture(autouse=True)
def notices(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The hooks that were called, as (checkpoint, completed)."""
    found: list[tuple[int, bool]] = []

    def called(_: OperatorHooks, number: int, *, completed: bool) -> list[Exception]:
        found.append((number, completed))
        return []

    monkeypatch.setattr(OperatorHooks, "checkpoint", called)
    without_hooks(monkeypatch)
    return found


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    """Makes jobs, which are stopped at the end."""
    made: list[LinkedJob] = []

    def make(**given: Any) -> LinkedJob:
        made.append(LinkedJob(tmp_path, **given))
        return made[-1]

    yield make
    for job in made:
        job.stop()


def test_it_is_recorded_where_the_barrier_has_passed(linked: Linked, notices: list[tuple[int, bool]]) -> None:
    job = linked()
    job.a.query.commit(at("in", 0, 5))
    asked = job.ask()
    (trigger,) = job.rows("TRIGGERED")
    assert (trigger.checkpoint_id, trigger.metadata) == (7, {"stamps": ["in"]})
    job.a.query.commit(at("in", 7, 8))
    job.a.query.commit(at("in", 7, 9))
    job.c.query.commit(at("c-in", 0, 2))
    job.c.query.commit(at("c-in", 7, 4))
    assert asked.wait(END) == 7
    (looks,) = job.recorded.looks
    ((epoch, offsets),) = looks["a"].epochs
    assert (epoch, source_offsets(offsets)["in"].running["0"].at) == (1, 8)
    assert looks["c"].newest == 1 and not looks["c"].finished
    until(lambda: len(notices) == 2, "the hooks")
    second = job.ask()
    until(lambda: len(job.rows("TRIGGERED")) == 2, "the second one")
    job.a.query.commit(at("in", 8, 10))
    job.c.query.commit(at("c-in", 8, 6))
    assert second.wait(END) == 8
    until(lambda: notices == [(7, True)] * 2 + [(8, True)] * 2, "one notice per query and checkpoint")


def test_it_is_recorded_where_it_was_delivered(linked: Linked) -> None:
    """More than a query's run remembers: a fast query continues while a slow one is waited for."""
    pinned = Pins()
    job = linked(pins=pinned)
    job.ask()
    job.a.query.commit(at("in", 7, 0))
    until(lambda: job.a.run.committed == 0, "its cut")
    delivered = job.a.run.recent
    until(lambda: job.parts.aligned.held, "the checkpoint to know of it")
    for row in range(1, RECENT + 2):
        job.a.query.commit(at("in", 7, row))
    until(lambda: job.a.run.committed == RECENT + 1, "what follows")
    assert delivered[0] not in job.a.run.recent
    job.c.query.commit(at("c-in", 7, 4))
    until(lambda: pinned.given, "the checkpoint")
    number, _, mode, looks, *_ = pinned.given[0]
    assert (number, mode) == (7, CheckpointMode.ALIGNED)
    assert (looks["a"].epochs, looks["c"].epochs) == (delivered, job.c.run.recent)
    assert looks["a"].exact and looks["c"].exact


class Pins:
    """In the place of `Savepoints`: what is given to be recorded, and nobody does so."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.take_id = lambda: 7
        self.gates: list[CompletionGate] = []

    def pin(self, *given: Any) -> CompletionGate:
        self.gates.append(CompletionGate())
        self.given.append(given)
        return self.gates[-1]

    def tick(self) -> None: ...

    def end(self, reason: str) -> None: ...


def recording(linked: Linked) -> tuple[LinkedJob, Pins, CheckpointRequest]:
    """A checkpoint of which only the recording is left."""
    pinned = Pins()
    job = linked(pins=pinned)
    asked = job.ask()
    job.a.query.commit(at("in", 7, 8))
    job.c.query.commit(at("c-in", 7, 4))
    until(lambda: pinned.given, "the recording")
    return job, pinned, asked


def test_time_does_not_abort_what_is_being_recorded(linked: Linked) -> None:
    """Nobody would undo what is written by then: the caller would see that it has failed, and it would be there."""
    job, pinned, asked = recording(linked)
    then = pinned.given[0][5]
    job.parts.aligned.tick(float("inf"))
    assert not asked.done.is_set() and not job.rows("FAILED")
    pinned.gates[0].complete()
    then(Outcome())
    assert asked.wait(END) == 7
    job.stop()
    assert not job.rows("FAILED")


def test_a_stop_gives_up_what_is_being_recorded(linked: Linked) -> None:
    job, pinned, asked = recording(linked)
    job.stop()
    with pytest.raises(CheckpointError, match="the job is ending"):
        asked.wait(END)
    assert len(job.rows("FAILED")) == 1
    with pytest.raises(CheckpointError, match="was given up while it was being recorded: the job is ending"):
        pinned.gates[0].complete()


def test_a_stop_does_not_declare_a_complete_one_to_have_failed(linked: Linked) -> None:
    job, pinned, asked = recording(linked)
    pinned.gates[0].complete()
    job.stop()
    with pytest.raises(CheckpointError, match="has ended while checkpoint 7 was being recorded"):
        asked.wait(END)
    assert not job.rows("FAILED")


def test_releases_keep_what_it_has_delivered(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    job = linked()
    kept: list[Any] = []
    monkeypatch.setattr(job.parts.exchanges, "tick", lambda now, held: kept.append(held()))
    asked = job.ask()
    job.c.query.commit(at("c-in", 7, 4))
    job.c.query.commit(at("c-in", 7, 6))
    until(lambda: job.c.run.committed == 1, "the epochs")
    kept.clear()
    until(lambda: kept, "a further look")
    assert kept[-1] == {"c": job.c.run.recent[-2][1]}
    job.a.query.commit(at("in", 7, 8))
    assert asked.wait(END) == 7
    until(lambda: kept[-1] == {}, "a look after its end")


@pytest.mark.core
def test_u4_one_that_takes_too_long_is_aborted_once(linked: Linked, notices: list[tuple[int, bool]]) -> None:
    job = linked(checkpoint_timeout=50)
    job.a.query.commit(at("in", 0, 5))
    with pytest.raises(CheckpointError, match="did not complete in time; still missing: a, c"):
        job.ask().wait(END)
    assert [row.reason for row in job.rows("FAILED")] == ["it did not complete in time; still missing: a, c"]
    assert [row.action for row in job.a.rows(IncidentRow) if row.type == "checkpoint"] == ["aborted"]
    until(lambda: len(notices) == 2, "the hooks")
    assert notices == [(7, False)] * 2
    job.a.query.commit(at("in", 8, 8))
    job.c.query.commit(at("c-in", 8, 4))
    until(lambda: job.c.run.committed == 0, "the epochs")
    assert job.parts.aligned.request().wait(END) == 8
    assert job.coordinator.state is State.RUNNING


def test_more_failures_in_a_row_than_are_tolerated_fail_the_job(linked: Linked) -> None:
    job = linked(checkpoint_timeout=20, tolerable_failed_checkpoints=1)
    for _ in range(2):
        with pytest.raises(CheckpointError):
            job.parts.aligned.request().wait(END)
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.FAILED
    assert "2 checkpoints in a row have failed" in str(job.coordinator.failure)


def test_a_stop_aborts_the_pending_one_and_refuses_later_ones(linked: Linked) -> None:
    job = linked()
    asked = job.ask()
    job.stop()
    with pytest.raises(CheckpointError, match="the job is ending"):
        asked.wait(END)
    with pytest.raises(CheckpointError, match="the job is ending"):
        job.parts.aligned.request().wait(END)
    assert len(job.rows("FAILED")) == 1


def test_p7_a_query_that_finishes_meanwhile_does_not_fail_it(linked: Linked) -> None:
    job = linked()
    asked = job.ask()
    job.a.query.commit(position(ended=True))
    until(lambda: job.a.run.state is State.FINISHED, "the end of a")
    job.c.query.commit(position("c-in", ended=True))
    assert asked.wait(END) == 7, "F8: before the job is FINISHED"
    assert job.coordinator.join(END) and job.coordinator.state is State.FINISHED
    (done,) = job.rows("COMPLETED")
    assert done.metadata["queries"]["a"]["finished"] and not job.rows("FAILED")


def test_p5_a_query_that_does_not_run_refuses_it_by_name(linked: Linked) -> None:
    job = linked(restart_backoff=60_000)
    job.c.query.end(OSError("the disk is full"))
    until(lambda: job.c.run.state is State.RESTARTING, "the restart")
    with pytest.raises(CheckpointError, match="query 'c': the query is being restarted"):
        job.ask().wait(END)
    assert not job.rows("TRIGGERED")


def test_a_query_of_native_sources_that_feeds_others_refuses_it(linked: Linked) -> None:
    job = linked(natives=("rate",), sources=())
    with pytest.raises(CheckpointError, match="query 'a' writes an exchange, and has only sources of Spark's own"):
        job.ask().wait(END)


def test_with_only_native_sources_left_the_cut_is_the_newest(linked: Linked) -> None:
    """Whether its other source ended before the trigger or after; where the barrier came first, the cut is there."""
    job = linked(c_natives=("rate",))
    asked = job.ask()
    job.a.query.commit(at("in", 7, 8))
    job.c.query.commit(at("c-in", 7, 4))
    job.c.query.commit(position("c-in", ended=True, barrier=7), {"rate": 1})
    assert asked.wait(END) == 7
    asked = job.ask()
    until(lambda: len(job.rows("TRIGGERED")) == 2, "the second one")
    job.c.query.commit(position("c-in", ended=True, barrier=7), {"rate": 2})
    job.a.query.commit(at("in", 8, 9))
    assert asked.wait(END) == 8
    first, second = (row.metadata["queries"]["c"]["epoch"] for row in job.rows("COMPLETED"))
    assert (first, second) in ((0, 1), (0, 2))


def test_a_producer_whose_channels_have_ended_refuses_it(linked: Linked) -> None:
    """One that is drained, or ends with what is there, is about to finish: those behind it need no barrier then."""
    job = linked(natives=("rate",), checkpoint_timeout=100)
    job.a.query.commit(position("in", ended=True), {"rate": 2})
    until(lambda: job.a.run.committed == 0, "the epoch")
    with pytest.raises(CheckpointError, match="or others that have ended"):
        job.parts.aligned.request().wait(END)
    job.a.run.launcher.spec = replace(job.a.spec, available_now=True)
    with pytest.raises(CheckpointError, match="still missing: a, c"):
        job.ask().wait(END)


def test_with_a_time_limit_it_turns_unaligned_without_barriers(linked: Linked) -> None:
    pinned = Pins()
    linked(natives=("rate",), sources=(), aligned_timeout=0, pins=pinned).parts.aligned.request()
    until(lambda: pinned.given, "the recording")
    assert pinned.given[0][2] is CheckpointMode.UNALIGNED


def test_a_query_that_is_stopped_from_outside_aborts_it(linked: Linked) -> None:
    job = linked()
    asked = job.ask()
    job.c.query.end()
    with pytest.raises(CheckpointError, match="query 'c': the query was canceled before its end"):
        asked.wait(END)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_query_whose_producer_is_not_built_yet_begins_it(linked: Linked, sealed: bool) -> None:
    """Nobody delivers it a barrier, and no gate opens meanwhile. What is sealed needs none."""
    job = linked(graph=JobGraph((QueryNode("a"), QueryNode("c"), QueryNode("p", after=("a",)))), waiting={"p": ("a",)})
    job.parts.exchanges.ended_readers = frozenset({"c-in"} if sealed else ())
    job.ask()
    (trigger,) = job.rows("TRIGGERED")
    assert trigger.metadata == {"stamps": ["in"] if sealed else ["in", "c-in"]}


def test_what_a_hook_raises_is_recorded_and_changes_nothing(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ConfigurationError("no such table", operator="source 'in'", kept="all", do="make it")
    monkeypatch.setattr(OperatorHooks, "checkpoint", lambda *_, **__: [problem])
    job = linked()
    asked = job.ask()
    job.a.query.commit(at("in", 7, 8))
    job.c.query.commit(at("c-in", 7, 4))
    assert asked.wait(END) == 7

    def recorded() -> list[str]:
        return [row.action for row in job.a.rows(IncidentRow) if row.type == "checkpoint"]

    until(lambda: recorded() == ["ignored"] * 2, "the incidents")
    assert job.coordinator.state is State.RUNNING


def test_somebody_who_waits_too_short_a_time_leaves_it_under_way() -> None:
    with pytest.raises(TimeoutError, match="is not complete after"):
        CheckpointRequest().wait(0.01)
