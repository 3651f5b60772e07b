"""Where the time of a job went is a pure function of its timeline and its incidents."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from spark_ext.views.downtime import Downtime, downtime
from spark_ext.views.timeline import timeline
from tests.views.test_timeline import at, job, state


def incident(name: str, seconds: float, operator: str = "job 'j', query 'q'", **evidence: Any) -> dict[str, Any]:
    kind = "driver_lost" if "last_seen" in evidence else "failure"
    return {"incident_id": name, "type": kind, "at": at(seconds), "operator": operator, "evidence": evidence}


def of(states: list[Any], incidents: list[Any], now: float, *jobs: Any, alive: int = 1, **given: Any) -> Downtime:
    found = timeline(states, jobs or [job("started", 0)], alive=frozenset({alive}), **given)
    return downtime(found, incidents, at(now))


def entered(*states: tuple[Any, ...]) -> list[Any]:
    """Rows of the job itself: names, seconds, and their incarnation if it is not 1."""
    return [state("", name, second, *more) for name, second, *more in states]


def test_a_restart_belongs_to_the_failure_that_led_to_it() -> None:
    found = of(entered(("RUNNING", 2), ("RESTARTING", 10, 1), ("RUNNING", 13)), [incident("a", 10)], 20)
    assert found.by_state() == {"CREATED": 2, "RUNNING": 15, "RESTARTING": 3}
    assert found.by_incident() == {"a": {"RESTARTING": 3}}
    assert found.wall == 20
    states = entered(("RUNNING", 0), ("RESTARTING", 1), ("RUNNING", 2), ("RESTARTING", 3))
    found = of(states, [incident("a", 1), incident("b", 3)], 5)
    assert found.by_incident() == {"a": {"RESTARTING": 1}, "b": {"RESTARTING": 2}}


def test_l3_a_failure_during_recovery_has_its_own_downtime() -> None:
    states = entered(("RUNNING", 0), ("RESTARTING", 10), ("RUNNING", 40))
    found = of(states, [incident("network", 10), incident("memory", 25)], 50)
    assert found.by_incident() == {"network": {"RESTARTING": 15}, "memory": {"RESTARTING": 15}}


def test_l3_a_wait_for_a_slot_belongs_to_a_recovery_or_itself() -> None:
    waits = [{**state("", "SCHEDULING", second), "incident": "slots"} for second in (1, 12, 30)]
    first, restarting, again = entered(("RUNNING", 3), ("RESTARTING", 10), ("RUNNING", 16))
    states = [waits[0], first, restarting, waits[1], again, waits[2]]
    found = of(states, [incident("network", 10), {**incident("slots", 1), "type": "scheduling"}], 35)
    assert found.by_incident() == {"slots": {"SCHEDULING": 2 + 5}, "network": {"RESTARTING": 2, "SCHEDULING": 4}}


def test_a_lost_driver_is_down_from_its_last_heartbeat() -> None:
    """A job that was idle for an hour was not down for that hour, though its last row is so old."""
    lost = incident("lost", 3610, "job 'j'", last_seen=at(3600).isoformat(), incarnation=1)
    jobs = job("started", 0), job("started", 3610, 2)
    found = of(entered(("RUNNING", 1), ("RUNNING", 3615, 2)), [lost], 3700, *jobs, alive=2, beats={1: at(3600)})
    assert found.by_incident() == {"lost": {"DOWN": 10, "CREATED": 5}}
    assert found.by_state()["RUNNING"] == 3599 + 85


def test_time_between_two_starts_is_down_only_after_a_failure() -> None:
    """Ten minutes between FAILED and the next start are downtime."""
    states = entered(("RUNNING", 0), ("FAILED", 10), ("RUNNING", 620, 2))
    jobs = job("started", 0), job("ended", 11, 1, "FAILED"), job("started", 611, 2)
    found = of(states, [incident("bug", 10)], 630, *jobs, alive=2)
    assert found.by_incident() == {"bug": {"FAILED": 1, "DOWN": 600, "CREATED": 9}}
    states = entered(("RUNNING", 0), ("CANCELED", 10), ("RUNNING", 610, 2))
    jobs = job("started", 0), job("ended", 10, 1, "CANCELED"), job("started", 610, 2)
    found = of(states, [], 620, *jobs, alive=2)
    assert found.by_state() == {"RUNNING": 20, "STOPPED": 600}
    assert found.availability(at(0), at(620)) == 1.0


def test_a_start_after_a_recovery_is_not_held_up_by_the_failure() -> None:
    states = entered(
        ("RUNNING", 10), ("RESTARTING", 10.5), ("RUNNING", 11), ("FINISHED", 11.2),
        ("DEPLOYING", 11.8, 2), ("RUNNING", 12.2, 2),
    )  # fmt: skip
    jobs = job("started", 0), job("ended", 11.3, 1, "FINISHED"), job("started", 11.5, 2)
    assert of(states, [incident("a", 10.4)], 20, *jobs, alive=2).by_incident() == {"a": {"RESTARTING": 0.5}}


def test_a_refused_start_leaves_the_job_down_or_stopped() -> None:
    def gaps(outcome: str) -> list[str]:
        refused = job("started", 20, 2), job("ended", 21, 2, "the start was refused"), job("started", 30, 3)
        found = timeline([], [job("started", 0), job("ended", 10, 1, outcome), *refused], alive=frozenset({3}))
        return [gap.state for gap in sorted(found.gaps, key=lambda gap: gap.since)]

    assert gaps("FAILED") == ["DOWN", "DOWN"]
    assert gaps("CANCELED") == ["STOPPED", "STOPPED"]


def test_availability_of_a_window() -> None:
    found = of(entered(("RUNNING", 0), ("RESTARTING", 60), ("RUNNING", 70)), [incident("a", 60)], 100)
    assert found.availability(at(0), at(100)) == 0.9
    assert found.availability(at(50), at(70)) == 0.5
    assert found.availability(at(-500), at(-400)) == 1.0, "it did not exist"


def test_a_query_restarting_in_a_running_job_counts_for_itself() -> None:
    query = [state("q", "RUNNING", 0), state("q", "RESTARTING", 10), state("q", "RUNNING", 14)]
    found = of(entered(("RUNNING", 0)) + query, [incident("a", 10)], 20)
    assert found.by_incident() == {"a": {"RESTARTING of q": 4}}
    assert found.by_state() == {"RUNNING": 20}


times = st.integers(0, 1000).map(float)
runs = st.lists(
    st.tuples(
        st.lists(st.tuples(times, st.sampled_from(["RUNNING", "RESTARTING", "FAILING", "CREATED"])), max_size=6),
        st.sampled_from(["lost", "FAILED", "CANCELED", "the start was refused"]), times, times,
    ), min_size=1, max_size=4,
)  # fmt: skip


@given(runs, st.lists(times, max_size=8))
def test_l4_the_seconds_of_all_states_add_up_to_the_wall_time(given_runs: list[Any], failures: list[float]) -> None:
    states, jobs, begin = [], [], 0.0
    for number, (entered, outcome, length, pause) in enumerate(given_runs, 1):
        jobs.append(job("started", begin, number))
        states += [state("", name, begin + min(second, length), number) for second, name in entered]
        if outcome != "lost":
            jobs.append(job("ended", begin + length, number, outcome))
        begin += length + pause
    found = of(states, [incident(str(at_), at_) for at_ in failures], begin, *jobs, alive=0)
    first, last = jobs[0]["at"], max(piece.until for piece in found.pieces) if found.pieces else jobs[0]["at"]
    assert found.wall == (last - first).total_seconds()
    assert abs(sum(found.by_state().values()) - found.wall) < 1e-6
    assert all(before.until == after.since for before, after in pairwise(found.pieces))
    blamed = sum(piece.seconds for piece in found.pieces if piece.down and piece.incident)
    assert blamed <= sum(piece.seconds for piece in found.pieces if piece.down) + 1e-6
    assert found.availability(first, last + timedelta(seconds=1)) <= 1.0
