"""What is in flight in an exchange, for another number of partitions or another key. Pure.

Each entry in flight becomes one or more new ones. One that some consumers have read in part is divided by what they had
read, because the rows of a former partition are spread over the new ones: a new entry holds rows that the same
consumers had read (`Entry.read_by`), and they pass over it. So every consumer stands at the beginning of an entry,
wherever it stood before.

The rows of a unit, what a new entry takes of one former partition, keep their order. So do those of a key that was in
one partition: any key that contains the former key's columns.

Flink rescales unaligned checkpoints in the same way (FLIP-76): what was in flight is distributed by the key selector of
the restored job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from spark_ext.exchange.entries import Entry, EntryKind, Segment, total_of
from spark_ext.exchange.inflight import InFlightLog
from spark_ext.exchange.positions import Front, Piece, pieces


@dataclass(frozen=True)
class EntryPart:
    """One new entry: a former one, or the rows of it that the same consumers had read."""

    entry: Entry  # the former one
    units: tuple[tuple[Piece, ...], ...] = ()
    read_by: tuple[str, ...] = ()
    is_last: bool = True  # of the former entry

    @property
    def rows(self) -> int:
        """Its rows."""
        return sum(piece.rows for unit in self.units for piece in unit)


@dataclass(frozen=True)
class Redistribution:
    """How the log in flight is written again."""

    log: InFlightLog
    parts: tuple[EntryPart, ...]  # the first one gets the number of the first entry in flight
    entries: Mapping[str, int]  # the new entry at which each consumer stands

    @property
    def end(self) -> int:
        """The number after the last new entry."""
        return self.log.first + len(self.parts)

    def front(self, consumer: str, partitions: int) -> Front:
        """Where a consumer stands."""
        return Front(self.entries[consumer], (0,) * partitions)

    def written(self, exchange: str, segments: Sequence[Sequence[Segment]], partitions: int) -> InFlightLog:
        """The new log.

        Args:
            exchange: its id. It is another exchange: former positions mean nothing in it.
            segments: by part.
            partitions: how many it has.
        """
        total, sealed = self.log.state.released_rows, self.log.state.sealed
        entries = {}
        for number, (part, own) in enumerate(zip(self.parts, segments, strict=True), self.log.first):
            rows = total_of(own, partitions) if part.entry.kind is EntryKind.EPOCH else ()
            if sum(rows) != part.rows:
                raise ValueError(f"{sum(rows)} rows of an entry were written, and it has {part.rows}")
            total += part.rows
            sealed = number if part.entry.kind is EntryKind.SEAL else sealed
            # A watermark counts behind all rows of its epoch.
            watermark = part.entry.watermark if part.is_last else 0
            entries[number] = replace(
                part.entry, rows=rows, segments=tuple(own), watermark=watermark, total=total, read_by=part.read_by
            )
        state = replace(self.log.state, last=self.end - 1, cuts=(), total=total, sealed=sealed)
        return InFlightLog(exchange, state, entries)


def redistribution(log: InFlightLog, fronts: Mapping[str, Front], operator: str) -> Redistribution:
    """Divide what is in flight.

    Args:
        log: what is in flight.
        fronts: where the consumers stand that have begun and have not read the seal.
        operator: the exchange, for messages.
    """
    behind = {uid: front.entry for uid, front in fronts.items() if not log.first <= front.entry <= log.end}
    if behind:
        raise ValueError(f"{operator}: entries {log.first} to {log.end - 1} are in flight; consumers stand at {behind}")
    parts: list[EntryPart] = []
    begins: list[tuple[int, int]] = []
    for number, entry in sorted(log.entries.items()):
        if log.state.passes_over(number) is not None or entry.kind not in (EntryKind.EPOCH, EntryKind.SEAL):
            continue
        begins.append((number, log.first + len(parts)))
        standing = {uid: front.rows for uid, front in fronts.items() if front.entry == number and any(front.rows)}
        parts += _parts(number, entry, standing, operator)
    end = log.first + len(parts)
    entries = {
        uid: next((new for former, new in begins if former >= front.entry), end) for uid, front in fronts.items()
    }
    return Redistribution(log, tuple(parts), entries)


def _parts(number: int, entry: Entry, standing: Mapping[str, Sequence[int]], operator: str) -> Iterator[EntryPart]:
    units: dict[tuple[str, ...], list[tuple[Piece, ...]]] = {}
    for partition, rows in enumerate(entry.rows):
        marks = sorted({0, rows, *(done[partition] for done in standing.values())})
        for begin, end in pairwise(marks):
            here = (uid for uid, done in standing.items() if done[partition] >= end)
            read_by = tuple(sorted({*entry.read_by, *here}))
            found = pieces({number: entry}.get, partition, [number, begin], [number, end], operator)
            units.setdefault(read_by, []).append(tuple(found))
    # Of one partition, more consumers have read what comes earlier.
    order = sorted(units, key=lambda read_by: (-len(read_by), read_by)) or [entry.read_by]
    for read_by in order:
        yield EntryPart(entry, tuple(units.get(read_by, ())), read_by, read_by == order[-1])
