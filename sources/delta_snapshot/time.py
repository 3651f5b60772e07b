"""Which version of a Delta table was current at a time, by the rule of Spark's `timestampAsOf`.

A commit's time is its in-commit timestamp if the table has them, and otherwise the modification time of its file in the
log. delta-rs implements the second rule only, and returns the first version for a time before the first commit, so a
table that was copied, or restored from a backup, would silently be read in the version of another time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from deltalake import DeltaTable
from pyarrow import fs

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that is still in the log."""

    version: int
    at: int  # milliseconds since 1970 UTC


def in_order(commits: Iterable[Commit]) -> list[Commit]:
    """Sort by version, and make each later than the previous one: writers' clocks may disagree, versions decide."""
    known = sorted(commits, key=lambda commit: commit.version)
    return list(accumulate(known, lambda last, next_: Commit(next_.version, max(next_.at, last.at + 1))))


def current_at(commits: Iterable[Commit], at: int) -> Commit | None:
    """The last of commits in order at or before a time in ms; None if all are later."""
    return max((commit for commit in commits if commit.at <= at), key=lambda commit: commit.version, default=None)


def commits_of(table: DeltaTable, filesystem: fs.FileSystem, root: str, at: int) -> list[Commit]:
    """The commits in which a time is looked up, in order; its version is the last of them that is not later."""
    # In-commit timestamps are valid from the commit that enabled them. An earlier time (`at`, in ms since 1970 UTC) is
    # looked up in the commits before, by the modification times of their files.
    settings = table.metadata().configuration
    if settings.get("delta.enableInCommitTimestamps", "false").lower() != "true":
        return in_order(_files(filesystem, root))
    first = int(settings.get("delta.inCommitTimestampEnablementVersion", 0))
    since = int(settings.get("delta.inCommitTimestampEnablementTimestamp", 0))
    if at < since and (before := [commit for commit in _files(filesystem, root) if commit.version < first]):
        return in_order(before)
    return in_order(
        Commit(int(entry["version"]), int(entry["inCommitTimestamp"]))
        for entry in _history(table)
        if int(entry["version"]) >= first and "inCommitTimestamp" in entry
    )


def _history(table: DeltaTable) -> list[dict[str, Any]]:
    """The entries of the log, newest first, with their versions."""
    # delta-rs numbers them downwards from the version of the handle, and lists newer ones too: with one that was
    # committed since the handle was loaded, every number would be too low.
    while True:
        version, entries = table.version(), table.history()
        table.update_incremental()
        if table.version() == version:
            return entries


def _files(filesystem: fs.FileSystem, root: str) -> Iterable[Commit]:
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/_delta_log")):
        if found := _COMMIT.fullmatch(info.base_name):
            yield Commit(int(found[1]), info.mtime_ns // 1_000_000)
