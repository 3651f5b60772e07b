"""A query's checkpoint directory: what an earlier run left in it, who uses it, and how a prepared one gets there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.errors import RESET, StateError
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.spark.backend.contract import FILE_MANAGER
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import folder_at, local_path, move

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Names under which Spark writes a file of its logs, or any file of a checkpoint, until it is complete, and Hadoop's
# checksum of one.
_UNFINISHED: Final = re.compile(r"\.+\d+\.[0-9A-Za-z.-]+\.tmp(\.crc)?")
_DRAFT: Final = re.compile(r"\.+[^/]+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp(\.crc)?")


@dataclass(frozen=True)
class RestoredCheckpoint:
    """The facts from which a query continues."""

    query_id: str | None  # Spark's id; None if the query was never started
    committed: int  # the newest committed epoch; -1: none
    offsets: LoggedOffsets | None  # its offsets


def state_of_checkpoint(query_id: str | None, committed: int, *, other: bool) -> str:
    """What is wrong with a directory that is not where the ledger says that the query is."""
    if query_id is None:
        return "is missing"
    if other:
        return "is of another query than the one recorded in the ledger"
    return f"is older: it ends at epoch {committed}"


def look(log: SparkLog, known: tuple[str, int] | None, who: str, query: str) -> RestoredCheckpoint:
    """Read the directory and compare it with `known`: Spark's query id and the newest committed epoch in the ledger."""
    query_id = log.query_id()
    newest = log.newest_commit()
    committed = -1 if newest is None else newest
    if known is not None and (query_id != known[0] or committed < known[1]):
        state = state_of_checkpoint(query_id, committed, other=query_id != known[0])
        raise StateError(
            f"the checkpoint directory of this query {state}: the ledger has committed epochs up to {known[1]}, "
            "and a new checkpoint would write them a second time",
            operator=who,
            kept="the ledger and all output are unchanged; nothing was started",
            do=f"restore the directory ({log.checkpoint}), or discard the history with "
            f"{RESET.replace('<query>', query)}",
        )
    offsets = log.offsets(committed) if committed >= 0 else None
    if committed >= 0 and offsets is None:
        raise StateError(
            f"epoch {committed} is in commits/ but not in offsets/",
            operator=who,
            kept="nothing was started, nothing was changed",
            do=f"restore offsets/{committed} of {log.checkpoint}",
        )
    return RestoredCheckpoint(query_id, committed, offsets)


def clear_unfinished(checkpoint: str) -> list[str]:
    """Remove what a driver that was killed has left of its first epoch, before the query is started.

    Spark writes a file of its logs under another name and renames it. It refuses to start a query without epochs while
    its folders hold anything (`STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`), and counts the unfinished file of the first
    epoch: after a kill in that moment the query could never be started again. With an epoch in `offsets` Spark looks at
    nothing, and nothing is removed; without one it has written to no other folder.

    An older driver that is still writing the file fails at the rename. Returns the names that were removed, sorted.
    """
    folder = folder_at(checkpoint)
    found = folder.names("offsets")
    if any(name.isdigit() for name in found):
        return []
    unfinished = sorted(filter(_UNFINISHED.fullmatch, found))
    for name in unfinished:
        folder.delete(f"offsets/{name}")
    return unfinished


def clear_drafts(checkpoint: str) -> list[str]:
    """Remove the files that drivers and tasks were writing when they were killed, wherever they are in the directory.

    Nobody reads them, and Spark never deletes them: each kill would leave one for each partition of the state. What an
    older driver, which has been fenced off, or a late task of it is still writing fails at the rename.

    Call it while the query does not run. Returns the relative paths that were removed, sorted.
    """
    folder = folder_at(checkpoint)
    drafts = sorted(name for name in folder.files() if _DRAFT.fullmatch(name.rpartition("/")[2]))
    for name in drafts:
        folder.delete(name)
    return drafts


_ATTEMPTS: Final = 10


def put_in_place(prepared: Path, place: Path) -> None:
    """Rename a prepared checkpoint directory to its place, which must be empty but for state, which is deleted.

    Spark's maintenance uploads a snapshot of state in a thread of its own. An upload that began before the query ended
    is finished after that, and makes the folders it needs: state of nobody, where a checkpoint is about to be put.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            move(prepared, place)
        except OSError:
            only_state = place.is_dir() and {entry.name for entry in place.iterdir()} <= {"state"}
            if attempt == _ATTEMPTS or not only_state:
                raise
            shutil.rmtree(place, ignore_errors=True)
        else:
            return


_of_jobs: Final[set[str]] = set()  # checkpoint directories, which no two queries may share


def enter(checkpoint: str) -> None:
    """A job of this process is about to start a query on this checkpoint directory."""
    _of_jobs.add(_plain(checkpoint))


def is_of_job(checkpoint: str) -> bool:
    """Whether a job of this process has started a query on this checkpoint directory."""
    return _plain(checkpoint) in _of_jobs


def _plain(checkpoint: str) -> str:
    place = local_path(checkpoint)
    return checkpoint.rstrip("/") if place is None else str(place)


_DATABRICKS: Final = "DATABRICKS_RUNTIME_VERSION"  # a variable in the environment of every driver there


def is_improved(root: str, given: str | None, environment: Mapping[str, str]) -> bool:
    """Whether a query's files are written by `local_files`; `given` is the class that somebody has set, if any."""
    return root.startswith("file:/") and given is None and _DATABRICKS not in environment


@contextmanager
def cheap_files(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Start the query of this checkpoint directory in the block, without a process for each file on a local disk.

    Spark writes through Hadoop's `FileContext`, which starts `readlink` and `chmod` for each file: 20 processes for an
    epoch, and 20 more for each partition of state. `FileSystem` needs a fifth of them and ends in the same `rename` on
    a local disk; elsewhere it may lack an atomic one. It is set for one query, in the clone of the session in which
    Spark runs its epochs: the user's session is for other queries too, and for the log of Spark's own file sink.
    """
    place = local_path(checkpoint)
    if place is None or spark.conf.get(FILE_MANAGER, None) is not None:
        yield
    else:
        root = f"file:{place}"
        with backend_of(spark).with_local_files(spark, root, lambda given: is_improved(root, given, os.environ)):
            yield
