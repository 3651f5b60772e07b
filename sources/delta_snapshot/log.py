"""The files of a table's log, and whether they are still those of the table that was followed so far."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyarrow import fs

from spark_ext.datafiles.uri import shown, without_secrets
from spark_ext.errors import NEW_QUERY, DataError, StateError, StorageError
from spark_ext.sources.delta_snapshot.commits import Commit, mark_of, parse

if TYPE_CHECKING:
    from collections.abc import Callable

_COMMIT = re.compile(r"(\d{20})\.json")

KEPT: Final = "all earlier epochs and positions; nothing of the versions that come next was read"
REREAD: Final = f"read the table that is there now {NEW_QUERY}"


class Log:
    """The log of a table, version by version."""

    def __init__(self, filesystem: fs.FileSystem, root: str, path: str, operator: str) -> None:
        self.filesystem, self.root = filesystem, root
        self._path, self._operator = path, operator

    def text(self, version: int) -> str | None:
        """The file of a version, or None."""
        try:
            with self.filesystem.open_input_stream(self._file(version)) as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            raise self._unreadable(f"version {version} of the log", problem) from None

    def commit(self, version: int) -> Commit | None:
        """The commit that made a version; None: its file is not there."""
        text = self.text(version)
        if text is None:
            return None
        try:
            return parse(version, text)
        except ValueError as problem:
            raise DataError(
                f"the file of version {version} in the log of '{shown(self._path)}' is damaged: {problem}",
                operator=self._operator,
                kept=KEPT,
                do="restore the file from a backup",
            ) from None

    def mark(self, version: int) -> str:
        """The hash of a version's file, or ""."""
        text = self.text(version) if version >= 0 else None
        return "" if text is None else mark_of(text)

    def same(self, version: int, mark: str) -> str:
        """The hash of the commit that made a version whose rows were read; if unknown, that of its present file."""
        there = self.mark(version)
        # A file that has been cleaned up says nothing: the version itself may still be there.
        if mark and there and there != mark:
            raise self.put_back(version)
        return mark or there

    def at(self, version: int) -> int | None:
        """When a version's file was written, ms since 1970 UTC; None if it does not exist."""
        try:
            found = self.filesystem.get_file_info(self._file(version))
        except (OSError, ValueError) as problem:
            raise self._unreadable(f"version {version} of the log", problem) from None
        return None if found.type != fs.FileType.File else found.mtime_ns // 1_000_000

    def earliest(self, least: int = 0) -> int | None:
        """The first version from `least` on from which all files up to the newest are there, or None."""
        try:
            infos = self.filesystem.get_file_info(fs.FileSelector(f"{self.root}/_delta_log", allow_not_found=True))
        except (OSError, ValueError) as problem:
            raise self._unreadable("the log", problem) from None
        held = {int(found[1]) for info in infos if (found := _COMMIT.fullmatch(info.base_name))}
        newest = max(held, default=None)
        if newest is None or newest < least:
            return None
        first = newest
        while first - 1 in held and first > least:
            first -= 1
        return first

    def _file(self, version: int) -> str:
        return f"{self.root}/_delta_log/{version:020}.json"

    def _unreadable(self, what: str, problem: Exception) -> StorageError:
        text = without_secrets(str(problem), self._path)
        return StorageError(
            f"{what} of '{shown(self._path)}' could not be read: {text}",
            operator=self._operator,
            kept=KEPT,
            do="check that the storage is reachable; it will be retried",
        )

    def error(self, what: str, do: str) -> StateError:
        """What keeps the table from being followed any further."""
        return StateError(what, operator=self._operator, kept=KEPT, do=do)

    def lost(self, version: int) -> StateError:
        """The error for a version whose file has been cleaned up."""
        first = self.earliest()
        there = "no later one exists" if first is None else f"the earliest one from which all are there is {first}"
        return self.error(
            f"version {version} of '{shown(self._path)}' comes next, and its file is no longer in the table's log; "
            f"{there}: what was added between is unknown",
            f"restore the log's files from a backup, or {REREAD}; set delta.logRetentionDuration longer than the job "
            "may stand still",
        )

    def replaced(self) -> StateError:
        """The error for another table at the same path."""
        return self.error(
            f"'{shown(self._path)}' is not the table that this source has begun with, which is gone: another one was "
            "created there",
            f"put the table back, or {REREAD}",
        )

    def put_back(self, version: int, newest: int | None = None) -> StateError:
        """The error for a table whose history is not the one that was read; `newest` None: others took its place."""
        now = "another commit has its number now" if newest is None else f"its newest version is {newest}"
        return self.error(
            f"version {version} of '{shown(self._path)}' has been read, and {now}: the table was put back, for example "
            "from a backup",
            f"restore the job from a savepoint that is not newer than the table, or {REREAD}",
        )

    def unknown(self, version: int) -> StateError:
        """The error for a log in which the last version that was read cannot be compared any more."""
        return self.error(
            f"version {version} of '{shown(self._path)}' has been read, and its file is no longer in the table's log: "
            "whether the version that comes next follows it, or the table was put back in between, is unknown",
            f"restore the log's file from a backup; or, if the table was not put back, send the channel 'versions' "
            f"to version {version + 1} (seek); or {REREAD}; set delta.logRetentionDuration longer than the job may "
            "stand still",
        )

    def not_the_commit(self, version: int) -> StateError:
        """The error for a range to be read whose last commit is not the one that was planned."""
        return self.lost(version) if self.text(version) is None else self.put_back(version)


class Follower:
    """Reads a log forwards, one commit after the other, and notices when it is no longer the same log.

    `table` gives the table's id and newest version; `poll_s` is how often to look for a new commit, s.
    """

    def __init__(
        self, log: Log, table: Callable[[], tuple[str, int]], id: str, clock: Callable[[], float], poll_s: float
    ) -> None:
        self._log, self._table, self._id = log, table, id
        self._clock, self._poll_s = clock, poll_s
        self._held: dict[int, Commit] = {}
        self._fresh: set[int] = set()  # versions that were read since the last call of `again`
        self._absent: tuple[int, float] | None = None  # the version that was not there, and when that was
        self._opened = float("-inf")
        self._compared = (-1, "")  # the last version whose file had the hash that it should have, and this hash

    def again(self) -> None:
        """Time has passed: what was read so far may have been replaced."""
        self._fresh.clear()

    def forget(self, before: int) -> None:
        """Drop the commits before a version."""
        for version in [version for version in self._held if version < before]:
            del self._held[version]
            self._fresh.discard(version)

    def commit(self, version: int, mark: str) -> Commit | None:
        """The commit that makes a version; None if it does not exist yet."""
        held = self._held.get(version)
        if held is not None:
            return held
        now = self._clock()
        if self._absent is not None and self._absent[0] == version and now - self._absent[1] < self._poll_s:
            return None
        found = self._log.commit(version)
        # One that was read a moment ago need not be read again.
        fresh = found is not None and version - 1 in self._fresh
        there = self._held[version - 1].mark if fresh else self._log.mark(version - 1)
        if there == mark:
            self._compared = version - 1, mark
        if not there or (mark and there != mark):
            found = self._look(version, found, there, mark)
        if found is None:
            self._absent = version, now
            return None
        if found.metadata is not None and found.metadata.id != self._id:
            raise self._log.replaced()
        self._held[version] = found
        self._fresh.add(version)
        return found

    def _look(self, version: int, found: Commit | None, there: str, mark: str) -> Commit | None:
        """The file of the version before is gone, or not the one that was read: what has happened."""
        if found is None and not there and self._clock() - self._opened < 10 * self._poll_s:
            # A table at rest whose log has been cleaned up to its last version: opening it is costly.
            return None
        self._opened = self._clock()
        id, newest = self._table()
        if id != self._id:
            raise self._log.replaced()
        if newest < version - 1:
            raise self._log.put_back(version - 1, newest)
        if there and mark and there != mark:
            raise self._log.put_back(version - 1)
        if found is None and newest >= version:
            # It may have been committed since.
            found = self._log.commit(version)
            if found is None:
                raise self._log.lost(version)
        if found is not None and mark and not self._has_seen(version - 1, mark):
            raise self._log.unknown(version - 1)
        return found

    def _has_seen(self, version: int, mark: str) -> bool:
        """Whether this process has read a version's file, or compared it, before it was cleaned up."""
        held = self._held.get(version)
        return self._compared == (version, mark) or (held is not None and held.mark == mark)
