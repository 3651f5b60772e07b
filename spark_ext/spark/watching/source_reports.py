"""What the sources of a query say of themselves in Spark's progress reports: how far they are behind. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Final

from spark_ext.model.end_of_input import is_end_of_input_offset

KAFKA: Final = "KafkaV2"
"""Spark's Kafka source. Its offsets are numbers by topic and partition."""

OUTSTANDING: Final = ("numFilesOutstanding", "numOutstandingFiles")
"""Metrics by which sources of files, such as Delta's, say how many they have still to read."""


@dataclass(frozen=True)
class Lag:
    """How far a query is behind."""

    rows: int | None = None
    """Rows that it has still to read; None: one of its sources does not know."""
    at: float | None = None
    """When that was so, s since 1970 UTC: the time of the oldest figure in it; None: unknown."""
    sources: Mapping[str, SourceReport] = field(default_factory=dict)
    """What its sources have said last, by uid."""


@dataclass(frozen=True)
class SourceReport:
    """What one source has said of itself."""

    lag_rows: int | None
    """Rows that exist and are in no epoch up to this one; None: the source does not know, or does not say."""
    waiting: int | None
    """Channels or files that it has found and not started to read; None: likewise."""
    at: float | None = None
    """When it was so, s since 1970 UTC, by the driver's clock; None: unknown."""


def source_reports(progress: Mapping[str, Any]) -> dict[str, SourceReport]:
    """What the sources have said, by uid. One of Spark's own has its class, and a number if there are several.

    Sources that mark the end of input are left out.
    """
    begun = _moment(progress.get("timestamp"))
    return dict(_numbered([_of(source, begun) for source in progress["sources"] if not _marks_an_end(source)]))


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


def _marks_an_end(source: Mapping[str, Any]) -> bool:
    return is_end_of_input_offset(source.get("endOffset"))


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


def _moment(text: Any) -> float | None:
    """A time as Spark reports it, ISO 8601 in UTC, as s since 1970; None if it is none."""
    try:
        at = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()


def _whole(value: Any) -> int | None:
    """A whole number, which metrics of Spark's sources have as a text."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
