"""What an earlier run left in a query's checkpoint directory, compared with the ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from spark_ext.errors import RESET, StateError
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import folder_at

_UNFINISHED: Final = re.compile(r"\.+\d+\.[0-9A-Za-z.-]+\.tmp(\.crc)?")
"""Names under which Spark writes a file of its logs until it is complete, and Hadoop's checksum of one."""

_DRAFT: Final = re.compile(r"\.+[^/]+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp(\.crc)?")
"""Names under which Spark writes any file of a checkpoint until it is complete, and Hadoop's checksum of one."""


@dataclass(frozen=True)
class RestoredCheckpoint:
    """The facts from which a query continues."""

    query_id: str | None
    """Spark's id; None if the query was never started."""
    committed: int
    """The newest committed epoch; -1: none."""
    offsets: LoggedOffsets | None
    """Its offsets."""


def state_of_checkpoint(query_id: str | None, committed: int, *, other: bool) -> str:
    """What is wrong with a directory that is not where the ledger says that the query is.

    Args:
        query_id: Spark's id in it; None: it has none.
        committed: the newest committed epoch in it.
        other: whether it is of another query than the one recorded.
    """
    if query_id is None:
        return "is missing"
    return (
        "is of another query than the one recorded in the ledger"
        if other
        else f"is older: it ends at epoch {committed}"
    )


def look(log: SparkLog, known: tuple[str, int] | None, who: str, query: str) -> RestoredCheckpoint:
    """Read the directory and compare it with the ledger.

    Args:
        known: Spark's query id and the newest committed epoch in the ledger; None if the query never ran.
    """
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

    An older driver that is still writing the file fails at the rename.

    Args:
        checkpoint: absolute path or URI.

    Returns:
        The names that were removed, sorted.
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

    Call it while the query does not run.

    Args:
        checkpoint: absolute path or URI.

    Returns:
        The paths that were removed, relative to the directory, sorted.
    """
    folder = folder_at(checkpoint)
    drafts = sorted(name for name in folder.files() if _DRAFT.fullmatch(name.rpartition("/")[2]))
    for name in drafts:
        folder.delete(name)
    return drafts
