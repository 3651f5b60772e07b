"""The entries of an exchange's log, and the state that follows from them. Pure.

The log is a numbered list. An entry is written once, whole, and from exactly the state before it (compare-and-swap on
the number), so it never has two versions, and a number once read stays what it was. A position in an exchange is
therefore (entry, row): the entry's number, and how many of its rows have been read, for each partition.

* `claim`: a start of the job may write from here on, and older ones may not.
* `epoch`: an epoch of the producer: its identity, rows per partition, segments, the watermark under which it ran and,
  when a checkpoint's barrier came with it, the barrier.
* `seal`: the producer has finished; each partition ends here.
* `cut`: the entries after a number are abandoned: a restore or a reset continues from there under a new lineage. They
  keep their numbers, so positions before them stay what they are, and readers pass over them.
* `release`: no reader needs the entries below a number any more; their segments are deleted.
* `register`, `forget`: a query reads the exchange, or has left it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from spark_ext.errors import RESET, CommitError, StateError
from spark_ext.model.commits import FenceMark

VERSION: Final = 1


class EntryKind(str, Enum):
    """See the module."""

    __str__ = str.__str__

    CLAIM = "claim"
    EPOCH = "epoch"
    SEAL = "seal"
    CUT = "cut"
    RELEASE = "release"
    REGISTER = "register"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive batches of one partition in a segment."""

    partition: int
    first: int  # number of the first batch
    batches: int
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    """What one task has written for an epoch."""

    name: str
    bytes: int
    runs: tuple[Run, ...]

    def to_json(self) -> list[Any]:
        """The form that is stored."""
        return [self.name, self.bytes, [[run.partition, run.first, run.batches, run.rows] for run in self.runs]]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry; fields that its kind has no use for are at their defaults."""

    kind: EntryKind
    at: int = 0  # when it was written, ms since 1970 UTC, by the writer's clock; nothing depends on it but `keep`
    application: str = ""  # `Epoch.application`, of an epoch and of a seal
    lineage: int = 0
    epoch: int = -1
    rows: tuple[int, ...] = ()  # rows per partition, of an epoch
    segments: tuple[Segment, ...] = ()
    barrier: int | None = None
    """The checkpoint whose barrier this epoch carries: the cut of the producer is right after it."""
    watermark: int = 0
    """The producer's in this epoch, ms since 1970 UTC: what comes after the entry is not older, or is late. 0: none."""
    total: int = 0
    """Rows of the exchange up to the end of this entry, without those that are abandoned; of a release those below."""
    incarnation: int = 0
    start: int = 0
    job_id: str = ""
    after: int | None = None  # of a cut, or a claim that cuts: the last entry that stays; -1: none does
    below: int = 0
    consumer: str = ""  # of a registration: the reading source's uid
    query: str = ""  # of a registration: its query
    read_by: tuple[str, ...] = ()
    """Consumers that had read these rows before a rescale: they pass over the entry."""

    @property
    def row_count(self) -> int:
        """Its rows in all partitions."""
        return sum(self.rows)

    @property
    def bytes(self) -> int:
        """The size of its segments."""
        return sum(segment.bytes for segment in self.segments)

    def to_json(self) -> str:
        """The form that is stored, one line; fields at their defaults are left out."""
        out: dict[str, Any] = {"version": VERSION, "kind": self.kind.value}
        for name in _PLAIN:
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                out[name] = list(value) if isinstance(value, tuple) else value
        if self.segments:
            out["segments"] = [segment.to_json() for segment in self.segments]
        return json.dumps(out, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, who: str) -> Entry:
        """Read a stored form."""
        try:
            raw = json.loads(text)
            version, kind = raw.pop("version"), raw.pop("kind")
        except (ValueError, AttributeError, KeyError, TypeError):
            what, kept = "the entry is empty or truncated", "nothing was written; all other entries are unchanged"
            raise _damaged(what, who, kept) from None
        if version != VERSION or kind not in _KINDS:
            what = f"an entry of version {version!r} and kind '{kind}' is not known"
            raise not_of_this_release(what, VERSION, who, "nothing was read or written")
        segments = tuple(
            Segment(name, size, tuple(Run(*run) for run in runs)) for name, size, runs in raw.pop("segments", ())
        )
        for name in ("rows", "read_by"):
            if name in raw:
                raw[name] = tuple(raw[name])
        return cls(EntryKind(kind), segments=segments, **raw)


_DEFAULTS: Final = {name: spec.default for name, spec in Entry.__dataclass_fields__.items()}
_PLAIN: Final = tuple(name for name in _DEFAULTS if name not in ("kind", "segments"))
_KINDS: Final = frozenset(kind.value for kind in EntryKind)


@dataclass(frozen=True)
class Cut:
    """A range of abandoned entries: `after` < number < `number`."""

    after: int
    number: int


@dataclass(frozen=True)
class LogState:
    """The result of all entries up to one of them."""

    last: int = -1  # the newest entry; -1: none
    incarnation: int = 0
    start: int = 0
    job_id: str = ""  # the owner; "" before the first claim
    epochs: Mapping[str, int] = field(default_factory=dict)
    """The last epoch by `Epoch.application`. Those of an abandoned lineage stay: their numbers are taken."""
    total: int = 0  # rows that were ever in it, without abandoned ones
    sealed: int | None = None  # the number of the seal; None while the producer may add to it
    sealed_by: str = ""  # the application that has sealed it
    lineage: int = 0  # of the newest epoch, seal or cut
    cuts: tuple[Cut, ...] = ()
    released: int = 0  # entries below are released
    released_rows: int = 0  # rows in them that a reader from the beginning would miss
    consumers: Mapping[str, str] = field(default_factory=dict)
    """Query by the uid of each source that reads the exchange."""

    @property
    def mark(self) -> FenceMark:
        """The newest claim's."""
        return FenceMark(self.incarnation, self.start)

    @property
    def held(self) -> FenceMark | None:
        """The newest claim's; None: never claimed."""
        return self.mark if self.incarnation else None

    def last_epoch(self, application: str) -> int:
        """The last epoch of a writer; -1: none."""
        return self.epochs.get(application, -1)

    def after(self, entry: Entry) -> LogState:
        """The state with one more entry."""
        number = self.last + 1
        state = replace(self, last=number)
        kind = entry.kind
        if kind is EntryKind.EPOCH:
            epochs = {**self.epochs, entry.application: entry.epoch}
            return replace(state, epochs=epochs, total=entry.total, lineage=entry.lineage)
        if kind is EntryKind.SEAL:
            return replace(state, sealed=number, sealed_by=entry.application, lineage=entry.lineage)
        if kind is EntryKind.CUT:
            return state._cut(entry, number)
        if kind is EntryKind.CLAIM:
            state = replace(state, incarnation=entry.incarnation, start=entry.start, job_id=entry.job_id)
            return state if entry.after is None else state._cut(entry, number)
        if kind is EntryKind.RELEASE:
            return replace(state, released=max(self.released, entry.below), released_rows=entry.total)
        if kind is EntryKind.REGISTER:
            return replace(state, consumers={**self.consumers, entry.consumer: entry.query})
        left = {uid: query for uid, query in self.consumers.items() if uid != entry.consumer}
        return replace(state, consumers=left)

    def _cut(self, entry: Entry, number: int) -> LogState:
        assert entry.after is not None
        unsealed = self.sealed is not None and self.sealed > entry.after
        return replace(
            self,
            cuts=(*(cut for cut in self.cuts if cut.number <= entry.after), Cut(entry.after, number)),
            total=entry.total,
            lineage=entry.lineage,
            sealed=None if unsealed else self.sealed,
            sealed_by="" if unsealed else self.sealed_by,
            released_rows=0 if entry.after < 0 else self.released_rows,
        )

    def passes_over(self, number: int) -> int | None:
        """Where a reader continues instead of at an abandoned entry; None when the entry is not abandoned."""
        cut = self.cut_over(number)
        return None if cut is None else cut.number + 1

    def cut_over(self, number: int) -> Cut | None:
        """The cut by which an entry is abandoned, or which it is; None when it is not abandoned."""
        return next((cut for cut in self.cuts if cut.after < number <= cut.number), None)

    def to_json(self) -> str:
        """The form that is stored beside the log, so that it need not be read from its beginning."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        out["cuts"] = [[cut.after, cut.number] for cut in self.cuts]
        out["epochs"], out["consumers"] = dict(self.epochs), dict(self.consumers)
        return json.dumps({"version": VERSION, **out}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, who: str) -> LogState:
        """Read a stored form."""
        try:
            raw = json.loads(text)
            version = raw.pop("version")
            if version == VERSION:
                return cls(**{**raw, "cuts": tuple(Cut(*cut) for cut in raw["cuts"])})
        except (ValueError, AttributeError, KeyError, TypeError):
            what, kept = (
                "the stored state of the log is empty or damaged",
                "nothing was written; all entries are unchanged",
            )
            raise _damaged(what, who, kept) from None
        what = f"a state of version {version!r} is not known"
        raise not_of_this_release(what, VERSION, who, "nothing was read or written")


def _damaged(what: str, who: str, kept: str) -> StateError:
    do = f"restore the file from a backup or, without one, reset the query that writes the exchange with {RESET}"
    return StateError(f"{what}, as a power failure may leave the newest files", operator=who, kept=kept, do=do)


def not_of_this_release(what: str, reads: int, who: str, kept: str) -> StateError:
    """The error of a stored form of another version."""
    do = "use the release of spark-ext that wrote it, or a newer one"
    return StateError(f"{what}; this release reads version {reads}", operator=who, kept=kept, do=do)


def not_empty(number: int, who: str) -> StateError:
    """The error for a log that was to begin with given entries, and has others."""
    what = f"the exchange has entries of its own, such as entry {number}, and cannot begin with those of a savepoint"
    do = "put it back into a folder that does not exist"
    return StateError(what, operator=who, kept="the exchange is unchanged; nothing was put back", do=do)


def overtaken(rounds: int, who: str) -> CommitError:
    """The error for an entry that lost to other writers in every round."""
    what = f"other writers of the log were faster {rounds} times in a row"
    do = "find out what else writes to this exchange: it has one producer"
    return CommitError(what, operator=who, kept="everything that was committed", do=do)


def total_of(segments: Sequence[Segment], partitions: int) -> tuple[int, ...]:
    """Rows per partition in some segments."""
    rows = [0] * partitions
    for segment in segments:
        for run in segment.runs:
            rows[run.partition] += run.rows
    return tuple(rows)
