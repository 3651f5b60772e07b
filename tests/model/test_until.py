"""When those that feed a query have ended the run."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ext.model.lifecycle import State
from spark_ext.model.until import Stands, Upstream, upstream_of

RUNS = State.RUNNING


def over(producers: str, states: dict[str, State], waiting: Mapping[str, tuple[str, ...]] | None = None) -> bool:
    return upstream_of(tuple(producers), {uid: Stands(state) for uid, state in states.items()}, waiting or {}).ended


def test_a_root_has_nobody_to_wait_for() -> None:
    assert upstream_of((), {"q": Stands(RUNS)}, {}) == Upstream(ended=True, epochs=0)


def test_all_of_them_have_to_have_ended() -> None:
    assert not over("ab", {"a": State.SUSPENDED, "b": RUNS, "q": RUNS})
    assert over("ab", {"a": State.SUSPENDED, "b": State.FINISHED, "q": RUNS})


def test_their_epochs_count() -> None:
    runs = {"a": Stands(RUNS, 4), "b": Stands(RUNS, -1), "q": Stands(RUNS, 9)}
    assert upstream_of(("a", "b"), runs, {}).epochs == 5


def test_one_that_has_left_the_job_has_ended() -> None:
    assert over("a", {"q": RUNS})


def test_one_that_is_not_built_ends_the_run_with_those_it_waits_for_unless_they_finish() -> None:
    waits = {"b": ("a",)}
    assert not over("b", {"a": RUNS, "q": RUNS}, waits)
    assert not over("b", {"a": State.FINISHED, "q": RUNS}, waits), "it is about to be built"
    assert over("b", {"a": State.SUSPENDED, "q": RUNS}, waits)


def test_one_that_waits_for_another_that_is_not_built() -> None:
    waits = {"b": ("a",), "c": ("b",)}
    assert not over("c", {"a": RUNS}, waits)
    assert not over("c", {"a": State.FINISHED}, waits)
    assert over("c", {"a": State.SUSPENDED}, waits)
