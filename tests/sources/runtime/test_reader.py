"""The stream reader of a source, without Spark: its tasks, and how seldom it looks while its query is idle."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pyspark.sql.types import StructType

from spark_ext.errors import StateError
from spark_ext.model.offsets import Position, Range, SourceOffset
from spark_ext.sources.contract import Channel
from spark_ext.sources.runtime.reader import PATIENCE, PERIOD, ChannelReader, Idle, ReadTask, assign
from spark_ext.sources.runtime.stream_reader import ReadAllAvailable
from spark_ext.spark.session import registry
from tests.sources.memory import Memory, Store, memory, registration


@pytest.mark.core
@pytest.mark.parametrize(
    "offset", [SourceOffset("s", lineage=1), SourceOffset("s", confirmed=2, sequence=2), SourceOffset("s", control=3)]
)
def test_i3_a_jobs_offset_is_not_planned_further_without_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: SourceOffset
) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "gone"))
    start = offset.to_json()
    with pytest.raises(StateError, match="those of a job"):
        ChannelReader(memory(Store({"a": 3})), StructType()).latestOffset(start, ReadAllAvailable())
    with pytest.raises(StateError, match="those of a job"):
        ChannelReader(memory(Store({"a": 3})), StructType()).partitions(start, start)


pieces = st.lists(st.integers(1, 1000), max_size=30).map(
    lambda sizes: [Range(f"c{n}", None, 0, size) for n, size in enumerate(sizes)]
)


class Splitting(Memory):
    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        bounds = [start + (end - start) * part // parts for part in range(parts + 1)]
        return [(low, high) for low, high in pairwise(bounds) if low < high]


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
    loads = [sum(piece.end for piece in task) for task in tasks]
    if given:
        even = sum(loads) / len(loads)
        assert max(loads) <= even + max(piece.end for piece in given), "the even share, and one range"


@given(pieces, st.integers(1, 12))
def test_a_splitting_source_uses_all_readers_and_loses_no_row(given: list[Range], readers: int) -> None:
    source = Splitting({"uid": "s"})
    source.store = Store({})
    tasks = tasks_of(source, given, readers)
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


def test_positions_that_are_not_numbers_count_as_one_each() -> None:
    given = [Range(name, None, "x", "y") for name in "abcd"]
    assert sorted(len(task) for task in tasks_of(memory(Store({})), given, 2)) == [2, 2]


class Wanting(Splitting):
    @property
    def least_tasks(self) -> int:
        return 6


@given(pieces, st.integers(1, 12))
def test_large_ranges_are_divided_if_a_source_wants_more_tasks(given: list[Range], readers: int) -> None:
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


BETWEEN = 0.01  # what Spark waits between two questions, s


class Asked:
    """A reader over a store that Spark asks for its end every 10 ms."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.arrives = 0  # rows that arrive in the next pause
        self.store = Store({"a": 3}, ends=False)
        self.reader = ChannelReader(memory(self.store, bounded=False), StructType())
        self.reader._idle = Idle(self._pause, lambda: self.now)
        self.at = self.reader.initialOffset()

    def _pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(round(seconds, 6))
        self.store.rows["a"] += self.arrives
        self.arrives = 0

    def __call__(self, after: float = BETWEEN) -> int:
        self.now += after
        self.at = self.reader.latestOffset(self.at, ReadAllAvailable())
        return int(SourceOffset.from_json(self.at, "s").running["a"].at)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "none"))
    return Asked()


def test_rows_that_arrive_during_a_pause_are_in_the_answer(asked: Asked) -> None:
    assert asked() == 3
    for rows in (3, 5):
        assert [asked() for _ in range(PATIENCE)] == [rows] * PATIENCE
        assert asked.pauses == [], "the query was not idle yet"
        asked.arrives = 2
        assert asked() == rows + 2
        assert asked.pauses == [round(PERIOD - BETWEEN, 6)]
        asked.pauses.clear()


def test_a_source_that_was_not_asked_for_long_answers_at_once(asked: Asked) -> None:
    for _ in range(PATIENCE + 1):
        asked()
    for _ in range(5):
        asked(after=PERIOD)
    assert asked.pauses == []


def test_a_source_without_rows_does_not_delay_anothers_epochs(asked: Asked) -> None:
    for _ in range(3 * PATIENCE):
        assert asked() == 3
        asked.reader.commit(asked.at)
    assert asked.pauses == []


@pytest.mark.parametrize("available_now", [False, True])
def test_before_4_2_a_query_reads_what_is_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_now: bool
) -> None:
    """Spark asks without a start, and does not say that the query ends."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path))
    registry.publish([registration(available_now=available_now)], tmp_path)
    store = Store({"a": 3}, ends=False)
    reader = ChannelReader(memory(store, bounded=False), StructType())
    start, first = reader.initialOffset(), reader.latestOffset()
    reader.partitions(start, first)
    store.rows["a"] = 5
    assert (reader.latestOffset() == first) is available_now
    assert (registry.noted_exhausted("s", tmp_path, 0) == first) is available_now


@pytest.mark.parametrize("connect", [False, True])
def test_a_query_of_an_earlier_start_notes_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: bool
) -> None:
    """It lives on in the server of Spark Connect, or in a session in which the job is taken over."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path))
    registry.publish([registration(available_now=True, start=1)], tmp_path)
    older, newer = (ChannelReader(memory(Store({"a": 3}, ends=False)), StructType()) for _ in range(2))

    def exhausted(reader: ChannelReader, start: int) -> bool:
        """After it has read three rows: whether it has noted that nothing is left."""
        if connect:
            monkeypatch.setenv(registry.NOTES_ENDS, str(start))
        begin = reader.initialOffset()
        end = reader.latestOffset(begin if connect else None)
        reader.partitions(begin, end)
        if start == 1:
            registry.publish([registration(available_now=True, start=2, incarnation=2)], tmp_path)
        assert reader.latestOffset(end if connect else None) == end
        return registry.noted_exhausted("s", tmp_path, start) is not None

    assert not exhausted(older, 1) and exhausted(newer, 2)


class Untouched(Memory):
    """A source of which nothing is asked."""

    def __getattribute__(self, name: str) -> object:
        if name in ("discover", "resume", "advance", "latest", "lag", "on_epoch_committed", "bounded"):
            raise AssertionError(f"{name} was called")
        return super().__getattribute__(name)


def test_a_closed_source_is_neither_opened_nor_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its planner finds its answer in the offset: without the ledger, which is nowhere, and without a wait."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path))
    registry.publish([registration(available_now=True, until_now=True, lag_ms=1, closed=True)], tmp_path)
    reader = ChannelReader(Untouched({"uid": "s"}), StructType())
    reader._idle = Idle(lambda _: pytest.fail("it waits"))
    at = SourceOffset("s", 1, confirmed=3, sequence=3, ended=True).to_json()
    reader.prepareForTriggerAvailableNow()
    for _ in range(2 * PATIENCE):
        assert reader.latestOffset(at) is at
    assert reader.partitions(at, at) == []
    reader.commit(at)
    report = reader.reportLatestOffset()
    assert report is not None and (report["lag"], report["waiting"]) == (0, 0)


def test_in_a_job_the_last_epoch_is_left_to_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have closed the source by then: Spark tells planners of an epoch when it plans another one."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path))
    source = memory(Store({"a": 3}))
    told: list[object] = []
    source.on_epoch_committed = told.append  # type: ignore[method-assign, assignment]
    ended = SourceOffset("s", ended=True).to_json()
    ChannelReader(source, StructType()).commit(ended)
    registry.publish([registration()], tmp_path)
    reader = ChannelReader(source, StructType())
    for offset in (SourceOffset("s").to_json(), ended):
        reader.commit(offset)
    assert len(told) == 2, "outside a job, and before the end"
