"""Checkpoints of a table's log, and the log's expiry, in a background thread of the committing process.

Without checkpoints a reader replays the log from its beginning. Delta's writers make them inside a commit; here the
commit only checks whether one is due, and a thread with a handle of its own makes it. If the process dies meanwhile,
the next commit finds it still due, because what counts is the newest checkpoint in the table.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from spark_ext.masking import logger

if TYPE_CHECKING:
    from spark_ext.storage import Location

_LOG = logger(__name__)

_newest: dict[str, int] = {}
"""Version of the newest checkpoint that this process knows of, by the table's path."""

_running: dict[str, threading.Thread] = {}


def newest_checkpoint(location: Location) -> int:
    """The version of the table's newest log checkpoint; 0 when there is none."""
    try:
        raw = location.folder.find("_delta_log/_last_checkpoint")
        return int(json.loads(raw)["version"]) if raw else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def checkpoint_if_due(location: Location, version: int, every: int) -> threading.Thread | None:
    """Start a log checkpoint if one is due and none is running.

    Returns:
        The thread that makes it; None when none was started.
    """
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
