"""The commits of a table's log: which rows each adds or changes, by its file in the log alone, always alike. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from spark_ext.delta.entries import actions

INSERT: Final = "insert"  # also the new form of an updated row in a commit without files of changes
DELETE: Final = "delete"  # likewise the old form
FEED: Final = "delta.enableChangeDataFeed"  # the table property under which writers record changes


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A file that a commit adds, removes, or has its changes in."""

    path: str  # relative to the table, or absolute, as in a shallow clone
    size: int | None = None  # bytes; None: the commit does not say
    partition: Mapping[str, str | None] | None = field(default_factory=dict)  # texts by physical name; None: not said
    rows: int | None = None  # with those that a deletion vector removes; None: the commit does not say
    deleted: int | None = None  # rows that its deletion vector removes; None: it has no vector


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a commit says of the table."""

    id: str  # another table at the same path has another one
    fields: Mapping[str, Any]
    settings: Mapping[str, str]

    @property
    def has_feed(self) -> bool:
        """Whether writers record changes from this commit on."""
        return self.settings.get(FEED, "false").lower() == "true"

    @property
    def mapping(self) -> str:
        """`none`, `name` or `id`."""
        return self.settings.get("delta.columnMapping.mode", "none")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit. Files that it moves without changing rows, as a compaction does, are left out."""

    version: int
    mark: str  # hash of its file: another commit of the same number has another one
    operation: str = "WRITE"
    adds: tuple[LoggedFile, ...] = ()
    removes: tuple[LoggedFile, ...] = ()
    feed: tuple[LoggedFile, ...] = ()  # if there are any, they have all that the commit changes
    metadata: Metadata | None = None
    reader_features: tuple[str, ...] = ()  # that the table needs from this commit on, if it says so
    reader_version: int = 0
    at: int | None = None  # in-commit timestamp, ms since 1970 UTC
    only_copies: bool = False  # a MERGE that has rewritten files and changed no row

    @property
    def changes_rows(self) -> bool:
        """Whether it takes rows away, alone or with new ones in their place, or brings earlier rows back."""
        return bool(self.removes) or (self.is_restore and bool(self.adds))

    @property
    def is_restore(self) -> bool:
        """Whether it puts the table back to an earlier version."""
        return self.operation == "RESTORE"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """Rows of one file that a commit adds or changes."""

    file: LoggedFile
    change: str | None = None  # the kind of change; None: a column of the file says it, or it is not asked for
    alive: int | None = None  # version in which the rows exist, by the file's deletion vector; None: all rows
    dead: int | None = None  # version in which the rows do not exist, likewise; None: not asked

    @property
    def rows(self) -> int | None:
        """How many rows it has by the commit; an upper bound where two deletion vectors differ."""
        if self.file.rows is None or (self.alive is None and self.dead is None):
            return self.file.rows
        return self.file.deleted if self.dead is not None else self.file.rows - (self.file.deleted or 0)


def mark_of(text: str) -> str:
    """A short hash of a commit's file."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse(version: int, text: str) -> Commit:
    """A commit from its file in the log."""
    info: Mapping[str, Any] = {}
    protocol: Mapping[str, Any] = {}
    metadata = None
    files: dict[str, list[LoggedFile]] = {"add": [], "remove": [], "cdc": []}
    try:
        for kind, action in actions(text):
            if kind == "commitInfo":
                info = action
            elif kind == "protocol":
                protocol = action
            elif kind == "metaData":
                metadata = Metadata(
                    action["id"], json.loads(action["schemaString"]), dict(action.get("configuration") or {})
                )
            elif kind == "cdc" or (kind in files and action.get("dataChange", True)):
                files[kind].append(_file(action))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"an action of it has another form: {problem!r}") from problem
    at = info.get("inCommitTimestamp")
    return Commit(
        version,
        mark_of(text),
        str(info.get("operation", "unknown")),
        tuple(files["add"]),
        tuple(files["remove"]),
        tuple(files["cdc"]),
        metadata,
        tuple(protocol.get("readerFeatures") or ()),
        int(protocol.get("minReaderVersion", 0)),
        None if at is None else int(at),
        _only_copies(info),
    )


def _file(action: Mapping[str, Any]) -> LoggedFile:
    stats = json.loads(action["stats"]) if action.get("stats") else {}
    vector = action.get("deletionVector")
    partition = action.get("partitionValues")
    return LoggedFile(
        local(unquote(action["path"])),
        action.get("size"),
        # The protocol: an empty text is null, whatever the type.
        None if partition is None else {name: text or None for name, text in partition.items()},
        stats.get("numRecords"),
        None if vector is None else int(vector.get("cardinality", 0)),
    )


def local(path: str) -> str:
    """A path in the log; an absolute local one, as in a shallow clone, without `file:`."""
    if ".." in path.split("/"):
        raise ValueError(f"it names the file '{path}', and a path in a table has no '..'")
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def _only_copies(info: Mapping[str, Any]) -> bool:
    """Whether a MERGE says of itself that it has changed nothing; Spark's change feed then leaves its files out."""
    numbers = info.get("operationMetrics") or {}
    names = [f"numTargetRows{what}" for what in ("Inserted", "Updated", "Deleted")]
    if info.get("operation") != "MERGE" or not all(name in numbers for name in names):
        return False
    return all(str(numbers[name]) == "0" for name in names)


def appended(commit: Commit) -> tuple[ChangedFile, ...]:
    """The rows that a commit adds; none if it removes rows: such a commit is refused or skipped as a whole."""
    if commit.changes_rows:
        return ()
    return tuple(
        ChangedFile(file, alive=commit.version if file.deleted is not None else None) for file in _in_order(commit.adds)
    )


def changed(commit: Commit) -> tuple[ChangedFile, ...]:
    """The rows that a commit adds, deletes or updates, by the rules of Spark's change data feed; deletions first."""
    if commit.feed:
        return tuple(ChangedFile(file) for file in _in_order(commit.feed))
    if commit.only_copies:
        return ()
    now, before = commit.version, commit.version - 1
    added = {file.path: file for file in commit.adds}
    removed = {file.path: file for file in commit.removes}
    gone, new = [], []
    for file in _in_order(commit.removes):
        if file.path not in added:
            gone.append(ChangedFile(file, DELETE, before if file.deleted is not None else None))
    for file in _in_order(commit.adds):
        if file.path not in removed:
            new.append(ChangedFile(file, INSERT, now if file.deleted is not None else None))
            continue
        # The file stays, with another deletion vector: what only one of them removes has changed.
        old = removed[file.path]
        if file.deleted is not None:
            gone.append(ChangedFile(file, DELETE, before if old.deleted is not None else None, now))
        if old.deleted is not None:
            back = LoggedFile(file.path, file.size, file.partition, file.rows, old.deleted)
            new.append(ChangedFile(back, INSERT, now if file.deleted is not None else None, before))
    return (*gone, *new)


def _in_order(files: tuple[LoggedFile, ...]) -> list[LoggedFile]:
    return list({file.path: file for file in files}.values())
