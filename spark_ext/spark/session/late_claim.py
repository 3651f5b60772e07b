"""A claim that waits until an epoch is to be planned, and how planners ask the driver for it.

A run that finds nothing new leaves its targets as they are. The first planner with something to plan asks for the
claim, by a file beside its registration, and waits until the driver has claimed the target. As nothing is planned
before, an older driver is fenced off before the first epoch, as by a claim at the start.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from spark_ext.errors import TransientError
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration, note

LOOK_S: Final = 0.05  # how often a planner looks whether the target is claimed, s


def await_claim(mine: Registration | None, place: Path | None = None) -> bool:
    """Ask for the claim of the target, if it is still to come, and wait for it. Returns whether it was.

    `mine` is of an operator of the query, as its planner has found it; None outside a job.
    """
    place = place or registry.folder()
    if mine is None or mine.claims_after is None or place is None or _is_claimed(mine, place):
        return False
    registry.write_private(place / note(mine.uid, "claim"), mine.start)
    parent = os.getppid()
    while not _is_claimed(mine, place):
        if os.getppid() != parent or _is_replaced(mine, place):
            raise TransientError(
                "the driver ended before it had claimed the target",
                operator=f"job '{mine.job}', query '{mine.query}'",
                kept="nothing was planned",
                do="start the job again",
            )
        time.sleep(LOOK_S)
    return True


def before_planning(mine: Registration | None, place: Path | None = None) -> None:
    """To be called before an epoch is planned: see `await_claim`."""
    if not await_claim(mine, place):
        return
    assert mine is not None
    newest = SparkLog(mine.checkpoint).newest_offsets()
    if newest != mine.claims_after:
        raise TransientError(
            f"an older driver of the job planned epoch {newest} after this query was started",
            operator=f"job '{mine.job}', query '{mine.query}'",
            kept="that epoch: it is completed first",
            do="nothing: the older driver is fenced off now, and the query is started again",
        )


def is_asked(uids: Iterable[str], start: int, place: Path) -> bool:
    """Whether a planner of this start waits for the claim."""
    for uid in uids:
        try:
            if json.loads((place / note(uid, "claim")).read_text()) == start:
                return True
        except (FileNotFoundError, ValueError):
            continue
    return False


def _is_replaced(mine: Registration, place: Path) -> bool:
    """Whether a later start has replaced or removed it: the server of Spark Connect has outlived its client."""
    there = registry.lookup(mine.uid, place)
    return there is None or there.start != mine.start


def _is_claimed(mine: Registration, place: Path) -> bool:
    there = registry.lookup(mine.uid, place)
    return there is not None and there.start == mine.start and there.claims_after is None
