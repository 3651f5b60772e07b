"""The log of an exchange as files of a folder: an entry is a file that is created whole, or not at all, and only once.

log/00000000000000000042.json        entry 42
log/state-00000000000000000100.json  the state after entry 100, so that nobody has to read from the beginning

A process keeps its place in the log: the newest entry that it has seen, and which file that was. A look asks for the
file of the next number, and reads it if it is there.

Old entries are deleted, from the lowest number up, and a state of a later one is stored before. So as long as the file
at a process's place is there, no later entry has been deleted. Two things depend on this:

- A process that has not looked for long may find that the file at its place is gone: it continues from the newest
  stored state. So does one whose folder was deleted, created again or put back from a backup, because the file is
  another one then.
- A writer that was frozen between its look and its write may create a file under a number that was used and deleted.
  It finds the file at its place gone, sees by the log that the number is released, takes its file away, and decides
  again. A reader that has seen such a file finds its own place gone as well.

The log of an exchange that was put back has numbers without files, up to its cut. Nobody reads there: all begin at the
state that is stored at the cut. A writer that was frozen while the folder was replaced may create a file under such a
number; it finds the number abandoned, leaves the file where nobody looks for it, and decides again.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from spark_ext.errors import StateError
from spark_ext.exchange.contract import Decide, ExchangeLog
from spark_ext.exchange.entries import Entry, LogState, not_empty, overtaken
from spark_ext.storage import LocalFolder, writer_of

SPAN: Final = 100  # entries between two stored states
ROUNDS: Final = 40
"""How often an entry is decided again, after other writers were faster, before the caller's back-off takes over."""

_KEPT: Final = 1024
_STATE: Final = re.compile(r"state-(\d{20})\.json")
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_File: TypeAlias = "tuple[int, int, int] | None"
"""Which file it is: inode, time of change and size; None: the file does not exist."""


class ArrowLog(ExchangeLog):
    """See the module. The threads of a process may share one."""

    def __init__(self, folder: LocalFolder, who: str, span: int = SPAN) -> None:
        self._folder, self._who, self._span = folder, who, span
        self._state = LogState()
        self._at: _File = None
        self._kept: OrderedDict[int, Entry] = OrderedDict()
        self._opened = False
        self._one = threading.RLock()

    def look(self) -> LogState:
        """See `ExchangeLog.look`."""
        with self._one:
            # Who has seen no entry has no place by which to notice that the log begins with a later one by now.
            if not self._opened or self._state.last < 0 or not self._in_place():
                self._open()
            while (found := self._read(self._state.last + 1)) is not None:
                entry, file = found
                if not self._in_place():
                    self._open()
                    continue
                self._advance(entry, file)
            return self._state

    def entry(self, number: int) -> Entry | None:
        """See `ExchangeLog.entry`."""
        if number < 0:
            return None
        with self._one:
            kept = self._kept.get(number)
            if kept is not None:
                return kept
            found = self._read(number)
            return None if found is None else self._keep(number, found[0])

    def append(self, decide: Decide, writer: str) -> LogState | None:
        """See `ExchangeLog.append`."""
        with self._one:
            for _ in range(ROUNDS):
                state = self.look()
                entry = decide(state)
                if entry is None:
                    return None
                number = state.last + 1
                if not self._create(number, entry, writer):
                    continue
                file = _which(self._file(number))
                if self._in_place() and state.last >= 0:
                    self._advance(entry, file)
                elif not self._counts(number, entry):
                    self._opened = False
                    continue
                if (number + 1) % self._span == 0:
                    self.store_state(writer)
                return self._state
        raise overtaken(ROUNDS, self._who)

    def _counts(self, number: int, entry: Entry) -> bool:
        """Whether the entry whose file this writer has just created is in the log, which may be another one by now."""
        alone = number > 0 and not self._states() and self.numbers() == [number]  # the log was deleted in between
        if not alone:
            self._open()
            state = self.look()
            if state.released <= number <= state.last:
                # Without this entry the number is another entry's. One that is abandoned may be an entry all the same,
                # which was written in time; without its file nobody who stands before it would come any further.
                found = self._read(number)
                return state.passes_over(number) is None and found is not None and found[0] == entry
        found = self._read(number)
        if found is not None and found[0] == entry:
            self._file(number).unlink(missing_ok=True)
        return False

    def seed(self, state: LogState, entries: Mapping[int, Entry], writer: str) -> None:
        """See `ExchangeLog.seed`.

        The state is there before the entries, so that those of an unfinished attempt are not taken for a log, and the
        last entry comes last, because only with it the state is used.
        """
        with self._one:
            last, there, states = max(entries), self.numbers(), self._states()
            done = bool((there and there[-1] >= last) or (states and states[-1] > last))
            for number in there if not done else [last] if last in there else []:
                if number not in entries or self._entry_at(number) != entries[number]:
                    raise not_empty(number, self._who)
            self._opened = False
            if done:
                return
            self._folder.write(_state_name(last), state.to_json(), durable=True, writer=writer)
            for number in sorted(entries):
                self._create(number, entries[number], writer)

    def _entry_at(self, number: int) -> Entry | None:
        found = self._read(number)
        return None if found is None else found[0]

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def store_state(self, writer: str) -> None:
        """Store the state of the last look, from which others may begin."""
        with self._one:
            self._folder.write(_state_name(self._state.last), self._state.to_json(), durable=True, writer=writer)

    def numbers(self) -> list[int]:
        """The numbers of all entries whose files are there, in order."""
        return sorted(int(match[1]) for name in self._folder.names() if (match := _ENTRY.fullmatch(name)))

    def delete(self, below: int) -> None:
        """Delete entries below a number whose state is stored, and stored states that nobody begins from."""
        for number in self.numbers():
            if number < below:
                self._file(number).unlink(missing_ok=True)
        states = self._states()
        # The last but one stays: a process may have listed the folder before the last one was there.
        for number in states[:-2]:
            self._folder.delete(_state_name(number))

    def sweep(self, incarnation: int) -> None:
        """Delete the drafts of older incarnations."""
        for name in self._folder.names():
            writer = writer_of(name)
            if writer is not None and writer.isdigit() and 0 < int(writer) < incarnation:
                self._folder.delete(name)

    # -- the place ----------------------------------------------------------------------------------------------------

    def _in_place(self) -> bool:
        """Whether the file at the place is still the one that was seen there."""
        return self._state.last < 0 or _which(self._file(self._state.last)) == self._at

    def _advance(self, entry: Entry, file: _File) -> None:
        self._state, self._at = self._state.after(entry), file
        self._keep(self._state.last, entry)

    def _open(self) -> None:
        """Begin at the newest stored state whose entry is there; without one, at the first entry."""
        self._kept.clear()
        states, problem = self._states(), None
        while True:
            for number in reversed(states):
                try:
                    text = self._folder.read(_state_name(number)).decode("utf-8", "replace")
                    state = LogState.from_json(text, f"{self._who}, state {number}")
                except FileNotFoundError:
                    continue  # it was deleted since the folder was listed, so there is a newer one
                except StateError as damaged:
                    problem = problem or damaged
                    continue
                file = _which(self._file(number))
                if file is not None:
                    self._state, self._at, self._opened = state, file, True
                    return
            found, before = self.numbers(), states
            states = self._states()
            if states == before:
                break
        newest = found[-1] if found else -1
        # The folder may have been listed while entries were added.
        missing = [number for number in set(range(newest)).difference(found) if not self._file(number).exists()]
        if missing or (states and states[-1] > newest):
            raise problem or self._missing()
        self._state, self._at, self._opened = LogState(), None, True

    def _missing(self) -> StateError:
        what = "the first entries are not there, and no state of the log is there to begin from"
        do = "restore the exchange's folder from a backup; files in it must not be deleted by hand"
        return StateError(what, operator=self._who, kept="nothing was read or written", do=do)

    # -- files --------------------------------------------------------------------------------------------------------

    def _create(self, number: int, entry: Entry, writer: str) -> bool:
        # Durable before anybody acts on it: the queries on both sides commit epochs that count on this entry.
        name = self._file(number).name
        return self._folder.create_once(name, entry.to_json(), durable=True, writer=writer)

    def _file(self, number: int) -> Path:
        return _path(self._folder.path, number)

    def _read(self, number: int) -> tuple[Entry, _File] | None:
        try:
            with self._file(number).open(encoding="utf-8") as file:
                found = os.fstat(file.fileno())
                text = file.read()
        except FileNotFoundError:
            return None
        return Entry.from_json(text, f"{self._who}, entry {number}"), _identity(found)

    def _keep(self, number: int, entry: Entry) -> Entry:
        self._kept[number] = entry
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return entry

    def _states(self) -> list[int]:
        return sorted(int(match[1]) for name in self._folder.names() if (match := _STATE.fullmatch(name)))


def _state_name(number: int) -> str:
    return f"state-{number:020}.json"


@lru_cache(maxsize=128)
def _path(folder: Path, number: int) -> Path:
    """Idle readers ask for the same two again and again, and a `Path` takes longer to make than to look at."""
    return folder / f"{number:020}.json"


def _which(file: Path) -> _File:
    try:
        return _identity(file.stat())
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> _File:
    return found.st_ino, found.st_mtime_ns, found.st_size
