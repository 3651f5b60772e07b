"""The bad rows of a sink's epoch: collected by its tasks and by its commit, and kept before the target commits.

A target may commit an epoch although the driver does not live to hear of it, and a later attempt at the epoch may find
other rows bad: an option was changed, or the target holds other rows by then. So each attempt writes its bad rows under
a mark of its own, and the target takes the mark with the epoch, in one atomic step. The file whose mark the target has
counts, and no other.

A target that first decides an epoch's rows and later makes them visible takes a mark with the decision. A later attempt
adopts the rows under it, in place of those that its own tasks have found: what was decided is not what they have left.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from spark_ext.bad_rows.names import (
    EpochName,
    PendingFile,
    decided_name,
    marked,
    query_key,
    sinks_folder,
    table_in_file,
    written_name,
)
from spark_ext.bad_rows.row import BadRow, Buffer, rows_in
from spark_ext.errors import RESET, DataError, PreparedLostError, StateError, StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.storage import Folder, folder_at

INLINE: Final = 64 * 1024  # bytes of a task's bad rows that are sent with its message; more are left in a file
NOTHING: Final = "everything up to the previous epoch; nothing of this one was committed"
DECIDED: Final = "what was decided; the epoch is not recorded as committed"
_MARK_BITS: Final = 62  # a mark is a positive integer that every target can store


class Takes(Protocol):
    """What a sink gives its bad rows to, in one task or one attempt to commit."""

    def add(self, row: BadRow) -> None:
        """Take a row."""

    def keep(self) -> int | None:
        """In a commit: store all rows of the epoch, and return the mark under which they are; None: no bad rows."""

    def adopt(self, mark: int | None) -> None:
        """In a commit: the rows under a mark of an earlier attempt count in place of those of this attempt's tasks."""


@dataclass(frozen=True)
class SinkPlace:
    """Where the bad rows of a sink's epoch are left."""

    state: str  # path or URI of the job's state directory
    table: str  # path or URI of the table in which they belong
    uid: str  # of the sink
    query_id: str  # Spark's id of the query
    epoch: int
    lineage: int
    incarnation: int
    most: int | None = None  # a task or an epoch with more bad rows stops the job; None: no limit

    @property
    def who(self) -> str:
        """The sink and the epoch, for messages."""
        return f"sink '{self.uid}', epoch {self.epoch}"

    @property
    def named(self) -> str:
        """The table, as files name it."""
        return table_in_file(self.state, self.table)

    @property
    def folder(self) -> Folder:
        """The sink's."""
        return folder_at(f"{sinks_folder(self.state, self.query_id)}/{self.uid}")

    @property
    def name(self) -> EpochName:
        """The epoch's."""
        return EpochName(self.epoch, self.lineage, query_key(self.query_id))

    def check(self, count: int, last: BadRow | None) -> None:
        """Refuse too many; the last one is for the message."""
        if self.most is None or count <= self.most:
            return
        raise DataError(
            f"more than {self.most} rows are bad, which is what max_bad_rows allows"
            + ("" if last is None else f"; the last one: {last.reason}"),
            operator=self.who,
            kept=NOTHING,
            do="correct the rows in the query or the target's checks, or raise max_bad_rows, and start again",
        )

    def unwritable(self, problem: OSError) -> StorageError:
        """The error when bad rows cannot be written."""
        do = f"make {self.state} writable on all machines of the cluster; the epoch is tried again"
        return StorageError(f"bad rows cannot be written: {problem}", operator=self.who, kept=NOTHING, do=do)


@dataclass(frozen=True)
class Left:
    """The bad rows of one task, as they travel with its message."""

    rows: int
    content: bytes  # the file; empty if it has a name
    file: str = ""  # its name in the sink's folder


class TaskRows:
    """The bad rows of one task."""

    def __init__(self, place: SinkPlace) -> None:
        self._place, self._rows = place, Buffer(place.named)
        self.count = 0

    def add(self, row: BadRow) -> None:
        """Take a row."""
        self.count += 1
        self._place.check(self.count, row)
        self._rows.add(row)

    def keep(self) -> int | None:
        """Only a commit keeps rows."""
        raise RuntimeError("keep_bad_rows was called outside of commit")

    def adopt(self, mark: int | None) -> None:
        """Only a commit knows of earlier attempts."""
        raise RuntimeError("adopt_bad_rows was called outside of commit")

    def finish(self) -> Left | None:
        """What travels with the message; None if no row was bad."""
        if not self.count:
            return None
        content = self._rows.content()
        if len(content) <= INLINE:
            return Left(self.count, content)
        name = written_name(self._place.epoch, secrets.token_hex(16))
        try:
            self._place.folder.write(name, content, durable=True)
        except OSError as problem:
            raise self._place.unwritable(problem) from problem
        return Left(self.count, b"", name)


class CommitRows:
    """The bad rows of an epoch, in the process that commits it."""

    def __init__(self, place: SinkPlace, left: Sequence[Left]) -> None:
        self._place, self._left = place, left
        self._counted = left
        """What counts of the tasks' rows: what they have left, or what an earlier attempt has decided."""
        self._own = Buffer(place.named)
        self._own_count = 0
        self.kept: int | None = None  # the mark of this attempt; None: it has kept nothing

    @property
    def count(self) -> int:
        """All that is known to be bad."""
        return sum(one.rows for one in self._counted) + self._own_count

    def begin(self) -> None:
        """Another attempt at the commit begins: it finds its bad rows again."""
        self._own, self._own_count, self.kept = Buffer(self._place.named), 0, None
        self._counted = self._left

    def adopt(self, mark: int | None) -> None:
        """An earlier attempt has decided which rows become visible: its bad rows count, if it had any."""
        if mark is None:
            self._counted, self.kept = (), None
            return
        if mark == self.kept:
            return
        try:
            file = self._file(self._place.folder, mark)
        except OSError as problem:
            what = f"bad rows that an earlier attempt has kept cannot be read: {problem}"
            do = f"make {self._place.state} readable; the epoch is tried again"
            raise StorageError(what, operator=self._place.who, kept=DECIDED, do=do) from problem
        if file is None:
            raise StateError(
                "an earlier attempt has decided the epoch, and the bad rows that it has kept are gone",
                operator=self._place.who,
                kept=DECIDED,
                do=f"put the files in {self._place.folder.uri} back; if they are lost, discard the query's history "
                f"with {RESET}",
            )
        self._counted = (Left(file.rows, b"", file.name),)
        self.kept = None if self._own_count else mark

    def add(self, row: BadRow) -> None:
        """Take a row that the target has refused."""
        self._own_count += 1
        self.kept = None
        self._place.check(self.count, row)
        self._own.add(row)

    def keep(self) -> int | None:
        """Store all of them, under a new mark, which the target has to take with the epoch."""
        if not self.count or self.kept is not None:
            return self.kept
        self._place.check(self.count, None)
        folder, mark = self._place.folder, secrets.randbits(_MARK_BITS) + 1
        file = PendingFile(self._place.name, self._place.incarnation, marked(mark), self.count)
        reach(FailPoint.BAD_ROWS_BEFORE_KEPT)
        content = self._content(folder)
        try:
            folder.write(file.name, content, durable=True)
        except OSError as problem:
            raise self._place.unwritable(problem) from problem
        reach(FailPoint.BAD_ROWS_KEPT)
        self.kept = mark
        return mark

    def _content(self, folder: Folder) -> bytes:
        if len(self._counted) == 1 and not self._own_count:
            return self._read(folder, self._counted[0])
        whole = Buffer(self._place.named)
        for one in self._counted:
            whole.copy(rows_in(self._read(folder, one)))
        if self._own_count:
            own = rows_in(self._own.content())
            whole.copy(own)
            self._own = Buffer(self._place.named)
            self._own.copy(own)
        return whole.content()

    def _read(self, folder: Folder, one: Left) -> bytes:
        if not one.file:
            return one.content
        try:
            return folder.read(one.file)
        except FileNotFoundError as problem:
            raise PreparedLostError(
                f"the bad rows that a task has left are gone: {problem}",
                operator=self._place.who,
                kept=NOTHING,
                do="nothing: the epoch will be retried from its source; if it occurs again, find out what deletes "
                f"files in {folder.uri}",
            ) from problem
        except OSError as problem:
            raise self._place.unwritable(problem) from problem

    def decide(self, mark: int | None, bad: int, given: int) -> None:
        """The target has the epoch, with this mark: say which file counts, and remove what tasks have left."""
        folder = self._place.folder
        try:
            if mark is not None and (mark == self.kept or self._file(folder, mark) is not None):
                said = json.dumps({"bad": bad, "given": given})
                folder.write(decided_name(self._place.name, mark), said, durable=True)
                reach(FailPoint.BAD_ROWS_DECIDED)
        except OSError as problem:
            raise self._place.unwritable(problem) from problem
        for one in self._left:
            if one.file:
                with suppress(OSError):  # what stays is removed with the epoch
                    folder.delete(one.file)

    def _file(self, folder: Folder, mark: int) -> PendingFile | None:
        """The file of a mark, as long as it waits: then it is moved into the table."""
        wanted = self._place.name, marked(mark)
        files = (PendingFile.parse(file) for file in folder.files())
        return next((file for file in files if file is not None and (file.epoch, file.range) == wanted), None)
