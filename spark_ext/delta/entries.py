"""The commits of a table's log, seen from one sink: which of them are its own, and what each has done.

`DeltaTable.history` shows the info of commits. Here the log's files are read, because their actions say more: the
numbers that a commit keeps under application ids, and whether it has changed rows or only their files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_ext.delta.restored import restored_to
from spark_ext.delta.transactions import is_of, lineage_name, rolled_back_name
from spark_ext.errors import StateError, StorageError

if TYPE_CHECKING:
    from spark_ext.storage import Location


@dataclass(frozen=True)
class LogEntry:
    """One commit, seen from a sink."""

    version: int
    operation: str = "WRITE"
    own: bool = False
    """Whether the sink has made it."""
    changes_data: bool = False
    """Whether it adds rows or takes some away. Compaction does neither."""
    epoch: tuple[str, int, int] | None = None
    """For an epoch of the sink: its application id, its lineage and its number."""
    claimed: int | None = None
    """For a claim by the sink, or a roll back: the lineage that it was made for."""
    rolled_back: bool = False
    """Whether it is a roll back by the sink."""
    restored: int | None = None
    """For a RESTORE: the version that it leads to; None also when that is not known."""

    @property
    def lineage(self) -> int | None:
        """The lineage for which the sink has made it; None for other commits."""
        return self.claimed if self.epoch is None else self.epoch[1]

    @property
    def adds_columns(self) -> bool:
        """Whether the sink adds the columns of an epoch that has not been committed yet."""
        return self.own and self.operation == "ADD COLUMN"

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
