"""How far readers of an exchange may read, and what lies between two positions. Pure.

The partitions of an exchange advance together: all stand in the same entry, each at a row of its own, and none enters
the next entry before all have left this one. A partition that were left behind would be late for the watermark of the
query that reads it, and a checkpoint's barrier is at the end of an entry, for all partitions alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from spark_ext.errors import RESET, OffsetError
from spark_ext.exchange.entries import Entry, EntryKind, LogState

At: TypeAlias = Callable[[int], Entry | None]  # the entry of a number; None when the log does not have it yet


def as_read_by(at: At, consumer: str) -> At:
    """The entries as a consumer reads them: without those rows that it had read before a rescale."""

    def entry(number: int) -> Entry | None:
        found = at(number)
        return found if found is None or consumer not in found.read_by else replace(found, rows=(), segments=())

    return entry


@dataclass(frozen=True)
class Front:
    """A position of all partitions."""

    entry: int  # the entry in which they stand; all of those before it have been read
    rows: tuple[int, ...]  # rows read of that entry, per partition

    @classmethod
    def of(cls, positions: Mapping[str, Sequence[int]], partitions: int, who: str) -> Front:
        """From the positions of channels, by partition number as text."""
        try:
            found = [positions[str(number)] for number in range(partitions)]
            entries = {entry for entry, _ in found}
            if len(found) != len(positions) or len(entries) != 1:
                raise ValueError
            return cls(entries.pop(), tuple(row for _, row in found))
        except (KeyError, ValueError, TypeError):
            raise OffsetError(
                f"the offset has positions of {len(positions)} channels that are not those of the exchange's "
                f"{partitions} partitions",
                operator=who,
                kept="nothing was read",
                do=f"restore the checkpoint directory as it was, or discard the history with {RESET}",
            ) from None

    def position(self, partition: int) -> list[int]:
        """Of one partition: entry and row."""
        return [self.entry, self.rows[partition]]


@dataclass(frozen=True)
class Step:
    """Where an epoch of a reader ends."""

    front: Front
    rows: int = 0
    bytes: int = 0
    barrier: int | None = None  # the barrier that the last entry carries: the epoch ends with it
    sealed: bool = False  # whether the producer has finished there: every partition ends
    watermark: int = 0  # the producer's behind it, ms since 1970 UTC, if it is later than the reader's; else 0

    @property
    def moved(self) -> bool:
        """Whether there is anything in it; a front may move over entries without rows, which makes no epoch."""
        return bool(self.rows or self.sealed or self.barrier is not None or self.watermark)


def advance(
    state: LogState,
    at: At,
    start: Front,
    rows: int | None,
    size: int | None,
    upto: int | None = None,
    watermark: int | None = None,
) -> Step:
    """How far an epoch may read.

    Whole entries are taken as long as they fit; an entry that is larger than the limit is read by rows, each partition
    in proportion to what is left of it. An epoch ends with a barrier, and with the seal.

    A reader stands where the last entry that it took ends. Entries without rows that follow, such as claims, are
    passed over each time: they make no epoch.

    Entries that came after the state are not read, nor those from `upto` on. The limits are in rows, and approximately
    in bytes; None means no limit.

    `watermark` is the producer's up to the start: an entry with a later one makes an epoch, even without rows. It
    counts once all rows of its entry are read: the watermark that closes a window comes with its rows. None: nobody
    asks for it.
    """
    _refuse_abandoned(state, at, start)
    front, end, taken, weight, later = start, start, 0, 0, 0
    none = (0,) * len(start.rows)
    while upto is None or front.entry < upto:
        beyond = state.passes_over(front.entry)
        if beyond is not None:
            front = Front(beyond, none)
            continue
        # What came after the look may say of the entries before it that they are abandoned.
        entry = at(front.entry) if front.entry <= state.last else None
        if entry is None:
            break
        if entry.kind is EntryKind.SEAL:
            return Step(Front(front.entry + 1, none), taken, weight, None, True)
        left = tuple(there - done for there, done in zip(entry.rows or none, front.rows, strict=True))
        count = sum(left)
        cost = entry.bytes * count // max(1, entry.row_count)
        room = _room(count, cost, rows, size, taken, weight)
        if room < count and not taken:
            room = max(1, room)  # a single row may be larger than the limit
        if room < count:
            if not taken:
                part = shares(left, room)
                done = tuple(before + more for before, more in zip(front.rows, part, strict=True))
                end = Front(front.entry, done)
                taken, weight = room, cost * room // count
            break
        front = Front(front.entry + 1, none)
        if entry.kind is EntryKind.EPOCH:
            end, taken, weight = front, taken + count, weight + cost
            later = max(later, entry.watermark) if watermark is not None and entry.watermark > watermark else later
        if entry.barrier is not None:
            return Step(end, taken, weight, entry.barrier, watermark=later)
    return Step(end, taken, weight, watermark=later) if taken or later else Step(start)


def _refuse_abandoned(state: LogState, at: At, start: Front) -> None:
    """Refuse a position behind rows that were abandoned later.

    A position may be behind abandoned entries without rows, such as a registration, and still be that of a reader which
    was restored together with the query that writes the exchange.
    """
    cut = state.cut_over(start.entry)
    if cut is None:
        return
    # Of a log that begins anew nothing stays, whether its entries are still there or not.
    read = any(start.rows) or (cut.after < 0 < start.entry)
    if read or any(entry.rows for number in range(cut.after + 1, start.entry) if (entry := at(number)) is not None):
        raise OffsetError(
            f"rows up to entry {start.entry} of the exchange have been read, and some of them are abandoned: the query "
            "that writes the exchange was reset or restored without this one",
            operator="the position of a reader",
            kept="nothing was read",
            do=f"restore the whole job from one checkpoint, or discard the history with {RESET}",
        )


def _room(count: int, cost: int, rows: int | None, size: int | None, taken: int, weight: int) -> int:
    """How many of an entry's `count` rows the limits have room for."""
    room = count if rows is None else min(count, rows - taken)
    if size is not None and cost:
        room = min(room, count * max(0, size - weight) // cost)
    return max(0, room)


def shares(left: Sequence[int], room: int) -> tuple[int, ...]:
    """Distribute `room` rows over partitions, in proportion to what is left of each; the sum is exactly that."""
    count = sum(left)
    if room >= count:
        return tuple(left)
    part = [room * rows // count for rows in left]
    rest = room - sum(part)
    # The largest remainders first, as seats are given in an election.
    order = sorted(range(len(left)), key=lambda number: (-(room * left[number] % count), number))
    for number in order[:rest]:
        part[number] += 1
    return tuple(part)


@dataclass(frozen=True)
class Piece:
    """Rows of one partition in one run of batches."""

    segment: str
    first: int  # number of the run's first batch
    batches: int
    skip: int  # rows of the run before the piece
    rows: int


def pieces(at: At, partition: int, start: Sequence[int], end: Sequence[int], who: str) -> Iterator[Piece]:
    """What a task reads of one partition from one entry and row to another, in order.

    A range that a planner has made ends beyond each cut whose abandoned entries it contains, so the entries of the
    range alone say which of them are abandoned. Those need not exist: see `inflight.py`.
    """
    (first, row), (last, upto) = start, end
    visible: list[tuple[int, Entry]] = []
    # From the end, because a cut is behind what it abandons.
    number = last if upto > 0 else last - 1
    while number >= first:
        entry = _entry(at, number, who)
        if entry.rows:
            visible.append((number, entry))
        number = number - 1 if entry.after is None else entry.after
    for number, entry in reversed(visible):
        begin = row if number == first else 0
        yield from _of_entry(entry, partition, begin, upto if number == last else entry.rows[partition])


def _entry(at: At, number: int, who: str) -> Entry:
    entry = at(number)
    if entry is None:
        what = f"entry {number} of the exchange is not there"
        do = f"restore the exchange's folder from a backup or, without one, discard the history with {RESET}"
        raise OffsetError(what, operator=who, kept="nothing of this epoch was read", do=do)
    return entry


def _of_entry(entry: Entry, partition: int, begin: int, end: int) -> Iterator[Piece]:
    passed = 0
    for segment in entry.segments:
        for run in segment.runs:
            if run.partition != partition:
                continue
            skip, stop = max(0, begin - passed), min(run.rows, end - passed)
            if skip < stop:
                yield Piece(segment.name, run.first, run.batches, skip, stop - skip)
            passed += run.rows


def _visible(at: At, state: LogState, number: int) -> Iterator[tuple[int, Entry]]:
    """Visible entries from a number on; a KeyError if one of them is missing."""
    while number <= state.last:
        beyond = state.passes_over(number)
        if beyond is None:
            entry = at(number)
            if entry is None:
                raise KeyError(number)
            yield number, entry
            beyond = number + 1
        number = beyond


def rows_before(at: At, state: LogState, front: Front) -> int:
    """Visible rows before a position: what a reader that stands there has behind it."""
    for number, entry in _visible(at, state, front.entry):
        if entry.kind in (EntryKind.EPOCH, EntryKind.SEAL):
            return entry.total - entry.row_count + (sum(front.rows) if number == front.entry else 0)
    return state.total


def rows_after(at: At, state: LogState, front: Front) -> tuple[int, ...]:
    """Visible rows behind a position, by partition; a KeyError if an entry of them is missing."""
    left = [-row for row in front.rows]
    for _, entry in _visible(at, state, front.entry):
        left = [before + rows for before, rows in zip(left, entry.rows or (0,) * len(left), strict=True)]
    return tuple(left)
