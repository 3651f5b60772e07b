"""Which events of an inbox are repeats: decided once, over all its gateways, by the planners of the job that reads it.

A decision covers entries of the gateways' logs, and is a file that is created once and never changes: an entry is read
in the same way however often its rows are planned, also after a restore. The number of a decision is the
compare-and-swap of planners: the slower one reads the decision of the faster one, and decides what that has left.

Files are merged, as `parts.py` says, so a planner that was frozen may create a file under a number that has been merged
and deleted since. It counts for nobody, because a wider file holds its number, and its planner finds out by the look at
the folder with which each attempt ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from spark_ext.errors import StateError, StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ingest.parts import NONE_FOUND, Found, Part, Skips, Span, mergeable, merged, missing, outermost
from spark_ext.ingest.seen import NEVER, Identities, SeenNumbers, in_order, look_up, numbers_of, seconds_of
from spark_ext.storage import Folder, LocalFolder, writer_of

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.ingest.seen import Numbers

    Known: TypeAlias = Callable[[Numbers, Numbers, int], tuple[Numbers, Numbers]]

ROUNDS: Final = 40
"""How often a decision is made again, after other planners were faster, before the caller's back-off takes over."""

_LOOKS: Final = 10  # at a folder in which files are merged at the same time
_LEFT_AFTER: Final = 86_400  # an older draft is of a process that was killed, s


class NewEntry(NamedTuple):
    """An entry of a gateway's log, with what its events are told apart by."""

    gateway: str
    number: int
    identities: pa.Array  # binary(16); null: without an identity an event is not known to be a repeat
    body_hashes: pa.Array
    producers: pa.Array
    producer_sequences: pa.Array
    received_at: pa.Array
    old: pa.Array  # whether its own time is before the window: a repeat of it may pass


class Decisions:
    """The decisions in a folder. The threads of a process may share one.

    An event is a repeat when its identity was seen within the window before it, or the number that its producer gave
    it. Identities are kept for two windows, because gateways are not read at the same pace; so is a silent producer.
    A number that comes when it is not known any more whether it was seen is a conflict: it may be no repeat.

    Only a planner reads identities, and checks all bytes of the files: what is skipped stands at their beginning.

    Raises a `StateError` if a file is damaged or missing.
    """

    def __init__(self, folder: Folder, window: int, operator: str) -> None:
        self._folder, self._window, self._operator = folder, window // 1000, operator
        self._parts: list[Part] = []
        self._replaced: list[str] = []
        self._covered: dict[str, dict[int, Skips]] = {}
        self._floors: dict[str, int] = {}
        self._planning, self._durable = False, 0
        self._one = threading.RLock()

    def cover(self, found: Sequence[NewEntry]) -> None:
        """Decide which events of entries are repeats, in this order; durable when it returns.

        Entries that are covered already stay as they are.
        """
        with self._one:
            for _ in range(ROUNDS):
                # An entry that was decided twice would consist of repeats of itself.
                wanted = {(one.gateway, one.number): one for one in found if not self._is_covered(*one[:2])}
                if not wanted:
                    self._make_durable()
                    return
                if self._planning:
                    entries, known = [*wanted.values()], (self._look_up, self._numbers)
                    self._write(decide(entries, self._end, *known, self._floors, self._window, self._found))
                    self._tidy()
                else:
                    self._begin_planning()
        raise StorageError(
            f"other planners of the job were faster {ROUNDS} times in a row",
            operator=self._operator,
            kept="everything that was decided",
            do="find out what else reads this inbox: one job does, started once",
        )

    def skips(self, gateway: str, number: int) -> Skips:
        """The rows of an entry that are not read.

        Raises:
            KeyError: the entry is not covered.
        """
        with self._one:
            if number not in self._covered.get(gateway, {}):
                self._look()
            return self._covered.get(gateway, {})[number]

    def delete_below(self, gateway: str, number: int) -> None:
        """Forget the skips of entries that the gateway's log has deleted; nobody covers them any more."""
        with self._one:
            self._raise_floors({gateway: number})

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        return self._parts[-1].span.end if self._parts else 0

    @property
    def _found(self) -> Found:
        return self._parts[-1].found if self._parts else NONE_FOUND

    @property
    def _since(self) -> int:
        """Up to when identities are forgotten. A gateway's clock that is far ahead does not decide this alone."""
        return min(max((part.newest for part in self._parts), default=0), int(time.time())) - 2 * self._window

    def _is_covered(self, gateway: str, number: int) -> bool:
        return number < self._floors.get(gateway, 0) or number in self._covered.get(gateway, {})

    def _look_up(self, high: Numbers, low: Numbers, first: int) -> tuple[Numbers, Numbers]:
        parts = (part.identities for part in self._parts if part.newest >= first - self._window)
        return look_up(parts, high, low)

    def _numbers(self, producer: str) -> Sequence[int]:
        return next((part.producers[producer] for part in reversed(self._parts) if producer in part.producers), ())

    def _raise_floors(self, floors: Mapping[str, int]) -> None:
        for gateway, number in floors.items():
            if number > self._floors.get(gateway, 0):
                self._floors[gateway] = number
                for gone in [one for one in self._covered.get(gateway, ()) if one < number]:
                    del self._covered[gateway][gone]

    # -- files --------------------------------------------------------------------------------------------------------

    def _begin_planning(self) -> None:
        """Read all once more, with identities."""
        self._planning, self._parts = True, []
        try:
            self._look()
        except BaseException:
            self._planning = False  # it must not decide anything
            raise

    def _look(self) -> None:
        """Read what the folder has by now."""
        for _ in range(_LOOKS):
            names = self._folder.names()
            spans, replaced = outermost(names)
            gap = missing(spans, self._end)
            if gap is None:
                with suppress(FileNotFoundError):  # merged since the folder was listed
                    self._hold(spans, [*replaced, *filter(self._is_left, names)])
                    return
        raise StateError(
            f"decision {gap or 0} is missing among the files in {self._folder.uri}",
            operator=self._operator,
            kept="the inbox is unchanged; nothing was read",
            do="restore the folder from a backup; files in it must not be deleted by hand",
        )

    def _is_left(self, name: str) -> bool:
        """Whether it is a draft of a process that was killed."""
        return writer_of(name) is not None and (self._folder.modified(name) or time.time()) < time.time() - _LEFT_AFTER

    def _hold(self, spans: Sequence[Span], replaced: list[str]) -> None:
        held = {part.span: part for part in self._parts}
        new = [self._read(span) for span in spans if span not in held]
        for part in new:
            held[part.span] = part
            for (gateway, entry), skips in part.skips.items():
                self._covered.setdefault(gateway, {}).setdefault(entry, skips)
        self._parts, self._replaced = [held[span] for span in spans], replaced
        for part in new:
            self._raise_floors(part.floors)

    def _read(self, span: Span) -> Part:
        if self._planning:
            part = Part.decode(self._folder.mapped(span.name), span, self._operator)
            if isinstance(self._folder, LocalFolder):
                # Mapped once more, what was only checked takes no memory of this process.
                part = Part.decode(self._folder.mapped(span.name), span, self._operator, checked=True)
            return part
        with self._folder.open_input(span.name) as file:
            return Part.begin(file, span, self._operator)[0]

    def _write(self, part: Part) -> None:
        """Try to make it the next decision: what others find then is what counts, whatever a store has answered."""
        reach(FailPoint.DECISIONS_BEFORE_WRITE)
        created = self._folder.create_once(part.span.name, part.encode(), durable=True)
        reach(FailPoint.DECISIONS_WRITTEN)
        self._durable = part.span.end if created else self._durable
        self._look()

    def _make_durable(self) -> None:
        """Sync what others have created: they may have been killed before they did."""
        if self._durable < self._end:
            self._folder.sync(self._parts[-1].span.name)
            self._durable = self._end

    def _tidy(self) -> None:
        """Merge files, or forget what a file has, and delete what was replaced; the next decision repeats what fails.

        One file at a time, so that no decision takes long.
        """
        since = self._since
        with suppress(OSError):
            for at, part in enumerate(self._parts):
                if part.newest < since and (len(part.identities) or part.producers):
                    # Nobody can tell the two apart, so whichever file a planner finds is right.
                    left = merged([part], self._floors, since)
                    self._folder.write(part.span.name, left.encode(), durable=True)
                    self._parts[at] = left
                    break
            wide = mergeable([(part.span, len(part.identities)) for part in self._parts])
            if wide is not None:
                reach(FailPoint.DECISIONS_BEFORE_MERGE)
                members = [part for part in self._parts if wide.holds(part.span)]
                self._folder.create_once(wide.name, merged(members, self._floors, since).encode(), durable=True)
                reach(FailPoint.DECISIONS_MERGED)
                self._look()
            if self._replaced:
                self._folder.sync(self._parts[-1].span.name)  # another planner may have been killed before it did
            while self._replaced:
                self._folder.delete(self._replaced.pop())


def decide(
    entries: Sequence[NewEntry],
    number: int,
    known: Known,
    producers: Callable[[str], Sequence[int]],
    floors: Mapping[str, int],
    window: int,
    found: Found,
) -> Part:
    """The decision of a number over entries, from what was known before it; `found`: so far."""
    import pyarrow as pa

    def column(name: str) -> pa.Array:
        return pa.concat_arrays([getattr(entry, name) for entry in entries])

    reasons, last = _numbered(column("producers"), column("producer_sequences"), producers)
    identities, times = column("identities"), seconds_of(column("received_at"))
    bodies = column("body_hashes").fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(_valid(identities) & (reasons == _NEW))
    high, low = (numbers[rows] for numbers in numbers_of(identities))
    order = in_order(high, low)
    rows, high, low = rows[order], high[order], low[order]
    state, new = _seen(high, low, times[rows], bodies[rows], known, window)
    reasons[rows] = state
    skips, begin = {}, 0
    for entry in entries:
        end = begin + len(entry.identities)
        skips[entry.gateway, entry.number] = Skips(
            *(tuple(np.flatnonzero(reasons[begin:end] == reason).tolist()) for reason in (_REPEAT, _CONFLICT))
        )
        begin = end
    seen = rows[new]
    return Part(
        Span(number, number + 1),
        Identities.of(high[new], low[new], bodies[seen], times[seen]),
        skips,
        last,
        floors,
        int(times.max(initial=0)),
        Found(
            found.repeats + int(np.count_nonzero(reasons == _REPEAT)),
            found.conflicts + int(np.count_nonzero(reasons == _CONFLICT)),
            found.old + int(np.count_nonzero((reasons == _NEW) & column("old").to_numpy(zero_copy_only=False))),
        ),
    )


_NEW, _REPEAT, _CONFLICT = range(3)


def _numbered(
    names: pa.Array, sequences: pa.Array, known: Callable[[str], Sequence[int]]
) -> tuple[Numbers, dict[str, tuple[int, ...]]]:
    """What each event is by its producer's number, and what was seen of each of these producers."""
    reasons, seen = np.full(len(names), _NEW), dict[str, SeenNumbers]()
    there = np.flatnonzero(_valid(names) & _valid(sequences))
    rows = there.tolist(), names.take(there).to_pylist(), sequences.take(there).to_pylist()
    for row, name, number in zip(*rows, strict=True):
        if (one := seen.get(name)) is None:
            one = seen[name] = SeenNumbers(*known(name))
        if number < one.floor:
            reasons[row] = _CONFLICT
        elif number in one:
            reasons[row] = _REPEAT
        else:
            one.add(number, number + 1)
    return reasons, {name: (one.floor, *one.bounds) for name, one in seen.items()}


def _valid(column: pa.Array) -> Numbers:
    found: Numbers = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _seen(
    high: Numbers, low: Numbers, times: Numbers, bodies: Numbers, known: Known, window: int
) -> tuple[Numbers, Numbers]:
    """What each event is, by identities that are in order, and which events are new identities to remember."""
    count = len(high)
    heads = np.flatnonzero(np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))[:count])
    before, bodies_before = known(high[heads], low[heads], int(times.min(initial=-NEVER)))
    new = times[heads] - before > window
    state, kept = np.full(count, _NEW), np.zeros(count, bool)
    state[heads] = np.where(new, _NEW, np.where(bodies[heads] == bodies_before, _REPEAT, _CONFLICT))
    kept[heads] = new
    sizes = np.diff(np.append(heads, count))
    for group in np.flatnonzero(sizes > 1).tolist():  # an identity that comes several times, in the order of arrival
        head = latest = int(heads[group])
        at, body = (times[head], bodies[head]) if new[group] else (before[group], bodies_before[group])
        for row in range(head + 1, head + int(sizes[group])):
            if times[row] - at > window:
                kept[latest], kept[row] = False, True
                at, body, latest = times[row], bodies[row], row
            else:
                state[row] = _REPEAT if bodies[row] == body else _CONFLICT
    return state, kept
