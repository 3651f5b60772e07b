"""The commits of a table's log, seen from one sink: its own, what each has done, and what two versions share.

`DeltaTable.history` shows the info of commits. Here the log's files are read, because their actions say more: the
numbers that a commit keeps under application ids, and whether it has changed rows or only their files.

A version holds what its own commit and those before it have done, except that a RESTORE, and so a roll back, continues
at the version that it leads to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from spark_ext.delta.restored import restored_to
from spark_ext.delta.transactions import is_of, lineage_name, rolled_back_name
from spark_ext.errors import StateError, StorageError

if TYPE_CHECKING:
    from spark_ext.model.commits import Epoch
    from spark_ext.storage import Location

_UNSYNCED: Final = 8  # commits that a power failure may damage: an epoch's, and what its process does beside it


@dataclass(frozen=True)
class LogEntry:
    """One commit, seen from a sink."""

    version: int
    operation: str = "WRITE"
    own: bool = False
    changes_data: bool = False  # Whether it adds rows or takes some away. Compaction does neither
    epoch: tuple[str, int, int] | None = None  # Of an epoch of the sink: application id, lineage and number
    claimed: int | None = None  # For a claim by the sink, or a roll back: the lineage that it was made for
    rolled_back: bool = False
    restored: int | None = None  # For a RESTORE: the version that it leads to; None also when that is not known

    @property
    def lineage(self) -> int | None:
        """The lineage for which the sink has made it; None for other commits."""
        return self.claimed if self.epoch is None else self.epoch[1]

    @property
    def is_restore(self) -> bool:
        """Whether the table holds after it what it held at an earlier version."""
        return self.operation == "RESTORE"


def parse(version: int, text: str, uid: str) -> LogEntry:
    """A commit from its file in the log."""
    info: Mapping[str, Any] = {}
    numbers: dict[str, int] = {}
    changes = False
    for kind, action in actions(text):
        if kind == "commitInfo":
            info = action
        elif kind == "txn":
            numbers[action["appId"]] = int(action["version"])
        elif kind in ("add", "remove"):
            changes |= bool(action.get("dataChange", True))
    return LogEntry(
        version,
        str(info.get("operation", "unknown")),
        own=any(is_of(uid, application) for application in numbers),
        changes_data=changes,
        epoch=_epoch(numbers, uid),
        claimed=numbers.get(lineage_name(uid)),
        rolled_back=rolled_back_name(uid) in numbers,
        restored=restored_to({**info, "version": version}),
    )


def _epoch(numbers: Mapping[str, int], uid: str) -> tuple[str, int, int] | None:
    prefix = f"spark_ext:{uid}:"
    for application, number in numbers.items():
        if application.startswith(prefix):
            return application, int(application.removeprefix(prefix).partition(":")[0]), number
    return None


@dataclass(frozen=True)
class LogEntries:
    """A table's log by version; each file is read once."""

    location: Location
    uid: str
    operator: str
    _read: dict[int, LogEntry] = field(default_factory=dict)

    def __getitem__(self, version: int) -> LogEntry:
        """The commit that made a version."""
        if version not in self._read:
            self._read[version] = parse(version, self._text(version), self.uid)
        return self._read[version]

    def _text(self, version: int) -> str:
        try:
            with self.location.folder.open_input(f"_delta_log/{version:020}.json") as file:
                return str(file.read().decode())
        except FileNotFoundError as problem:
            raise StateError(
                f"the table's log does not reach back far enough: the file of version {version} has been cleaned up",
                operator=self.operator,
                kept="the table is unchanged",
                do="restore a newer savepoint; for later ones, set the table property delta.logRetentionDuration to "
                "the time for which savepoints are kept",
            ) from problem
        except (OSError, ValueError) as problem:
            raise StorageError(
                f"version {version} of the table's log could not be read: {problem}",
                operator=self.operator,
                kept="the table is unchanged",
                do="check the storage (space, permissions, network, storage_options)",
            ) from problem


def actions(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kind and the content of each action, in the order of the file."""
    for line in text.splitlines():
        found = json.loads(line) if line.strip() else {}
        if not isinstance(found, dict):
            raise ValueError("a line of it is no action")
        yield from ((kind, action) for kind, action in found.items() if action is not None)


def damaged_file(table: Path, newest: int, uid: str) -> tuple[int, str] | None:
    """The version and name of a file that a sink's last commits have added and that is not there as it was written.

    delta-rs writes the files of a merge and their entry at once: a power failure may leave the entry alone.
    """
    added: dict[str, tuple[int, int]] = {}
    for version in range(max(newest - _UNSYNCED, 0), newest + 1):
        log = table / "_delta_log" / f"{version:020}.json"
        text = log.read_text() if log.exists() else ""
        own = parse(version, text, uid).own
        for kind, action in actions(text):
            if kind == "remove":
                added.pop(action["path"], None)
            elif kind == "add" and own:
                added[action["path"]] = version, action["size"]
    for name, (version, size) in added.items():
        file = table / unquote(name)
        if not file.exists() or file.stat().st_size != size:
            return version, name
    return None


class Log(Protocol):
    """The commits of a table by version."""

    def __getitem__(self, version: int) -> LogEntry:
        """The commit that made a version."""


def position_after(log: Log, newest: int, epoch: Epoch, last: int | None) -> int:
    """The newest version that holds all epochs of a sink up to one, and nothing that the sink has done later.

    Later are epochs of its application with higher numbers (`last` is the newest in the table), and whatever was
    committed for a newer lineage, the roll back at the beginning of such a lineage included, and the columns that
    an epoch adds just before its rows. A RESTORE by others that took epochs away is not passed either.
    """
    found, right, seen = newest, None, False
    nothing_later = last is None or last <= epoch.number
    for version in range(newest, -1, -1):
        entry = log[version]
        if entry.lineage is None:
            if entry.own and entry.operation == "ADD COLUMN" and version == found:
                found = version - 1  # the columns are those of the epoch that follows
            continue
        mine = entry.epoch is not None and entry.epoch[0] == epoch.application
        if mine:
            later = entry.epoch is not None and entry.epoch[2] > epoch.number
        else:
            # What comes before an epoch of the application is older, whatever its lineage: the uid may have moved here.
            later = entry.lineage > epoch.lineage and not seen
        if later:
            seen |= mine
            if entry.epoch is not None or entry.rolled_back:
                found, right = version - 1, None
            continue
        if right is None and (mine or entry.lineage == epoch.lineage):
            right = version
        # A lineage has claims before and between its epochs; anything else ends the search.
        if entry.epoch is not None or entry.rolled_back or nothing_later or entry.lineage < epoch.lineage:
            break
    if right is None:
        return found
    return next(version for version in range(found, right - 1, -1) if _holds(log, version, right))


def _holds(log: Log, version: int, wanted: int) -> bool:
    """Whether what a version holds includes what an earlier one held."""
    at: int | None = version
    while at is not None and at > wanted:
        at = log[at].restored if log[at].is_restore else at - 1
    return at == wanted


def before_all(log: Log, newest: int) -> int | None:
    """The version before the first epoch, or rows of open windows, that a sink has ever committed, or None."""
    first = None
    for version in range(newest, -1, -1):
        entry = log[version]
        if entry.epoch is not None or (entry.own and entry.changes_data and not entry.rolled_back):
            first = version - 1
    return first


@dataclass(frozen=True)
class Difference:
    """What two versions of a table do not have in common: commits that changed rows."""

    # Commits that only the first version holds, newest first; a RESTORE stands for what it did.
    gained: tuple[LogEntry, ...]
    lost: tuple[LogEntry, ...]

    @property
    def is_own(self) -> bool:
        """Whether the sink has a part in it."""
        # Where a RESTORE to a time leads is not known: it may have taken the sink's epochs away.
        return any(entry.own or (entry.is_restore and entry.restored is None) for entry in (*self.gained, *self.lost))

    def foreign(self, *logs: Log) -> LogEntry | None:
        """The oldest commit that the first version holds and no sink has made: this one, or one of other logs."""
        others = (one for one in reversed(self.gained) if not one.own)
        return next((one for one in others if not any(log[one.version].own for log in logs)), None)


def difference(log: Log, one: int, other: int) -> Difference:
    """Compare what two versions hold."""
    gained: list[LogEntry] = []
    lost: list[LogEntry] = []
    while one != other:
        newer, changes = (one, gained) if one > other else (other, lost)
        entry = log[newer]
        if entry.changes_data and not entry.rolled_back:
            changes.append(entry)
        before = entry.restored if entry.is_restore and entry.restored is not None else newer - 1
        one, other = (before, other) if one > other else (one, before)
    return Difference(tuple(gained), tuple(lost))
