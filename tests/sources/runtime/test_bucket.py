"""Token buckets, whose average holds whatever epochs take, and `target_epoch`, which adapts what epochs read."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.token_bucket import TokenBucket
from spark_ext.sources.runtime.rates import BURST_S, FIRST, LEAST_S, MOST_S, Pace, bucket


class World:
    """A query with a bucket; an epoch takes `overhead` s and `cost` s per row, Spark asks every 10 ms."""

    def __init__(self, rate: float, cost: float = 0.0, overhead: float = 0.0) -> None:
        self.now, self.cost, self.overhead = 1000.0, cost, overhead
        self.bucket = bucket(rate, self.now)
        self.epochs: list[tuple[float, int]] = []

    def run(self, seconds: float, available: int | None = None) -> int:
        end, before = self.now + seconds, sum(rows for _, rows in self.epochs)
        left = available
        while self.now < end:
            self.now += 0.01
            allowed = self.bucket.fill(self.now, MOST_S)
            rows = allowed if left is None else min(allowed, left)
            if allowed and rows < allowed:
                self.bucket.clip()
            if rows:
                left = None if left is None else left - rows
                self.bucket.use(rows)
                self.epochs.append((self.now, rows))
                self.now += self.overhead + rows * self.cost
        return sum(rows for _, rows in self.epochs) - before


@pytest.mark.parametrize("rate", [100, 10_000, 1_000_000, 3.7])
@pytest.mark.parametrize("overhead", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("load", [0.0, 0.5, 0.8])
def test_the_average_over_thirty_seconds_is_within_five_percent(rate: float, overhead: float, load: float) -> None:
    world = World(rate, cost=load / rate, overhead=overhead)
    world.run(5)
    first = len(world.epochs) - 1
    world.run(30)
    (begin, _), (end, _) = world.epochs[first], world.epochs[-1]
    rows = sum(rows for _, rows in world.epochs[first + 1 :])
    assert end - begin > 25
    assert rows / (end - begin) == pytest.approx(rate, rel=0.05)


@given(rate=st.floats(0.01, 1e7), pauses=st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_no_pattern_of_questions_gets_more_than_the_rate(rate: float, pauses: list[float]) -> None:
    found, now, used = bucket(rate, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        allowed = found.fill(now, MOST_S)
        assert allowed <= max(rate * MOST_S, 1) + 1
        found.use(allowed)
        used += allowed
        assert used <= now * rate + 1e-3


@pytest.mark.parametrize("rate", [0.5, 100, 1_000_000])
def test_after_ten_idle_minutes_one_second_is_read_at_once(rate: float) -> None:
    world = World(rate)
    world.run(600, available=0)
    assert world.bucket.fill(world.now, MOST_S) <= max(1, rate * (BURST_S + 0.02))


def test_an_epoch_per_row_is_not_planned() -> None:
    world = World(100)
    world.run(10)
    assert all(rows >= 100 * LEAST_S for _, rows in world.epochs)
    slow = World(0.5)
    assert slow.run(10.1) == 5
    assert [rows for _, rows in slow.epochs] == [1] * 5


def test_tokens_are_waited_for_made_up_and_put_back() -> None:
    found = bucket(100, 0.0)
    assert found.fill(1.0, MOST_S) == 100
    found.use(1_100)
    assert found.fill(10.9, MOST_S) == 0
    assert found.wait_s == pytest.approx(0.2)
    assert found.fill(11.1, MOST_S) == 10
    found = bucket(100, 0.0)  # a long epoch is made up for, up to ten seconds
    assert found.fill(8.0, MOST_S) == 800
    found.use(800)
    assert found.fill(1_000.0, MOST_S) == 1_000
    assert bucket(100, 0.0).fill(1_000.0, 600.0) == 60_000
    found = bucket(100, 0.0)  # tokens that are put back can be used again
    found.use(found.fill(1.0, MOST_S))
    assert found.fill(1.0, MOST_S) == 0
    found.use(-100)
    assert found.fill(1.0, MOST_S) == 100


def test_requests_at_equal_distances() -> None:
    found, waits = TokenBucket(4.0, 0.0, burst=1, least=0, held=1), []
    for now in (0.0, 0.0, 0.1, 10.0, 10.0):
        found.fill(now)
        found.use(1)
        waits.append(found.wait_s)
    assert waits == [0.0, 0.25, pytest.approx(0.4), 0.0, 0.25]


TARGET = 2_000


class Paced:
    """A query whose epochs take `overhead` s and `cost` s per row."""

    def __init__(self, cost: float, overhead: float = 0.0) -> None:
        self.now, self.cost, self.overhead = 100.0, cost, overhead
        self.pace = Pace(TARGET, lambda: self.now)

    def epoch(self, available: int = 10**9, given: int | None = None) -> float:
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
def test_epochs_settle_at_the_target_though_the_cost_changes(cost: float, overhead: float, slower: float) -> None:
    world = Paced(cost, overhead)
    assert abs(world.settle() - TARGET / 1000) <= 0.25 * TARGET / 1000
    world.cost *= slower
    assert abs(world.settle() - TARGET / 1000) <= 0.25 * TARGET / 1000


def test_an_epoch_ten_times_as_long_is_corrected_at_once() -> None:
    world = Paced(cost=1e-3)
    world.settle()
    world.cost *= 10
    slow, after = world.epoch(), world.epoch()
    assert slow > 5 * TARGET / 1000
    assert after <= 1.1 * TARGET / 1000


def test_the_first_epoch_is_small_and_the_users_limit_holds() -> None:
    world = Paced(cost=1e-6)
    assert world.pace.limit(None) == FIRST
    for _ in range(5):
        world.epoch(available=10)
    assert world.pace.limit(None) == FIRST, "an epoch with all there was does not raise it"
    for _ in range(10):
        world.epoch(given=5_000)
        assert (world.pace.limit(5_000) or 0) <= 5_000


def test_without_a_target_only_the_users_limit_counts() -> None:
    pace = Pace(0, lambda: 0.0)
    pace.planned(5)
    pace.asked()
    assert pace.limit(None) is None and pace.limit(7) == 7
