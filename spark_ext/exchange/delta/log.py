"""The log of an exchange as a Delta table: an entry is one commit; see `table.py` for how it is stored.

A process that opens the log takes the entries from the table's newest version, which delta-rs loads from a log
checkpoint and a few commits. It begins at the newest entry that has the state of the log with it, which are every
hundredth and each release, so that one is always held, and applies the entries after it. From then on a look reads the
commits that are new.

An entry is written only as the version after the one that was looked at (`passes=0`), so no other entry can come in
between. Old log files are deleted, which leaves two things to care about. A process that has not looked for `STALE`
seconds, or that does not find the last file it has read, reopens the log. And a writer that was frozen during its
write may create a file under a number that was used and deleted, which no reader looks at: after a write that took long
it reopens the log, and decides again unless its entry is there. So does one that finds another table in the place of
the one it has looked at; `versions.py` says why that table is not damaged by what it has written.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Final

from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from spark_ext.delta.failures import FAILURES, guarded
from spark_ext.delta.fenced_log import NO_HOOKS, FencedLog, properties, write_files
from spark_ext.delta.upkeep import checkpoint_if_due
from spark_ext.errors import StateError
from spark_ext.exchange.contract import Decide, ExchangeLog
from spark_ext.exchange.delta.segments import write_marker
from spark_ext.exchange.delta.table import (
    ABOUT,
    BODY,
    ENTRY,
    PARTITION_BY,
    SEGMENT,
    STATE,
    ExchangeErrors,
    TableFile,
    description,
    files_of,
    read_commit,
    rows_schema,
)
from spark_ext.exchange.entries import Entry, EntryKind, LogState, not_empty
from spark_ext.storage import LocalFolder, link

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from deltalake import DeltaTable

    from spark_ext.storage import Location


CHECKPOINT_EVERY: Final = 64
"""Commits between two log checkpoints, and those after which a writer opens a new handle: a handle's cost grows with
the commits that it has taken one by one."""

SPAN: Final = 100  # each entry with a number that is a multiple of this, less one, has the state with it
STALE: Final = 600.0  # pause after which a process reopens the log, s: far below the time for which log files stay


class DeltaLog(ExchangeLog):
    """See the module. Safe for several threads."""

    def __init__(self, location: Location, who: str, *, every: int = CHECKPOINT_EVERY, stale: float = STALE) -> None:
        self._location, self._who, self._every, self._stale = location, who, every, stale
        errors = ExchangeErrors(f"{who}, table at {location.uri}", "everything that is in the exchange")
        self.table = FencedLog(  # the table's log; without a table it has no handle
            location.uri, errors, location.storage_options, required=False, max_age=stale, max_advance=every
        )
        self._forget()

    def _forget(self) -> None:
        self._state = LogState()
        self._bodies: dict[int, str] = {}
        self.about: str | None = None  # the description of the exchange, as of the last poll; None without a table
        self._version = -1  # up to which the table's log has been read; -1 without a table
        self._file: tuple[int, int, int] | None = None
        self._looked = (0.0, 0.0)

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> LogState:
        """See `ExchangeLog.look`."""
        with self.table.lock:
            if self._version < 0 or self._lost():
                self._open()
            self._follow()
            return self._state

    def entry(self, number: int) -> Entry | None:
        """See `ExchangeLog.entry`."""
        with self.table.lock:
            if number > self._state.last:
                self.look()
            body = self._bodies.get(number)
        return None if body is None else Entry.from_json(body, f"{self._who}, entry {number}")

    def held(self) -> dict[int, Entry]:
        """All entries that are not released, as of the last look, by number."""
        with self.table.lock:
            found = dict(self._bodies)
        return {number: Entry.from_json(found[number], f"{self._who}, entry {number}") for number in sorted(found)}

    def _lost(self) -> bool:
        """Whether the next commits may be gone already, or the table is another one."""
        monotonic, wall = self._looked
        if max(time.monotonic() - monotonic, time.time() - wall) > self._stale:
            return True
        return self._replaced()

    def _replaced(self) -> bool:
        """Whether the file of the version that was read last is gone, or another one."""
        return self.table.folder is not None and self.table.file_of(self._version) != self._file

    def _open(self) -> None:
        if self.table.folder is not None and not self.table.exists():
            self._forget()  # the cheapest answer, for those who wait for the table
            return
        self.table.reopen()
        self._load(self.table.handle)

    def _load(self, table: DeltaTable | None) -> None:
        """Take everything from a table as it was loaded."""
        self._forget()
        if table is None:
            return
        at = (time.monotonic(), time.time())
        self.about = description(table, self._location.uri, self._who)
        with guarded(self.table.errors, "reading the table"):
            files = files_of(table)
        first = max((file for file in files if file.state), key=lambda file: file.entry, default=None)
        if first is not None and first.state is not None:
            self._state = LogState.from_json(first.state, f"{self._who}, entry {first.entry}")
        bodies = {file.entry: file.body for file in files if file.body is not None}
        self._bodies = {
            number: body for number, body in bodies.items() if self._state.released <= number <= self._state.last
        }
        for number in sorted(number for number in bodies if number > self._state.last):
            self._take(number, bodies[number])
        self._version = table.version()
        self._file, self._looked = self.table.file_of(self._version), at

    def _follow(self, upto: int | None = None) -> None:
        """Read the commits after the last one that was read, up to a version or all."""
        if self._version < 0:
            return
        at, before = (time.monotonic(), time.time()), self._version
        while upto is None or self._version < upto:
            commit = self._commit(self._version + 1)
            if commit is None:
                break
            files, described = read_commit(commit, self._who)
            bodies = [file.entry for file in files if file.body is not None]
            if described or (bodies and bodies != [self._state.last + 1] and self._state.last < 0):
                self._open()  # it was described anew, or put back
                return
            for file in files:
                if file.body is not None:
                    self._take(file.entry, file.body)
            self._version += 1
        if self._version != before:
            self._file = self.table.file_of(self._version)
        self._looked = at

    def _commit(self, version: int) -> bytes | None:
        with guarded(self.table.errors, "reading the log"):
            try:
                with self._location.folder.open_input(f"_delta_log/{version:020}.json") as file:
                    content: bytes = file.read()
                    return content
            except FileNotFoundError:
                return None

    def _take(self, number: int, body: str) -> None:
        if number != self._state.last + 1:
            what = f"entry {number} of its log follows entry {self._state.last}: entries are missing"
            do = "restore the exchange's folder from a backup; nothing else may write to its table"
            raise StateError(what, operator=self._who, kept="nothing was read or written", do=do)
        before = self._state.released
        self._state = self._state.after(Entry.from_json(body, f"{self._who}, entry {number}"))
        self._bodies[number] = body
        for released in range(before, self._state.released):
            self._bodies.pop(released, None)

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, decide: Decide, writer: str) -> LogState | None:
        """See `ExchangeLog.append`."""

        def attempt(table: DeltaTable | None) -> tuple[LogState | None] | None:
            if table is None:
                self._forget()
            else:
                self._catch_up(table)
            entry = decide(self._state)
            if entry is None:
                return (None,)
            if table is None:
                raise TableNotFoundError(f"no exchange found at {self._location.uri}")
            began = (time.monotonic(), time.time())
            try:
                self._write(table, entry, writer)
            except CommitFailedError:
                raise
            except FAILURES:
                if not self._replaced():
                    raise
                return None  # what it may have written is not in the table that is there now
            return self._written(table, entry, began)

        with self.table.lock:
            (state,) = self.table.settle(attempt, "writing an entry")
            if state is not None:
                checkpoint_if_due(self._location, self._version, self._every)
            return state

    def _catch_up(self, table: DeltaTable) -> None:
        """See what the handle sees, no less and no more."""
        version = table.version()
        if 0 <= self._version < version and not self._lost():
            self._follow(version)
        if self._version != version:
            self._load(table)

    def _write(self, table: DeltaTable, entry: Entry, writer: str) -> None:
        number = self._state.last + 1
        state = None
        if entry.kind is EntryKind.RELEASE or (number + 1) % SPAN == 0:
            state = self._state.after(entry).to_json()
        actions, marker = self._actions(table, number, entry, state, writer)
        try:
            write_files(table, actions, properties(passes=0), partition_by=PARTITION_BY)
        except CommitFailedError:
            if marker is not None:
                with contextlib.suppress(OSError):  # what stays is swept
                    self._location.folder.delete(marker)
            raise

    def _actions(
        self, table: DeltaTable, number: int, entry: Entry, state: str | None, writer: str
    ) -> tuple[list[AddAction], str | None]:
        """What a commit adds for an entry, and the file that stands for one without rows."""
        files = [(f"data/{one.name}", one.bytes, sum(run.rows for run in one.runs)) for one in entry.segments]
        marker = None
        if not files:
            marker, size = write_marker(self._location, rows_schema(table), writer)
            files = [(marker, size, 0)]
        now = time.time_ns() // 1_000_000
        actions = []
        for place, (path, size, rows) in enumerate(files):
            values = {
                ENTRY: str(number),
                SEGMENT: str(place),
                BODY: entry.to_json() if place == 0 else None,
                STATE: state if place == 0 else None,
            }
            actions.append(AddAction(path, size, values, now, True, json.dumps({"numRecords": rows})))
        return actions, marker

    def _written(self, table: DeltaTable, entry: Entry, began: tuple[float, float]) -> tuple[LogState] | None:
        number, body = self._state.last + 1, entry.to_json()
        if max(time.monotonic() - began[0], time.time() - began[1]) > self._stale or self._replaced():
            self._open()
            own = self._bodies.get(number) == body and self._state.passes_over(number) is None
            return (self._state,) if own else None
        self._take(number, body)
        self._version = table.version() + 1
        self._file = self.table.file_of(self._version)
        return (self._state,)

    def seed(self, state: LogState, entries: Mapping[int, Entry], writer: str) -> None:
        """See `ExchangeLog.seed`; one commit."""
        last = max(entries)

        def attempt(table: DeltaTable | None) -> bool:
            if table is None:
                raise TableNotFoundError(f"no exchange found at {self._location.uri}")
            self._forget()
            self._load(table)
            if self._state.last >= 0:
                if self._state.last < last or self.entry(last) not in (None, entries[last]):
                    raise not_empty(self._state.last, self._who)
                return True
            actions: list[AddAction] = []
            for number in sorted(entries):
                stored = state.to_json() if number == last else None
                actions += self._actions(table, number, entries[number], stored, writer)[0]
            write_files(table, actions, properties(passes=0), partition_by=PARTITION_BY)
            return True

        with self.table.lock:
            self.table.settle(attempt, "writing the first entries")
            self.table.reopen()
            if self.table.folder is not None and self.table.handle is not None:
                with guarded(self.table.errors, "numbering the versions"):
                    begin_at(self.table.folder, self.table.handle, first_version(last))
                self.table.reopen()
            self._forget()

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def handle(self) -> DeltaTable | None:
        """The table at its newest version, if it exists. To be used while `table.lock` is held."""
        self.table.notice_loss()
        self.table.refresh()
        return self.table.handle

    def files(self) -> list[TableFile]:
        """All files of the newest version."""
        with self.table.lock:
            table = self.handle()
            with guarded(self.table.errors, "reading the table"):
                return [] if table is None else files_of(table)

    def remove(self, below: int) -> None:
        """Remove the files of entries below a number from the table, in one commit."""

        def attempt(table: DeltaTable | None) -> bool:
            now = time.time_ns() // 1_000_000
            gone = [] if table is None else [file for file in files_of(table) if file.entry < below]
            if table is not None and gone:
                actions = [RemoveAction(file.path, data_change=True, deletion_timestamp=now) for file in gone]
                self._change(table, actions)
            return True

        self.table.settle(attempt, "removing released entries")

    def _change(self, table: DeltaTable, actions: Iterable[RemoveAction]) -> None:
        table.create_write_transaction(
            list(actions),
            mode="append",
            schema=table.schema(),
            partition_by=list(PARTITION_BY),
            commit_properties=properties(passes=0),
            post_commithook_properties=NO_HOOKS,
        )

    def describe(self, text: str) -> None:
        """Replace the description."""

        def attempt(table: DeltaTable | None) -> bool:
            if table is None:
                raise TableNotFoundError(f"no exchange found at {self._location.uri}")
            if table.metadata().configuration.get(ABOUT) != text:
                commit: CommitProperties = properties(passes=0)
                table.alter.set_table_properties(
                    {ABOUT: text},
                    raise_if_not_exists=False,
                    commit_properties=commit,
                    post_commithook_properties=NO_HOOKS,
                )
            return True

        self.table.settle(attempt, "changing the description")


_LAST = "_last_checkpoint"


def first_version(last: int) -> int:
    """A version that a table with entries below this number cannot have.

    Each entry is a version. There is at most one removal for each release, and one new description for each claim; so
    entries that were written one by one have less than three versions each, and a table that was put back before begins
    with four for each number.
    """
    return 4 * (last + 4)


def begin_at(folder: Path, table: DeltaTable, version: int) -> None:
    """Give the newest version of a table another number, and forget all before it. Repeated, it completes the work."""
    here = table.version()
    if here < version:
        table.create_checkpoint()
        for ending in ("checkpoint.parquet", "json"):
            link(str(folder / f"{here:020}.{ending}"), str(folder / f"{version:020}.{ending}"))
        known = json.loads((folder / _LAST).read_text(encoding="utf-8"))
        LocalFolder(folder).write(_LAST, json.dumps({**known, "version": version}))
    for file in folder.iterdir():
        number = file.name.split(".")[0]
        if number.isdigit() and int(number) < version:
            file.unlink(missing_ok=True)
