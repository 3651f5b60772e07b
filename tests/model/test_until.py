"""When those that feed a query have ended the run."""

from __future__ import annotations

import pytest

from spark_ext.model.lifecycle import State
from spark_ext.model.until import Stands, Upstream, upstream_of

RUNS = State.RUNNING


@pytest.mark.parametrize(
    ("producers", "states", "waits", "ended"),
    [
        ("ab", {"a": State.SUSPENDED, "b": RUNS, "q": RUNS}, {}, False),
        ("ab", {"a": State.SUSPENDED, "b": State.FINISHED, "q": RUNS}, {}, True),
        # One that has left the job.
        ("a", {"q": RUNS}, {}, True),
        # One that is not built ends the run with those it waits for, unless they finish: it is about to be built then.
        ("b", {"a": RUNS, "q": RUNS}, {"b": ("a",)}, False),
        ("b", {"a": State.FINISHED, "q": RUNS}, {"b": ("a",)}, False),
        ("b", {"a": State.SUSPENDED, "q": RUNS}, {"b": ("a",)}, True),
        # One that waits for another that is not built.
        ("c", {"a": RUNS}, {"b": ("a",), "c": ("b",)}, False),
        ("c", {"a": State.FINISHED}, {"b": ("a",), "c": ("b",)}, False),
        ("c", {"a": State.SUSPENDED}, {"b": ("a",), "c": ("b",)}, True),
    ],
)
def test_all_of_those_that_feed_a_query_have_to_have_ended(
    producers: str, states: dict[str, State], waits: dict[str, tuple[str, ...]], ended: bool
) -> None:
    stands = {uid: Stands(state) for uid, state in states.items()}
    assert upstream_of(tuple(producers), stands, waits).ended is ended


def test_a_root_has_nobody_to_wait_for() -> None:
    assert upstream_of((), {"q": Stands(RUNS)}, {}) == Upstream(ended=True, epochs=0)


def test_their_epochs_count() -> None:
    runs = {"a": Stands(RUNS, 4), "b": Stands(RUNS, -1), "q": Stands(RUNS, 9)}
    assert upstream_of(("a", "b"), runs, {}).epochs == 5
