"""Execution states are a pure function of the life cycle and of what Spark says."""

from datetime import datetime, timedelta, timezone

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.execution import (
    HEALTHY,
    Cluster,
    Look,
    Phase,
    Progress,
    Shown,
    Tasks,
    execution_state,
    job_execution,
)
from spark_ext.model.lifecycle import State

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
NOBODY = Cluster(0, 0, 0)
FULL = Cluster(1, 2, 2)


def look(phase: Phase, tasks: Tasks | None = None, *, seconds: float = 0, cluster: Cluster | None = FULL) -> Look:
    return Look(T0 + timedelta(seconds=seconds), phase, tasks, cluster)


def state_after(*looks: Look, stateful: bool = False, settled: bool = False) -> Shown:
    progress = Progress(stateful=stateful, settled=settled)
    for one in looks:
        progress = progress.after(one)
    return execution_state(State.RUNNING, "", progress)


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        ("Initializing sources", Phase.STARTING), ("Getting offsets from PythonSource", Phase.PLANNING),
        ("Writing offsets to log", Phase.PLANNING), ("Processing new data", Phase.EPOCH),
        ("Waiting for data to arrive", Phase.IDLE), ("Waiting for next trigger", Phase.IDLE),
        ("Stopped", Phase.UNKNOWN), ("", Phase.UNKNOWN),
    ],
)  # fmt: skip
def test_phases_of_messages(message: str, phase: Phase) -> None:
    assert Phase.of(message) is phase


LOADS = look(Phase.EPOCH, Tasks(running=2, done=3))


@pytest.mark.parametrize(
    ("looks", "stateful", "state"),
    [
        ((), False, State.DEPLOYING), ((look(Phase.STARTING),), False, State.DEPLOYING),
        ((look(Phase.EPOCH),), False, State.DEPLOYING),
        ((look(Phase.EPOCH, Tasks(running=1)),), False, State.RUNNING),
        # It waits for data.
        ((look(Phase.PLANNING), look(Phase.IDLE)), False, State.RUNNING),
        # The driver runs the epoch alone.
        ((look(Phase.EPOCH),) * 9, False, State.DEPLOYING),
        ((look(Phase.EPOCH),) * 10, False, State.RUNNING),
        # Its state is restored until a task that has it is done.
        ((LOADS,), True, State.RESTORING),
        ((LOADS, look(Phase.EPOCH, Tasks(running=1, last_stage_done=1))), True, State.RUNNING),
    ],
)  # fmt: skip
def test_the_state_of_a_start(looks: tuple[Look, ...], stateful: bool, state: State) -> None:
    assert state_after(*looks, stateful=stateful).state is state


def test_why_a_start_takes_long_or_tasks_wait() -> None:
    assert state_after(look(Phase.PLANNING)).reason == "the first epoch is being planned"
    assert execution_state(State.RUNNING, "", Progress(stateful=True).after(LOADS).committed()).state is State.RUNNING
    waits = Tasks(waiting=1)
    assert state_after(*(look(Phase.EPOCH, waits, seconds=seconds) for seconds in (0, 5))).reason == (
        "1 task without a slot: all 2 are taken by other queries and jobs"
    )


@pytest.mark.parametrize("busy", [1, 2], ids=["free slots", "none"])
def test_l8_a_wait_is_the_systems_only_when_it_lasts(busy: int) -> None:
    """Any start on a small machine has a moment in which tasks wait."""
    looks = [look(Phase.EPOCH, Tasks(waiting=1), seconds=half / 2, cluster=Cluster(1, 2, busy)) for half in range(11)]
    assert state_after(*looks[:-1]).state is State.DEPLOYING
    shown = state_after(*looks)
    assert (shown.state, shown.since) == (State.SCHEDULING, T0)
    assert ("1 of 2 are taken" if busy == 1 else "all 2 are taken") in shown.reason


@pytest.mark.parametrize("settled", [False, True])
def test_l8_tasks_without_a_slot_are_scheduling_since_first_seen(settled: bool) -> None:
    waits = Tasks(waiting=4)
    first, second = look(Phase.EPOCH, waits, cluster=NOBODY), look(Phase.EPOCH, waits, seconds=5, cluster=NOBODY)
    assert state_after(first, settled=settled).state is (State.RUNNING if settled else State.DEPLOYING)
    shown = state_after(first, second, settled=settled)
    assert (shown.state, shown.since) == (State.SCHEDULING, T0)
    assert shown.reason == "4 tasks without a slot: no executor is registered"
    again = state_after(first, second, look(Phase.EPOCH, Tasks(running=1, waiting=3), seconds=6), settled=settled)
    assert again.state is State.RUNNING


def test_paused_is_shown_unless_tasks_wait() -> None:
    progress = Progress(settled=True)
    assert execution_state(State.RUNNING, "", progress, paused=True).state is State.PAUSED
    waits = progress.after(look(Phase.EPOCH, Tasks(waiting=1))).after(look(Phase.EPOCH, Tasks(waiting=1), seconds=5))
    assert execution_state(State.RUNNING, "", waits, paused=True).state is State.SCHEDULING
    assert execution_state(State.RESTARTING, "x", progress, paused=True) == Shown(State.RESTARTING, "x")


states = st.sampled_from(State)
shown = st.builds(Shown, states, st.just(""), st.none(), st.sampled_from([None, "i"]))
queries = st.dictionaries(st.sampled_from("abcd"), shown).map(lambda found: list(found.items()))


@given(queries, st.booleans())
def test_l4_a_job_is_in_the_state_of_one_of_its_queries(given_queries: list[tuple[str, Shown]], ran: bool) -> None:
    left = [one.state for _, one in given_queries if not one.state.ended]
    found = job_execution(State.RUNNING, given_queries, ran=ran)
    assert found.state in left if left else found.state is State.RUNNING


@given(queries)
def test_l11_a_job_that_has_run_is_down_only_if_all_queries_are(given_queries: list[tuple[str, Shown]]) -> None:
    left = [one for _, one in given_queries if not one.state.ended]
    found = job_execution(State.RUNNING, given_queries, ran=True)
    well = [one for one in left if one.state in HEALTHY and one.incident is None]
    if well:
        assert found.state in HEALTHY and found.incident is None
        assert found.reason.startswith("degraded: ") == (len(well) < len(left))


def test_l11_a_restarting_query_leaves_the_job_running_degraded() -> None:
    pair = [("a", Shown(State.RUNNING)), ("b", Shown(State.RESTARTING, "lost", None, "i"))]
    found = job_execution(State.RESTARTING, pair, ran=True)
    assert (found.state, found.reason, found.incident) == (State.RUNNING, "degraded: 'b' is RESTARTING", None)
    # It has not run yet: a job is started when all of it is.
    assert job_execution(State.CREATED, pair, ran=False).state is State.RESTARTING
    assert job_execution(State.RESTARTING, pair[1:], ran=True) == pair[1][1]
    stalled = [("a", Shown(State.RUNNING)), ("b", Shown(State.RUNNING, "stalled", None, "i"))]
    assert job_execution(State.RUNNING, stalled, ran=True).reason == "degraded: 'b' is stalled"
    assert job_execution(State.RUNNING, stalled[1:], ran=True).incident == "i"


def test_l11_queries_that_have_finished_do_not_count() -> None:
    pair = [("a", Shown(State.FINISHED)), ("b", Shown(State.PAUSED))]
    assert job_execution(State.RUNNING, pair, ran=True).state is State.PAUSED
