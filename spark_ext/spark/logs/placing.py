"""Putting a prepared checkpoint directory into its place while Spark may still write below it.

Spark's maintenance uploads a snapshot of state in a thread of its own. An upload that began before the query ended is
finished after that, and makes the folders it needs: state of nobody, where a checkpoint is about to be put.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from spark_ext.storage import move

_STATE: Final = "state"
"""What Spark's maintenance writes, in a checkpoint directory."""

_ATTEMPTS: Final = 10


def put_in_place(prepared: Path, place: Path) -> None:
    """Rename a prepared checkpoint directory to its place, which must be empty.

    Args:
        place: its new path. State alone, without the rest of a checkpoint, is deleted there.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            move(prepared, place)
        except OSError:
            if attempt == _ATTEMPTS or not _only_state(place):
                raise
            shutil.rmtree(place, ignore_errors=True)
        else:
            return


def _only_state(place: Path) -> bool:
    return place.is_dir() and {entry.name for entry in place.iterdir()} <= {_STATE}
