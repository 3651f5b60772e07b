"""Where the time of a job went is a pure function of its timeline and its incidents."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from typing_extensions import Self

from spark_ext.incidents.registry import AlertRule
from spark_ext.model.execution import REQUESTED
from spark_ext.views.downtime import Downtime, availability, by_class, downtime
from spark_ext.views.incidents import class_of
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


class History:
    """Rows of a job as its drivers record them, while the seconds of each class are counted by hand."""

    def __init__(self) -> None:
        self.seconds, self.number, self.failure = 0.0, 1, ""
        self.states: list[Any] = []
        self.jobs = [job("started", 0)]
        self.incidents: list[dict[str, Any]] = []
        self.expected: dict[str, float] = {}

    @property
    def now(self) -> datetime:
        return at(self.seconds)

    def _incident(self, kind: str, type_: str, **evidence: Any) -> str:
        name, operator = str(len(self.incidents) + 1), "job 'j'" if kind == "driver_lost" else "job 'j', query 'q'"
        row = {"incident_id": name, "type": kind, "at": self.now, "operator": operator, "evidence": evidence}
        self.incidents.append({**row, "labels": {"type": type_}})
        return name

    def _spend(self, seconds: float, type_: str) -> Self:
        self.seconds += seconds
        if type_ and seconds:
            self.expected[type_] = self.expected.get(type_, 0.0) + seconds
        return self

    def in_state(self, name: str, seconds: float, incident: str | None = None, reason: str = "", own: str = "") -> Self:
        """`own`: the type of an incident of the state's own."""
        row = state("", name, self.seconds, self.number, reason)
        self.states.append({**row, "incident": incident})
        return self._spend(seconds, own or self.failure)

    def up(self, seconds: float) -> Self:
        self.failure = ""
        return self.in_state("RUNNING", seconds)

    def failed(self, type_: str, seconds: float, name: str = "RESTARTING") -> Self:
        self.failure = type_
        return self.in_state(name, seconds, self._incident("failure", type_), "it failed")

    def slots(self, seconds: float) -> Self:
        return self.in_state("SCHEDULING", seconds, self._incident("scheduling", "SYSTEM"), own="SYSTEM")

    def stalled(self, seconds: float, name: str = "DEPLOYING") -> Self:
        return self.in_state(name, seconds, self._incident("stall", "SOURCE"), own="SOURCE")

    def blocked(self, seconds: float) -> Self:
        """The stop is held up within the present state, which is recorded twice."""
        self._incident("stop_blocked", "USER_DATA", since=self.now.isoformat())
        before = self.states[-1]
        self._spend(seconds / 2, "USER_DATA")
        return self.in_state(before["state"], seconds / 2, before["incident"], before["reason"] + ".", "USER_DATA")

    def restarted(self, seconds: float, blocked: float = 0.0) -> Self:
        self.failure = ""
        self.in_state("RESTARTING", seconds, reason=f"{REQUESTED}control event 5")
        return self.blocked(blocked) if blocked else self

    def lost(self, down: float, created: float) -> Self:
        seen = self.now.isoformat()
        self.failure = "SYSTEM"
        self._spend(down, "SYSTEM")
        self._incident("driver_lost", "SYSTEM", last_seen=seen, incarnation=self.number)
        return self._next()._spend(created, "SYSTEM")

    def ended(self, how: str, down: float, created: float) -> Self:
        self.jobs.append(job("ended", self.seconds, self.number, how))
        return self._spend(down, self.failure)._next()._spend(created, self.failure)

    def _next(self) -> Self:
        self.number += 1
        self.jobs.append(job("started", self.seconds, self.number))
        return self

    def divided(self) -> Downtime:
        beats = {
            row["evidence"]["incarnation"]: datetime.fromisoformat(row["evidence"]["last_seen"])
            for row in self.incidents
            if row["type"] == "driver_lost"
        }
        found = timeline(self.states, self.jobs, alive=frozenset({self.number}), beats=beats)
        return downtime(found, self.incidents, self.now)

    def classes(self) -> dict[str, float]:
        classes = {row["incident_id"]: class_of(row["labels"]) for row in self.incidents}
        return {name: round(seconds, 6) for name, seconds in by_class(self.divided().pieces, classes).items()}


TYPES = ("USER_CODE", "NETWORK", "QUOTA")
LENGTH = st.sampled_from([0.25, 1.0, 3.0, 30.0])


@st.composite
def histories(draw: st.DrawFn) -> History:
    told = History()

    def starts() -> None:
        """What a start goes through until the job runs, perhaps with a failure on the way."""
        for _ in range(draw(st.integers(0, 3))):
            what = draw(st.sampled_from(["DEPLOYING", "RESTORING", "slots", "stall", "failure"]))
            if what == "failure":
                told.failed(draw(st.sampled_from(TYPES)), draw(LENGTH))
            elif what in ("slots", "stall"):
                (told.slots if what == "slots" else told.stalled)(draw(LENGTH))
            else:
                told.in_state(what, draw(LENGTH))

    starts()
    told.up(draw(LENGTH))
    for _ in range(draw(st.integers(1, 6))):
        act = draw(st.sampled_from(["failure", "asked", "stall", "lost", "dies", "stopped"]))
        if act == "failure":
            told.failed(draw(st.sampled_from(TYPES)), draw(LENGTH))
        elif act == "asked":
            told.restarted(draw(LENGTH), draw(st.sampled_from([0.0, 6.0])))
        elif act == "stall":
            told.stalled(draw(LENGTH), "RUNNING").up(draw(LENGTH))
            continue
        elif act == "lost":
            told.in_state("RUNNING", 0.25) if draw(st.booleans()) else told.failed("NETWORK", draw(LENGTH))
            told.lost(draw(LENGTH), draw(LENGTH))
        elif act == "dies":
            told.failed(draw(st.sampled_from(TYPES)), draw(LENGTH), "FAILING")
            if draw(st.booleans()):
                told.blocked(6.0)
            told.in_state("FAILED", 0.25, told.states[-1]["incident"]).ended("FAILED", draw(LENGTH), draw(LENGTH))
        else:
            told.in_state("CANCELED", 0.25).ended("CANCELED", draw(LENGTH), draw(LENGTH))
        starts()
        told.up(draw(LENGTH))
    return told


@given(histories())
def test_l3_every_second_is_whose_it_was_and_all_add_up(told: History) -> None:
    found, first = told.divided(), at(0)
    assert told.classes() == pytest.approx(told.expected)
    down = sum(piece.seconds for piece in found.pieces if piece.down)
    assert sum(told.expected.values()) == pytest.approx(down)
    assert found.availability(first, told.now) == pytest.approx(1 - down / found.wall)
    lost = 0.0
    for name in told.expected:
        rule = AlertRule(rule="availability below 50 % over 365 days", labels={"type": (name,)})
        lost += 1 - availability(rule, found, told.incidents, told.now).share
    assert lost == pytest.approx(down / found.wall)


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


def test_l3_a_wait_for_a_slot_in_a_recovery_is_the_systems() -> None:
    """A user's error restarts the job, and scheduling then waits for five minutes."""
    told = History().up(600).failed("USER_CODE", 10).slots(300).in_state("DEPLOYING", 5).up(85)
    found, rows = told.divided(), told.incidents
    assert found.by_incident() == {"1": {"RESTARTING": 10, "DEPLOYING": 5}, "2": {"SCHEDULING": 300}}
    assert told.classes() == {"USER_CODE": 15, "SYSTEM": 300}

    def fires(*types: str) -> bool:
        rule = AlertRule(rule="availability below 99 % over 1 h", labels={"type": types})
        return availability(rule, found, rows, told.now).low

    assert fires("SYSTEM") and fires("USER_CODE") and not fires("NETWORK")
    rule = AlertRule(rule="availability below 98 % over 1 h", labels={"type": ("USER_CODE",)})
    assert not availability(rule, found, rows, told.now).low, "15 of 1000 s"


def test_a_wait_of_a_start_that_was_asked_for_ends_with_it() -> None:
    told = History().slots(2).in_state("DEPLOYING", 3).up(5).slots(4).up(1)
    assert told.divided().by_incident() == {"1": {"SCHEDULING": 2}, "2": {"SCHEDULING": 4}}


def test_a_restart_that_was_asked_for_is_no_downtime() -> None:
    """Not even right after a recovery, as long as it is not held up."""
    told = History().up(9).failed("NETWORK", 1).up(0.5).restarted(0.25).in_state("DEPLOYING", 2).up(9)
    assert told.classes() == {"NETWORK": 1} and told.divided().availability(at(12), told.now) == 1.0
    told = History().up(9).restarted(4, blocked=6).up(9).restarted(2).failed("SINK", 5).up(1)
    assert told.classes() == {"USER_DATA": 6, "SINK": 5}


def test_a_lost_driver_is_down_from_its_last_heartbeat() -> None:
    """A job that was idle for an hour was not down for that hour, though its last row is so old."""
    lost = incident("lost", 3610, "job 'j'", last_seen=at(3600).isoformat(), incarnation=1)
    jobs = job("started", 0), job("started", 3610, 2)
    found = of(entered(("RUNNING", 1), ("RUNNING", 3615, 2)), [lost], 3700, *jobs, alive=2, beats={1: at(3600)})
    assert found.by_incident() == {"lost": {"DOWN": 10, "CREATED": 5}}
    assert found.by_state()["RUNNING"] == 3599 + 85


def test_a_lost_driver_is_to_blame_until_the_job_runs_again() -> None:
    """Not for what follows within the same two seconds."""
    told = History().up(9).lost(0.25, 0.25).up(0.25).failed("SINK", 0.25, "FAILING").in_state("FAILED", 0.25, "2")
    assert told.ended("FAILED", 9, 1).up(1).classes() == {"SYSTEM": 0.5, "SINK": 10.5}
    told = History().up(9).lost(0.25, 0.25).up(0.25).in_state("CANCELED", 0.25).ended("CANCELED", 0.25, 0.25)
    assert told.in_state("DEPLOYING", 1).up(1).classes() == {"SYSTEM": 0.5}


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
    assert (found.since(at(-500)), found.since(at(50))) == (at(0), at(50))


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


class Counted(dict[str, Any]):
    """A row that counts how often it is looked at."""

    looks = 0

    def get(self, *arguments: Any) -> Any:
        Counted.looks += 1
        return super().get(*arguments)


def test_a_failure_is_compared_with_the_downtime_around_it_alone() -> None:
    def looks(failures: int) -> int:
        states = entered(
            *((name, 10 * n + 5 * up) for n in range(failures) for up, name in enumerate(["RESTARTING", "RUNNING"]))
        )
        rows = [Counted(incident(str(n), 10 * n)) for n in range(failures)]
        Counted.looks = 0
        found = of(states, rows, 10 * failures)
        assert {piece.incident for piece in found.pieces if piece.down} == {row["incident_id"] for row in rows}
        return Counted.looks

    few = looks(50)
    assert 0 < looks(500) <= 11 * few
