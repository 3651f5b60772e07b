"""The log of an exchange as the records of one Kafka partition. Pure.

Kafka gives all records one order, and that is the compare-and-swap: of the records that propose an entry for a number,
the first one that is in the order when its number is the next counts. All others are ignored, by every reader alike. A
writer sends a proposal with an id of its own, reads on to it, and so knows whether it counts. If the brokers' answer is
lost, the proposal may be there, or come later: it then counts, or not, by the same rule. Kafka's transactions would not
help: they make writes atomic, and compare nothing.

`entry`   a proposal: the entry with a number
`state`   the state after a number; counts if that is the last number at its place in the order
`seed`    an entry of an exchange that is put back; counts with the `seeded` of its id
`seeded`  the state after these entries; counts in an empty log

The log's beginning is deleted up to a state that counts, once all entries up to its number are released. So a log
begins with its first record, or with such a state; with anything else, it has lost records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from spark_ext.errors import StateError
from spark_ext.exchange.entries import Entry, LogState, Segment

VERSION = 1


@dataclass(frozen=True)
class Record:
    """A record of the log; see the module."""

    kind: str
    number: int
    id: str  # of the writer's attempt
    body: str  # an entry or a state, in its stored form

    def to_bytes(self) -> bytes:
        """The value of the message."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, who: str) -> Record:
        """Read the value of a message."""
        try:
            found = json.loads(raw)
            if found.pop("version") == VERSION:
                return cls(**found)
        except (ValueError, LookupError, TypeError, AttributeError):
            pass
        what = "the topic of its log has a message that is not one of this release"
        do = "use the release that wrote it, or a newer one; nothing else may write to the topic"
        raise StateError(what, operator=who, kept="nothing was read or written", do=do)


@dataclass(frozen=True)
class Stored:
    """Where a segment is in the topic of rows, which its name says."""

    key: str  # of its messages
    partition: int
    end: int  # the offset of its last message

    @property
    def name(self) -> str:
        """The segment's name."""
        return f"{self.key}.{self.partition}-{self.end}"

    @classmethod
    def of(cls, name: str) -> Stored:
        """From the segment's name."""
        key, _, place = name.rpartition(".")
        partition, end = place.split("-")
        return cls(key, int(partition), int(end))


class LogOrder:
    """What the records of a log come to. `whole`: it begins with its first record, as nothing was deleted yet."""

    def __init__(self, who: str, *, whole: bool) -> None:
        self.state = LogState()
        self.entries: dict[int, Entry] = {}  # those that are not released
        self.ends: dict[int, int] = {}  # by partition of the rows, the offset after the last segment that was named
        self._who, self._whole, self._began_after = who, whole, -1
        self._states: list[tuple[int, int]] = []  # number and offset of those that count
        self._seeds: dict[str, dict[int, Entry]] = {}

    def take(self, offset: int, record: Record) -> bool:
        """Take the next record; whether it counts."""
        if not self._whole:
            self._begin(record)
        elif record.kind == "entry":
            return self._take_entry(record)
        elif record.kind == "seed":
            entry = Entry.from_json(record.body, f"{self._who}, entry {record.number}")
            self._seeds.setdefault(record.id, {})[record.number] = entry
            return False
        elif record.kind == "seeded" and self.state.last < 0:
            self.state = LogState.from_json(record.body, self._who)
            for number, entry in sorted(self._seeds.get(record.id, {}).items()):
                self._add(number, entry)
            self._seeds.clear()
        elif record.kind != "state" or record.number != self.state.last:
            return False
        self._states.append((record.number, offset))
        return True

    def _begin(self, record: Record) -> None:
        if record.kind not in ("state", "seeded"):
            raise self._lost(f"begins with {record.kind} {record.number}, and without the state before it")
        self._whole, self._began_after = True, record.number
        self.state = LogState.from_json(record.body, self._who)

    def _take_entry(self, record: Record) -> bool:
        if record.number <= self.state.last:
            return False
        if record.number > self.state.last + 1:
            raise self._lost(f"has entry {record.number} after entry {self.state.last}")
        entry = Entry.from_json(record.body, f"{self._who}, entry {record.number}")
        before, self.state = self.state.released, self.state.after(entry)
        self._add(record.number, entry)
        for number in range(before, self.state.released):
            self.entries.pop(number, None)
        return True

    def _add(self, number: int, entry: Entry) -> None:
        for segment in entry.segments:
            stored = Stored.of(segment.name)
            self.ends[stored.partition] = max(self.ends.get(stored.partition, 0), stored.end + 1)
        if number >= self.state.released:
            self.entries[number] = entry

    def check(self) -> None:
        """Refuse a log, read to its end, that has lost entries which are not released."""
        if not self._whole or self.state.released <= self._began_after:
            raise self._lost(f"has lost entries from {self.state.released} on, which are not released")

    @property
    def deletable(self) -> int | None:
        """The offset before which no record is needed; None: all are."""
        return max((offset for number, offset in self._states if number < self.state.released), default=None)

    @property
    def newest_stored(self) -> int:
        """The number of the newest state that is stored; -1: none."""
        return self._states[-1][0] if self._states else -1

    @property
    def segments(self) -> Iterator[Segment]:
        """Those that entries name which are not released."""
        for entry in self.entries.values():
            yield from entry.segments

    def first_needed(self) -> dict[int, int]:
        """By partition of the rows, the least offset that is still needed or may be named yet.

        What a task of the next epoch writes comes after all that the epochs before it have named.
        """
        needed = dict(self.ends)
        for segment in self.segments:
            partition = Stored.of(segment.name).partition
            needed[partition] = min(needed[partition], min(run.first for run in segment.runs))
        return needed

    def _lost(self, what: str) -> StateError:
        return StateError(
            f"the topic of its log {what}: its records were deleted by something else",
            operator=self._who,
            kept="nothing was read or written",
            do="restore the job from a savepoint; see that nothing deletes records of the topic",
        )
