"""Each new state of an event once, and none left out, also of those that are written late."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.control.history import MARGIN, Changes, History
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.ledger import Ledger
from spark_ext.model.control import Event
from tests.control.states import State


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


def accept(state: State, number: int = 1) -> list[Event]:
    requests = [Request("set_config", "job", {"key": "k", "value": value}) for value in range(number)]
    return [one.event for one in ControlLog(Ledger(state.path)).accept(requests) if isinstance(one, Accepted)]


def taken(changes: Changes) -> list[tuple[int, str, int]]:
    return [(one.sequence, one.status, len(one.steps)) for _, one in changes.take()]


def test_each_state_is_given_once(state: State) -> None:
    changes = Changes(History(Ledger(state.path)), after=0)
    first, second = accept(state, 2)
    assert taken(changes) == [(1, "accepted", 0), (2, "accepted", 0)]
    assert taken(changes) == []
    state.step(first, "applied", "q", 1)
    state.step(first, "applied", "r", 1, ms=11)
    assert taken(changes) == [(1, "applied", 2)]
    state.step(first, "acknowledged", ms=12)
    state.step(second, "rejected", ms=12, reason="no")
    assert taken(changes) == [(1, "acknowledged", 3), (2, "rejected", 1)]
    assert taken(changes) == []
    accept(state)
    assert taken(changes) == [(3, "accepted", 0)]


def test_what_is_known_at_the_beginning_is_left_out(state: State) -> None:
    first, second = accept(state, 2)
    state.step(first, "acknowledged")
    changes = Changes(History(Ledger(state.path)))
    assert taken(changes) == []
    state.step(second, "acknowledged")
    assert taken(changes) == [(2, "acknowledged", 1)]
    assert taken(Changes(History(Ledger(state.path)), after=1)) == [(2, "acknowledged", 1)]


def test_a_step_that_is_written_late_is_given_as_long_as_the_event_is_not_over(state: State) -> None:
    changes = Changes(History(Ledger(state.path)), after=0)
    late, other = accept(state, 2)
    taken(changes)
    state.step(other, "applied", "q", 9, ms=3 * MARGIN * 1000)
    assert taken(changes) == [(2, "applied", 1)]
    state.step(late, "acknowledged", ms=1)
    assert taken(changes) == [(1, "acknowledged", 1)]
    assert taken(changes) == []


def test_another_one_continues_at_a_mark_and_leaves_nothing_out(state: State) -> None:
    history = History(Ledger(state.path))
    changes = Changes(history, after=0)
    first, second = accept(state, 2)
    (_, _), (mark, _) = changes.take()
    state.step(first, "acknowledged")
    accept(state)
    found = taken(Changes(history, mark=mark))
    assert [one for one in found if one[0] != second.sequence] == [(1, "acknowledged", 1), (3, "accepted", 0)]


@pytest.mark.parametrize("mark", ["x", "1", "1-", "-1-1", "1-1-1", "9" * 30 + "-1", "١-1\x00"])
def test_a_mark_of_something_else_is_refused(state: State, mark: str) -> None:
    with pytest.raises(ControlRefused):
        Changes(History(Ledger(state.path)), mark=mark)
