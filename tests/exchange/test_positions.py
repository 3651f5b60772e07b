"""How readers move over the entries of an exchange, against a model that knows single rows."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_ext.errors import OffsetError
from spark_ext.exchange.entries import Entry, EntryKind, LogState, Run, Segment
from spark_ext.exchange.positions import Front, advance, pieces, rows_before, shares


@dataclass
class Log:
    """Entries, the state after them, and what is visible in each."""

    partitions: int
    entries: list[Entry] = field(default_factory=list)
    state: LogState = field(default_factory=LogState)
    visible: list[int] = field(default_factory=list)
    """Numbers of the epochs that are not abandoned."""

    def at(self, number: int) -> Entry | None:
        return self.entries[number] if number < len(self.entries) else None

    def add(self, entry: Entry) -> int:
        self.entries.append(entry)
        self.state = self.state.after(entry)
        return len(self.entries) - 1

    def epoch(self, *tasks: Sequence[int], barrier: int | None = None, weight: int = 10, watermark: int = 0) -> int:
        """An epoch of tasks; each has wrote so many rows for each partition, in runs of one batch."""
        segments = []
        for task, rows in enumerate(tasks):
            runs = [Run(partition, first, 1, count) for first, (partition, count) in enumerate(_runs(rows)) if count]
            size = weight * sum(run.rows for run in runs)
            segments.append(Segment(f"s{len(self.entries)}-{task}", size, tuple(runs)))
        rows = [sum(task[partition] for task in tasks) for partition in range(self.partitions)]
        number = self.add(
            Entry(
                EntryKind.EPOCH, epoch=len(self.entries), rows=tuple(rows), segments=tuple(segments), barrier=barrier,
                total=self.state.total + sum(rows), watermark=watermark,
            )
        )  # fmt: skip
        self.visible.append(number)
        return number

    def cut(self, after: int) -> int:
        kept = [number for number in self.visible if number <= after]
        total = self.entries[kept[-1]].total if kept else 0
        self.visible = kept
        return self.add(Entry(EntryKind.CUT, after=after, total=total))

    def seal(self) -> int:
        return self.add(Entry(EntryKind.SEAL, total=self.state.total))

    def rows(self, partition: int) -> list[tuple[int, int]]:
        return [(number, row) for number in self.visible for row in range(self.entries[number].rows[partition])]

    def read(self, partition: int, start: Sequence[int], end: Sequence[int]) -> list[tuple[int, int]]:
        """The same from pieces: each run's rows are counted on from those of the runs before it in the entry."""
        found = []
        for piece in pieces(self.at, partition, start, end, "test"):
            number = int(piece.segment[1:].split("-")[0])
            before = 0
            for segment in self.entries[number].segments:
                for run in segment.runs:
                    if run.partition == partition and (segment.name, run.first) == (piece.segment, piece.first):
                        assert piece.batches == run.batches
                        assert piece.skip >= 0 and 0 < piece.rows <= run.rows - piece.skip
                        found += [(number, before + row) for row in range(piece.skip, piece.skip + piece.rows)]
                    before += run.rows if run.partition == partition else 0
        return found


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Those with many rows are in two runs, as after a full buffer."""
    for partition, count in enumerate(rows):
        yield partition, count - count // 3
    for partition, count in enumerate(rows):
        yield partition, count // 3


@st.composite
def logs(draw: st.DrawFn, cuts: bool = True) -> Log:
    log = Log(draw(st.integers(1, 4)))
    size = st.integers(0, 7)
    for _ in range(draw(st.integers(0, 14))):
        kinds = ["epoch", "epoch", "epoch", "barrier", "claim", "release", "register", *(["cut"] if cuts else [])]
        kind = draw(st.sampled_from(kinds))
        if kind in ("epoch", "barrier"):
            tasks = draw(st.lists(st.lists(size, min_size=log.partitions, max_size=log.partitions), max_size=3))
            given = {"weight": draw(st.integers(1, 9)), "watermark": draw(st.integers(0, 3)) * len(log.entries)}
            log.epoch(*tasks, barrier=len(log.entries) if kind == "barrier" else None, **given)
        elif kind == "claim":
            log.add(Entry(EntryKind.CLAIM, incarnation=len(log.entries) + 1))
        elif kind == "register":
            log.add(Entry(EntryKind.REGISTER, consumer="c", query="q"))
        elif kind == "release":
            log.add(Entry(EntryKind.RELEASE, below=0))
        else:
            stays = [-1, *(number for number in range(len(log.entries)) if log.state.passes_over(number) is None)]
            log.cut(draw(st.sampled_from(stays)))
    if draw(st.booleans()):
        log.seal()
    return log


limits = st.one_of(st.none(), st.integers(1, 12))


@given(log=logs(), data=st.data())
@settings(max_examples=5 * settings().max_examples // 2, deadline=None)
def test_epochs_of_any_limits_have_each_row_once_in_order(log: Log, data: st.DataObject) -> None:
    """A reader that stands still between any two of its epochs, as a new process does, sees the log grow meanwhile."""
    front, barriers = Front(0, (0,) * log.partitions), []
    read: list[list[tuple[int, int]]] = [[] for _ in range(log.partitions)]
    sealed = False
    while True:
        rows, size = data.draw(limits), data.draw(limits)
        step = advance(log.state, log.at, front, rows, size)
        assert step == advance(log.state, log.at, front, rows, size)
        assert rows_before(log.at, log.state, front) == sum(map(len, read)), "what a reader has behind it"
        if not step.moved:
            assert step.front == front, "entries without rows make no epoch"
            break
        assert not sealed
        parts = [log.read(one, front.position(one), step.front.position(one)) for one in range(log.partitions)]
        assert sum(map(len, parts)) == step.rows
        assert rows is None or step.rows <= rows
        if size is not None and step.bytes > size:
            assert step.rows == 1, "no less than a row is read"
        for number, part in enumerate(parts):
            read[number] += part
        if step.barrier is not None:
            assert log.entries[step.front.entry - 1].barrier == step.barrier
            assert not any(step.front.rows), "a barrier is the end of an epoch"
            barriers.append(step.front.entry - 1)
        front, sealed = step.front, step.sealed
    assert read == [log.rows(number) for number in range(log.partitions)]
    assert sealed is (log.state.sealed is not None)
    assert barriers == [number for number in log.visible if log.entries[number].barrier is not None]
    assert rows_before(log.at, log.state, front) == log.state.total


@given(log=logs(), data=st.data())
@settings(deadline=None)
def test_a_watermark_is_that_of_the_entries_read_to_their_end(log: Log, data: st.DataObject) -> None:
    """A later one makes an epoch without rows; who does not ask for it gets the same rows."""
    front, known = Front(0, (0,) * log.partitions), 0
    plain = front
    while True:
        rows = data.draw(limits)
        step = advance(log.state, log.at, front, rows, None, watermark=known)
        passed = [log.entries[number].watermark for number in log.visible if number < step.front.entry]
        assert step.watermark in (0, max(passed, default=0)) and (not step.watermark or step.watermark > known)
        known = max(known, step.watermark)
        assert known == max(passed, default=0) or step.sealed or not step.moved
        if not step.moved:
            break
        front = step.front
    while (step := advance(log.state, log.at, plain, None, None)).moved:
        assert not step.watermark
        plain = step.front
    for number in range(log.partitions):
        assert log.read(number, [0, 0], front.position(number)) == log.rows(number)
    if log.state.sealed is None:
        assert known == max((log.entries[number].watermark for number in log.visible), default=0)


@given(log=logs(cuts=False), data=st.data())
@settings(deadline=None)
def test_a_log_that_grows_is_read_like_one_that_is_there(log: Log, data: st.DataObject) -> None:
    """A plan is made from what is there; its range is read when there is more."""
    states = [LogState()]
    for entry in log.entries:
        states.append(states[-1].after(entry))
    front = Front(0, (0,) * log.partitions)
    read: list[list[tuple[int, int]]] = [[] for _ in range(log.partitions)]
    lengths = sorted(data.draw(st.lists(st.integers(0, len(log.entries)), max_size=6)))
    for there in itertools.chain(lengths, itertools.repeat(len(log.entries))):
        known = log.entries[:there]
        at = lambda number, known=known: known[number] if number < len(known) else None  # noqa: E731
        limit = data.draw(st.integers(3, 20))
        step = advance(states[there], at, front, limit, None)
        assert step == advance(states[there], log.at, front, limit, None), "what came after the look is not read"
        for number, part in enumerate(read):
            part += log.read(number, front.position(number), step.front.position(number))
        front = step.front
        if there == len(log.entries) and not step.moved:
            break
    assert read == [log.rows(number) for number in range(log.partitions)]


@given(log=logs(), upto=st.integers(0, 20))
def test_nothing_is_read_beyond_a_given_entry(log: Log, upto: int) -> None:
    """Except that a cut is passed over as a whole."""
    front = Front(0, (0,) * log.partitions)
    while (step := advance(log.state, log.at, front, 3, None, upto)).moved:
        front = step.front
    wanted = [number for number in log.visible if number < upto]
    read = [log.read(number, [0, 0], front.position(number)) for number in range(log.partitions)]
    kept = front.entry if not any(front.rows) else front.entry + 1
    assert [row for part in read for row in part if row[0] >= upto] == []
    barrier = any(log.entries[number].barrier is not None for number in wanted)
    assert kept >= max((number + 1 for number in wanted if any(log.entries[number].rows)), default=0) or barrier


@given(left=st.lists(st.integers(0, 50), min_size=1, max_size=8), room=st.integers(0, 500))
def test_shares_add_up_exactly_and_nobody_gets_more_than_exists(left: list[int], room: int) -> None:
    got = shares(left, room)
    assert sum(got) == min(room, sum(left))
    for one, there in zip(got, left, strict=True):
        assert 0 <= one <= there
        if sum(left) > room:
            assert abs(one - room * there / sum(left)) < 1, "in proportion"


def test_too_large_an_entry_is_read_in_parts_and_the_next_waits() -> None:
    log = Log(3)
    log.epoch([60, 30, 10])
    log.epoch([1, 1, 1])
    front, seen = Front(0, (0, 0, 0)), []
    while (step := advance(log.state, log.at, front, 40, None)).moved:
        front = step.front
        seen.append((front, step.rows))
    assert seen == [(Front(0, (24, 12, 4)), 40), (Front(0, (48, 24, 8)), 40), (Front(2, (0, 0, 0)), 23)]


def abandoned() -> Log:
    """Entries 1 to 3 are abandoned by 4, of which 2 has no rows."""
    log = Log(1)
    log.epoch([3])
    log.add(Entry(EntryKind.REGISTER, consumer="c", query="q"))
    log.epoch([5])
    log.cut(0)
    log.epoch([2])
    return log


@pytest.mark.parametrize("front", [Front(2, (1,)), Front(3, (0,))])
def test_a_reader_of_rows_that_were_abandoned_is_refused(front: Front) -> None:
    log = abandoned()
    with pytest.raises(OffsetError, match="some of them are abandoned"):
        advance(log.state, log.at, front, None, None)


@pytest.mark.parametrize("front", [Front(0, (1,)), Front(1, (0,)), Front(2, (0,))])
def test_a_reader_restored_with_its_producer_skips_the_abandoned(front: Front) -> None:
    log = abandoned()
    step = advance(log.state, log.at, front, None, None)
    assert step.front == Front(5, (0,))
    assert log.read(0, front.position(0), step.front.position(0))[-2:] == [(4, 0), (4, 1)]


@pytest.mark.parametrize("number", [1, 3])
def test_after_a_reset_only_readers_that_begin_are_served(number: int) -> None:
    log = Log(1)
    log.epoch([3])
    log.epoch([3])
    log.epoch([3])
    log.add(Entry(EntryKind.CLAIM, incarnation=2, lineage=2, after=-1))
    log.epoch([1])
    gone = lambda at: None if at < number else log.at(at)  # noqa: E731
    with pytest.raises(OffsetError, match="reset or restored without this one"):
        advance(log.state, gone, Front(number, (0,)), None, None)
    assert advance(log.state, gone, Front(0, (0,)), None, None).front == Front(5, (0,))


def test_an_entry_that_is_not_there_is_named() -> None:
    log = Log(1)
    log.epoch([1])
    with pytest.raises(OffsetError, match="entry 1 of the exchange is not there"):
        list(pieces(log.at, 0, [0, 0], [1, 3], "exchange 'e'"))
    with pytest.raises(KeyError):
        rows_before(lambda number: None, log.state, Front(0, (0,)))


@pytest.mark.parametrize(
    "positions",
    [
        {}, {"0": [1, 0]}, {"0": [1, 0], "1": [2, 0]}, {"0": [1, 0], "1": [1, 0], "2": [1, 0]},
        {"0": [1, 0], "a": [1, 0]}, {"0": [1, 0], "1": 7}, {"0": [1, 0], "1": [1, 0, 0]},
    ],
)  # fmt: skip
def test_positions_of_something_else_are_refused(positions: Mapping[str, Sequence[int]]) -> None:
    with pytest.raises(OffsetError, match="2 partitions"):
        Front.of(positions, 2, "source 's'")
    assert Front.of({"1": [4, 2], "0": [4, 0]}, 2, "source 's'") == Front(4, (0, 2))
