"""What is in flight is redistributed: each consumer still reads each row once, and rows of a key in order."""

from collections import defaultdict
from collections.abc import Callable, Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_ext.exchange.entries import Entry, EntryKind, LogState, Run, Segment
from spark_ext.exchange.inflight import InFlightLog, in_flight
from spark_ext.exchange.positions import Front, Piece, advance, as_read_by, pieces, rows_after, rows_before
from spark_ext.exchange.redistribution import redistribution
from tests.exchange.test_positions import Log, limits, logs

Row = tuple[int, int, int]  # entry, partition and number in which a row was written first


class Stored:
    """Rows by segment and run."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, int], list[Row]] = {}
        self._names = 0

    def of_log(self, log: Log) -> None:
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for number, entry in enumerate(log.entries):
            for segment in entry.segments:
                for run in segment.runs:
                    begin = counts[number, run.partition]
                    counts[number, run.partition] += run.rows
                    rows = [(number, run.partition, begin + row) for row in range(run.rows)]
                    self.runs[segment.name, run.first] = rows

    def read(self, piece: Piece) -> list[Row]:
        return self.runs[piece.segment, piece.first][piece.skip : piece.skip + piece.rows]

    def write(self, rows: list[Row], partition_of: Callable[[Row], int]) -> Segment:
        """As a task does: partitions in order, and their rows in order."""
        self._names += 1
        found: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            found[partition_of(row)].append(row)
        runs = []
        for first, (partition, own) in enumerate(sorted(found.items())):
            runs.append(Run(partition, first, 1, len(own)))
            self.runs[f"n{self._names}", first] = own
        return Segment(f"n{self._names}", len(rows), tuple(runs))


def left(
    at: Callable[[int], Entry | None], state: LogState, front: Front, stored: Stored, data: st.DataObject
) -> list[list[Row]]:
    """What a consumer reads from a position to the end, by partition, in epochs of any size."""
    found: list[list[Row]] = [[] for _ in front.rows]
    while (step := advance(state, at, front, data.draw(limits), None)).moved:
        for number, rows in enumerate(found):
            for piece in pieces(at, number, front.position(number), step.front.position(number), "test"):
                rows += stored.read(piece)
        front = step.front
    return found


def moved(state: LogState, at: Callable[[int], Entry | None], front: Front, data: st.DataObject) -> Front:
    for _ in range(data.draw(st.integers(0, 4))):
        front = advance(state, at, front, data.draw(limits), None).front
    return front


def redistributed(
    log: InFlightLog, fronts: Mapping[str, Front], partitions: int, stored: Stored, partition_of: Callable[[Row], int]
) -> tuple[InFlightLog, dict[str, Front]]:
    plan = redistribution(log, fronts, "test")
    segments = [
        [stored.write([row for piece in unit for row in stored.read(piece)], partition_of) for unit in part.units]
        for part in plan.parts
    ]
    found = plan.written("other", segments, partitions)
    assert InFlightLog.from_json(found.to_json(), "test") == found
    return found, {uid: plan.front(uid, partitions) for uid in fronts}


@given(log=logs(), data=st.data())
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_x10_consumers_read_what_they_had_not_read(log: Log, data: st.DataObject) -> None:
    """Twice: consumers move on from the first time to the second, and stand anywhere both times."""
    stored = Stored()
    stored.of_log(log)
    fronts = {uid: Front(0, (0,) * log.partitions) for uid in "abc"[: data.draw(st.integers(0, 3))]}
    state, entries = log.state, dict(enumerate(log.entries))
    for _ in range(2):
        of = {uid: as_read_by(entries.get, uid) for uid in fronts}
        fronts = {uid: moved(state, of[uid], front, data) for uid, front in fronts.items()}
        before = {uid: left(of[uid], state, front, stored, data) for uid, front in fronts.items()}
        running = {uid: front for uid, front in fronts.items() if state.sealed is None or front.entry <= state.sealed}
        end = state.last + 1
        first = min((front.entry for front in running.values()), default=data.draw(st.integers(state.released, end)))
        there = {number: entry for number, entry in entries.items() if number >= first}
        flight = in_flight("one", state, there, first, end)
        wanted, shift = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 4))
        partition_of = lambda row, n=wanted, shift=shift: (3 * row[1] + row[2] % 2 + shift) % n  # noqa: E731
        found, new = redistributed(flight, running, wanted, stored, partition_of)
        assert (found.rows, found.first, found.state.total) == (flight.rows, flight.first, flight.state.total)
        assert (found.state.sealed is None) is (flight.state.sealed is None)
        for uid, front in new.items():
            at = as_read_by(found.entries.get, uid)
            after = left(at, found.state, front, stored, data)
            assert sorted(row for rows in after for row in rows) == sorted(row for rows in before[uid] for row in rows)
            assert sum(rows_after(at, found.state, front)) == sum(map(len, before[uid]))
            assert rows_before(at, found.state, front) + sum(map(len, before[uid])) <= found.state.total
            for rows in after:
                for key in {(row[1], row[2] % 2) for row in rows}:
                    own = [row for row in rows if (row[1], row[2] % 2) == key]
                    assert own == sorted(own), "rows of a key are in order"
        assert all(
            partition_of(row) == number
            for entry in found.entries.values()
            for number in range(wanted)
            for piece in pieces({0: entry}.get, number, [0, 0], [0, entry.rows[number] if entry.rows else 0], "test")
            for row in stored.read(piece)
        )
        state, entries, fronts = found.state, dict(found.entries), new


def test_watermarks_and_seals_come_behind_all_rows_of_their_epoch() -> None:
    log, stored = Log(2), Stored()
    log.epoch([3, 1], watermark=7)
    log.seal()
    stored.of_log(log)
    flight = in_flight("one", log.state, dict(enumerate(log.entries)), 0, 2)
    fronts = {"a": Front(0, (1, 0)), "b": Front(0, (0, 1))}
    found, new = redistributed(flight, fronts, 3, stored, lambda row: row[2] % 3)
    assert [(entry.kind, entry.watermark, entry.read_by) for entry in found.entries.values()] == [
        (EntryKind.EPOCH, 0, ("a",)), (EntryKind.EPOCH, 0, ("b",)), (EntryKind.EPOCH, 7, ()), (EntryKind.SEAL, 0, ())
    ]  # fmt: skip
    assert found.state.sealed == 3
    assert new == dict.fromkeys("ab", Front(0, (0, 0, 0))), "neither is ahead of the other"
    step = advance(found.state, as_read_by(found.entries.get, "a"), new["a"], None, None, watermark=0)
    assert (step.rows, step.watermark, step.sealed) == (3, 0, True)


def test_a_consumer_elsewhere_is_refused() -> None:
    log = Log(1)
    log.epoch([1])
    flight = in_flight("one", log.state, dict(enumerate(log.entries)), 0, 1)
    with pytest.raises(ValueError, match="consumers stand at "):
        redistribution(flight, {"a": Front(2, (0,))}, "test")
