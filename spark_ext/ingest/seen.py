"""Identities and numbers that have been seen: sorted columns that are looked up where they are stored. Pure.

An identity is 16 bytes of a hash, held as two numbers. With it are the hash of its event's body, by which a repeat is
told from another event of the same identity, and when the event was received. The columns lie in files that are mapped
into memory, so the system keeps what is used of them. A filter comes first: most events are new, and for those the
columns themselves are not touched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Numbers: TypeAlias = "npt.NDArray[Any]"

NEVER: Final = -(1 << 62)
"""The time of an identity that is not known."""

MOST_RANGES: Final = 100
"""How many ranges of a producer's numbers are known, with gaps between them."""

_BITS: Final = 12  # of the filter for an identity; with four of them set in one word, 1 % of the others pass
_CHUNK: Final = 1 << 16  # identities whose bits are set at once
_LAST: Final = (1 << 32) - 1


@dataclass(frozen=True)
class Identities:
    """Identities in the order of `high`, then `low`, each of them once."""

    high: Numbers  # the first eight bytes
    low: Numbers
    bodies: Numbers
    times: Numbers  # s since 1970
    words: Numbers  # the filter

    @classmethod
    def of(cls, high: Numbers, low: Numbers, bodies: Numbers, times: Numbers) -> Identities:
        """Identities that are in order, with a filter for them."""
        words = np.zeros(max(1, len(high) * _BITS // 64), np.uint64)
        for begin in range(0, len(high), _CHUNK):
            # They are in the order of their words: those of one word are side by side.
            places = _places(_tops(high[begin : begin + _CHUNK]), len(words))
            heads = np.flatnonzero(np.diff(places, prepend=-1))
            words[places[heads]] |= np.bitwise_or.reduceat(_masks(low[begin : begin + _CHUNK]), heads)
        return cls(high, low, bodies.astype(np.uint32, copy=False), times.astype(np.uint32, copy=False), words)

    @classmethod
    def none(cls) -> Identities:
        """No identities."""
        empty = np.zeros(0, np.uint64)
        return cls.of(empty, empty, empty, empty)

    @classmethod
    def merged(cls, parts: Sequence[Identities], since: int) -> Identities:
        """The identities of several parts, without those that are older than a time.

        An identity that was forgotten and seen again is in two parts, and the later part is the one that counts.
        """
        kept = [(part, np.flatnonzero(part.times >= max(since, 0))) for part in parts]
        high = np.concatenate([part.high[rows] for part, rows in kept])
        low = np.concatenate([part.low[rows] for part, rows in kept])
        order = in_order(high, low)
        high, low = high[order], low[order]
        last = np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)[: len(order)]
        if not last.all():
            order, high, low = order[last], high[last], low[last]
        bodies = np.concatenate([part.bodies[rows] for part, rows in kept])[order]
        times = np.concatenate([part.times[rows] for part, rows in kept])[order]
        return cls.of(high, low, bodies, times)

    def __len__(self) -> int:
        return len(self.high)

    def find(self, high: Numbers, low: Numbers, tops: Numbers, masks: Numbers) -> tuple[Numbers, Numbers]:
        """Which of the wanted identities are among these, and where; `tops` and `masks` are for the filter."""
        wanted = np.flatnonzero((self.words[_places(tops, len(self.words))] & masks) == masks)
        if not len(wanted):
            return wanted, wanted
        at = np.searchsorted(self.high, high[wanted])
        rows, places = [wanted[:0]], [at[:0]]
        while len(wanted):
            inside = at < len(self.high)
            wanted, at = wanted[inside], at[inside]
            alike = self.high[at] == high[wanted]
            wanted, at = wanted[alike], at[alike]
            same = self.low[at] == low[wanted]
            rows.append(wanted[same])
            places.append(at[same])
            wanted, at = wanted[~same], at[~same] + 1
        return np.concatenate(rows), np.concatenate(places)


class SeenNumbers:
    """The numbers of one producer that were seen; whether one below `floor` was is not known any more."""

    __slots__ = ("bounds", "floor")

    def __init__(self, floor: int = 0, *bounds: int) -> None:
        self.floor, self.bounds = floor, [*bounds]  # where each range begins, and where it has ended

    def __contains__(self, number: int) -> bool:
        return bisect_right(self.bounds, number) % 2 == 1

    def add(self, begin: int, end: int) -> None:
        """Add a range, and forget the lowest one if there are too many."""
        first, last = bisect_left(self.bounds, begin), bisect_right(self.bounds, end)
        self.bounds[first:last] = [begin] * (first % 2 == 0) + [end] * (last % 2 == 0)
        if len(self.bounds) > 2 * MOST_RANGES:
            self.floor = self.bounds[1]
            del self.bounds[:2]


def look_up(parts: Iterable[Identities], high: Numbers, low: Numbers) -> tuple[Numbers, Numbers]:
    """When each identity was seen, `NEVER` if it was not, and the hash of the body that it had."""
    times, bodies = np.full(len(high), NEVER), np.zeros(len(high), np.uint32)
    tops, masks = _tops(high), _masks(low)
    for part in parts:
        rows, places = part.find(high, low, tops, masks)
        if len(rows):
            # One that was seen twice was forgotten in between: the later time is the one that counts.
            later = part.times[places] > times[rows]
            times[rows[later]], bodies[rows[later]] = part.times[places[later]], part.bodies[places[later]]
    return times, bodies


def in_order(high: Numbers, low: Numbers) -> Numbers:
    """The order by `high` and `low` in which equal ones stay as they are."""
    order = np.argsort(high, kind="stable")
    first, then = high[order], low[order]
    if np.any((first[1:] == first[:-1]) & (then[1:] < then[:-1])):
        order = np.lexsort((low, high))
    return order


def numbers_of(identities: pa.Array) -> tuple[Numbers, Numbers]:
    """The identities of a column as two numbers each; those of a null mean nothing."""
    content = identities.buffers()[1]
    if content is None or not len(identities):
        return (np.zeros(len(identities), np.uint64),) * 2
    begin = 2 * identities.offset
    found = np.frombuffer(content, ">u8")[begin : begin + 2 * len(identities)].astype(np.uint64)
    return found[::2].copy(), found[1::2].copy()


def seconds_of(received_at: pa.Array) -> Numbers:
    """Times of a column in seconds, within what can be stored."""
    import pyarrow as pa

    found: Numbers = received_at.cast(pa.int64()).to_numpy(zero_copy_only=False)
    seconds: Numbers = np.clip(found // 1_000_000, 0, _LAST)
    return seconds


def _tops(high: Numbers) -> Numbers:
    found: Numbers = high >> np.uint64(32)
    return found


def _places(tops: Numbers, words: int) -> Numbers:
    found: Numbers = (tops * np.uint64(words)) >> np.uint64(32)
    return found.view(np.int64)


def _masks(low: Numbers) -> Numbers:
    one, masks = np.uint64(1), np.zeros(len(low), np.uint64)
    for shift in range(0, 24, 6):
        masks |= one << ((low >> np.uint64(shift)) & np.uint64(63))
    return masks
