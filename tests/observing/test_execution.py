"""The state of an Observer, by those of the queries that it watches."""

from __future__ import annotations

import re
from pathlib import Path

from spark_ext.listeners.observer import WATCHING
from spark_ext.model.execution import Shown
from spark_ext.model.lifecycle import State
from spark_ext.observing.observation import observed_execution

RUNNING, FAILED = Shown(State.RUNNING), Shown(State.FAILED, "KeyError", incident="i")


def test_before_the_first_query_nothing_runs() -> None:
    assert observed_execution([]).state is State.CREATED


def test_it_is_the_least_advanced_state_of_those_that_run() -> None:
    assert observed_execution([("a", Shown(State.DEPLOYING))]).state is State.DEPLOYING
    found = observed_execution([("a", RUNNING), ("b", Shown(State.SCHEDULING, "no slot"))])
    assert (found.state, found.reason) == (State.RUNNING, "degraded: 'b' is SCHEDULING")


def test_a_query_that_has_failed_counts_until_somebody_starts_it_again() -> None:
    found = observed_execution([("a", RUNNING), ("b", FAILED)])
    assert (found.state, found.reason) == (State.RUNNING, "degraded: 'b' is FAILED")
    found = observed_execution([("a", RUNNING), ("b", FAILED), ("c", Shown(State.SCHEDULING))])
    assert found.reason == "degraded: 'c' is SCHEDULING, 'b' is FAILED"
    found = observed_execution([("a", Shown(State.CANCELED)), ("b", FAILED)])
    assert (found.state, found.incident) == (State.FAILED, "i")


def test_queries_that_have_ended_well_leave_it_running() -> None:
    found = observed_execution([("a", Shown(State.CANCELED)), ("b", Shown(State.FINISHED))])
    assert (found.state, found.reason) == (State.RUNNING, "no query is running")


def test_the_page_has_every_setting_that_an_observer_has() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observer.md").read_text()
    table = page.partition("## Settings")[2].partition("## ")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    assert named == set(WATCHING)
