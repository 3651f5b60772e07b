"""Token buckets: the average holds with epochs of any duration, and a time without input is not made up for."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.token_bucket import TokenBucket
from spark_ext.sources.runtime.rates import BURST_S, LEAST_S, MOST_S, bucket


class World:
    """A query with a bucket; an epoch takes `overhead` s and `cost` s per row, Spark asks every 10 ms."""

    def __init__(self, rate: float, cost: float = 0.0, overhead: float = 0.0) -> None:
        self.now, self.cost, self.overhead = 1000.0, cost, overhead
        self.bucket = bucket(rate, self.now)
        self.epochs: list[tuple[float, int]] = []

    def run(self, seconds: float, available: int | None = None) -> int:
        """Read for a time what the bucket allows; how many rows."""
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
    """Also when reading takes most of the time: the bucket fills while an epoch runs."""
    world = World(rate, cost=load / rate, overhead=overhead)
    world.run(5)
    first = len(world.epochs) - 1
    world.run(30)
    (begin, _), (end, _) = world.epochs[first], world.epochs[-1]
    rows = sum(rows for _, rows in world.epochs[first + 1 :])
    assert end - begin > 25
    assert rows / (end - begin) == pytest.approx(rate, rel=0.05)


def test_from_the_very_beginning_no_more_is_read_than_the_rate_brings() -> None:
    world = World(10_000)
    assert world.run(30) == pytest.approx(300_000, rel=0.005)


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
def test_after_ten_minutes_without_input_one_second_is_read_at_once(rate: float) -> None:
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


def test_what_is_read_beyond_the_tokens_is_waited_for() -> None:
    found = bucket(100, 0.0)
    assert found.fill(1.0, MOST_S) == 100
    found.use(1_100)
    assert found.fill(10.9, MOST_S) == 0
    assert found.wait_s == pytest.approx(0.2)
    assert found.fill(11.1, MOST_S) == 10


def test_a_long_epoch_is_made_up_for_up_to_ten_seconds() -> None:
    found = bucket(100, 0.0)
    assert found.fill(8.0, MOST_S) == 800
    found.use(800)
    assert found.fill(1_000.0, MOST_S) == 1_000
    assert bucket(100, 0.0).fill(1_000.0, 600.0) == 60_000


def test_a_query_that_is_slower_than_the_limit_does_not_read_more_and_more_at_once() -> None:
    """A smaller limit would have to wait for such an epoch."""
    world = World(1_000, cost=2 / 1_000)
    world.run(600)
    assert max(rows for _, rows in world.epochs) <= 1_000 * MOST_S


def test_tokens_that_are_put_back_can_be_used_again() -> None:
    found = bucket(100, 0.0)
    found.use(found.fill(1.0, MOST_S))
    assert found.fill(1.0, MOST_S) == 0
    found.use(-100)
    assert found.fill(1.0, MOST_S) == 100


def test_requests_at_equal_distances() -> None:
    """A pause is not made up for, and a request that was late does not move those after it."""
    found, waits = TokenBucket(4.0, 0.0, burst=1, least=0, held=1), []
    for now in (0.0, 0.0, 0.1, 10.0, 10.0):
        found.fill(now)
        found.use(1)
        waits.append(found.wait_s)
    assert waits == [0.0, 0.25, pytest.approx(0.4), 0.0, 0.25]
