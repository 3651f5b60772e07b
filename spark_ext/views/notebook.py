"""A job as notebooks show it: as text and HTML after a run, and as HTML that is redrawn each second during one. Pure.

All styles stand in the elements, because the outputs of a notebook share one page. Text has the colour of the reader's
theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

from spark_ext.incidents.reporter import Incidents
from spark_ext.incidents.types import IncidentState
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot
from spark_ext.views.style import ago, clock, colour, count, duration, lag_of, latency_text, left_in_state

POINTS: Final = 120  # points of the rate at most

WIDTH, HEIGHT = 180, 28  # of the plot of the rate, pixels

REASON: Final = 160  # characters of a reason or of an incident that are shown

BLUE, GREEN, TRACK = "#0072B2", "#009E73", "rgba(128,128,128,.25)"

MOST_FILES: Final = 3  # bad files that are named
_SMALL = "font-size:12px;opacity:.7"
_CELL = "padding:2px 14px 2px 0;text-align:left;border:none;background:none;white-space:nowrap"
_NUMBER = "padding:2px 14px 2px 0;text-align:right;border:none;background:none;font-variant-numeric:tabular-nums"

_COLUMNS = ("query", "state", "epochs", "rows", "last epoch", "rows in state")


def job_text(snapshot: JobSnapshot) -> str:
    """A line about the job, one about each query, and the error of a job that failed."""
    lines = [
        f"job '{snapshot.job}' {snapshot.state.value}: {_read(snapshot)}, {snapshot.seconds:.1f} s, "
        f"incarnation {snapshot.incarnation}"
    ]
    for query in snapshot.queries:
        past = " in an earlier run" if query.finished_before else ""
        lines.append(f"  {query.uid}: {query.state.value}{past}, {', '.join((_read(query), *_left_out(query)))}")
    if snapshot.error:
        lines.append(snapshot.error)
    return "\n".join(lines)


def job_html(snapshot: JobSnapshot) -> str:
    """A line about the job, and a table with one row per query."""
    about = [f"<b>{escape(snapshot.job)}</b> {snapshot.state.value}"]
    if snapshot.incarnation:
        about += [
            count(snapshot.rows, "row"),
            count(snapshot.epochs, "epoch"),
            f"{snapshot.seconds:.1f} s",
            f"incarnation {snapshot.incarnation}",
        ]
    about.append(f"state in {escape(snapshot.state_directory)}")
    measured = any(query.latencies for query in snapshot.queries)
    columns = (*_COLUMNS, *(("latency",) if measured else ()), "reason")
    head = "".join(f"<th>{column}</th>" for column in columns)
    rows = "".join(f"<tr>{_cells(query, measured)}</tr>" for query in snapshot.queries)
    error = f"<pre>{escape(snapshot.error)}</pre>" if snapshot.error else ""
    return f"{' &middot; '.join(about)}<table><tr>{head}</tr>{rows}</table>{error}"


def _cells(query: QuerySnapshot, measured: bool) -> str:
    values = (
        query.uid,
        query.state.value,
        f"{query.epochs:,}",
        f"{query.rows:,}",
        "" if query.last_epoch is None else str(query.last_epoch),
        "" if query.state_rows is None else f"{query.state_rows:,}",
        *((latency_text(query),) if measured else ()),
        "; ".join(filter(None, (*_left_out(query), query.reason))),
    )
    return "".join(f"<td>{escape(value)}</td>" for value in values)


def _read(of: JobSnapshot | QuerySnapshot) -> str:
    return f"{count(of.rows, 'row')} in {count(of.epochs, 'epoch')}"


def _left_out(query: QuerySnapshot) -> tuple[str, ...]:
    """What was read and is in no output, and what fails rules, in words."""
    rows, files = query.bad_rows - len(query.bad_files), query.bad_files
    bad = [f"{count(rows, 'bad row')} put aside"] if rows else []
    if files:
        more = ", ..." if len(files) > MOST_FILES else ""
        bad.append(f"{count(len(files), 'file')} put aside: {', '.join(files[:MOST_FILES])}{more}")
    rules = (f"{count(rows, 'row')} failed rule '{rule}'" for rule, rows in query.rule_failures.items())
    late = (f"at least {count(query.late_rows, 'late row')} dropped",) if query.late_rows else ()
    return (*bad, *rules, *late, *filter(None, (left_in_state(query),)))


@dataclass(frozen=True)
class LastIncident:
    """The newest incident of a start."""

    type: str
    what: str
    at: datetime
    open: bool

    @classmethod
    def of(cls, incidents: Incidents) -> LastIncident | None:
        """The newest one; None: none was reported."""
        entry = incidents.last()
        if entry is None:
            return None
        found = entry.incident
        return cls(found.type, found.what, found.at, entry.state is IncidentState.OPEN)


def live_html(snapshot: JobSnapshot, rates: Sequence[float] = (), incident: LastIncident | None = None) -> str:
    """The job as it is now, with rows per second at the last looks, oldest first, and the newest incident."""
    parts = [_head(snapshot, rates), _queries(snapshot)]
    if incident is not None:
        parts.append(_incident(incident, snapshot))
    if snapshot.error:
        parts.append(f'<pre style="white-space:pre-wrap;color:#c5221f">{escape(snapshot.error)}</pre>')
    return f'<div style="line-height:1.5;font-family:system-ui,sans-serif;font-size:13px">{"".join(parts)}</div>'


def _head(snapshot: JobSnapshot, rates: Sequence[float]) -> str:
    figures = []
    if snapshot.incarnation:
        figures += [clock(snapshot.seconds), count(snapshot.rows, "row"), count(snapshot.epochs, "epoch")]
        if snapshot.rows and snapshot.seconds > 0:
            rate = rates[-1] if rates and not snapshot.state.ended else snapshot.rows / snapshot.seconds
            figures.append(f"{rate:,.0f} rows/s")
    shown = f'<span style="font-variant-numeric:tabular-nums">{" &middot; ".join(figures)}</span>'
    start = f'<span style="{_SMALL}">start {snapshot.incarnation}</span>' if snapshot.incarnation > 1 else ""
    return (
        '<div style="display:flex;flex-wrap:wrap;align-items:center;gap:4px 12px;margin-bottom:4px">'
        f"<b>{escape(snapshot.job)}</b>{_badge(snapshot.state.value)}{shown}{_spark(rates)}{start}</div>"
    )


def _badge(state: str) -> str:
    shade = colour(state).html
    return (
        f'<span style="border:1px solid {shade};border-left-width:10px;border-radius:3px;padding:0 6px;'
        f'font-size:12px;white-space:nowrap">{escape(state)}</span>'
    )


def _spark(rates: Sequence[float]) -> str:
    """The rate over the last looks; nothing before there are three."""
    if len(rates) < 3 or max(rates) <= 0:
        return ""
    top, step = max(rates), WIDTH / (len(rates) - 1)
    points = " ".join(f"{n * step:.1f},{HEIGHT - 2 - (HEIGHT - 4) * rate / top:.1f}" for n, rate in enumerate(rates))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="rows per second, at most {top:,.0f}">'
        f"<title>rows per second, at most {top:,.0f}</title>"
        f'<polygon points="0,{HEIGHT} {points} {WIDTH},{HEIGHT}" fill="{BLUE}" fill-opacity=".15"/>'
        f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.5"/></svg>'
    )


def _queries(snapshot: JobSnapshot) -> str:
    lags = any(query.lag_rows is not None for query in snapshot.queries)
    sources = any(query.sources for query in snapshot.queries)
    heads = [("query", _CELL), ("state", _CELL), ("rows", _NUMBER), ("epochs", _NUMBER), ("last epoch", _NUMBER)]
    heads += [("lag, rows", _NUMBER)] if lags else []
    heads += [("channels finished", _CELL)] if sources else []
    heads += [("", _CELL)]
    top = "".join(f'<th style="{style};font-weight:normal;opacity:.7">{name}</th>' for name, style in heads)
    rows = "".join(
        f'<tr style="background:none">{_query(query, snapshot.at, lags, sources)}</tr>' for query in snapshot.queries
    )
    return f'<table style="border-collapse:collapse;border:none"><tr style="background:none">{top}</tr>{rows}</table>'


def _query(query: QuerySnapshot, now: datetime, lags: bool, sources: bool) -> str:
    last = "" if query.last_epoch is None else f"{query.last_epoch:,}"
    if query.last_epoch_ms is not None:
        last += f" ({duration(query.last_epoch_ms / 1000)})"
    said = query.reason.partition("\n")[0] or query.phase
    if query.finished_before:
        said = "finished in an earlier run"
    cells = [
        (escape(query.uid), _CELL),
        (_badge(query.state.value), _CELL),
        (f"{query.rows:,}", _NUMBER),
        (f"{query.epochs:,}", _NUMBER),
        (last, _NUMBER),
    ]
    if lags:
        cells.append((escape(lag_of(query, now)), _NUMBER))
    if sources:
        cells.append((_channels(query), _CELL))
    cells.append((f'<span style="{_SMALL}">{escape(said[:REASON])}</span>', _CELL))
    return "".join(f'<td style="{style}">{value}</td>' for value, style in cells)


def _channels(query: QuerySnapshot) -> str:
    """A bar with two numbers; of a source that may get further channels it says so by its colour."""
    if not query.sources:
        return ""
    done = sum(source.channels_finished for source in query.sources)
    total = done + sum(source.channels_running or 0 for source in query.sources)
    ended = all(source.finished for source in query.sources)
    share = done / total if total else float(ended)
    return (
        f'<span style="display:inline-block;width:80px;height:8px;background:{TRACK};border-radius:2px;'
        f'vertical-align:middle;overflow:hidden"><span style="display:block;height:8px;width:{share:.0%};'
        f'background:{GREEN if ended else BLUE}"></span></span> {done:,} of {total:,}'
    )


def _incident(incident: LastIncident, snapshot: JobSnapshot) -> str:
    age = max(0.0, (snapshot.at - incident.at).total_seconds())
    text = incident.what.partition("\n")[0][:REASON]
    state = "open" if incident.open else "resolved"
    mark = "#c5221f" if incident.open else "#9aa0a6"
    return (
        f'<div style="border-left:4px solid {mark};padding-left:8px;margin-top:6px">'
        f"{escape(incident.type)}, {state}: {escape(text)} "
        f'<span style="{_SMALL}">{ago(age)} ago</span></div>'
    )
