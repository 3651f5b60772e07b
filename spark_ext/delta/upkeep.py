"""Upkeep of a sink's table: checkpoints and expiry of its log, and files that dead incarnations have left.

A commit only checks whether a checkpoint is due, by the newest one in the table; a thread with a handle of its own
makes it. Files that the log still remembers as removed are left to vacuum.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from spark_ext.datafiles.orphans import delete_orphans
from spark_ext.errors import StorageError
from spark_ext.masking import logger

if TYPE_CHECKING:
    from spark_ext.model.commits import Claim
    from spark_ext.storage import Location


_LOG = logger(__name__)

_newest: dict[str, int] = {}  # Version of the newest checkpoint that this process knows of, by the table's path
_running: dict[str, threading.Thread] = {}


def newest_checkpoint(location: Location) -> int:
    """The version of the table's newest log checkpoint, or 0."""
    try:
        raw = location.folder.find("_delta_log/_last_checkpoint")
        return int(json.loads(raw)["version"]) if raw else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def checkpoint_if_due(location: Location, version: int, every: int) -> threading.Thread | None:
    """Start a log checkpoint in a thread if one is due and none is running."""
    if location.uri not in _newest or _newest[location.uri] > version:  # greater: the table was created again
        _newest[location.uri] = newest_checkpoint(location)
    running = _running.get(location.uri)
    if version - _newest[location.uri] < every or (running is not None and running.is_alive()):
        return None
    thread = threading.Thread(target=_checkpoint, args=(location,), name="spark-ext-delta-log-checkpoint", daemon=True)
    _running[location.uri] = thread
    thread.start()
    return thread


def _checkpoint(location: Location) -> None:
    try:
        table = DeltaTable(location.uri, storage_options=location.options)
        table.create_checkpoint()
        _newest[location.uri] = table.version()
        table.cleanup_metadata()
    except Exception:
        # Only the speed of readers depends on it, and the next commit tries again.
        _LOG.warning("the log of %s could not be checkpointed", location.uri, exc_info=True)


def committed_names(table: DeltaTable) -> frozenset[str]:
    """Names of the files that the log refers to: live ones, and removed ones that it still remembers."""
    paths = pa.table(table.get_add_actions().select(["path"])).column("path").to_pylist()
    # A dry run without a retention time lists exactly what the log remembers as removed.
    removed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=False)
    return frozenset(path.rpartition("/")[2] for path in (*paths, *removed))


def clean(location: Location, table: DeltaTable, claim: Claim, who: str) -> int:
    """Delete what dead incarnations have left; returns how many files."""
    try:
        return delete_orphans(location, claim, lambda: committed_names(table))
    except OSError as problem:
        raise StorageError(
            f"files that an earlier incarnation left could not be deleted: {problem}",
            operator=who,
            kept="everything that was committed",
            do=f"check the permissions of {location.uri}",
        ) from problem
