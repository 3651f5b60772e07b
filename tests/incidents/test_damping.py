"""An incident that comes and goes is few notifications, and the last one says how it stands."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given, settings

from spark_ext.incidents.dispatch import Damper
from spark_ext.incidents.types import IncidentChange, IncidentState
from tests.incidents.made import OPEN, RESOLVED, change

WINDOW = 60.0


def flapping(waits: list[int]) -> tuple[list[tuple[float, IncidentState]], IncidentState]:
    """What is let through of an incident that changes after these times, and how it stands at last."""
    damper, now = Damper(lambda _: WINDOW), 0.0
    through: list[tuple[float, IncidentState]] = []
    state: IncidentState | None = None

    def released(until: float) -> None:
        while (due := damper.due) is not None and due <= until:
            through.extend((due, one.new) for one in damper.release(due))

    for number, wait in enumerate(waits):
        now += wait
        released(now)
        new = OPEN if state is not OPEN else RESOLVED
        one: IncidentChange = change("a", new, state, now, number + 1)
        if damper.take(one, now):
            through.append((now, new))
        state = new
    released(float("inf"))
    assert state is not None
    return through, state


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=40))
def test_notifications_alternate_and_the_last_says_how_it_stands(waits: list[int]) -> None:
    through, state = flapping(waits)
    assert through[-1][1] is state
    assert all(one is not other for (_, one), (_, other) in pairwise(through))


@settings(deadline=None)
@given(st.integers(2, 100))
def test_flapping_in_the_window_is_four_notifications_at_most(number: int) -> None:
    through, _ = flapping([1] * number)
    assert len(through) <= 4


def test_the_first_resolution_is_prompt_and_later_ones_wait() -> None:
    assert flapping([1, 1])[0] == [(1.0, OPEN), (2.0, RESOLVED)]
    assert flapping([1, 1, 1, 1])[0] == [(1.0, OPEN), (2.0, RESOLVED), (3.0, OPEN), (64.0, RESOLVED)]


def test_counts_are_no_notifications() -> None:
    damper = Damper(lambda _: WINDOW)
    assert damper.take(change("a", OPEN, None), 0)
    assert not damper.take(change("a", OPEN, OPEN, 1, 2), 1)
