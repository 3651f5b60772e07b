"""A checkpoint directory that is being replaced by a repartitioned copy of it, after a crash between two renames."""

from __future__ import annotations

from typing import Final

from spark_ext.spark.spark_log import SparkLog, local_path

NEW: Final = "checkpoint.rescaled"
"""The complete copy, beside the checkpoint."""

OLD: Final = "checkpoint.until-"
"""How the name of the former checkpoint begins; the time follows."""


def complete(checkpoint: str) -> bool:
    """Put the copy into the place of the checkpoint, if that was moved aside already.

    A copy beside a checkpoint that is still there is left: the next rescale deletes it.

    Args:
        checkpoint: path or URI of the checkpoint directory.

    Returns:
        Whether it was done.
    """
    place = local_path(checkpoint)
    if place is None or SparkLog(checkpoint).exists():
        return False
    copy = place.with_name(NEW)
    if not SparkLog(str(copy)).exists():
        return False
    copy.rename(place)
    return True
