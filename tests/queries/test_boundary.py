"""Restarts of a query between two epochs, with a query in Spark that a test moves by hand."""

from pathlib import Path

import pytest

from spark_ext.control import stamps
from spark_ext.ledger.schema import IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.queries.launcher import IDLE_WITHIN, BoundaryRestart, RestartPhase
from spark_ext.spark.session import registry
from tests.queries.fakes import TASK_LOST, Bench, java_failure, position, without_source_hooks


def wanted(bench: Bench, sequence: int = 5, within: float = 60.0) -> BoundaryRestart:
    now = bench.clock.now
    asked = BoundaryRestart(sequence, now + within, now, bench.run.spec)
    bench.run.launcher.restart_at(asked)
    return asked


def hold(bench: Bench, *sources: str, sequence: int = 5) -> None:
    for source in sources:
        stamps.hold(str(bench.query.checkpoint), bench.context.incarnation.start, sequence, source)


def test_it_restarts_once_all_sources_hold_between_epochs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sources=["a", "b"]).started()
    bench.query.commit(position("a"), position("b"))
    asked = wanted(bench)
    bench.tick(1)
    hold(bench, "a")
    bench.tick(1)
    hold(bench, "b", sequence=4)
    bench.tick(1)
    bench.query.plan(position("a"), position("b", at=1))
    hold(bench, "b")
    bench.tick(1)
    assert (asked.phase, bench.query.starts) == (RestartPhase.WAITING, 1)
    bench.query.commit_planned()
    bench.tick(1, times=2)
    assert (asked.phase, asked.epoch, asked.took_ms, asked.completed) == (RestartPhase.DONE, 2, 6000, None)
    assert (bench.query.starts, bench.query.only_planned) == (2, False)
    assert bench.states() == ["RUNNING", "RESTARTING", "RUNNING"]
    assert bench.rows(IncidentRow) == []
    found = registry.lookup("a", bench.context.registry)
    assert found is not None and found.passed == bench.run.launcher.passed == 5


def test_an_ended_source_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_source_hooks(monkeypatch)
    bench = Bench(tmp_path, sources=["a", "b"]).started()
    bench.query.commit(position("a", ended=True), position("b"))
    asked = wanted(bench)
    hold(bench, "b")
    bench.tick(1, times=2)
    assert asked.phase is RestartPhase.DONE


def test_a_query_that_does_not_come_to_a_boundary_continues(tmp_path: Path) -> None:
    bench = Bench(tmp_path).started()
    asked = wanted(bench, within=10)
    bench.tick(9)
    assert asked.phase is RestartPhase.WAITING
    bench.tick(1)
    assert (asked.phase, bench.run.state, bench.query.starts) == (RestartPhase.LATE, State.RUNNING, 1)


@pytest.mark.parametrize("working", [False, True])
def test_sparks_own_sources_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, working: bool) -> None:
    bench = Bench.native(tmp_path)
    monkeypatch.setattr(type(bench.query), "working", property(lambda _: working))
    bench.query.plan(1)
    asked = wanted(bench)
    bench.tick(1)
    assert asked.phase is RestartPhase.WAITING
    bench.query.commit_planned()
    bench.tick()
    if working:
        assert asked.phase is RestartPhase.WAITING
        bench.tick(IDLE_WITHIN)
    bench.tick()
    assert (asked.phase, asked.epoch) == (RestartPhase.DONE, 1)


def test_an_interrupted_epoch_is_completed_as_it_was_planned(tmp_path: Path) -> None:
    bench = Bench.native(tmp_path)
    bench.query.plan(1)
    asked = wanted(bench, within=10)
    bench.tick(10)
    assert asked.phase is RestartPhase.STOPPING
    bench.tick()
    assert (asked.phase, bench.query.only_planned, bench.query.starts) == (RestartPhase.COMPLETING, True, 2)
    bench.tick(30)
    bench.query.commit_planned()
    bench.query.end()
    bench.tick(times=2)
    assert (asked.phase, asked.completed, asked.epoch) == (RestartPhase.DONE, 0, 1)
    assert (bench.query.only_planned, bench.query.starts) == (False, 3)


def test_a_failure_of_the_epoch_that_is_completed_is_a_failure(tmp_path: Path) -> None:
    bench = Bench.native(tmp_path)
    bench.query.plan(1)
    asked = wanted(bench, within=0)
    bench.tick(times=2)
    bench.ends(TASK_LOST)
    assert (asked.phase, len(bench.rows(IncidentRow))) == (RestartPhase.COMPLETING, 1)
    bench.tick(60)
    assert (bench.query.running, bench.query.only_planned) == (True, True)
    bench.query.commit_planned()
    bench.query.end()
    bench.tick(times=2)
    assert asked.phase is RestartPhase.DONE


def test_a_start_that_fails_is_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path).started()
    asked = wanted(bench)
    hold(bench, "in")
    bench.tick()
    bench.query.refusals.append(java_failure("java.net.BindException", "no port is free"))
    bench.tick()
    assert (asked.phase, bench.run.state) == (RestartPhase.STARTING, State.RESTARTING)
    bench.tick(60)
    assert (asked.phase, bench.run.state) == (RestartPhase.DONE, State.RUNNING)


@pytest.mark.parametrize("ask", ["stop", "drain"])
def test_a_stop_or_drain_of_the_job_comes_first(tmp_path: Path, ask: str) -> None:
    bench = Bench.native(tmp_path)
    bench.commits(1)
    asked = wanted(bench)
    (bench.run.request_stop if ask == "stop" else bench.run.request_drain)()
    bench.tick(times=2)
    ends = State.CANCELED if ask == "stop" else State.FINISHING
    assert (asked.phase, bench.query.starts, bench.run.state) == (RestartPhase.OVER, 1, ends)


def test_a_run_of_what_is_available_does_not_finish_on_hold(tmp_path: Path) -> None:
    bench = Bench(tmp_path, available_now=True).started()
    bench.query.commit(position())
    asked = wanted(bench)
    bench.query.end()
    bench.tick(times=2)
    assert (asked.phase, bench.run.state, bench.query.starts) == (RestartPhase.DONE, State.RUNNING, 2)


def test_somebody_elses_stop_is_no_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path).started()
    asked = wanted(bench)
    bench.ends()
    assert (bench.run.state, asked.phase) == (State.CANCELED, RestartPhase.OVER)
    assert bench.run.reason == "the query was stopped from outside the job"
