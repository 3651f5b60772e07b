"""Failures of storage as this project's errors: transient when space or the network may come back."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from spark_ext.errors import SparkExtError, StateError, StorageError
from spark_ext.storage import local_path

FAILURES = (DeltaError, OSError, pa.ArrowException)  # What delta-rs and Arrow raise when storage fails
_ERRNO = re.compile(r"(?:os error |Os \{ code: )(\d+)")

_FULL = (StorageError, "no space left", "free some space; the write will be retried")
_READ_ONLY = "mount it writable, or move the state directory, and start again"
_FORBIDDEN = "give this user write permission on the state directory, and start again"
_DENIED = (StateError, "permission denied", _FORBIDDEN)
_NO_FOLDER = (StateError, "a component of the path is not a directory", "use another state directory")
_BY_NUMBER: Mapping[int | None, tuple[type[SparkExtError], str, str]] = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: (StateError, "the file system is read-only", _READ_ONLY),
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
}
_GONE = ("Invalid table version", "No files in log segment")

# What is said of files that are torn, changed or missing among others.
_DAMAGED = re.compile(
    "Json error: |Expected contiguous commit files|No table metadata or protocol found|Requested range was invalid|"
    "Parquet argument error|corrupt"
)


def log_folder(uri: str) -> Path | None:
    """The folder of a table's log when it is local: a look at an idle table then costs no more than a `stat`."""
    folder = local_path(uri)
    return None if folder is None else folder / "_delta_log"


class LogErrors(Protocol):
    """The errors of one user of a log: which they are, and whom they name."""

    @property
    def operator(self) -> str:
        """Whose log it is, for messages."""

    def storage(self, problem: BaseException, doing: str) -> SparkExtError:
        """The error for a read or write that failed."""

    def not_created(self, problem: BaseException) -> SparkExtError:
        """The error for a table that could not be created."""

    def contended(self, doing: str, attempts: int) -> SparkExtError:
        """The error for a commit that gave way to other writers in each of its attempts."""


@contextmanager
def guarded(errors: LogErrors, doing: str) -> Iterator[None]:
    """Turn storage failures into the user's errors. A conflict of commits passes as it is."""
    try:
        yield
    except CommitFailedError:
        raise
    except FAILURES as problem:
        raise errors.storage(problem, doing) from problem


@dataclass(frozen=True)
class TableRef:
    """A table of a job's state directory: a name for its errors.

    What waiting cannot fix (read-only, forbidden or lost storage) is a `StateError`, everything else a `StorageError`.
    """

    operator: str  # The table with its path or URI, as in `ledger table 'epochs' at /state/ledger/epochs`
    kept: str  # What a failed write leaves intact

    def storage(self, problem: BaseException, doing: str) -> SparkExtError:
        """The error for a read or write that failed."""
        text = " ".join(str(problem).replace("\x1b[31m↳\x1b[0m", ":").split("stack backtrace")[0].split())
        code = error_number(problem, text)
        if code in _BY_NUMBER:
            kind, what, do = _BY_NUMBER[code]
            kept = "nothing was changed" if code in (errno.ENOTDIR, errno.EEXIST) else self.kept
            return kind(f"{doing} failed: {what}: {text}", operator=self.operator, kept=kept, do=do)
        if code == errno.ENOENT or isinstance(problem, TableNotFoundError) or any(sign in text for sign in _GONE):
            return self.lost(doing, text)
        if _DAMAGED.search(text):
            return self.lost(doing, text, "a file of the table is torn, or is missing among others")
        return StorageError(
            f"{doing} failed: {text}",
            operator=self.operator,
            kept=self.kept,
            do="check the storage (space, permissions, network); the operation will be retried",
        )

    def not_created(self, problem: BaseException) -> SparkExtError:
        """The error for a table that could not be created."""
        return self.storage(problem, "creating the table")

    def contended(self, doing: str, attempts: int) -> SparkExtError:
        """The error for a commit that gave way to other writers in each of its attempts."""
        return StorageError(
            f"{doing} failed: other writers committed first, {attempts} times in a row",
            operator=self.operator,
            kept=f"{self.kept}; this commit was not made",
            do="find out which process commits to this table without pause; the commit will be retried",
        )

    def lost(self, doing: str, text: str, what: str = "the table, or a file of it, is gone") -> StateError:
        """The error for a table that has been deleted or damaged, wholly or in part."""
        return StateError(
            f"{doing} failed: {what}: {text}",
            operator=self.operator,
            kept="the job's output; no new state was written beside the lost state",
            do="restore the table from a backup, or mount the lost path again; to start over instead, delete the whole "
            "state directory and the job's output",
        )


def error_number(problem: BaseException, text: str) -> int | None:
    """The operating system's error number, which delta-rs gives as text only."""
    found = _ERRNO.search(text)
    return int(found[1]) if found else getattr(problem, "errno", None)
