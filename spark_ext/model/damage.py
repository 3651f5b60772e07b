"""Which checkpoint a job is restored from by itself after its state was damaged: a pure function of its history.

A checkpoint serves if it is a part of the history that the job continues: taken in the present lineage, or in one that
this one continues, before the point where it does. One from which the job has been restored already, and after which it
has completed no other, does not: what was damaged then would be damaged again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Restored:
    """A restore that has been completed."""

    lineage: int
    """The new lineage."""
    parent: int | None
    """The lineage that it continues."""
    checkpoint: int | None
    """The retained checkpoint from which; None: a savepoint."""


def checkpoint_to_restore(
    retained: Mapping[int, int], lineage: int, restores: Iterable[Restored]
) -> tuple[int | None, str]:
    """The newest checkpoint that serves.

    Returns:
        Its number; or None, and why no checkpoint qualifies.
    """
    by_lineage = {restore.lineage: restore for restore in restores}
    upto: int | None = None
    at: int | None = lineage
    begun = by_lineage.get(lineage)
    while at is not None:
        there = [number for number, own in retained.items() if own == at and (upto is None or number <= upto)]
        if there:
            newest = max(there)
            if begun is not None and begun.checkpoint == newest:
                return None, f"it has been restored from checkpoint {newest}, and has completed none since"
            return newest, ""
        link = by_lineage.get(at)
        if link is None or link.checkpoint is None:
            break
        at, upto = link.parent, link.checkpoint if upto is None else min(upto, link.checkpoint)
    return None, "no checkpoint of its present history is retained"
