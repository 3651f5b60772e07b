"""Supervision of one query, with a fake query, ledger and clock: starts, epochs, failures, restarts, stop and drain."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_ext.errors import DataError, SparkExtError, StateError, StorageError
from spark_ext.jobs.starting.start import needs_spark
from spark_ext.ledger.schema import EpochRow, ExecutionStateRow, FinishedRow, IncidentChangeRow, IncidentRow
from spark_ext.model.lifecycle import IllegalTransition, State, can_follow
from spark_ext.queries.history import ASK_AFTER
from spark_ext.queries.observer import LIST_EVERY
from spark_ext.sources.runtime.view import PlannerView
from spark_ext.spark.backend.contract import OwnEnd
from spark_ext.spark.session import registry
from spark_ext.spark.watching.query_events import Hint
from tests.queries.fakes import QUERY_ID, TASK_LOST, Bench, java_failure, position, without_source_hooks

PASSING = TASK_LOST
POISON = DataError("the file is truncated")
OUTAGE = StorageError("the database is down")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path).started()


def test_planners_are_told_which_barriers_precede_the_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.context = replace(bench.context, first_checkpoint=7)
    bench.run = bench.made()
    bench.started()
    found = registry.lookup("in", bench.context.registry)
    assert found is not None
    known, _ = PlannerView(found).barriers()
    assert not known.any_pending(0, upto=6)
    assert known.any_pending(0, upto=7)


@pytest.mark.parametrize("planned", [False, True])
def test_state_that_no_epoch_has_written_is_removed(tmp_path: Path, planned: bool) -> None:
    bench = Bench(tmp_path)
    left = Path(bench.run.checkpoint) / "state/0/0/1.zip"
    left.parent.mkdir(parents=True)
    left.touch()
    if planned:
        bench.query.plan(position("in"))
    bench.started()
    assert left.exists() is planned


def test_committed_epochs_become_rows_and_flags_once(bench: Bench) -> None:
    run, query = bench.run, bench.query
    assert (query.starts, run.state, run.query_id, run.committed) == (1, State.RUNNING, QUERY_ID, -1)
    query.plan(position(finished=1))
    bench.tick()
    assert run.committed == -1 and not bench.rows(FinishedRow) and bench.states() == ["RUNNING"]
    query.commit_planned()
    query.commit(position(finished=3))
    bench.tick(times=2)
    assert run.committed == 1
    assert [(row.sequence, row.epoch) for row in bench.rows(FinishedRow)] == [(1, 1), (2, 1), (3, 1)]
    query.commit(position(finished=4))
    bench.tick()
    assert [(row.sequence, row.epoch) for row in bench.rows(FinishedRow)][3:] == [(4, 2)]
    run.observe_late()
    assert [(row.epoch, row.query_id) for row in bench.rows(EpochRow)] == [(epoch, QUERY_ID) for epoch in range(3)]


def test_figures_come_by_events_of_this_query_or_are_asked_for(bench: Bench) -> None:
    bench.query.commit(position())
    bench.query.commit(position())
    bench.run.report(Hint("progress", "another", "run", 0, 99, 1, 0))
    bench.run.report(Hint("progress", QUERY_ID, "run", 0, 7, 20, 2))
    bench.run.report(Hint("terminated", QUERY_ID, "run"))
    bench.tick()
    assert [(row.epoch, row.input_rows) for row in bench.rows(EpochRow)] == [(0, 7)]
    bench.query.hints = [Hint("progress", QUERY_ID, "run", epoch, 5, 30, 2) for epoch in range(2)]
    bench.tick(ASK_AFTER)
    assert [(row.epoch, row.input_rows) for row in bench.rows(EpochRow)] == [(0, 7), (1, 5)]
    assert (bench.run.figures.epochs, bench.run.figures.input_rows) == (2, 12)


def test_figures_of_a_query_that_has_ended_are_asked_for(bench: Bench) -> None:
    """Other queries of the job still run. Over Spark Connect no event brings the figures."""
    bench.query.commit(position())
    bench.tick()
    bench.run.request_stop()
    bench.tick()
    assert bench.state() is State.CANCELED and not bench.rows(EpochRow)
    bench.query.hints = [Hint("progress", QUERY_ID, "run", 0, 7, 30, 2)]
    bench.tick(ASK_AFTER)
    bench.tick()
    assert [(row.epoch, row.input_rows) for row in bench.rows(EpochRow)] == [(0, 7)]
    assert bench.run.figures.input_rows == 7


def test_the_end_of_input_comes_when_the_last_source_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_source_hooks(monkeypatch)
    bench = Bench(tmp_path, sources=["a", "b"]).started()
    bench.commits(position("a", ended=True), position("b"))
    assert bench.state() is State.RUNNING
    bench.commits(position("a", ended=True), position("b", ended=True))
    assert bench.state() is State.FINISHING
    bench.run.finished()
    assert bench.states() == ["RUNNING", "FINISHING", "FINISHED"]


def test_a_late_look_finds_all_epochs_despite_sparks_removals(bench: Bench) -> None:
    """300 epochs behind, of which Spark has kept the last 100."""
    for epoch in range(300):
        bench.query.commit(position(finished=1 + epoch // 10))
    for epoch in range(200):
        for folder in ("offsets", "commits"):
            (bench.query.checkpoint / folder / str(epoch)).unlink()
    bench.tick()
    bench.tick(LIST_EVERY)
    assert (bench.run.committed, bench.run.offsets is not None) == (299, True)
    assert [row.sequence for row in bench.rows(FinishedRow)] == list(range(1, 31))
    bench.query.commit(position(finished=31), epoch=300)
    bench.tick()
    assert bench.run.committed == 300
    bench.run.observe_late()
    rows = bench.rows(EpochRow)
    assert [row.epoch for row in rows] == list(range(301))
    assert [row.offsets is None for row in rows] == [True] * 200 + [False] * 101


def test_a_report_of_a_later_epoch_is_enough_to_look_for_it(bench: Bench) -> None:
    for _ in range(4):
        bench.query.commit(position())
    for epoch in range(2):
        (bench.query.checkpoint / "commits" / str(epoch)).unlink()
    bench.run.report(Hint("progress", QUERY_ID, "run", 3, 7, 20, 2))
    bench.tick()
    assert bench.run.committed == 3


def test_a_failed_query_is_restarted_only_after_the_wait(bench: Bench) -> None:
    bench.ends(PASSING)
    bench.tick(0.099)
    assert (bench.state(), bench.query.starts) == (State.RESTARTING, 1)
    bench.tick(0.002)
    assert (bench.state(), bench.query.starts) == (State.RUNNING, 2)
    (incident,) = bench.ledger.of(IncidentRow)  # written before the restart
    assert (incident.type, incident.action) == ("failure", "restart 1 in 100 ms")
    assert bench.states() == ["RUNNING", "RESTARTING", "RUNNING"]


def failures_until_the_end(bench: Bench, failure: Exception, most: int = 100) -> int:
    for count in range(1, most):
        bench.ends(failure)
        if bench.run.state.ended:
            return count
        bench.tick(30.0)
    raise AssertionError(f"still restarted after {most} failures")


def test_a_query_that_fails_each_time_fails_for_good(bench: Bench) -> None:
    """Listeners are notified of the first failure and of the end, which is another incident, not of each attempt."""
    assert failures_until_the_end(bench, PASSING) == 4
    assert bench.state() is State.FAILED
    assert isinstance(bench.run.error, SparkExtError) and "a task was lost" in bench.run.reason
    rows = bench.rows(IncidentRow)
    assert [row.action for row in rows][2:] == ["restart 3 in 1600 ms", "stopped: FAILED"]
    assert "a poison epoch: it has failed 4 times in the same way" in rows[-1].what
    first, *attempts, last = [row.incident_id for row in rows]
    assert attempts == [first, first] and last != first
    assert (rows[0].parent, rows[-1].parent) == (None, first)
    opened = [row.incident_id for row in bench.rows(IncidentChangeRow) if row.old != row.new]
    assert opened == [first, last], "neither is resolved: the query has committed nothing since"
    bench.tick(1000.0)
    assert bench.query.starts == 4


def test_an_epoch_resolves_a_failure_and_the_next_reopens_it(bench: Bench) -> None:
    for _ in range(2):
        bench.ends(PASSING)
        bench.tick(0.1)
        bench.commits(position())
    changes = bench.rows(IncidentChangeRow)
    steps = [("", "OPEN"), ("OPEN", "RESOLVED"), ("RESOLVED", "OPEN"), ("OPEN", "RESOLVED")]
    assert [(row.old, row.new) for row in changes] == steps
    assert changes[-1].cause == "query 'q' has committed epoch 1"
    assert len({row.incident_id for row in changes}) == 1


def test_an_epoch_before_a_failure_does_not_resolve_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was committed, and the query has failed, between the look at Spark's log and that at the query's end."""
    poll = bench.run.observer.poll

    def poll_and_then(*, once: list[None] = [None]) -> Any:  # noqa: B006
        found = poll()
        if once:
            once.clear()
            bench.query.commit(position())
            bench.query.end(PASSING)
        return found

    monkeypatch.setattr(bench.run.observer, "poll", poll_and_then)
    bench.tick()
    bench.tick(0.1)
    assert bench.run.committed == 0
    assert [row.new for row in bench.rows(IncidentChangeRow)] == ["OPEN"]


def test_a_committed_epoch_starts_the_count_of_failures_again(bench: Bench) -> None:
    for _ in range(10):
        bench.query.commit(position())
        bench.ends(PASSING)
        assert bench.state() is State.RESTARTING
        bench.tick(0.1)
        assert bench.state() is State.RUNNING
    assert {row.action for row in bench.rows(IncidentRow)} == {"restart 1 in 100 ms"}
    assert failures_until_the_end(bench, PASSING) == 3, "one that followed the last epoch, then three more"


@pytest.mark.parametrize(("failure", "failures"), [(POISON, 1), (OUTAGE, 11)], ids=["terminal", "every 30 s for 300 s"])
def test_errors_of_ours_are_retried_by_their_kind(tmp_path: Path, failure: Exception, failures: int) -> None:
    bench = Bench(tmp_path, outage_patience=300_000).started()
    assert failures_until_the_end(bench, failure) == failures
    assert (bench.state(), bench.run.error, bench.query.starts) == (State.FAILED, failure, failures)


@pytest.mark.parametrize(
    ("kind", "message", "failures", "type", "decision"),
    [
        ("org.apache.spark.SparkException", "Task not serializable", 1, "SERIALIZATION", "stop"),
        ("java.net.ConnectException", "refused", 11, "NETWORK", "restart"),
        ("java.lang.OutOfMemoryError", "Java heap space", 4, "RESOURCE", "restart"),
        ("org.rocksdb.RocksDBException", "Corruption: bad block", 1, "STATE", "restore"),
    ],
)
def test_others_errors(tmp_path: Path, kind: str, message: str, failures: int, type: str, decision: str) -> None:
    bench = Bench(tmp_path, outage_patience=300_000).started()
    assert failures_until_the_end(bench, java_failure(kind, message)) == failures
    last = bench.rows(IncidentRow)[-1]
    assert last.labels == {"type": type, "origin": "spark"}
    assert last.evidence["verdict"]["summary"] == f"{kind}: {message}"
    assert last.evidence["chain"] == [{"kind": kind, "message": message, "link": "outermost"}]
    assert bench.context.classifier.decision(last.labels).do.value == decision


def test_a_restart_that_fails_is_a_failure(bench: Bench) -> None:
    bench.query.end(PASSING)
    bench.query.refusals = [PASSING, PASSING]
    bench.tick()
    bench.tick(0.1)
    bench.tick(0.4)
    assert (bench.state(), bench.query.starts) == (State.RESTARTING, 1)
    bench.tick(1.6)
    assert (bench.state(), bench.query.starts) == (State.RUNNING, 2)
    assert [row.action for row in bench.rows(IncidentRow)] == [f"restart {n + 1} in {100 * 4**n} ms" for n in range(3)]


def test_an_epoch_committed_before_the_failure_may_be_the_last(bench: Bench) -> None:
    bench.query.commit(position(ended=True))
    bench.ends(PASSING)
    assert bench.state() is State.FINISHING
    bench.tick()
    assert bench.query.starts == 1
    bench.run.ensure_running()
    assert bench.query.starts == 2, "finalization may need further epochs"
    assert bench.state() is State.FINISHING
    bench.run.ensure_running()
    assert bench.query.starts == 2


BEFORE_A_STOP: dict[str, Callable[[Bench], object]] = {
    "it runs": lambda bench: None,
    "it waits for a restart": lambda bench: bench.ends(PASSING),
    "it has failed": lambda bench: bench.query.end(PASSING),
    "it has failed for good": lambda bench: bench.query.end(POISON),
    "it has read all": lambda bench: bench.query.commit(position(ended=True)),
}


@pytest.mark.parametrize("before", BEFORE_A_STOP)
def test_a_stopped_query_is_canceled_whatever_it_does(bench: Bench, before: str) -> None:
    BEFORE_A_STOP[before](bench)
    incidents = len(bench.rows(IncidentRow))
    bench.run.request_stop()
    assert not bench.query.running
    bench.tick()
    bench.tick(1000.0)
    assert (bench.state(), bench.run.error) == (State.CANCELED, None) and bench.run.reason.startswith("stopped")
    assert (bench.query.starts, len(bench.rows(IncidentRow))) == (1, incidents)


def test_a_query_that_was_never_started_is_stopped_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run.request_stop()
    assert bench.state() is State.CANCELED


@pytest.mark.parametrize("restarting", [False, True])
def test_a_drain_ends_a_query_whose_sources_cannot_end_it(tmp_path: Path, restarting: bool) -> None:
    bench = Bench.native(tmp_path)
    bench.query.commit({"logOffset": 1})
    if restarting:
        bench.ends(PASSING)
        assert bench.state() is State.RESTARTING
    bench.run.request_drain()
    assert not bench.query.running
    bench.tick(1000.0)
    assert (bench.state(), bench.run.reason, bench.run.committed) == (State.FINISHING, "drained", 0)
    bench.run.request_drain()
    assert bench.query.starts == 1


def test_a_drain_leaves_channel_sources_to_end_by_themselves(bench: Bench) -> None:
    bench.run.request_drain()
    bench.tick()
    assert bench.query.running and bench.state() is State.RUNNING


def test_a_drain_waits_for_what_other_queries_still_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain stops a query with one of Spark's own sources, but not before its exchange was read to the end."""
    without_source_hooks(monkeypatch)
    bench = Bench(tmp_path, natives=["rate"], sources=[], fed=["x-in"]).started()
    bench.commits(position("x-in"), {"logOffset": 1})
    bench.run.request_drain()
    assert (bench.query.running, bench.run.may_end_by_drain) == (True, False)
    bench.commits(position("x-in", ended=True), {"logOffset": 2})
    assert bench.run.may_end_by_drain is True
    bench.run.request_drain()
    bench.tick()
    assert (bench.state(), bench.run.reason, bench.run.committed) == (State.FINISHING, "drained", 1)


def test_a_drain_in_the_middle_of_an_epoch_runs_it_to_its_end(tmp_path: Path) -> None:
    bench = Bench.native(tmp_path)
    bench.query.commit({"logOffset": 1})
    bench.query.plan({"logOffset": 2})
    bench.run.request_drain()
    bench.tick()
    assert bench.query.running and bench.query.only_planned and bench.state() is State.RUNNING
    bench.ends(PASSING)
    assert bench.state() is State.RESTARTING
    bench.tick(1000.0)
    assert bench.query.running and bench.query.only_planned
    bench.query.commit_planned()
    bench.ends()
    assert (bench.state(), bench.run.reason, bench.run.committed) == (State.FINISHING, "drained", 1)


def test_a_drained_query_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.native(tmp_path)
    bench.commits({"logOffset": 1})
    bench.query.plan({"logOffset": 2})
    observe = bench.run.observe

    def observe_just_before() -> None:
        observe()
        if bench.query.running:
            bench.query.commit_planned()
            bench.query.end()

    monkeypatch.setattr(bench.run, "observe", observe_just_before)
    monkeypatch.setattr(bench.query, "stop", lambda: None)
    bench.run.request_drain()
    bench.tick()
    assert (bench.state(), bench.run.reason) == (State.FINISHING, "drained")
    assert (bench.query.starts, bench.run.committed) == (1, 1)


def test_a_drain_waits_for_storage_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not known then whether an epoch is planned; a query that restarted in the meantime ran without an end."""
    bench = Bench.native(tmp_path)
    bench.query.commit({"logOffset": 1})
    bench.ends(PASSING)

    def away() -> NoReturn:
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.run.observer, "newest_planned", away)
        bench.run.request_drain()
        assert bench.state() is State.RESTARTING
    bench.run.request_drain()
    assert (bench.state(), bench.run.reason, bench.query.starts) == (State.FINISHING, "drained", 1)


def test_a_drain_from_before_the_start_runs_the_planned_epoch(tmp_path: Path) -> None:
    bench = Bench.native(tmp_path)
    bench.query.commit({"logOffset": 1})
    bench.query.plan({"logOffset": 2})
    bench.tick()
    bench.query.end()
    again = bench.made()
    again.resume_drain()
    assert again.launcher.unsettled
    again.start()
    assert bench.query.only_planned
    bench.query.commit_planned()
    bench.query.end()
    again.tick(bench.clock.now)
    assert (again.state, again.reason, again.committed) == (State.FINISHING, "drained", 1)


def test_a_drain_at_the_start_ends_settled_input_without_spark(tmp_path: Path) -> None:
    bench = Bench(tmp_path, natives=["rate"], sources=[])
    bench.run.request_drain()
    assert (bench.state(), bench.run.reason, bench.query.starts) == (State.FINISHING, "drained", 0)
    bench = Bench.native(tmp_path / "begun")
    bench.commits({"logOffset": 1})
    bench.query.end()
    again = bench.made()
    again.observe()
    assert not needs_spark(again, drained=True)
    again.request_drain()
    assert (again.state, again.reason) == (State.FINISHING, "drained")


def finishing(bench: Bench) -> Bench:
    bench.commits(position(ended=True))
    assert bench.state() is State.FINISHING
    return bench


def test_a_further_epoch_that_fails_is_treated_like_any_failure(bench: Bench) -> None:
    finishing(bench).run.ensure_running()
    for starts in (1, 2, 3):
        bench.ends(PASSING)
        assert not bench.run.may_finish(bench.clock.now), "the back-off"
        bench.tick(30.0)
        assert bench.run.may_finish(bench.clock.now)
        bench.run.ensure_running()
        assert (bench.state(), bench.query.starts) == (State.FINISHING, starts + 1)
    bench.ends(PASSING)
    assert bench.state() is State.FAILED
    assert [row.action for row in bench.rows(IncidentRow)][2:] == ["restart 3 in 1600 ms", "stopped: FAILED"]


def test_a_failing_step_is_tried_again_as_often_as_policy_says(bench: Bench) -> None:
    def fail() -> None:
        raise ValueError("a hook")

    finishing(bench)
    for _ in range(4):
        assert bench.run.may_finish(bench.clock.now)
        bench.run.take_step("a hook", fail, lambda _: None)
        bench.tick(30.0)
    assert bench.state() is State.FAILED and not bench.query.running
    assert "ValueError: a hook" in bench.run.reason


@pytest.mark.parametrize("recorded", [False, True])
def test_a_stop_ends_a_query_that_waits_for_its_final_checkpoint(bench: Bench, recorded: bool) -> None:
    """One that is recorded has finished: its last steps are taken."""
    finishing(bench).run.step_taken(recorded=recorded)
    bench.run.request_stop()
    bench.tick()
    assert bench.state() is (State.FINISHING if recorded else State.CANCELED)
    assert bench.run.may_finish(bench.clock.now) == recorded and not bench.query.running


def test_a_restored_query_records_what_an_earlier_run_did_not(bench: Bench) -> None:
    for _ in range(4):
        bench.query.commit(position())
    again = bench.made()
    again.restore((QUERY_ID, 1))
    assert (again.committed, again.query_id, again.input_done) == (3, QUERY_ID, False)
    again.tick(bench.clock.now)
    assert [row.epoch for row in bench.rows(EpochRow)] == [2, 3]
    assert again.figures.epochs == 0


def test_a_checkpoint_that_is_gone_is_refused(bench: Bench) -> None:
    bench.query.commit(position())
    shutil.rmtree(bench.query.checkpoint)
    with pytest.raises(StateError, match="checkpoint directory of this query is missing"):
        bench.made().restore((QUERY_ID, 0))


def test_a_query_that_had_finished_is_not_started(bench: Bench) -> None:
    bench.query.commit(position(finished=1, ended=True))
    again = bench.made()
    again.finished_before((QUERY_ID, 0))
    again.tick(bench.clock.now)
    assert (again.state, again.had_finished, again.input_done) == (State.FINISHED, True, True)
    assert again.metadata().finished and bench.query.starts == 1
    assert not [row for row in bench.rows(ExecutionStateRow) if row.state == "FINISHED"], "it was recorded then"


def test_a_state_that_cannot_follow_is_refused(bench: Bench) -> None:
    with pytest.raises(IllegalTransition, match="FINISHED cannot follow RUNNING"):
        bench.run.finished()
    assert bench.state() is State.RUNNING
    bench.run.fail(POISON)
    for change in (bench.run.resume_final, bench.run.start):
        with pytest.raises(IllegalTransition):
            change()
    assert bench.states() == ["RUNNING", "FAILED"]


def test_an_abandoned_query_fails_and_writes_nothing(bench: Bench) -> None:
    bench.run.abandon(OUTAGE)
    assert (bench.state(), bench.run.error) == (State.FAILED, OUTAGE)
    assert bench.states() == ["RUNNING"] and not bench.rows(IncidentRow)
    bench.run.abandon(POISON)
    assert bench.run.error is OUTAGE, "it had ended"


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.since_commit = 0
        self.stopped = False

    @initialize(natives=st.booleans(), available_now=st.booleans())
    def begin(self, natives: bool, available_now: bool) -> None:
        self.bench = Bench(Path(self.folder.name), natives=["rate"] * natives, available_now=available_now).started()

    def teardown(self) -> None:
        self.folder.cleanup()

    def runs(self) -> bool:
        return self.bench.query.running

    @precondition(runs)
    @rule()
    def commit(self) -> None:
        self.bench.commits(position(at=len(self.bench.ledger.rows)))
        self.since_commit = 0

    @precondition(runs)
    @rule(failure=st.sampled_from([PASSING, POISON]))
    def fail(self, failure: Exception) -> None:
        self.bench.query.end(failure)
        finishing = self.bench.run.state is State.FINISHING
        self.bench.tick()
        self.since_commit += 1
        if failure is POISON and not self.stopped and not finishing:
            assert self.bench.run.state is State.FAILED

    @precondition(runs)
    @rule(own=st.sampled_from([None, OwnEnd(True, False), OwnEnd(False, True), OwnEnd(False, False)]))
    def end(self, own: OwnEnd | None) -> None:
        self.bench.ends(own=own)

    @rule()
    def stop(self) -> None:
        self.stopped = True
        if not self.bench.run.state.ended:
            self.bench.run.request_stop()
        self.bench.tick()

    @rule()
    def drain(self) -> None:
        self.bench.run.request_drain()
        self.bench.tick()

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.bench.tick(seconds)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "bench"):
            return
        run, query = self.bench.run, self.bench.query
        for before, after in pairwise([State.CREATED, *map(State, self.bench.states())]):
            assert can_follow(before, after)
        assert query.running == (run.state is State.RUNNING), "an end is dealt with at the next look"
        assert self.since_commit <= 4 and query.starts >= 1
        assert run.state is not State.RESTARTING or not self.stopped
        assert (run.error is not None) == (run.state is State.FAILED)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=2 * settings().max_examples // 5, stateful_step_count=20, deadline=None)
