"""Aligned checkpoints of a running job, with fake queries: what is recorded, and what becomes of those who wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ext.checkpoints.unaligned import Taken
from spark_ext.errors import CheckpointError, ConfigurationError
from spark_ext.jobs.checkpointing.checkpoint_request import Request, wait_for
from spark_ext.jobs.checkpointing.savepoint_requests import Verdict
from spark_ext.jobs.coordinator import Coordinator
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow, IncidentRow
from spark_ext.model.cut import Cut, CutPoint
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import Running, SourceOffset
from spark_ext.queries.observer import RECENT
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.worker import Outcome, Worker
from tests.queries.fakes import Bench, position
from tests.support.waiting import until

END = 10.0
"""Longer than any of these jobs takes, s."""

GRAPH = JobGraph((QueryNode("a", (), ("x",)), QueryNode("c", (Reader("x", "c-in"),))))


class LinkedJob:
    """The query `c` reads what `a` writes. Both may have sources of Spark's own as well."""

    def __init__(
        self,
        folder: Path,
        natives: tuple[str, ...] = (),
        *,
        sources: tuple[str, ...] = ("in",),
        c_natives: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        self.a = Bench(folder, query="a", worker=Worker("a", self.wake), sources=sources, natives=natives, **settings)
        c_worker = Worker("c", self.wake)
        self.c = Bench(folder, query="c", worker=c_worker, around=self.a, sources=[], fed=["c-in"], natives=c_natives)
        ledger: Any = self.a.ledger
        context = replace(self.a.context, first_checkpoint=7)
        self.coordinator = Coordinator(context, ledger, [self.a.run, self.c.run], {}, graph=GRAPH)
        for bench in (self.a, self.c):
            bench.started()
            until(lambda bench=bench: not self._busy(bench), "the start")  # type: ignore[misc]
        self.coordinator.start()

    def _busy(self, bench: Bench) -> str:
        bench.run.deliver()
        return bench.run.busy

    def wake(self) -> None:
        self.a.context.wake.set()

    def ask(self) -> Request:
        """Ask for a checkpoint, and wait until it is triggered."""
        asked = self.coordinator.checkpoint()
        until(lambda: asked.done.is_set() or self.rows("TRIGGERED"), "the trigger")
        return asked

    def rows(self, status: str) -> list[CheckpointRow]:
        return [row for row in self.a.rows(CheckpointRow) if row.mode == "aligned" and row.status == status]

    def stop(self) -> None:
        self.coordinator.stop()
        assert self.coordinator.join(END)


def at(uid: str, barrier: int, row: int) -> SourceOffset:
    return SourceOffset(uid, running={"0": Running(row)}, barrier=barrier)


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The hooks that were called, as (checkpoint, completed)."""
    found: list[tuple[int, bool]] = []

    def called(_: OperatorHooks, number: int, *, completed: bool) -> list[Exception]:
        found.append((number, completed))
        return []

    monkeypatch.setattr(OperatorHooks, "checkpoint", called)
    for hook in ("end_of_input", "final_checkpoint", "not_finalized"):
        monkeypatch.setattr(OperatorHooks, hook, lambda *_: None)
    monkeypatch.setattr(OperatorHooks, "close", lambda *_: [])
    return found


def test_it_is_recorded_where_the_barrier_has_passed(tmp_path: Path, notices: list[tuple[int, bool]]) -> None:
    job = LinkedJob(tmp_path)
    job.a.query.commit(at("in", 0, 5))
    asked = job.ask()
    (trigger,) = job.rows("TRIGGERED")
    assert (trigger.checkpoint_id, trigger.metadata) == (7, {"stamps": ["in"]})
    job.a.query.commit(at("in", 7, 8))
    job.a.query.commit(at("in", 7, 9))
    job.c.query.commit(at("c-in", 0, 2))
    job.c.query.commit(at("c-in", 7, 4))
    assert wait_for(asked, END) == 7
    (done,) = job.rows("COMPLETED")
    queries = done.metadata["queries"]
    assert (queries["a"]["epoch"], queries["a"]["sources"]["in"]["offset"]["running"]["0"]["at"]) == (1, 8)
    assert queries["c"]["epoch"] == 1 and not queries["c"]["finished"]
    until(lambda: len(notices) == 2, "the hooks")
    second = job.ask()
    until(lambda: len(job.rows("TRIGGERED")) == 2, "the second one")
    job.a.query.commit(at("in", 8, 10))
    job.c.query.commit(at("c-in", 8, 6))
    assert wait_for(second, END) == 8
    until(lambda: notices == [(7, True)] * 2 + [(8, True)] * 2, "one notice per query and checkpoint")
    job.stop()


def test_it_is_recorded_where_it_was_delivered_however_many_epochs_follow(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    """More than a query's run remembers: a fast query continues while a slow one is waited for."""
    job = LinkedJob(tmp_path)
    pinned = pins_of(job)
    job.ask()
    job.a.query.commit(at("in", 7, 0))
    until(lambda: job.a.run.committed == 0, "its cut")
    delivered = job.a.run.recent
    until(lambda: job.coordinator._aligned.held, "the checkpoint to know of it")
    for row in range(1, RECENT + 2):
        job.a.query.commit(at("in", 7, row))
    until(lambda: job.a.run.committed == RECENT + 1, "what follows")
    assert delivered[0] not in job.a.run.recent
    job.c.query.commit(at("c-in", 7, 4))
    until(lambda: pinned, "the checkpoint")
    number, _, mode, _, looks, *_ = pinned[0]
    assert (number, mode) == (7, CheckpointMode.ALIGNED)
    assert (looks["a"].epochs, looks["c"].epochs) == (delivered, job.c.run.recent)
    assert looks["a"].exact and looks["c"].exact
    job.stop()


def pins_of(job: LinkedJob) -> list[Any]:
    """What is given to be recorded; nobody does so. The last item of each is its verdict."""
    pinned: list[Any] = []

    def pin(*given: Any) -> Verdict:
        pinned.append((*given, Verdict()))
        return pinned[-1][-1]

    job.coordinator._aligned._savepoints = SimpleNamespace(pin=pin)  # type: ignore[assignment]
    return pinned


def delivered(job: LinkedJob) -> Request:
    """A checkpoint of which only the recording is left."""
    asked = job.ask()
    job.a.query.commit(at("in", 7, 8))
    job.c.query.commit(at("c-in", 7, 4))
    return asked


def test_time_does_not_abort_what_is_being_recorded(tmp_path: Path, notices: list[tuple[int, bool]]) -> None:
    """Nobody would undo what is written by then: the caller would see that it has failed, and it would be there."""
    job = LinkedJob(tmp_path)
    pinned = pins_of(job)
    asked = delivered(job)
    until(lambda: pinned, "the recording")
    then = pinned[0][6]
    job.coordinator._aligned._watch(job.coordinator._aligned._pending, float("inf"), job.coordinator.runs)  # type: ignore[arg-type]
    assert not asked.done.is_set() and not job.rows("FAILED")
    pinned[0][-1].complete()
    then(Outcome())
    assert wait_for(asked, END) == 7
    job.stop()
    assert not job.rows("FAILED")


def test_a_stop_gives_up_what_is_being_recorded_and_whoever_records_it_learns_of_it(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path)
    pinned = pins_of(job)
    asked = delivered(job)
    until(lambda: pinned, "the recording")
    job.stop()
    with pytest.raises(CheckpointError, match="the job is ending"):
        wait_for(asked, END)
    assert len(job.rows("FAILED")) == 1
    with pytest.raises(CheckpointError, match="was given up while it was being recorded: the job is ending"):
        pinned[0][-1].complete()


def test_a_stop_does_not_declare_a_complete_one_to_have_failed(tmp_path: Path, notices: list[tuple[int, bool]]) -> None:
    job = LinkedJob(tmp_path)
    pinned = pins_of(job)
    asked = delivered(job)
    until(lambda: pinned, "the recording")
    pinned[0][-1].complete()
    job.stop()
    with pytest.raises(CheckpointError, match="has ended while checkpoint 7 was being recorded"):
        wait_for(asked, END)
    assert not job.rows("FAILED")


def test_releases_know_what_it_has_delivered_until_it_is_recorded(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path)
    kept: list[Any] = []
    exchanges: Any = SimpleNamespace(
        newest=None,
        graph=GRAPH,
        links=(),
        ended_readers=frozenset(),
        tick=lambda now, looks, held: kept.append(held()),
        close=lambda: None,
        busy="",
    )
    job.coordinator._exchanges = exchanges
    asked = job.ask()
    job.c.query.commit(at("c-in", 7, 4))
    job.c.query.commit(at("c-in", 7, 6))
    until(lambda: job.c.run.committed == 1, "the epochs")
    kept.clear()
    until(lambda: kept, "a further look")
    assert kept[-1] == {"c": job.c.run.recent[-2][1]}
    job.a.query.commit(at("in", 7, 8))
    assert wait_for(asked, END) == 7
    until(lambda: kept[-1] == {}, "a look after its end")
    job.stop()


@pytest.mark.core
def test_u4_one_that_takes_too_long_is_aborted_once_and_the_next_one_may_complete(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path, checkpoint_timeout=50)
    job.a.query.commit(at("in", 0, 5))
    with pytest.raises(CheckpointError, match="did not complete in time; still missing: a, c"):
        wait_for(job.ask(), END)
    assert [row.reason for row in job.rows("FAILED")] == ["it did not complete in time; still missing: a, c"]
    assert [row.action for row in job.a.rows(IncidentRow) if row.type == "checkpoint"] == ["aborted"]
    until(lambda: len(notices) == 2, "the hooks")
    assert notices == [(7, False)] * 2
    job.a.query.commit(at("in", 8, 8))
    job.c.query.commit(at("c-in", 8, 4))
    until(lambda: job.c.run.committed == 0, "the epochs")
    asked = job.coordinator.checkpoint()
    assert wait_for(asked, END) == 8
    assert job.coordinator.state is State.RUNNING
    job.stop()


def test_one_that_waits_too_long_turns_unaligned(tmp_path: Path, notices: list[tuple[int, bool]]) -> None:
    """With a cut that was taken after it was triggered; a barrier that was stamped does no harm."""
    job = LinkedJob(tmp_path, aligned_timeout=1)
    job.a.query.commit(at("in", 0, 5))
    job.c.query.commit(at("c-in", 0, 2))
    until(lambda: job.a.run.committed == job.c.run.committed == 0, "the epochs")
    exchanges: Any = SimpleNamespace(
        newest=None,
        graph=GRAPH,
        links=(),
        ended_readers=frozenset(),
        tick=lambda *_: None,
        close=lambda: None,
        busy="",
    )
    job.coordinator._exchanges = exchanges
    cut = Cut({"a": CutPoint(0), "c": CutPoint(None)}, ())
    earlier = Taken(cut, {"a": job.a.run.offsets, "c": None}, 3, datetime.now(timezone.utc))
    exchanges.newest = earlier
    asked = job.ask()
    job.a.query.commit(at("in", 7, 8))
    until(lambda: job.a.run.committed == 1, "the epoch with the barrier")
    assert not asked.done.is_set(), "that cut was taken before"
    exchanges.newest = replace(earlier, at=datetime.now(timezone.utc))
    assert wait_for(asked, END) == 7
    (row,) = (row for row in job.a.rows(CheckpointRow) if row.status == "COMPLETED")
    assert (row.checkpoint_id, row.mode, row.rows_in_flight) == (7, "unaligned", 3)
    assert [row.metadata["queries"][uid]["epoch"] for uid in ("a", "c")] == [0, None]
    job.stop()


def test_more_failures_in_a_row_than_are_tolerated_fail_the_job(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path, checkpoint_timeout=20, tolerable_failed_checkpoints=1)
    for _ in range(2):
        with pytest.raises(CheckpointError):
            wait_for(job.coordinator.checkpoint(), END)
    assert job.coordinator.join(END)
    assert job.coordinator.state is State.FAILED
    assert "2 checkpoints in a row have failed" in str(job.coordinator.failure)


def test_a_stop_aborts_what_is_under_way_and_refuses_what_comes_later(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path)
    asked = job.ask()
    job.stop()
    with pytest.raises(CheckpointError, match="the job is ending"):
        wait_for(asked, END)
    with pytest.raises(CheckpointError, match="the job is ending"):
        wait_for(job.coordinator.checkpoint(), END)
    assert len(job.rows("FAILED")) == 1


def test_p7_a_query_that_finishes_meanwhile_does_not_fail_it(tmp_path: Path, notices: list[tuple[int, bool]]) -> None:
    job = LinkedJob(tmp_path)
    asked = job.ask()
    job.a.query.commit(position(ended=True))
    until(lambda: job.a.run.state is State.FINISHED, "the end of a")
    job.c.query.commit(position("c-in", ended=True))
    assert wait_for(asked, END) == 7, "F8: before the job is FINISHED"
    assert job.coordinator.join(END) and job.coordinator.state is State.FINISHED
    (done,) = job.rows("COMPLETED")
    assert done.metadata["queries"]["a"]["finished"] and not job.rows("FAILED")


def test_p5_a_query_that_does_not_run_refuses_it_by_name(tmp_path: Path, notices: list[tuple[int, bool]]) -> None:
    job = LinkedJob(tmp_path, restart_backoff=60_000)
    job.c.query.end(OSError("the disk is full"))
    until(lambda: job.c.run.state is State.RESTARTING, "the restart")
    with pytest.raises(CheckpointError, match="query 'c': the query is being restarted"):
        wait_for(job.ask(), END)
    assert not job.rows("TRIGGERED")
    job.stop()


def test_a_query_of_sparks_own_sources_that_feeds_others_refuses_it(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path, natives=("rate",), sources=())
    with pytest.raises(CheckpointError, match="query 'a' writes an exchange, and has only sources of Spark's own"):
        wait_for(job.ask(), END)
    job.stop()


def test_a_query_of_which_only_sparks_own_sources_are_left_has_its_cut_at_its_newest_epoch(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path, c_natives=("rate",))
    asked = job.ask()
    job.a.query.commit(at("in", 7, 8))
    job.c.query.commit(at("c-in", 7, 4))
    job.c.query.commit(position("c-in", ended=True, barrier=7), {"rate": 1})
    assert wait_for(asked, END) == 7
    asked = job.ask()
    until(lambda: len(job.rows("TRIGGERED")) == 2, "the second one")
    job.c.query.commit(position("c-in", ended=True, barrier=7), {"rate": 2})
    job.a.query.commit(at("in", 8, 9))
    assert wait_for(asked, END) == 8
    first, second = (row.metadata["queries"]["c"]["epoch"] for row in job.rows("COMPLETED"))
    assert (first, second) in ((0, 1), (0, 2))
    job.stop()


def test_a_query_that_feeds_others_and_whose_sources_with_barriers_have_ended_refuses_it(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    """One that is drained, or ends with what is there, is about to finish: those behind it need no barrier then."""
    job = LinkedJob(tmp_path, natives=("rate",), checkpoint_timeout=100)
    job.a.query.commit(position("in", ended=True), {"rate": 2})
    until(lambda: job.a.run.committed == 0, "the epoch")
    with pytest.raises(CheckpointError, match="or others that have ended"):
        wait_for(job.coordinator.checkpoint(), END)
    job.a.run._launcher.spec = replace(job.a.spec, available_now=True)
    with pytest.raises(CheckpointError, match="still missing: a, c"):
        wait_for(job.ask(), END)
    job.stop()


def test_with_a_limit_of_time_it_turns_unaligned_where_nobody_delivers_the_barrier(
    tmp_path: Path, notices: list[tuple[int, bool]]
) -> None:
    job = LinkedJob(tmp_path, natives=("rate",), sources=(), aligned_timeout=0)
    pinned = pins_of(job)
    job.coordinator.checkpoint()
    until(lambda: pinned, "the recording")
    assert pinned[0][2] is CheckpointMode.UNALIGNED
    job.stop()


def test_a_query_that_is_stopped_from_outside_aborts_it(tmp_path: Path, notices: list[tuple[int, bool]]) -> None:
    job = LinkedJob(tmp_path)
    asked = job.ask()
    job.c.query.end()
    with pytest.raises(CheckpointError, match="query 'c': the query was canceled before its end"):
        wait_for(asked, END)
    job.stop()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_query_whose_producer_is_not_built_yet_begins_it(
    tmp_path: Path, notices: list[tuple[int, bool]], sealed: bool
) -> None:
    job = LinkedJob(tmp_path)
    graph = JobGraph((QueryNode("a"), QueryNode("c"), QueryNode("p", after=("a",))))
    gates: Any = SimpleNamespace(uids=("p",), failure=None, tick=lambda _: (), close=lambda: None)
    job.coordinator._gates = gates
    job.coordinator._exchanges = SimpleNamespace(  # type: ignore[assignment]
        newest=None,
        graph=graph,
        links=(),
        ended_readers=frozenset({"c-in"} if sealed else ()),
        tick=lambda *_: None,
        close=lambda: None,
        busy="",
    )
    job.ask()
    (trigger,) = job.rows("TRIGGERED")
    assert trigger.metadata == {"stamps": ["in"] if sealed else ["in", "c-in"]}
    job.stop()


def test_what_a_hook_raises_is_recorded_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ConfigurationError("no such table", operator="source 'in'", kept="all", do="make it")
    monkeypatch.setattr(OperatorHooks, "checkpoint", lambda *_, **__: [problem])
    job = LinkedJob(tmp_path)
    asked = job.ask()
    job.a.query.commit(at("in", 7, 8))
    job.c.query.commit(at("c-in", 7, 4))
    assert wait_for(asked, END) == 7

    def recorded() -> list[str]:
        return [row.action for row in job.a.rows(IncidentRow) if row.type == "checkpoint"]

    until(lambda: recorded() == ["ignored"] * 2, "the incidents")
    assert job.coordinator.state is State.RUNNING
    job.stop()


def test_somebody_who_waits_too_short_a_time_leaves_it_under_way() -> None:
    with pytest.raises(TimeoutError, match="is not complete after"):
        wait_for(replace(Request()), 0.01)
