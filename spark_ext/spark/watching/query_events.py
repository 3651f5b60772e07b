"""Spark's events about a query, reduced to a hint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from spark_ext.model.end_of_input import EVENT_TIME, is_end_of_input_offset
from spark_ext.spark.watching.source_reports import SourceReport, source_reports


@dataclass(frozen=True)
class Hint:
    """The content of one event about one query."""

    kind: str
    """`started`, `progress` or `terminated`."""
    query_id: str
    run_id: str
    epoch: int | None = None
    input_rows: int | None = None
    """Without the rows that mark an end of input."""
    duration_ms: int | None = None
    """Of the whole epoch, planning and commit included."""
    state_rows: int | None = None
    """Rows in all state stores of the query."""
    watermark: str = ""
    """Before the epoch, ISO 8601; "" without one."""
    spent_ms: Mapping[str, int] = field(default_factory=dict)
    """Where the time of the epoch went, by `STAGES`."""
    sources: Mapping[str, SourceReport] = field(default_factory=dict)
    """What its sources have said of themselves, by uid."""
    newest_row: str = ""
    """The greatest event time among the epoch's rows, ISO 8601; "" without a watermark, or without rows."""
    in_function: bool = False
    """Whether the epoch was given to a function of the user's, by `foreachBatch`."""
    source_rows: Mapping[str, int] = field(default_factory=dict)
    """The rows that its channel sources have returned in the epoch, by uid."""
    late_rows: int | None = None
    """Rows that its operators with state have dropped in the epoch, because the watermark had passed them."""
    event_times: Mapping[str, int] = field(default_factory=dict)
    """By the marker of each watermark with rows in the epoch, the greatest event time, microseconds since 1970."""


STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "planning": ("latestOffset", "getOffset", "getBatch", "queryPlanning"),
    "execution": ("addBatch",),
    "log": ("walCommit", "commitOffsets", "commitBatch"),
}
"""The parts of an epoch, by what Spark calls them: its sources and Spark plan it, its tasks run and its sink commits,
and Spark writes its own log."""


def event_time(text: str) -> datetime | None:
    """An event time as Spark reports it; None without one."""
    if not text or text.startswith("1970-01-01T00:00:00"):
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at.replace(tzinfo=at.tzinfo or timezone.utc)


def hint_of(report: str) -> Hint:
    """The hint in a progress report (Spark's JSON), whether it arrived as an event or was polled."""
    return _hint(json.loads(report))


def hints_of(reports: Iterable[str]) -> list[Hint]:
    """The hints in reports that were polled, without those of triggers that had nothing to do.

    Such a report has the number of the next epoch, which has not run.
    """
    found = (json.loads(report) for report in reports)
    return [_hint(progress) for progress in found if "addBatch" in progress["durationMs"]]


def _hint(progress: Mapping[str, Any]) -> Hint:
    ends = [source for source in progress["sources"] if is_end_of_input_offset(source["endOffset"])]
    return Hint(
        "progress",
        progress["id"],
        progress["runId"],
        progress["batchId"],
        progress["numInputRows"] - sum(end["numInputRows"] for end in ends),
        progress["durationMs"].get("triggerExecution"),
        sum(operator["numRowsTotal"] for operator in progress["stateOperators"]),
        progress.get("eventTime", {}).get("watermark", ""),
        {stage: sum(progress["durationMs"].get(name, 0) for name in names) for stage, names in STAGES.items()},
        source_reports(progress),
        progress.get("eventTime", {}).get("max", ""),
        str(progress.get("sink", {}).get("description", "")).startswith("ForeachBatchSink"),
        dict(_rows(source) for source in progress["sources"] if source not in ends),
        sum(operator.get("numRowsDroppedByWatermark", 0) for operator in progress["stateOperators"]),
        {
            uid: found[EVENT_TIME]
            for uid, found in progress.get("observedMetrics", {}).items()
            if isinstance(found, dict) and isinstance(found.get(EVENT_TIME), int)
        },
    )


def _rows(source: Mapping[str, Any]) -> tuple[str, int]:
    end = source["endOffset"]
    if isinstance(end, str):
        try:
            end = json.loads(end)
        except ValueError:
            end = None
    uid = end.get("uid") if isinstance(end, dict) else None
    return (uid if isinstance(uid, str) else ""), source["numInputRows"]
