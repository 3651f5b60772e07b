"""What of an exchange is in flight at a cut of the job, and the log of an exchange that is put back from it. Pure.

In flight are the entries from `first`, the least one that some consumer has not read in full, to the one before `end`,
with which the producer's part of the cut ends. Consumers' positions name entries, so an exchange that is put back has
these entries under their numbers. They are followed by a cut with a number of its own, which the log of the exchange in
whose place it comes never had:

    released | first ... end-1 | not there, abandoned | cut | what the producer writes next
             ^ below first                            ^ number

What lies between never existed in this log and never will: for readers it is abandoned, as after any cut. So a file
that a frozen writer of the former exchange still creates under its next number is not an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_ext.errors import StateError
from spark_ext.exchange.entries import Entry, EntryKind, LogState, Segment, not_of_this_release

VERSION: Final = 1
_LINEAGE: Final = (EntryKind.EPOCH, EntryKind.SEAL, EntryKind.CUT)


@dataclass(frozen=True)
class InFlightLog:
    """The entries in flight, and the state of the log after them."""

    exchange: str  # the id in the exchange's description
    state: LogState  # after the last of them: nobody owns the log, and the entries before them are released
    entries: Mapping[int, Entry]  # by number, those that are abandoned without their segments

    @property
    def first(self) -> int:
        """The first entry that was not read in full; the one after the last when all were."""
        return self.state.released

    @property
    def end(self) -> int:
        """The number after the last one that belongs to the cut."""
        return self.state.last + 1

    @property
    def segments(self) -> Iterator[Segment]:
        """What holds the rows."""
        for entry in self.entries.values():
            yield from entry.segments

    @property
    def rows(self) -> int:
        """Visible rows in these entries; a consumer may have read some of them."""
        return self.state.total - self.state.released_rows

    @property
    def bytes(self) -> int:
        """The size of the segments."""
        return sum(segment.bytes for segment in self.segments)

    def continued(self, number: int, lineage: int, at: int) -> tuple[LogState, dict[int, Entry]]:
        """The log of an exchange that is put back: its entries, and the state after the last of them."""
        if number < self.end:
            raise ValueError(f"entries up to {self.end - 1} are in flight, and {number} is to come after them")
        cut = Entry(EntryKind.CUT, at, lineage=lineage, after=self.end - 1, total=self.state.total)
        return replace(self.state, last=number - 1).after(cut), {**self.entries, number: cut}

    def to_json(self) -> str:
        """The form that is stored."""
        entries = {str(number): json.loads(entry.to_json()) for number, entry in self.entries.items()}
        state = json.loads(self.state.to_json())
        return json.dumps({"version": VERSION, "exchange": self.exchange, "state": state, "entries": entries})

    @classmethod
    def from_json(cls, text: str, who: str) -> InFlightLog:
        """Read a stored form."""
        try:
            raw = json.loads(text)
            version = raw.pop("version")
            if version == VERSION:
                state = LogState.from_json(json.dumps(raw["state"]), who)
                stored = sorted((int(number), json.dumps(entry)) for number, entry in raw["entries"].items())
                entries = {number: Entry.from_json(entry, f"{who}, entry {number}") for number, entry in stored}
                return cls(raw["exchange"], state, entries)
        except (ValueError, AttributeError, KeyError, TypeError):
            what = "its list of entries is damaged, or something else"
            do = "restore the savepoint from a backup, or use another one"
            kept = "the savepoint is unchanged; nothing was put back"
            raise StateError(what, operator=who, kept=kept, do=do) from None
        kept = "the savepoint is unchanged; nothing was put back"
        raise not_of_this_release(f"its list of entries has version {version!r}", VERSION, who, kept)


def in_flight(exchange: str, state: LogState, entries: Mapping[int, Entry], first: int, end: int) -> InFlightLog:
    """What was in flight at a cut, of the entries from `first` on that exist.

    A barrier is left out: the checkpoint to which it belongs is over, and nobody could complete it.
    """
    seed = state_at(state, entries, first, end)
    kept = {
        number: replace(entry, barrier=None, segments=() if seed.passes_over(number) is not None else entry.segments)
        for number, entry in entries.items()
        if first <= number < end
    }
    return InFlightLog(exchange, seed, kept)


def is_abandoned(state: LogState, end: int) -> bool:
    """Whether some of the entries before a number were abandoned after they had belonged to the log."""
    return any(cut.number >= end > cut.after + 1 for cut in state.cuts)


def state_at(state: LogState, entries: Mapping[int, Entry], first: int, end: int) -> LogState:
    """The state of the log after entry `end - 1`, without an owner, and with all entries before `first` released.

    It is concluded from the newest state, because what lies before `first` may be gone. So two things are those of now:
    the consumers, and the last epoch of a writer whose epochs before `end` are all gone and which has written others
    since; that one is left out. The writer of a restored job has another lineage, and asks for neither.

    With `end` 0 the log is empty, whatever became of it since, and no entry is needed.
    """
    if end == 0:
        return LogState(consumers=state.consumers)
    cuts = tuple(cut for cut in state.cuts if cut.number < end)
    within = {number: entry for number, entry in entries.items() if first <= number < end}
    later = {number: entry for number, entry in entries.items() if number >= end}
    total = state.total - _rows(state, later)
    at_end = LogState(last=end - 1, cuts=cuts, total=total, released=first, consumers=state.consumers)
    seals = [
        (number, entry.application)
        for number, entry in within.items()
        if entry.kind is EntryKind.SEAL and at_end.passes_over(number) is None
    ]
    if state.sealed is not None and state.sealed < end:
        seals.append((state.sealed, state.sealed_by))
    sealed, sealed_by = max(seals, default=(None, ""))
    return replace(
        at_end,
        epochs=dict(_epochs(state, within, later)),
        sealed=sealed,
        sealed_by=sealed_by,
        lineage=_lineage(state, within, later),
        released_rows=total - _rows(at_end, within),
    )


def _rows(state: LogState, entries: Mapping[int, Entry]) -> int:
    return sum(
        entry.row_count
        for number, entry in entries.items()
        if entry.kind is EntryKind.EPOCH and state.passes_over(number) is None
    )


def _epochs(state: LogState, within: Mapping[int, Entry], later: Mapping[int, Entry]) -> Iterator[tuple[str, int]]:
    since = {entry.application for entry in later.values() if entry.kind is EntryKind.EPOCH}
    known = {within[n].application: within[n].epoch for n in sorted(within) if within[n].kind is EntryKind.EPOCH}
    for application, epoch in state.epochs.items():
        if application not in since:
            yield application, epoch
        elif application in known:
            yield application, known[application]


def _lineage(state: LogState, within: Mapping[int, Entry], later: Mapping[int, Entry]) -> int:
    for number in (*sorted(within, reverse=True), *sorted(later)):
        entry = {**within, **later}[number]
        if entry.kind in _LINEAGE or entry.after is not None:
            return entry.lineage
    return state.lineage
