"""The unaligned cut: consistent, restorable and the newest that the looks allow; what may be released behind it."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.model.checkpoint_plan import NotNow, Reason
from spark_ext.model.cut import (
    CommittedEpoch,
    Cut,
    CutPoint,
    InFlight,
    Position,
    QueryLog,
    cut,
    positions,
    release_bound,
)
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from tests.support.exchange_histories import History
from tests.support.graphs import chain, random_graph

HISTORIES = 4_000

PAIR = JobGraph((QueryNode("a", writes=("x",)), QueryNode("b", (Reader("x", "r"),))))

seeds = st.integers(0, 2**32)


def written(*ends: int) -> QueryLog:
    return QueryLog(tuple(CommittedEpoch(number, writes={"x": end}) for number, end in enumerate(ends)))


def read(*reads: Position) -> QueryLog:
    return QueryLog(tuple(CommittedEpoch(number, {"r": position}) for number, position in enumerate(reads)))


def taken(graph: JobGraph, logs: dict[str, QueryLog], rows: dict[str, dict[int, dict[int, int]]] | None = None) -> Cut:
    found = cut(graph, logs, rows)
    assert isinstance(found, Cut)
    return found


def history(seed: int, queries: int = 5, steps: int = 80) -> tuple[History, random.Random]:
    chance = random.Random(seed)
    return History(random_graph(chance, queries), chance, chance.randint(0, steps)), chance


def newest(log: QueryLog) -> CutPoint:
    return CutPoint(log.epochs[-1].number if log.epochs else None, log.finished)


def age(point: CutPoint) -> tuple[int, bool]:
    return (-1 if point.epoch is None else point.epoch, point.finished)


def test_a_query_with_commits_is_never_taken_for_one_without() -> None:
    assert cut(PAIR, {"a": QueryLog(committed=200), "b": QueryLog()}) == NotNow(Reason.FORGOTTEN, "a")
    assert taken(PAIR, {"a": QueryLog(), "b": QueryLog()}).points == {"a": CutPoint(None), "b": CutPoint(None)}


def test_a_given_place_is_the_cut_or_there_is_none() -> None:
    """Not an earlier one, although that would be consistent: it would not be that of the aligned checkpoint."""
    given = replace(read(Position.behind(1), Position.behind(2)), exact=True)
    assert taken(PAIR, {"a": written(1, 2), "b": given}).points["b"] == CutPoint(1)
    assert cut(PAIR, {"a": written(1), "b": given}) == NotNow(Reason.INCONSISTENT, "b")
    nothing = QueryLog(exact=True)
    assert taken(PAIR, {"a": written(1), "b": nothing}).points["b"] == CutPoint(None)


def test_u5_what_is_between_the_two_is_in_flight() -> None:
    sizes = {"x": {entry: {0: 600, 1: 400} for entry in range(5)}}
    behind = Position({0: (2, 0), 1: (1, 300)})
    found = taken(PAIR, {"a": written(1, 2, 3, 4, 5), "b": read(behind)}, sizes)
    assert found.points == {"a": CutPoint(4), "b": CutPoint(0)}
    assert found.in_flight == (InFlight("x", "b", "r", behind, 5, False, 3 * 600 + 100 + 3 * 400),)
    assert positions(found) == {("b", "r"): behind}


def test_u8_the_end_of_an_exchange_is_part_of_the_channel_state() -> None:
    logs = {"a": QueryLog(written(1).epochs, finished=True), "b": read(Position.behind(1))}
    (part,) = taken(PAIR, logs, {"x": {0: {0: 7}}}).in_flight
    assert (part.begin.reached, part.end, part.sealed, part.rows) == (1, 2, True, 0)


def test_a_size_that_is_not_known_gives_no_number_of_rows() -> None:
    (part,) = taken(PAIR, {"a": written(1, 2), "b": read(Position.behind(1))}, {"x": {0: {0: 7}}}).in_flight
    assert part.rows is None
    (part,) = taken(PAIR, {"a": written(1, 2), "b": read(Position.behind(1))}, {"x": {1: {0: 7}}}).in_flight
    assert part.rows == 7


def test_u6_a_long_chain_and_long_logs_take_one_pass() -> None:
    graph = chain(2_000)
    logs = {
        query: QueryLog(
            tuple(
                CommittedEpoch(
                    number,
                    {reader.uid: Position.behind(number) for reader in graph[query].reads},
                    dict.fromkeys(graph[query].writes, number + 1),
                )
                for number in range(5)
            )
        )
        for query in graph.order
    }
    assert set(taken(graph, logs).points.values()) == {CutPoint(4)}


@pytest.mark.slow(1, "hundreds of random histories")
def test_u1_stale_looks_at_any_history_give_one_that_restores() -> None:
    """Conformance U1: counted row by row, what was read and what is in flight is what was written, each row once."""
    stepped_back = in_flight = sealed = 0
    for seed in range(HISTORIES):
        past, chance = history(seed)
        looks = past.looks(past.any_times(chance))
        found = taken(past.graph, looks, past.rows)
        assert past.problems(found.points, looks) == [], seed
        for part in found.in_flight:
            one = past.exchanges[part.exchange]
            before, upto = one.rows_before(part.begin), one.rows(part.end)
            point = found.points[past.graph.producer(part.exchange)]
            assert part.end == past.written(part.exchange, point) + point.finished, seed
            assert (before <= upto, part.rows) == (True, len(upto - before)), seed
            in_flight += before < upto
            sealed += part.sealed
        stepped_back += any(found.points[query] != newest(log) for query, log in looks.items())
    assert min(stepped_back, in_flight, sealed) > HISTORIES // 20, "the histories show all of it"


@settings(deadline=None)
@given(seeds)
def test_u1_the_cut_is_the_newest_of_all_consistent_ones(seed: int) -> None:
    """Conformance U1: against every combination of epochs. Consistent cuts form a lattice."""
    past, chance = history(seed, queries=4, steps=30)
    looks = past.looks(past.any_times(chance))
    points = {
        query: [CutPoint(None), *(CutPoint(epoch.number) for epoch in log.epochs)]
        + ([newest(log)] if log.finished else [])
        for query, log in looks.items()
    }
    every = [dict(zip(points, one, strict=True)) for one in itertools.product(*points.values())]
    consistent = [one for one in every if not past.problems(one, looks)]
    best = {query: max((one[query] for one in consistent), key=age) for query in points}
    assert best in consistent
    assert taken(past.graph, looks).points == best


@settings(deadline=None)
@given(seeds)
def test_a_later_look_never_gives_an_earlier_cut(seed: int) -> None:
    past, chance = history(seed)
    times = past.any_times(chance)
    before, after = (taken(past.graph, past.looks(looked)).points for looked in (times, past.later(times, chance)))
    assert all(age(before[query]) <= age(after[query]) for query in before)


@settings(deadline=None)
@given(seeds)
def test_an_epoch_that_was_removed_never_silently_changes_it(seed: int) -> None:
    past, chance = history(seed)
    looks = past.looks(past.any_times(chance))
    whole = taken(past.graph, looks)
    cleaned = {
        query: QueryLog(log.epochs[chance.randint(0, max(0, len(log.epochs) - 1)) :], log.finished)
        for query, log in looks.items()
    }
    gone = [
        query
        for query in past.graph.order
        if cleaned[query].epochs
        and cleaned[query].epochs[0].number > 0
        and age(whole.points[query])[0] < cleaned[query].epochs[0].number
    ]
    assert cut(past.graph, cleaned) == (NotNow(Reason.FORGOTTEN, gone[0]) if gone else whole)


@settings(deadline=None)
@given(seeds)
def test_x2_what_a_later_one_or_a_held_place_needs_is_kept(seed: int) -> None:
    """Conformance X2: and not one entry is kept without a need."""
    past, chance = history(seed, steps=60)
    graph, times = past.graph, past.any_times(chance)
    now = taken(graph, past.looks(times))
    held = [positions(taken(graph, past.looks(past.any_times(chance)))) for _ in range(chance.randint(0, 2))]
    # An aligned checkpoint under way: only some queries have delivered their cut.
    held += [{one: place for one, place in positions(now).items() if chance.random() < 0.5}]
    keep = {exchange: chance.randint(0, 4) for exchange in graph.exchanges if chance.random() < 0.2}
    bound = release_bound(graph, now, held, keep)
    assert bound.keys() == set(graph.exchanges)

    needed: dict[str, list[int]] = {exchange: [] for exchange in graph.exchanges}
    later = [positions(taken(graph, past.looks(past.later(times, chance)))) for _ in range(3)]
    for exchange, one in past.exchanges.items():
        everything = one.rows(len(one.entries))
        for query, reader in graph.consumers(exchange):
            for places in (positions(now), *held, *later):
                position = places.get((query, reader.uid))
                if position is not None:
                    unread = everything - one.rows_before(position)
                    assert all(row[0] >= bound[exchange] for row in unread)
                    needed[exchange].append(position.released)
        assert exchange not in keep or bound[exchange] <= keep[exchange]
        assert bound[exchange] in (*needed[exchange], keep.get(exchange)) or not graph.consumers(exchange)


def test_x5_an_exchange_without_consumers_is_kept_as_a_whole() -> None:
    graph = JobGraph((QueryNode("a", writes=("x",)),))
    assert release_bound(graph, taken(graph, {"a": written(1, 2)}), keep={"x": 2}) == {"x": 0}


@pytest.mark.parametrize(("held", "keep", "bound"), [((), {}, 3), ((2,), {}, 2), ((2, 1), {}, 1), ((), {"x": 0}, 0)])
def test_x2_the_slowest_decides(held: tuple[int, ...], keep: dict[str, int], bound: int) -> None:
    now = taken(PAIR, {"a": written(1, 2, 3, 4), "b": read(Position({0: (3, 5), 1: (4, 0)}))})
    places = [{("b", "r"): Position.behind(entries), ("gone", "r"): Position()} for entries in held]
    assert release_bound(PAIR, now, places, keep) == {"x": bound}
