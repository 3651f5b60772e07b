"""What storage says when it fails, as this project's errors: transient when room or the network may come back."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from spark_ext.errors import SparkExtError, StateError, StorageError
from spark_ext.spark.spark_log import local_path

FAILURES = (DeltaError, OSError, pa.ArrowException)
"""What delta-rs and Arrow raise when storage fails."""

_ERRNO = re.compile(r"(?:os error |Os \{ code: )(\d+)")

_GONE = ("Invalid table version", "No files in log segment")

_KEPT = "all that is in the ledger; it stays readable"

Place: TypeAlias = tuple[str, str]
"""A table's name and its path or URI."""


def child(uri: str, *names: str) -> str:
    """A path or URI below another."""
    return "/".join((uri.rstrip("/"), *names))


def log_folder(uri: str) -> Path | None:
    """The folder of a table's log when it is a local one: a `stat` there is all that an idle look costs."""
    place = local_path(uri)
    return None if place is None else place / "_delta_log"


@contextmanager
def guarded(place: Place, doing: str) -> Iterator[None]:
    """Turn storage failures into errors that name table and path. A conflict of commits passes as it is.

    Raises:
        StateError: the place is read-only, forbidden or gone: waiting does not mend it.
        StorageError: anything else: a full disk, a lost connection.
    """
    try:
        yield
    except CommitFailedError:
        raise
    except FAILURES as problem:
        raise translated(problem, place, doing) from problem


def translated(problem: BaseException, place: Place, doing: str) -> SparkExtError:
    """The error for a storage failure."""
    table, uri = place
    text = " ".join(str(problem).replace("\x1b[31m↳\x1b[0m", ":").split("stack backtrace")[0].split())
    who = f"ledger table '{table}' at {uri}"
    code = error_number(problem, text)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"{doing} failed: no space left: {text}", operator=who, kept=_KEPT, do="make room; it is tried again"
        )
    if code == errno.EROFS:
        return StateError(
            f"{doing} failed: the file system is read-only: {text}",
            operator=who,
            kept=_KEPT,
            do="mount it writable, or put the state directory elsewhere, and start again",
        )
    if code in (errno.EACCES, errno.EPERM):
        return StateError(
            f"{doing} failed: permission denied: {text}",
            operator=who,
            kept=_KEPT,
            do="let this user write to the state directory, and start again",
        )
    if code in (errno.ENOTDIR, errno.EEXIST):
        return StateError(
            f"{doing} failed: something in the path is not a folder: {text}",
            operator=who,
            kept="nothing was changed",
            do="give another state directory",
        )
    if code == errno.ENOENT or isinstance(problem, TableNotFoundError) or any(sign in text for sign in _GONE):
        return lost(place, doing, text)
    return StorageError(f"{doing} failed: {text}", operator=who, kept=_KEPT, do="see to the storage; it is tried again")


def error_number(problem: BaseException, text: str) -> int | None:
    """The operating system's error number, which delta-rs gives as text only."""
    found = _ERRNO.search(text)
    return int(found[1]) if found else getattr(problem, "errno", None)


def lost(place: Place, doing: str, text: str) -> StateError:
    """The error for a table that has been deleted, wholly or in part."""
    table, uri = place
    return StateError(
        f"{doing} failed: the table, or a file of it, is gone: {text}",
        operator=f"ledger table '{table}' at {uri}",
        kept="the job's output; no new state was written beside the lost one",
        do="put the table back from a copy, or mount the lost path again; to begin anew instead, remove the whole "
        "state directory and the job's output",
    )
