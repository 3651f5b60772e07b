"""A checkpoint directory that is replaced by a repartitioned copy of it, also after a crash between two renames.

The names of a copy and of the former checkpoint, which is moved aside, end with the same time. The copy is the newest
state of the query only while the former one is there under that name, with no checkpoint in its place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from spark_ext.failpoints import FailPoint, reach
from spark_ext.spark.logs.checkpoint_directory import put_in_place
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import local_path, move

BUILDING: Final = ".checkpoint.rescaled"  # a copy that is being made, beside the checkpoint
_NEW: Final = "checkpoint.rescaled-"  # how the name of a complete copy begins, beside the checkpoint; the time follows
_OLD: Final = "checkpoint.until-"  # how the name of the former checkpoint begins; the same time follows


def replace(checkpoint: Path, copy: Path, at: datetime) -> None:
    """Put a complete copy into the place of a checkpoint, which is kept under another name."""
    time = f"{at:%Y%m%dT%H%M%S%f}"
    move(copy, checkpoint.with_name(f"{_NEW}{time}"))
    reach(FailPoint.RESCALE_BEFORE_MOVING_ASIDE)
    move(checkpoint, checkpoint.with_name(f"{_OLD}{time}"))
    reach(FailPoint.RESCALE_MOVED_ASIDE)
    take(str(checkpoint))


def take(checkpoint: str) -> bool:
    """Put the copy into the place of the checkpoint, a path or URI, if that was moved aside for it."""
    copy, place = _left(checkpoint), local_path(checkpoint)
    if copy is None or place is None:
        return False
    put_in_place(copy, place)
    return True


def is_interrupted(checkpoint: str) -> bool:
    """Whether the checkpoint was moved aside, and the copy is not in its place yet."""
    return _left(checkpoint) is not None


def _left(checkpoint: str) -> Path | None:
    place = local_path(checkpoint)
    if place is None or SparkLog(checkpoint).exists():
        return None
    copies = (copy for copy in _copies(place) if place.with_name(f"{_OLD}{copy.name.removeprefix(_NEW)}").is_dir())
    return next(copies, None)


def complete(checkpoint: str) -> bool:
    """Finish a replacement that was interrupted, or undo one that did not take place; for the job's owner.

    Returns whether a copy is in the place of the checkpoint now.
    """
    taken = take(checkpoint)
    if local_path(checkpoint) is not None and SparkLog(checkpoint).exists():
        discard(checkpoint)
    return taken


def discard(checkpoint: str) -> None:
    """Delete all copies beside a checkpoint, whether or not they belong."""
    place = local_path(checkpoint)
    if place is not None:
        for copy in (*_copies(place), place.with_name(BUILDING)):
            shutil.rmtree(copy, ignore_errors=True)


def _copies(place: Path) -> Iterator[Path]:
    return iter(sorted(place.parent.glob(f"{_NEW}*")))
