"""The log of an exchange as files of a folder: an entry is a file that is created whole, or not at all, and only once.

log/00000000000000000042.json        entry 42
log/state-00000000000000000100.json  the state after entry 100, so that nobody has to read from the beginning
log/released.json                    entries below this number are, or are being, deleted

A process keeps its place in the log. A look asks for the file of the next number, and reads it if it is there.

Two things follow from the deletion of old entries. A process that has not looked for long may find that its next entry
is gone: it then continues from the newest state. And a writer that was frozen between its look and its write may create
a file under a number that was used and deleted: it finds the number in `released.json`, which is written before
anything is deleted, takes its file away, and decides again.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from pathlib import Path
from typing import Final

from spark_ext.datafiles.exclusive import put_if_absent, replace, writer_of
from spark_ext.errors import CommitError, StateError
from spark_ext.exchange.contract import Decide, ExchangeLog
from spark_ext.exchange.entries import Entry, LogState
from spark_ext.model.commits import not_the_target

SPAN: Final = 100
"""A state is stored after each so many entries."""

ROUNDS: Final = 40
"""How often an entry is decided again, after other writers were faster, before the caller's back-off takes over."""

_KEPT: Final = 1024
"""Entries kept in memory."""

_STATE: Final = re.compile(r"state-(\d{20})\.json")
_ENTRY: Final = re.compile(r"(\d{20})\.json")


class ArrowLog(ExchangeLog):
    """See the module.

    Args:
        folder: of the log; made with the first entry.
        who: the exchange, for messages.
        span: a state is stored after each so many entries.
    """

    def __init__(self, folder: Path, who: str, span: int = SPAN) -> None:
        self._folder, self._who, self._span = folder, who, span
        self._state = LogState()
        self._kept: OrderedDict[int, Entry] = OrderedDict()
        self._opened = False

    def look(self) -> LogState:
        """See `ExchangeLog.look`."""
        if not self._opened:
            self._open()
        while True:
            found = self._read(self._state.last + 1)
            if found is not None:
                self._state = self._state.after(found)
            elif self._released() > self._state.last + 1:
                self._open()
            else:
                return self._state

    def entry(self, number: int) -> Entry | None:
        """See `ExchangeLog.entry`."""
        return None if number < 0 else self._read(number)

    def append(self, decide: Decide, writer: str) -> LogState | None:
        """See `ExchangeLog.append`."""
        for _ in range(ROUNDS):
            state = self.look()
            entry = decide(state)
            if entry is None:
                return None
            number = state.last + 1
            if not put_if_absent(self._file(number), entry.to_json(), writer):
                continue
            if self._released() > number:
                # The number was used before, and what it stood for has been deleted since.
                self._file(number).unlink(missing_ok=True)
                self._open()
                continue
            self._refuse_gap(number)
            self._keep(number, entry)
            self._state = state.after(entry)
            if (number + 1) % self._span == 0:
                self.store_state(writer)
            return self._state
        raise CommitError(
            f"other writers of the log were faster {ROUNDS} times in a row",
            operator=self._who,
            kept="everything that was committed",
            do="find out what else writes to this exchange: it has one producer",
        )

    def _refuse_gap(self, number: int) -> None:
        """After a write: the entry before must be there still, unless it was released meanwhile."""
        if not number or self._file(number - 1).exists() or self._released() >= number:
            return
        self._file(number).unlink(missing_ok=True)
        raise not_the_target(f"entry {number - 1} of its log is gone", self._who)

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def store_state(self, writer: str) -> None:
        """Store the state of the last look, from which others may begin.

        Raises:
            OSError: it cannot be written.
        """
        text = json.dumps(self._state.to_json(), separators=(",", ":"))
        replace(self._folder / f"state-{self._state.last:020}.json", text, writer)

    def numbers(self) -> list[int]:
        """The numbers of all entries whose files are there, in order.

        Raises:
            OSError: the folder cannot be listed.
        """
        return sorted(int(match[1]) for name in self._names() if (match := _ENTRY.fullmatch(name)))

    def begin_release(self, below: int, writer: str) -> None:
        """Say, before entries are deleted, that those below a number will be.

        Raises:
            OSError: it cannot be written.
        """
        self.store_state(writer)
        if self._released() < below:
            replace(self._folder / "released.json", json.dumps({"below": below}), writer)

    def delete(self, below: int) -> None:
        """Delete the files of entries below a number, and stored states that nobody begins from any more.

        Raises:
            OSError: a file cannot be deleted.
        """
        for number in self.numbers():
            if number < below:
                self._file(number).unlink(missing_ok=True)
        states = self._states()
        # The last but one stays: a process may have listed the folder before the last one was there.
        for number in states[:-2]:
            (self._folder / f"state-{number:020}.json").unlink(missing_ok=True)

    def sweep(self, incarnation: int) -> None:
        """Delete the drafts of older incarnations.

        Raises:
            OSError: the folder cannot be listed.
        """
        for name in self._names():
            writer = writer_of(name)
            if writer is not None and writer.isdigit() and 0 < int(writer) < incarnation:
                (self._folder / name).unlink(missing_ok=True)

    # -- files --------------------------------------------------------------------------------------------------------

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:020}.json"

    def _read(self, number: int) -> Entry | None:
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        try:
            text = self._file(number).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return self._keep(number, Entry.from_json(text, f"{self._who}, entry {number}"))

    def _keep(self, number: int, entry: Entry) -> Entry:
        self._kept[number] = entry
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return entry

    def _released(self) -> int:
        try:
            return int(json.loads((self._folder / "released.json").read_text(encoding="utf-8"))["below"])
        except FileNotFoundError:
            return 0

    def _open(self) -> None:
        """Begin at the newest stored state; without one, at the first entry."""
        for number in reversed(self._states()):
            try:
                text = (self._folder / f"state-{number:020}.json").read_text(encoding="utf-8")
            except FileNotFoundError:
                continue  # it was deleted since the folder was listed, so there is a newer one
            self._state, self._opened = LogState.from_json(json.loads(text)), True
            return
        if self._released() > 0:
            raise StateError(
                "old entries were released, and no state of the log is there to begin from",
                operator=self._who,
                kept="nothing was read or written",
                do="restore the exchange's folder from a backup; files in it must not be deleted by hand",
            )
        self._state, self._opened = LogState(), True

    def _states(self) -> list[int]:
        return sorted(int(match[1]) for name in self._names() if (match := _STATE.fullmatch(name)))

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as found:
                return [item.name for item in found]
        except FileNotFoundError:
            return []
