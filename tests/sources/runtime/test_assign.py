"""How the ranges of an epoch are spread over its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from spark_ext.model.offsets import Position, Range
from spark_ext.sources.contract import Channel
from spark_ext.sources.runtime.reader import ReadTask, assign
from tests.sources.memory import Memory, Store, memory

pieces = st.lists(st.integers(1, 1000), max_size=30).map(
    lambda sizes: [Range(f"c{n}", None, 0, size) for n, size in enumerate(sizes)]
)


class Splitting(Memory):
    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        bounds = [start + (end - start) * part // parts for part in range(parts + 1)]
        return [(low, high) for low, high in pairwise(bounds) if low < high]


def splitting() -> Splitting:
    source = Splitting({"uid": "s"})
    source.store = Store({})
    return source


def tasks_of(source: Memory, given: list[Range], readers: int) -> list[tuple[Range, ...]]:
    found = assign(source, given, readers)
    assert all(isinstance(task, ReadTask) for task in found)
    return [task.ranges for task in found]  # type: ignore[attr-defined]


@given(pieces, st.integers(1, 12))
def test_each_range_is_in_exactly_one_task_and_no_task_is_empty(given: list[Range], readers: int) -> None:
    tasks = tasks_of(memory(Store({})), given, readers)
    assert len(tasks) == min(readers, len(given))
    assert all(tasks)
    assert sorted((piece for task in tasks for piece in task), key=lambda piece: piece.channel) == sorted(
        given, key=lambda piece: piece.channel
    )


@given(pieces, st.integers(1, 12))
def test_no_task_has_more_than_the_even_share_and_one_range(given: list[Range], readers: int) -> None:
    tasks = tasks_of(memory(Store({})), given, readers)
    loads = [sum(piece.end - piece.start for piece in task) for task in tasks]
    if given:
        longest = max(piece.end for piece in given)
        assert max(loads) <= sum(loads) / len(loads) + longest


@given(pieces, st.integers(1, 12))
def test_a_source_that_can_split_uses_all_readers_and_loses_no_row(given: list[Range], readers: int) -> None:
    tasks = tasks_of(splitting(), given, readers)
    assert len(tasks) <= readers
    rows: dict[str, list[int]] = {}
    for task in tasks:
        for piece in task:
            rows.setdefault(piece.channel, []).extend(range(piece.start, piece.end))
    assert {name: sorted(found) for name, found in rows.items()} == {
        piece.channel: list(range(piece.start, piece.end)) for piece in given
    }
    if given and all(piece.end >= 12 for piece in given):
        assert len(tasks) == readers


def test_a_source_that_cannot_split_keeps_a_channel_in_one_task() -> None:
    assert tasks_of(memory(Store({})), [Range("a", None, 0, 9)], 5) == [(Range("a", None, 0, 9),)]


def test_positions_that_are_not_numbers_count_as_one_each() -> None:
    given = [Range(name, None, "x", "y") for name in "abcd"]
    assert sorted(len(task) for task in tasks_of(memory(Store({})), given, 2)) == [2, 2]


class Wanting(Splitting):
    """A source that is to be read by six tasks, whatever `readers` is."""

    @property
    def least_tasks(self) -> int:
        return 6


@given(pieces, st.integers(1, 12))
def test_a_source_may_want_more_tasks_and_large_ranges_are_divided_among_more(given: list[Range], readers: int) -> None:
    source = Wanting({"uid": "s"})
    source.store = Store({})
    tasks = tasks_of(source, given, readers)
    rows = sum(piece.end for piece in given)
    assert len(tasks) >= min(6, readers if readers > 6 else 6, rows)
    covered: dict[str, int] = {}
    for piece in sorted((one for task in tasks for one in task), key=lambda one: (one.channel, one.start)):
        assert piece.start == covered.get(piece.channel, 0)
        covered[piece.channel] = piece.end
    assert covered == {piece.channel: piece.end for piece in given}
    even = -(-rows // max(6, readers))
    assert all(piece.end - piece.start <= even for task in tasks for piece in task), "none is larger than an even share"
