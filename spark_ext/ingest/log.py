"""The log of one gateway: which segments of events it has, and which process may add to it.

    log/00000000000000000042.json    entry 42
    released.json                    no reader needs the entries below a number
    lease.json                       what its process was doing a few seconds ago
    requested.json, answered.json    up to which checkpoint requests that wait in memory were asked for, and written

An entry is a file that is created once, whole, under the number after the newest: a compare-and-swap. It says all that
follows from the entries before it, so the newest is the state of the log. Kinds of entries:

* `claim`: a process owns the log from here; older ones are fenced.
* `segment`: a file of events, in the order of arrival.
* `seal`: the log ends here.

Released entries are deleted by the owner, from the lowest number up, but never the newest. So a process that finds its
last known entry still there knows that no later one was deleted. One that was frozen between its look and its write may
create a file under a number that was used and deleted. It finds its last known entry gone, so the file does not count,
and nobody reads it: readers continue at the newest entry, or at a position that is not released.

A position of a reader is `[entry, row]`: the entry in which it stands, and how many of its rows are read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_ext.errors import FencedError, OffsetError, StateError
from spark_ext.ingest.description import GATEWAYS, VERSION
from spark_ext.storage import Folder

if TYPE_CHECKING:
    import pyarrow as pa

ABOUT: Final = "gateway.json"
RELEASED: Final = "released.json"
REQUESTED: Final = "requested.json"
ANSWERED: Final = "answered.json"
LEASE: Final = "lease.json"

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_UNCHANGED: Final = "the log is unchanged; nothing was read or written"


class EntryKind(str, Enum):
    """See the module."""

    __str__ = str.__str__

    CLAIM = "claim"
    SEGMENT = "segment"
    SEAL = "seal"


@dataclass(frozen=True)
class Entry:
    """An entry; fields that its kind has no use for are at their defaults."""

    kind: EntryKind
    start: str  # of the process that has written it
    incarnation: int
    at: int = 0  # when it was written, ms since 1970 UTC, by the gateway's clock; nothing depends on it
    total: int = 0  # rows of the log up to its end: the sequence of the next event
    stored: int = 0  # bytes of all segments up to its end, deleted ones included
    wal: int = 0  # the newest file of the write-ahead log that is contained, here or in an earlier entry
    name: str = ""  # of the segment
    rows: int = 0
    bytes: int = 0
    first_at: int = 0  # when its first event was received, us since 1970 UTC
    last_at: int = 0
    producers: Mapping[str, int] = field(default_factory=dict)
    """The newest number of each producer that numbers its events, up to its end; those that came last, at most."""
    lost_after: int | None = None
    """Of a seal whose write-ahead log was lost: the last sequence saved. Later ones may have been acknowledged."""

    @property
    def first(self) -> int:
        """The sequence of its first row."""
        return self.total - self.rows

    def to_json(self) -> str:
        """The form that is stored, one line; fields at their defaults are left out."""
        default = Entry.__dataclass_fields__
        return json.dumps(
            {
                "version": VERSION,
                **{name: value for name, value in asdict(self).items() if value != default[name].default},
            }
        )

    @classmethod
    def from_json(cls, text: str, who: str) -> Entry:
        """Read a stored form."""
        try:
            raw: dict[str, Any] = json.loads(text)
            version = raw.pop("version")
            if version == VERSION:
                return cls(EntryKind(raw.pop("kind")), **raw)
        except (ValueError, AttributeError, KeyError, TypeError):
            version = None
        what = "it is damaged" if version is None else f"it has version {version!r}"
        do = "restore the file from a backup, or use the release of spark-ext that wrote it"
        raise StateError(f"{what}; this release reads version {VERSION}", operator=who, kept=_UNCHANGED, do=do)


@dataclass(frozen=True)
class LogState:
    """The log up to its newest entry."""

    last: int = -1  # the number of the newest entry; -1: none
    incarnation: int = 0
    start: str = ""  # of the process that owns it; "" before the first claim
    total: int = 0  # rows that were ever in it: the sequence of the next event
    stored: int = 0  # bytes that were ever in it
    wal: int = 0
    producers: Mapping[str, int] = field(default_factory=dict)
    sealed: int | None = None  # the number of the seal
    lost_after: int | None = None

    def after(self, entry: Entry) -> LogState:
        """The state with one more entry."""
        number = self.last + 1
        return replace(
            self,
            last=number,
            incarnation=entry.incarnation,
            start=entry.start,
            total=entry.total,
            stored=entry.stored,
            wal=entry.wal,
            producers=entry.producers,
            sealed=number if entry.kind is EntryKind.SEAL else None,
            lost_after=entry.lost_after,
        )


@dataclass(frozen=True)
class Lease:
    """What a gateway's process was doing when it wrote this."""

    incarnation: int
    start: str
    at: int  # ms since 1970 UTC, by the gateway's clock
    host: str
    pid: int
    state: str  # `accepting`, `unavailable`, `draining`, `sealed` or `closed`
    accepted: int = 0  # events of this log, by all processes of the gateway
    acknowledged: int = 0
    bytes: int = 0  # that no job has read
    max_bytes: int = 0
    oldest_unread: float = 0.0  # age of the oldest event that no job has read, s
    rejected: Mapping[str, int] = field(default_factory=dict)  # requests that were answered with a refusal, by status
    waits: Sequence[int] = ()  # how many requests of the last minute waited less than 2^n ms until acknowledged, by n

    def to_json(self) -> str:
        """The form that is stored."""
        return json.dumps(asdict(self))


class InboxLog:
    """See the module. `folder` is the gateway's. One thread appends; others may look and read."""

    def __init__(self, folder: Folder, operator: str) -> None:
        self._folder, self._who = folder, operator
        self._state = LogState()
        self._seen = b""  # the newest entry that was seen, as it is stored

    def look(self) -> LogState:
        """The state by the newest entry that is there now."""
        if not self._in_place():
            self._open()
        while (found := self._folder.find(_name(self._state.last + 1))) is not None:
            if not self._in_place():
                self._open()
                continue
            self._see(found)
        return self._state

    def entry(self, number: int) -> Entry | None:
        """An entry; None if it does not exist yet, or was deleted."""
        found = self._folder.find(_name(number))
        return None if found is None else self._parsed(number, found)

    def append(self, entry: Entry, state: LogState) -> LogState:
        """Add an entry, durably, behind a known state.

        May be repeated after an OSError, with the same entry: it is in the log once.

        Raises:
            FencedError: another process owns the log. The entry is not in it, or that process knows it.
        """
        number, content = state.last + 1, entry.to_json().encode()
        created = self._folder.create_once(_name(number), content, durable=True)
        if created or self._folder.find(_name(number)) == content:
            before = self.entry(state.last) if state.last >= 0 else None
            if self.numbers() == [0] if state.last < 0 else before is not None and before.start == state.start:
                self._state, self._seen = state.after(entry), content
                return self._state
        raise self.fenced(entry.incarnation)

    def overtaken(self, state: LogState) -> bool:
        """Whether another process has claimed the log since this one has brought it into a state.

        Also true if this process itself has deleted the newest entry of the state since, which was not the newest then.
        """
        number = state.last + 1
        while self._folder.has(_name(number)):
            entry = self.entry(number)
            if entry is None or entry.start != state.start:
                return True
            number += 1
        # Only then: if an entry behind it was deleted, so was this one, and what is there under such a number is late.
        known = self.entry(state.last)
        return known is None or known.start != state.start

    def fenced(self, own: int) -> FencedError:
        """The error of a process whose log another one owns by now."""
        newer = max(self.look().incarnation, own)
        return FencedError(
            f"incarnation {newer} of the gateway has claimed its log; this process has incarnation {own}",
            operator=self._who,
            kept="everything that was acknowledged; this process acknowledges nothing more",
            do="nothing: the newer process continues; make sure that only one is started for each gateway",
        )

    # -- what readers ask for -----------------------------------------------------------------------------------------

    def request(self, number: int) -> None:
        """Let a gateway that keeps requests in memory write them: a higher number each time, such as a checkpoint's."""
        self._folder.write(REQUESTED, json.dumps({"number": number}))

    def answer(self, number: int) -> None:
        """Say that all requests from before a `request` are in the log."""
        self._folder.write(ANSWERED, json.dumps({"number": number}))

    def requested(self) -> int:
        """The number of the newest request; 0: none."""
        return self._number(REQUESTED, "number")

    def answered(self) -> int:
        """The number of the newest request that was answered; 0: none."""
        return self._number(ANSWERED, "number")

    def _number(self, name: str, key: str) -> int:
        try:
            return int(json.loads(self._folder.find(name) or b"{}").get(key, 0))
        except (ValueError, TypeError, AttributeError):
            return 0  # a power failure has cut it off: it is written again and again

    # -- released entries ---------------------------------------------------------------------------------------------

    def release(self, below: int, kept: int | None = None) -> None:
        """Say that every reader has committed the entries below a number, durably: acknowledgements may depend on it.

        The owner may delete those below `kept` (None: the same number); from there on savepoints need them.
        """
        content = json.dumps({"below": below, "kept": below if kept is None else kept})
        self._folder.write(RELEASED, content, durable=True)

    def released(self) -> int:
        """The number below which entries are released, as it is stored."""
        return self._number(RELEASED, "below")

    def kept(self) -> int:
        """The number of the first entry that is not to be deleted, as it is stored."""
        return self._number(RELEASED, "kept")

    def numbers(self) -> list[int]:
        """The numbers of the entries whose files are there, in order."""
        return sorted(int(match[1]) for name in self._folder.names("log") if (match := _ENTRY.fullmatch(name)))

    def delete(self, below: int) -> None:
        """Delete entries below a number and segments of such numbers, but for the newest; only the owner may."""
        below = min(below, self._state.last)
        for name in self._folder.names("data"):
            if name[:20].isdigit() and int(name[:20]) < below:
                self._folder.delete(_segment(name))
        for number in self.numbers():
            if number < below:
                self._folder.delete(_name(number))

    # -- segments -----------------------------------------------------------------------------------------------------

    def write_segment(self, number: int, start: str, batch: pa.RecordBatch) -> tuple[str, int]:
        """Write an entry's segment, durably: another one in each attempt of another process.

        Returns:
            Its name, which ends with its checksum, and its size, bytes.
        """
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
        content = sink.getvalue().to_pybytes()
        name = f"{number:020}-{start}-{zlib.crc32(content):08x}.arrow"
        self._folder.write(_segment(name), content, durable=True)
        return name, len(content)

    def read_segment(self, name: str, skip: int, rows: int) -> pa.RecordBatch:
        """Rows of a segment."""
        import pyarrow as pa

        try:
            content = self._folder.mapped(_segment(name))
            if not name.endswith(f"-{zlib.crc32(content):08x}.arrow"):
                raise pa.ArrowInvalid("its checksum is another one")
            return pa.ipc.open_file(content).get_batch(0).slice(skip, rows)
        except (FileNotFoundError, pa.ArrowInvalid) as problem:
            what = f"the segment {name} is damaged or missing: {problem}"
            do = "restore the file from a backup: its events were acknowledged"
            raise StateError(what, operator=self._who, kept="nothing of this epoch was committed", do=do) from None

    # -- the place ----------------------------------------------------------------------------------------------------

    def _in_place(self) -> bool:
        """Whether the newest entry that was seen is still there, and is still that one."""
        return self._state.last >= 0 and self._folder.find(_name(self._state.last)) == self._seen

    def _see(self, content: bytes) -> None:
        entry = self._parsed(self._state.last + 1, content)
        self._state, self._seen = self._state.after(entry), content

    def _parsed(self, number: int, content: bytes) -> Entry:
        return Entry.from_json(content.decode("utf-8", "replace"), f"{self._who}, entry {number}")

    def _open(self) -> None:
        """Continue at the newest entry. It may be deleted after the folder was listed, when there is a newer one."""
        content, numbers = None, self.numbers()
        while numbers and (content := self._folder.find(_name(numbers[-1]))) is None:
            numbers = self.numbers()
        self._state, self._seen = LogState(numbers[-1] - 1 if numbers else -1), b""
        if content is not None:
            self._see(content)


@dataclass(frozen=True)
class ChannelAbout:
    """What `gateway.json` says."""

    id: str
    name: str
    inbox: str  # id of the inbox
    wal: bool  # whether it has a write-ahead log

    def to_json(self) -> str:
        """The form that is stored."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: bytes, who: str) -> ChannelAbout:
        """Read a stored form."""
        try:
            raw = json.loads(text)
            if raw.pop("version") == VERSION:
                return cls(**raw)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        what = f"its description is damaged, or has another version than {VERSION}, which this release reads"
        do = "restore the file from a backup, or use another release"
        raise StateError(what, operator=who, kept=_UNCHANGED, do=do)


def channels(inbox: Folder) -> dict[str, str]:
    """The gateways of an inbox that have begun, each a channel: ids by name."""
    found: dict[str, str] = {}
    for name in inbox.names(GATEWAYS):
        about = inbox.find(f"{GATEWAYS}/{name}/{ABOUT}")
        if about is not None:
            found[name] = ChannelAbout.from_json(about, f"gateway '{name}'").id
    return found


def lease_of(folder: Folder) -> Lease | None:
    """The lease of a gateway, by its folder; None without one that can be read. Another release may say more."""
    try:
        raw = json.loads(folder.find(LEASE) or b"")
        return Lease(**{name: raw[name] for name in Lease.__dataclass_fields__ if name in raw})
    except (ValueError, TypeError):
        return None


def _name(number: int) -> str:
    return f"log/{number:020}.json"


def _segment(name: str) -> str:
    return f"data/{name}"


# -- positions --------------------------------------------------------------------------------------------------------

At: TypeAlias = Callable[[int], Entry | None]  # the entry of a number
Position: TypeAlias = Sequence[int]


@dataclass(frozen=True)
class Step:
    """Where an epoch of a reader ends."""

    position: list[int]
    rows: int = 0
    bytes: int = 0
    sealed: bool = False  # whether the gateway has finished there: the channel ends


def advance(state: LogState, at: At, start: Position, rows: int | None, size: int | None) -> Step:
    """How far an epoch may read from a position; the limits are in rows, and approximately in bytes.

    Whole entries are taken as long as they fit, and at least one row. A reader stands where the last entry that it took
    ends: claims that follow are passed over each time, and make no epoch.
    """
    number, row = start
    end, taken, weight = list(start), 0, 0
    while number <= state.last:
        entry = _there(at, number)
        if entry.kind is EntryKind.SEAL:
            return Step([number + 1, 0], taken, weight, True)
        left = entry.rows - row
        cost = entry.bytes * left // max(1, entry.rows)
        room = left if rows is None else min(left, rows - taken)
        if size is not None and cost:
            room = min(room, left * max(0, size - weight) // cost)
        room = max(room, 0 if taken else min(1, left))
        if room < left:
            if not taken:
                end, taken, weight = [number, row + room], room, cost * room // left
            break
        number, row = number + 1, 0
        if left:
            end, taken, weight = [number, 0], taken + left, weight + cost
    return Step(end, taken, weight)


def pieces(at: At, start: Position, end: Position) -> Iterator[tuple[str, int, int]]:
    """What lies between two positions, in order: names of segments, rows to skip, and rows."""
    (number, skip), (last, upto) = start, end
    while number < last or (number == last and upto):
        entry = _there(at, number)
        rows = (upto if number == last else entry.rows) - skip
        if rows:
            yield entry.name, skip, rows
        number, skip = number + 1, 0


def _there(at: At, number: int) -> Entry:
    entry = at(number)
    if entry is None:
        raise OffsetError(
            f"entry {number} of the gateway's log is not there",
            operator="the position of a reader",
            kept="nothing was read",
            do="restore the inbox's folder from a backup, or the job from a savepoint that is not older",
        )
    return entry
