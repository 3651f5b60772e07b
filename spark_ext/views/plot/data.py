"""What the plots of a job show, from the document of the page: panels of lines over time, and bars of channels. Pure.

Times are ms since 1970 UTC. Both drawings, by matplotlib and in a terminal, are made from these values alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from spark_ext.incidents.types import Severity
from spark_ext.views.page.epochs import UNKNOWN

SHOWN: Final = 6  # queries that have a colour of their own; of more, those with the greatest values have one
BARS: Final = 24  # sources whose channels have a bar: those with the most unfinished ones
ROWS: Final = "rows"


class PlotKind(str, Enum):
    """What can be plotted."""

    EPOCHS = "epochs"  # how long each epoch took, and how many rows it read
    LAG = "lag"  # how many rows each query had still to read
    CHANNELS = "channels"  # how many channels of each source have finished


@dataclass(frozen=True, kw_only=True)
class Line:
    """The values of one query over time. A value that is not known is None; the line is broken there."""

    query: str
    at: tuple[int, ...]  # when the epochs of each point were committed
    values: tuple[float | None, ...]
    least: tuple[float | None, ...] = ()  # the least value at each point; empty: each point is one value
    greatest: tuple[float | None, ...] = ()  # the greatest value at each point; empty: as above

    @property
    def peak(self) -> float:
        """The greatest value that is known; 0 if none is."""
        return max((value for value in self.greatest or self.values if value is not None), default=0.0)

    @property
    def known(self) -> bool:
        """Whether any value is known."""
        return any(value is not None for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines that share an axis."""

    title: str
    unit: str
    lines: tuple[Line, ...]  # of the queries that have a colour, by uid
    others: tuple[Line, ...] = ()  # of all further queries, which are drawn in grey
    nothing: str = ""  # why it has no lines; "" if it has some

    @property
    def heading(self) -> str:
        """The title, with the unit unless the title has it."""
        return self.title if self.unit == ROWS else f"{self.title}, {self.unit}"

    @property
    def peak(self) -> float:
        """The greatest value of all lines."""
        return max((line.peak for line in (*self.lines, *self.others)), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """How far a source is: its channels."""

    query: str
    source: str
    done: int  # channels that have finished
    running: int
    ended: bool  # whether the source has finished: it will have no further channels

    @property
    def share(self) -> float:
        """Of the channels that are known, those that have finished: 0 to 1."""
        total = self.done + self.running
        return self.done / total if total else float(self.ended)


@dataclass(frozen=True, kw_only=True)
class Plots:
    """All that is drawn of a job."""

    job: str
    state: str
    at: int  # when this was so
    panels: tuple[Panel, ...] = ()
    bars: tuple[Bar, ...] | None = None  # None: channels were not asked for
    more: int = 0  # sources that have no bar, because there are too many
    gaps: tuple[tuple[int, int], ...] = ()  # when no driver ran between two starts
    incidents: tuple[int, ...] = ()  # when there were incidents that are more than information

    @property
    def queries(self) -> tuple[str, ...]:
        """Uids that have a colour, sorted: a query has the same in every panel."""
        return tuple(sorted({line.query for panel in self.panels for line in panel.lines}))


def plots(page: Mapping[str, Any], kinds: Iterable[PlotKind] = ()) -> Plots:
    """What is drawn of a job."""
    given = tuple(kinds)
    wanted = given or tuple(PlotKind)
    series = {uid: one for uid, one in sorted(page["series"]["queries"].items()) if one["at"]}
    lags = _lags(page, series)
    gaps = _gaps(page["timeline"]["spans"])
    panels: list[Panel] = []
    chosen = _chosen(series, lags)
    if PlotKind.EPOCHS in wanted:
        panels += [_durations(series, gaps, chosen), _rows(series, gaps, chosen)]
    if PlotKind.LAG in wanted and (lags or given):
        panels.append(_panel("Rows still to be read", ROWS, lags, chosen, "no source of this job knows its lag"))
    bars, more = None, 0
    if PlotKind.CHANNELS in wanted and (page["channels"] or given):
        bars, more = _bars(page["channels"])
    # A time without a driver is shown between epochs: one after the last would be most of the picture.
    last = max((line.at[-1] for panel in panels for line in (*panel.lines, *panel.others)), default=0)
    return Plots(
        job=page["job"]["name"],
        state=page["job"]["state"],
        at=page["at"],
        panels=tuple(panels),
        bars=bars,
        more=more,
        gaps=tuple(gap for gap in gaps if gap[1] <= last),
        incidents=tuple(one["at"] for one in page["incidents"] if one["severity"] != Severity.INFO.value),
    )


def time_text(ms: int, *, date: bool = True) -> str:
    """A time in UTC: `2026-01-31 12:00:05`, or without the date."""
    at = datetime.fromtimestamp(ms / 1000, timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}" if date else f"{at:%H:%M:%S}"


def _durations(series: Mapping[str, Any], gaps: Sequence[tuple[int, int]], chosen: frozenset[str]) -> Panel:
    longest = max((max(one["greatest"]) for one in series.values()), default=0)
    unit, size = next((unit, size) for unit, size, below in _UNITS if longest < below)

    def scaled(values: Sequence[int]) -> list[float | None]:
        return [None if value == UNKNOWN else value / size for value in values]

    lines = []
    for uid, one in series.items():
        columns = _broken(one["at"], [scaled(one[name]) for name in ("mean", "least", "greatest")], gaps)
        lines.append(Line(query=uid, at=columns[0], values=columns[1], least=columns[2], greatest=columns[3]))
    return _panel("Duration of an epoch", unit, lines, chosen, NO_EPOCH)


_UNITS: Final = (("ms", 1, 5_000), ("s", 1_000, 600_000), ("min", 60_000, float("inf")))  # ms, and until which duration
NO_EPOCH: Final = "no epoch has been committed yet"


def _rows(series: Mapping[str, Any], gaps: Sequence[tuple[int, int]], chosen: frozenset[str]) -> Panel:
    lines = []
    for uid, one in series.items():
        means = [rows / epochs for rows, epochs in zip(one["rows"], one["epochs"], strict=True)]
        at, values = _broken(one["at"], [means], gaps)
        lines.append(Line(query=uid, at=at, values=values))
    return _panel("Rows read by an epoch", ROWS, lines, chosen, NO_EPOCH)


def _lags(page: Mapping[str, Any], series: Mapping[str, Any]) -> list[Line]:
    """The lags of all queries that report one; each line ends with the driver's last report."""
    said = {query["uid"]: query["lag"] for query in page["queries"]}
    gaps = _gaps(page["timeline"]["spans"])
    found = []
    for uid in sorted(said.keys() | series.keys()):
        one = series.get(uid, {"at": [], "lag": []})
        values: list[float | None] = [None if rows == UNKNOWN else rows for rows in one["lag"]]
        at = list(one["at"]) if values else []
        newest = said.get(uid) or {"rows": None, "at": None}
        if newest["rows"] is not None and newest["at"] is not None and (not at or newest["at"] > at[-1]):
            at.append(newest["at"])
            values.append(newest["rows"])
        times, known = _broken(at, [values], gaps)
        line = Line(query=uid, at=times, values=known)
        if line.known:
            found.append(line)
    return found


def _chosen(series: Mapping[str, Any], lags: Sequence[Line]) -> frozenset[str]:
    """Queries that have a colour: those that are the furthest behind, then those whose epochs took the longest."""
    behind = {line.query: line.peak for line in lags}
    uids = sorted(
        series.keys() | behind.keys(),
        key=lambda uid: (-behind.get(uid, 0.0), -max(series[uid]["greatest"], default=0) if uid in series else 0, uid),
    )
    return frozenset(uids[:SHOWN])


def _panel(title: str, unit: str, lines: Sequence[Line], chosen: frozenset[str], nothing: str) -> Panel:
    drawn = [line for line in lines if line.known]
    return Panel(
        title=title,
        unit=unit,
        lines=tuple(line for line in drawn if line.query in chosen),
        others=tuple(line for line in drawn if line.query not in chosen),
        nothing="" if drawn else nothing,
    )


def _gaps(spans: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """When no driver ran: between the end of one start and the begin of the next."""
    known = sorted(spans, key=lambda span: int(span["since"]))
    return tuple(
        (before["until"], after["since"])
        for before, after in pairwise(known)
        if before["until"] is not None and before["until"] < after["since"]
    )


def _broken(
    at: Sequence[int], columns: Sequence[Sequence[float | None]], gaps: Sequence[tuple[int, int]]
) -> tuple[tuple[Any, ...], ...]:
    """A series with a point without values inside each gap: no line is drawn across a time without a driver."""
    whole: list[list[Any]] = [list(at), *map(list, columns)]
    for since, until in gaps:
        place = bisect_right(at, since)
        if 0 < place < len(at) and at[place] >= until:
            extra = len(whole[0]) - len(at)
            whole[0].insert(place + extra, (since + until) // 2)
            for column in whole[1:]:
                column.insert(place + extra, None)
    return tuple(map(tuple, whole))


def _bars(channels: Sequence[Mapping[str, Any]]) -> tuple[tuple[Bar, ...], int]:
    found = [
        Bar(query=one["query"], source=one["source"], done=one["done"], running=one["running"], ended=one["finished"])
        for one in channels
    ]
    chosen = sorted(found, key=lambda bar: (-bar.running, bar.query, bar.source))[:BARS]
    shown = tuple(sorted(chosen, key=lambda bar: (bar.query, bar.source)))
    return shown, len(found) - len(shown)
