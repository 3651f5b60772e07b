"""Spark's events about a query, reduced to a hint; and what its sources say of themselves: how far they are behind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Final

from spark_ext.model.end_of_input import EVENT_TIME, NEVER_YEARS, is_end_of_input_offset


@dataclass(frozen=True)
class Hint:
    """The content of one event about one query."""

    kind: str  # `started`, `progress` or `terminated`
    query_id: str
    run_id: str
    epoch: int | None = None
    input_rows: int | None = None  # without the rows that mark an end of input
    duration_ms: int | None = None  # of the whole epoch, planning and commit included
    state_rows: int | None = None  # rows in all state stores of the query; None: Spark has not counted them right
    watermark: str = ""  # before the epoch, ISO 8601; "" without one
    spent_ms: Mapping[str, int] = field(default_factory=dict)  # where the time of the epoch went, by `STAGES`
    sources: Mapping[str, SourceReport] = field(default_factory=dict)  # what they have said of themselves, by uid
    newest_row: str = ""  # greatest event time among the epoch's rows, ISO 8601; "" without a watermark or rows
    in_function: bool = False  # whether the epoch was given to a function of the user's, by `foreachBatch`
    source_rows: Mapping[str, int] = field(default_factory=dict)  # returned by its channel sources, by uid
    late_rows: int | None = None  # dropped by operators with state, because the watermark had passed them
    # By the marker of each watermark with rows in the epoch, the greatest event time, microseconds since 1970.
    event_times: Mapping[str, int] = field(default_factory=dict)
    state_changes: int = 0  # rows of its state that the epoch has written or removed, and timers that it has fired
    emits: bool = True  # whether rows can come out of its state; they cannot out of that of dropDuplicates


# The parts of an epoch, by what Spark calls them: its sources and Spark plan it, its tasks run and its sink commits,
# and Spark writes its own log.
STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "planning": ("latestOffset", "getOffset", "getBatch", "queryPlanning"),
    "execution": ("addBatch",),
    "log": ("walCommit", "commitOffsets", "commitBatch"),
}


def event_time(text: str) -> datetime | None:
    """An event time as Spark reports it; None without one."""
    return None if text.startswith("1970-01-01T00:00:00") else _time(text)


def _time(text: str) -> datetime | None:
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
        sum(rows_read(source) for source in progress["sources"] if source not in ends),
        progress["durationMs"].get("triggerExecution"),
        _state_rows(progress["stateOperators"]),
        progress.get("eventTime", {}).get("watermark", ""),
        {stage: sum(progress["durationMs"].get(name, 0) for name in names) for stage, names in STAGES.items()},
        source_reports(progress),
        _newest_row(progress.get("eventTime", {}).get("max", "")),
        str(progress.get("sink", {}).get("description", "")).startswith("ForeachBatchSink"),
        dict(_rows(source) for source in progress["sources"] if source not in ends),
        sum(operator.get("numRowsDroppedByWatermark", 0) for operator in progress["stateOperators"]),
        {
            uid: found[EVENT_TIME]
            for uid, found in progress.get("observedMetrics", {}).items()
            if isinstance(found, dict) and isinstance(found.get(EVENT_TIME), int)
        },
        sum(map(_state_changes, progress["stateOperators"])),
        any(not one.get("operatorName", "").startswith("dedupe") for one in progress["stateOperators"]),
    )


def _newest_row(text: str) -> str:
    """The greatest event time of an epoch, unless it is that of a marker, which has taken over another watermark."""
    return "" if text.startswith(NEVER_YEARS) else text


def _state_rows(operators: Iterable[Mapping[str, Any]]) -> int | None:
    """Rows in the state; None if Spark has not counted them, or has counted those of repeated tasks again."""
    total = 0
    for operator in operators:
        rows, updated = operator["numRowsTotal"], operator.get("numRowsUpdated", 0) - operator.get("numRowsRemoved", 0)
        stores, partitions = operator.get("numStateStoreInstances", 0), operator.get("numShufflePartitions") or 1
        most = partitions * (4 if operator.get("operatorName") == "symmetricHashJoin" else 1)
        if stores > most or stores % partitions or (not rows and updated > 0):
            return None
        total += rows
    return total


def _state_changes(operator: Mapping[str, Any]) -> int:
    fired = operator.get("customMetrics", {}).get("numExpiredTimers", 0)
    return int(operator.get("numRowsUpdated", 0) + operator.get("numRowsRemoved", 0) + fired)


def _rows(source: Mapping[str, Any]) -> tuple[str, int]:
    end = _read(source["endOffset"])
    uid = end.get("uid") if isinstance(end, dict) else None
    return (uid if isinstance(uid, str) else ""), rows_read(source)


def rows_read(source: Mapping[str, Any]) -> int:
    """The rows of a source in an epoch, each once.

    Spark counts those of a task again when it repeats the task, as after the loss of an executor. A channel source that
    can count them says how many rows it has planned for the epoch, bad and skipped ones among them.
    """
    counted, latest = int(source["numInputRows"]), _read(source.get("latestOffset"))
    if not isinstance(latest, dict) or not isinstance(latest.get("uid"), str):
        return counted
    planned = _whole(latest.get("rows"))
    return counted if planned is None else min(counted, planned)


KAFKA: Final = "KafkaV2"  # Spark's Kafka source. Its offsets are numbers by topic and partition.
# Metrics by which sources of files, such as Delta's, say how many they have still to read.
OUTSTANDING: Final = ("numFilesOutstanding", "numOutstandingFiles")


@dataclass(frozen=True)
class Lag:
    """How far a query is behind."""

    rows: int | None = None  # rows that it has still to read; None: one of its sources does not know
    at: float | None = None  # when that was so, s since 1970 UTC: the time of the oldest figure in it; None: unknown
    sources: Mapping[str, SourceReport] = field(default_factory=dict)  # what its sources have said last, by uid


@dataclass(frozen=True)
class SourceReport:
    """What one source has said of itself."""

    lag_rows: int | None  # rows that exist and are in no epoch up to this one; None: the source does not say
    waiting: int | None  # channels or files that it has found and not started to read; None: likewise
    at: float | None = None  # when it was so, s since 1970 UTC, by the driver's clock; None: unknown


def source_reports(progress: Mapping[str, Any]) -> dict[str, SourceReport]:
    """What the sources have said, by uid. One of Spark's own has its class, and a number if there are several.

    Sources that mark the end of input are left out.
    """
    at = _time(str(progress.get("timestamp")))
    begun = None if at is None else at.timestamp()
    own = [source for source in progress["sources"] if not is_end_of_input_offset(source.get("endOffset"))]
    return dict(_numbered([_of(source, begun) for source in own]))


def newest(reports: Mapping[str, SourceReport], noted: Mapping[str, SourceReport]) -> dict[str, SourceReport]:
    """What was said with the newest epoch, with the lag of those that have said another one since."""
    found = dict(reports)
    for uid, note in noted.items():
        known = found.get(uid)
        if known is None:
            found[uid] = note
        elif (note.at or 0.0) > (known.at or 0.0):
            found[uid] = replace(known, lag_rows=note.lag_rows, at=note.at)
    return found


def known_lags(reports: Mapping[str, SourceReport]) -> dict[str, int]:
    """The lag of each source that knows it."""
    return {uid: report.lag_rows for uid, report in reports.items() if report.lag_rows is not None}


def lags_at(reports: Mapping[str, SourceReport]) -> dict[str, float]:
    """When each source that knows its lag has said so, s since 1970 UTC."""
    return {uid: one.at for uid, one in reports.items() if one.lag_rows is not None and one.at is not None}


def total_at(reports: Mapping[str, SourceReport]) -> float | None:
    """When all of the lag was as `total_lag` says, s since 1970 UTC: the time of the oldest figure; None: unknown."""
    times = [report.at for report in reports.values()]
    known = [at for at in times if at is not None]
    return min(known) if known and len(known) == len(times) else None


def total_lag(reports: Mapping[str, SourceReport]) -> int | None:
    """The lag of all sources of a query together; None if it is not known of each of them, or without sources."""
    lags = [report.lag_rows for report in reports.values()]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if lags and len(known) == len(lags) else None


def _of(source: Mapping[str, Any], begun: float | None) -> tuple[str, SourceReport]:
    latest, end = _read(source.get("latestOffset")), _read(source.get("endOffset"))
    for one in (latest, end):
        if isinstance(one, dict) and isinstance(one.get("uid"), str):
            said = latest if isinstance(latest, dict) else {}
            at = said.get("at")
            own = float(at) if isinstance(at, int | float) and not isinstance(at, bool) else begun
            return one["uid"], SourceReport(_whole(said.get("lag")), _whole(said.get("waiting")), own)
    # The rest of a description may hold anything, such as paths.
    kind = str(source.get("description", "")).partition("[")[0].rpartition(".")[2] or "source"
    metrics = source.get("metrics") or {}
    waiting = next((found for name in OUTSTANDING if (found := _whole(metrics.get(name))) is not None), None)
    return kind, SourceReport(_behind(latest, end) if kind == KAFKA else None, waiting, begun)


def _numbered(found: list[tuple[str, SourceReport]]) -> Iterator[tuple[str, SourceReport]]:
    names = [name for name, _ in found]
    for place, (name, report) in enumerate(found):
        yield (name if names.count(name) == 1 else f"{name}-{names[:place].count(name)}"), report


def _behind(latest: Any, end: Any) -> int | None:
    """By how many offsets one position in Kafka is behind another; None if they are not such positions."""
    if not isinstance(latest, dict) or not isinstance(end, dict):
        return None
    total = 0
    for topic, partitions in latest.items():
        read = end.get(topic, {})
        if not isinstance(partitions, dict) or not isinstance(read, dict):
            return None
        for partition, high in partitions.items():
            at = _whole(read.get(partition))
            if _whole(high) is None or at is None:
                return None  # where a partition begins that was just found is not known here
            total += max(0, high - at)
    return total


def _read(offset: Any) -> Any:
    """An offset as Spark reports it: JSON, or JSON in a text."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    """A whole number, which metrics of Spark's sources have as a text."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
