"""A checkpoint directory that is replaced by a repartitioned copy of it, also after a crash between two renames.

A copy belongs to one replacement: its name and that of the former checkpoint, which is moved aside, end with the same
time. Only while the former one is there under that name, and no checkpoint is in its place, is the copy the newest
state of the query. A copy without it is left over from a replacement that did not take place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from spark_ext.failpoints import FailPoint, reach
from spark_ext.spark.logs.placing import put_in_place
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import local_path, move

BUILDING: Final = ".checkpoint.rescaled"
"""A copy that is being made, beside the checkpoint."""

_NEW: Final = "checkpoint.rescaled-"
"""How the name of a complete copy begins, beside the checkpoint; the time follows."""

_OLD: Final = "checkpoint.until-"
"""How the name of the former checkpoint begins; the same time follows."""


def replace(checkpoint: Path, copy: Path, at: datetime) -> None:
    """Put a complete copy into the place of a checkpoint, which is kept under another name."""
    time = f"{at:%Y%m%dT%H%M%S%f}"
    move(copy, checkpoint.with_name(f"{_NEW}{time}"))
    reach(FailPoint.RESCALE_BEFORE_MOVING_ASIDE)
    move(checkpoint, checkpoint.with_name(f"{_OLD}{time}"))
    reach(FailPoint.RESCALE_MOVED_ASIDE)
    take(str(checkpoint))


def take(checkpoint: str) -> bool:
    """Put the copy into the place of the checkpoint, if that was moved aside for it.

    Args:
        checkpoint: path or URI of the checkpoint directory.
    """
    place = local_path(checkpoint)
    if place is None or SparkLog(checkpoint).exists():
        return False
    for copy in _copies(place):
        former = place.with_name(f"{_OLD}{copy.name.removeprefix(_NEW)}")
        if former.is_dir():
            put_in_place(copy, place)
            return True
    return False


def complete(checkpoint: str) -> bool:
    """Finish a replacement that was interrupted, or undo one that did not take place; for the job's owner.

    Args:
        checkpoint: path or URI of the checkpoint directory.

    Returns:
        Whether a copy is in the place of the checkpoint now.
    """
    taken = take(checkpoint)
    if local_path(checkpoint) is not None and SparkLog(checkpoint).exists():
        discard(checkpoint)
    return taken


def discard(checkpoint: str) -> None:
    """Delete all copies beside a checkpoint, whether or not they belong.

    Args:
        checkpoint: path or URI of the checkpoint directory.
    """
    place = local_path(checkpoint)
    if place is not None:
        for copy in (*_copies(place), place.with_name(BUILDING)):
            shutil.rmtree(copy, ignore_errors=True)


def _copies(place: Path) -> Iterator[Path]:
    return iter(sorted(place.parent.glob(f"{_NEW}*")))
