"""A log of one sink's epochs in a folder: each entry is a file that is created whole, or not at all, and only once.

An entry's number is its position in the log. A writer reads the log to its end, decides, and creates the next number.
If another entry was created first, the creation fails and the writer decides again: what it read still holds at the
moment of the commit, however long the process was frozen in between. (The idea comes from Delta's log.)

So that a log of 100,000 epochs is read quickly, each `SPAN` entries are merged into a segment, each `SPAN` segments
into a larger one, and so on. A merged piece is deleted one round later, when no reader can still need it that listed
the folder before the segment existed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeVar

from spark_ext.errors import RESET, CommitError, StateError
from spark_ext.model.commits import FenceMark
from spark_ext.storage import Folder, writer_of

VERSION: Final = 1
SPAN: Final = 100
ROUNDS: Final = 40  # How often an entry that lost is decided again before the caller's back-off takes over
T = TypeVar("T")

Entry = Mapping[str, Any]  # An entry: `{"kind": "claim", ...}` or `{"kind": "epoch", ...}`; readers skip unknown kinds
_PIECE = re.compile(r"(\d{20})(?:-(\d{20}))?\.jsonl")


@dataclass(frozen=True)
class LogState:
    """The result of all entries up to one of them."""

    last: int = -1  # The newest entry; -1: none
    incarnation: int = 0
    start: int = 0  # The random number of the start that has claimed it; 0: not known
    owner: str | None = None  # The job's id
    epochs: Mapping[str, int] = field(default_factory=dict)  # The last committed epoch by `Epoch.application`

    @property
    def mark(self) -> FenceMark:
        """The newest claim's."""
        return FenceMark(self.incarnation, self.start)

    def after(self, entry: Entry) -> LogState:
        """The state with one more entry."""
        state = replace(self, last=self.last + 1)
        if entry["kind"] == "claim":
            claimed = FenceMark(entry["incarnation"], entry["start"])
            newest = self.mark if self.incarnation > claimed.incarnation else claimed
            return replace(state, incarnation=newest.incarnation, start=newest.start, owner=entry["job_id"])
        if entry["kind"] == "epoch":
            return replace(state, epochs={**self.epochs, entry["application"]: entry["epoch"]})
        return state


def unlinked(entries: Iterable[Entry]) -> list[str]:
    """The files, of entries in order, that were committed without links since a start last made the links of all."""
    found: list[str] = []
    for entry in entries:
        if entry["kind"] == "claim" and entry.get("links"):
            found = []
        elif entry["kind"] == "epoch" and not entry.get("links", True):
            found += [file["path"] for file in entry["files"]]
    return found


@dataclass(frozen=True)
class _Piece:
    """An entry, or a segment of several."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.first:020}-{self.last:020}.jsonl" if self.is_segment else f"{self.first:020}.jsonl"

    @property
    def is_segment(self) -> bool:
        return self.first != self.last


class EpochLog:
    """The log of one sink."""

    def __init__(self, folder: Folder, span: int = SPAN) -> None:
        self._folder, self._span = folder, span

    def state(self) -> LogState:
        """The current state."""
        return self._read(self._fold)

    def entries(self) -> list[Entry]:
        """All entries as of one moment, in order."""
        return self._read(lambda chain: [entry for piece in chain for entry in self._entries(piece)])

    def append(self, decide: Callable[[LogState], Entry | None], writer: str) -> LogState | None:
        """Write the entry that `decide` makes of exactly the state before it; None if `decide` returned None.

        `decide` may raise, and is called again if another writer was faster. Returns the state with the entry.
        """
        for _ in range(ROUNDS):
            state = self.state()
            entry = decide(state)
            if entry is None:
                return None
            after = state.after(entry)
            piece = _Piece(after.last, after.last)
            if self._put(piece, None, [entry], writer) and self._counts(piece, entry):
                self._merge(after.last, writer)
                return after
        raise CommitError(
            f"other writers of the log were faster {ROUNDS} times in a row",
            operator=f"log {self._folder.uri}",
            kept="everything that was committed",
            do="find out who else writes under this sink's uid: each sink needs a uid of its own",
        )

    def sweep(self, is_dead: Callable[[str], bool]) -> None:
        """Delete the drafts of dead writers."""
        for name in self._folder.names():
            writer = writer_of(name)
            if writer is not None and is_dead(writer):
                self._folder.delete(name)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, take: Callable[[Sequence[_Piece]], T]) -> T:
        """The result of `take` for the pieces that hold all entries as of one moment."""
        torn = 0
        while torn < ROUNDS:
            chain = self._chain()
            if chain is None:
                torn += 1
                continue
            # A listed piece may be merged and deleted before it is read; and once it is deleted, a writer that was
            # frozen since may create an entry of its own there for a moment (see `_counts`). If that can have happened,
            # the chain has a longer piece by now.
            with contextlib.suppress(FileNotFoundError):
                taken = take(chain)
                if (self._chain() or [])[: len(chain)] == chain:
                    return taken
        raise StateError(
            "entries of the log are missing",
            operator=f"log {self._folder.uri}",
            kept="nothing was written",
            do="restore the folder from a backup; files in it must not be deleted by hand",
        )

    def _chain(self) -> list[_Piece] | None:
        """The longest pieces from the first entry to the last; None if entries in between are missing.

        A listing that ran while others wrote can lack some as well.
        """
        there = self._pieces()
        longest: dict[int, _Piece] = {}
        for piece in there:
            if piece.last >= longest.get(piece.first, piece).last:
                longest[piece.first] = piece
        chain: list[_Piece] = []
        while (at := chain[-1].last + 1 if chain else 0) in longest:
            chain.append(longest[at])
        end = chain[-1].last if chain else -1
        return chain if all(piece.last <= end for piece in there) else None

    def _fold(self, chain: Sequence[_Piece]) -> LogState:
        """The state at the end of a chain; a segment stores its own."""
        state, after = LogState(), chain
        for number in range(len(chain) - 1, -1, -1):
            if chain[number].is_segment:
                header = self._folder.read(chain[number].name).partition(b"\n")[0]
                state, after = LogState(**json.loads(header)["state"]), chain[number + 1 :]
                break
        for piece in after:
            for entry in self._entries(piece):
                state = state.after(entry)
        return state

    def _pieces(self) -> list[_Piece]:
        matches = (_PIECE.fullmatch(name) for name in self._folder.names())
        return [_Piece(int(match[1]), int(match[2] or match[1])) for match in matches if match]

    def _entries(self, piece: _Piece) -> list[Entry]:
        text = self._folder.read(piece.name).decode("utf-8", "replace")
        lines = text.splitlines()
        if not text.endswith("\n") or len(lines) != 2 + piece.last - piece.first:
            # It was created whole: only a file system that lost data can have done this.
            raise StateError(
                f"'{piece.name}' of the log is empty or truncated, as a power failure may leave the newest files",
                operator=f"log {self._folder.uri}",
                kept="nothing was written; all other entries are unchanged",
                do=f"restore the file from a backup; without one, discard the history with {RESET}",
            )
        return [json.loads(line) for line in lines[1:]]

    # -- writing ------------------------------------------------------------------------------------------------------

    def _put(self, piece: _Piece, state: LogState | None, entries: Sequence[Entry], writer: str) -> bool:
        """Create a piece with its whole content, unless it exists: a header line, then one line per entry."""
        head = {"version": VERSION} if state is None else {"version": VERSION, "state": asdict(state)}
        lines = "".join(json.dumps(line) + "\n" for line in (head, *entries))
        return self._folder.create_once(piece.name, lines, writer=writer)

    def _counts(self, piece: _Piece, entry: Entry) -> bool:
        """Whether a new entry is part of the log, and not in a gap that merging has left below its end.

        Entries are deleted only once a segment covers them, so a look after the creation finds that segment.
        """
        written = json.loads(json.dumps(entry))

        def at_its_place(chain: Sequence[_Piece]) -> Entry | None:
            holder = next((other for other in chain if other.first <= piece.first <= other.last), None)
            if holder is None:
                return None  # someone has deleted the folder meanwhile
            return written if holder == piece else self._entries(holder)[piece.first - holder.first]

        if self._read(at_its_place) == written:
            return True
        self._folder.delete(piece.name)
        return False

    def _merge(self, last: int, writer: str) -> None:
        """Merge what the newest entry has completed. After a failure the next merge of a larger segment catches up."""
        size = self._span
        with contextlib.suppress(OSError):
            while (last + 1) % size == 0:
                self._segment(_Piece(last + 1 - size, last), size, writer)
                # One round late: no reader that listed the folder before this segment existed still needs these.
                self._forget(_Piece(last + 1 - 2 * size, last - size), size)
                size *= self._span

    def _segment(self, piece: _Piece, size: int, writer: str) -> list[Entry]:
        """A segment's entries; the segment is created if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self._entries(piece)
        step = size // self._span
        parts = [_Piece(first, first + step - 1) for first in range(piece.first, piece.last + 1, step)]
        entries = [
            entry
            for part in parts
            for entry in (self._segment(part, step, writer) if step > 1 else self._entries(part))
        ]
        state = self._read(lambda chain: self._fold([before for before in chain if before.last < piece.first]))
        for entry in entries:
            state = state.after(entry)
        self._put(piece, state, entries, writer)
        return entries

    def _forget(self, covered: _Piece, size: int) -> None:
        """Delete the parts of a segment, if it exists."""
        if covered.first < 0 or not self._folder.has(covered.name):
            return
        for piece in self._pieces():
            if covered.first <= piece.first and piece.last <= covered.last and piece.last - piece.first + 1 < size:
                self._folder.delete(piece.name)
