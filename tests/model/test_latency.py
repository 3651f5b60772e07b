"""Latency markers: each is counted once where it arrives, with the stamp that it was made with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from spark_ext.model.latency import (
    MOST_CARRIED,
    WINDOW,
    Commit,
    Flow,
    Hop,
    Latencies,
    Marker,
    Passage,
    Sampler,
    percentile,
)

READERS = ("x-in", "x-again")


@dataclass
class World:
    """`a` writes the exchange `x`; `c` reads it by one source, `d` by another one. A log of entries that grows."""

    flow: Flow = field(default_factory=Flow)
    at: int = 1_000
    log: list[tuple[str, int]] = field(default_factory=list)  # application and epoch; a registration is of nobody
    seen: int = 0  # entries that the last look at the exchange has found
    epochs: Counter[str] = field(default_factory=Counter)
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(READERS, 0))
    made: dict[int, int] = field(default_factory=dict)  # stamp by epoch of `a`
    committed: dict[tuple[str, int], int] = field(default_factory=dict)  # when, by query and entry
    arrived: list[Marker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flow.produces("x", "a", "app", READERS)

    def produce(self, wrote: bool, took: int) -> None:
        epoch, stamp = self.epochs["a"], self.at
        self.epochs["a"] += 1
        self.at += took
        self.made[epoch] = stamp
        if wrote:
            self.log.append(("app", epoch))
        self.flow.commit(Commit("a", "app", epoch, self.at, (Marker("in", stamp),)))
        self.flow.seen("app", epoch)
        self.arrived += self.flow.arrivals()

    def register(self) -> None:
        self.log.append(("", -1))

    def consume(self, query: str, reader: str, entries: int) -> None:
        begin, end = self.read[reader], min(len(self.log), self.read[reader] + entries)
        if begin < end:
            epoch, self.read[reader] = self.epochs[query], end
            self.epochs[query] += 1
            self.committed |= {(query, number): self.at for number in range(begin, end)}
            self.flow.commit(Commit(query, "", epoch, self.at, (), (Passage("x", reader, begin, end),)))
            self.arrived += self.flow.arrivals()

    def look(self) -> None:
        self.seen = len(self.log)
        self.arrived += self.flow.arrivals(self.brought)

    def brought(self, passage: Passage) -> Sequence[tuple[str, int]] | None:
        return None if passage.end > self.seen else self.log[passage.begin : passage.end]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.booleans(), st.integers(0, 50)), st.tuples(st.just("register")),
        st.tuples(st.just("consume"), st.just("c"), st.just("x-in"), st.integers(1, 4)),
        st.tuples(st.just("consume"), st.just("d"), st.just("x-again"), st.integers(1, 4)), st.tuples(st.just("look")),
        st.tuples(st.just("clock"), st.integers(-200, 500)),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_a_marker_is_counted_once_with_the_stamp_of_its_origin(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    for kind, *values in steps:
        if kind == "clock":
            world.at += values[0]
        else:
            getattr(world, kind)(*values)
    world.look()

    counted = Counter((marker.query, marker.way, marker.at) for marker in world.arrived)
    expected: Counter[tuple[str, tuple[str, ...], int]] = Counter(("a", (), stamp) for stamp in world.made.values())
    latencies = []
    for query, reader in (("c", "x-in"), ("d", "x-again")):
        for number, (name, epoch) in enumerate(world.log[: world.read[reader]]):
            if name == "app":
                expected[query, (reader,), world.made[epoch]] += 1
                latencies.append((query, max(0, world.committed[query, number] - world.made[epoch])))
    assert counted == expected
    assert sorted((one.query, one.ms) for one in world.arrived if one.way) == sorted(latencies)
    assert all(hop.ms >= 0 for marker in world.arrived for hop in marker.hops)


def test_a_marker_says_where_it_was_and_when() -> None:
    world = World()
    world.produce(True, 30)
    world.at += 70
    world.consume("c", "x-in", 1)
    world.look()
    _, marker = world.arrived
    assert marker == Marker("in", 1_000, (Hop("a", 30), Hop("c", 100)), ("x-in",))
    assert (marker.query, marker.ms, marker.arrived_at) == ("c", 100, 1_100)


def test_a_chain_waits_for_what_lies_before_it() -> None:
    """`d` has committed what `c` has written before it is known what `c` has read."""
    flow = Flow()
    flow.produces("x", "a", "app-a", ("x-in",))
    flow.produces("y", "c", "app-c", ("y-in",))
    flow.commit(Commit("d", "", 0, 160, (), (Passage("y", "y-in", 0, 1),)))
    flow.commit(Commit("c", "app-c", 0, 130, (), (Passage("x", "x-in", 0, 1),)))
    flow.commit(Commit("a", "app-a", 0, 110, (Marker("in", 100),)))
    for application in ("app-a", "app-c"):
        flow.seen(application, 0)
    assert [marker.query for marker in flow.arrivals()] == ["a"]
    only_y = {"y": [("app-c", 0)]}
    assert flow.arrivals(lambda passage: only_y.get(passage.exchange)) == []
    both = {"x": [("app-a", 0)], **only_y}
    found = flow.arrivals(lambda passage: both.get(passage.exchange))
    ways = [(marker.query, marker.ms, marker.way) for marker in found]
    assert ways == [("c", 30, ("x-in",)), ("d", 60, ("x-in", "y-in"))]


def test_a_producers_commit_that_is_seen_late_is_waited_for() -> None:
    flow = Flow()
    flow.produces("x", "a", "app", ("x-in",))
    flow.commit(Commit("c", "", 0, 150, (), (Passage("x", "x-in", 0, 1),)))
    assert flow.arrivals(lambda _: [("app", 0)]) == [], "Spark has not recorded the producer's commit yet"
    flow.commit(Commit("a", "app", 0, 110, (Marker("in", 100),)))
    flow.seen("app", 0)
    assert [(one.query, one.ms) for one in flow.arrivals(lambda _: [("app", 0)])] == [("a", 10), ("c", 50)]


def test_a_commit_whose_time_is_not_known_ends_its_markers() -> None:
    flow = Flow()
    flow.produces("x", "a", "app", ("x-in",))
    flow.commit(Commit("a", "app", 0, None, (Marker("in", 100),)))
    flow.seen("app", 0)
    flow.commit(Commit("c", "", 0, 150, (), (Passage("x", "x-in", 0, 1),)))
    assert flow.arrivals(lambda _: [("app", 0)]) == []


def test_a_reader_at_a_standstill_is_measured_over_all_its_wait() -> None:
    world = World()
    epochs = 5 * MOST_CARRIED
    for _ in range(epochs):
        world.produce(True, 10)
        world.consume("d", "x-again", 1)
        world.look()
    assert sum(marker.query == "d" for marker in world.arrived) == epochs, "nothing is lost to one that keeps up"
    world.consume("c", "x-in", epochs)
    world.look()
    late = [marker for marker in world.arrived if marker.query == "c"]
    assert 0 < len(late) <= MOST_CARRIED
    assert max(marker.ms for marker in late) > 0.9 * 10 * epochs, "the oldest is among them"
    assert len({marker.at for marker in late}) == len(late)


def test_a_reader_behind_by_less_than_is_kept_loses_nothing() -> None:
    world, behind = World(), MOST_CARRIED // 2 - 10
    for number in range(3 * MOST_CARRIED):
        world.produce(True, 10)
        world.consume("d", "x-again", 1)
        if number >= behind:
            world.consume("c", "x-in", 1)
        world.look()
    assert sum(marker.query == "c" for marker in world.arrived) == 3 * MOST_CARRIED - behind


@given(st.integers(1, 500), st.lists(st.integers(0, 300), max_size=50))
def test_at_most_one_marker_in_an_interval_and_none_too_late(interval: int, gaps: list[int]) -> None:
    sampler, at, taken = Sampler(interval), 0, []
    for gap in gaps:
        at += gap
        if sampler.take("s", at):
            taken.append(at)
        assert taken and at - taken[-1] < interval
    assert all(later - earlier >= interval for earlier, later in pairwise(taken))
    assert not gaps or sampler.take("another", at)


def test_without_an_interval_all_epochs_are_marked_on_any_clock() -> None:
    assert [Sampler(0).take("s", 5) for _ in range(3)] == [True] * 3
    sampler = Sampler(1_000)
    assert sampler.take("s", 50_000) and sampler.take("s", 10) and not sampler.take("s", 20)


@given(st.lists(st.integers(0, 1_000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


def test_percentiles_are_those_of_the_newest_markers() -> None:
    kept, newest = Latencies(keep=True), Latencies(keep=False)
    for number in range(WINDOW + 100):
        for latencies in (kept, newest):
            latencies.take(Marker("in", 0, (Hop("q", number),)))
    (found,), (last,) = kept.of("q"), newest.of("q")
    assert (found.newest.ms, found.markers) == (last.newest.ms, last.markers) == (WINDOW + 99, WINDOW + 100)
    assert (found.p50, found.p95, found.p99) == (399, 669, 693)
    assert (last.p50, last.p95, last.p99) == (None, None, None)
    assert kept.of("another") == ()


def test_two_ways_are_two_latencies() -> None:
    latencies = Latencies(keep=False)
    for way, ms in ((("x-in",), 5), (("x-in", "y-in"), 9), (("x-in",), 6)):
        latencies.take(Marker("in", 0, (Hop("q", ms),), way))
    found = [(one.newest.way, one.newest.ms, one.markers) for one in latencies.of("q")]
    assert found == [(("x-in",), 6, 2), (("x-in", "y-in"), 9, 1)]
