"""`target_epoch`: the read limit of a source follows what the epochs of its query take."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from spark_ext.sources.runtime.rates import FIRST, Pace

TARGET = 2_000


class World:
    """A query whose epochs take `overhead` s and `cost` s per row."""

    def __init__(self, cost: float, overhead: float = 0.0) -> None:
        self.now, self.cost, self.overhead = 100.0, cost, overhead
        self.pace = Pace(TARGET, lambda: self.now)

    def epoch(self, available: int = 10**9, given: int | None = None) -> float:
        """Plan one epoch and run it; its duration."""
        self.pace.asked()
        limit = self.pace.limit(given)
        assert limit is not None
        rows = min(limit, available)
        self.pace.planned(rows)
        took = self.overhead + rows * self.cost
        self.now += took
        return took

    def settle(self) -> float:
        return [self.epoch() for _ in range(30)][-1]


@given(cost=st.floats(1e-6, 1e-2), overhead=st.floats(0, 1), slower=st.floats(0.1, 10))
def test_epochs_settle_at_the_target_also_after_a_row_has_come_to_cost_more_or_less(
    cost: float, overhead: float, slower: float
) -> None:
    world = World(cost, overhead)
    assert abs(world.settle() - TARGET / 1000) <= 0.25 * TARGET / 1000
    world.cost *= slower
    assert abs(world.settle() - TARGET / 1000) <= 0.25 * TARGET / 1000


def test_an_epoch_that_takes_ten_times_as_long_is_corrected_at_once() -> None:
    world = World(cost=1e-3)
    world.settle()
    world.cost *= 10
    slow, after = world.epoch(), world.epoch()
    assert slow > 5 * TARGET / 1000
    assert after <= 1.1 * TARGET / 1000


def test_an_epoch_with_all_there_was_does_not_raise_the_limit() -> None:
    world = World(cost=1e-6)
    for _ in range(5):
        world.epoch(available=10)
    assert world.pace.limit(None) == FIRST


def test_the_users_limit_is_never_exceeded_and_the_first_epoch_is_small() -> None:
    world = World(cost=1e-6)
    assert world.pace.limit(None) == FIRST
    for _ in range(10):
        world.epoch(given=5_000)
        assert (world.pace.limit(5_000) or 0) <= 5_000


def test_without_a_target_only_the_users_limit_counts() -> None:
    pace = Pace(0, lambda: 0.0)
    pace.planned(5)
    pace.asked()
    assert pace.limit(None) is None and pace.limit(7) == 7
