"""How far the event time below each watermark of a query has come: a small file in its checkpoint directory.

Spark restores the watermark of a query, not those of its sources: one without new rows then holds back all others. The
marker of each watermark puts it back; see `model.end_of_input`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.watching.query_events import Hint

NAME: Final = "control/watermarks.json"  # relative to the checkpoint directory
KEPT: Final = 20  # entries in the file: a copy of the checkpoint directory may be of an earlier epoch than the newest


class EventTimes:
    """What Spark has reported of the event times of one query, since its job was started."""

    def __init__(self) -> None:
        self.epoch = -1  # the newest epoch that was reported
        self.at: Mapping[str, int] = {}  # by marker, the greatest event time up to it, microseconds since 1970

    def take(self, hint: Hint) -> None:
        """Take a report in; for any thread, and in any order."""
        if hint.event_times:
            self.epoch = max(self.epoch, hint.epoch or 0)
            self.at = {**self.at, **_greater(self.at, hint.event_times)}


def newest(checkpoint: str, epoch: int) -> Mapping[str, int]:
    """By marker, the greatest event time that is known in the epochs up to one, microseconds since 1970."""
    found = [entry for entry in _read(SparkLog(checkpoint)) if entry["epoch"] <= epoch]
    return dict(found[-1]["at"]) if found else {}


def record(checkpoint: str, epoch: int, at: Mapping[str, int]) -> None:
    """Write down what is known, while no planner of the query reads it."""
    log = SparkLog(checkpoint)
    before = _read(log)
    kept = [entry for entry in before if entry["epoch"] <= epoch]
    known = kept[-1]["at"] if kept else {}
    found = {**known, **_greater(known, at)}
    if found != known:
        kept = [*kept[1 - KEPT :], {"epoch": epoch, "at": found}]
    if kept != before:
        log.replace(NAME, json.dumps({"version": 1, "watermarks": kept}))


def _greater(known: Mapping[str, int], at: Mapping[str, int]) -> dict[str, int]:
    return {uid: max(value, known.get(uid, value)) for uid, value in at.items()}


def _read(log: SparkLog) -> list[dict[str, Any]]:
    return list(log.parsed(NAME).get("watermarks", ()))
