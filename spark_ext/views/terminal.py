"""What terminals show: the status of a job, its queries in `top`, the live line of a run, and rows of tables.

Texts of others are printed here: exceptions of users, names, and whatever a ledger contains.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final, Generic, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from spark_ext.incidents.reporter import GIVEN_UP
from spark_ext.masking import logger
from spark_ext.model.lifecycle import State
from spark_ext.views.incidents import texts_of
from spark_ext.views.page.top import top_rows
from spark_ext.views.style import (
    clock,
    colour,
    count,
    duration,
    exchange_text,
    inbox_text,
    lag_of,
    lag_text,
    latency_text,
    left_in_state,
)

if TYPE_CHECKING:
    from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot
    from spark_ext.views.status import JobStatus

WIDE: Final = 160  # characters in a line if the output is not a terminal
STARTING: Final = frozenset({State.CREATED, State.DEPLOYING, State.SCHEDULING, State.RESTORING})
LIVE_EVERY: Final = 0.25  # interval between updates of the live line, s
LOG_EVERY: Final = 4.0  # interval between lines if the output is not a terminal, s
REASON: Final = 100  # characters of a reason that are shown

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, begins an escape sequence, changes the direction of writing, or cannot be encoded."""

_NUMBERS: Final = frozenset(
    {"epoch", "input_rows", "duration_ms", "lineage", "incarnation", "checkpoint_id", "rows_in_flight"}
)


def plain(text: str) -> str:
    """The text without characters that control a terminal."""
    return _CONTROL.sub("", text)


class Terminal(Console):
    """A console that prints texts literally: no markup, and no escape sequences but rich's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console`. Removed characters take no place, so that the layout stays as it was measured."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


def widen(console: Console, width: int = WIDE) -> None:
    """Print at least this wide into a pipe or file, where nothing may be cut off."""
    if not console.is_terminal:
        console.width = max(console.width, width)


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table."""

    name: str
    cell: Callable[[Row], str | Text]
    number: bool = False
    used: bool = True  # whether the table has it: one that is empty in all rows may be left out


def table(rows: Iterable[Row], columns: Sequence[Column[Row]], **style: Any) -> Table:
    """Rows as a table."""
    columns = [column for column in columns if column.used]
    made = Table(**style)
    for column in columns:
        made.add_column(column.name, justify="right" if column.number else "left", no_wrap="box" in style)
    for row in rows:
        cells = [column.cell(row) for column in columns]
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return made


def headline(name: str, state: str, *parts: str) -> Text:
    """A name, its state, and further parts on one line."""
    made = Text(f"{name} ").append(state, style=colour(state).terminal)
    return made.append("".join(f"  {part}" for part in parts if part))


def _state(state: str) -> Text:
    return Text(state, style=colour(state).terminal)


# -- status -----------------------------------------------------------------------------------------------------------


def show_status(status: JobStatus, console: Console) -> None:
    """Print a line about the job, a table of its queries, its newest incidents, and its timeline."""
    widen(console)
    console.print(
        Text(f"{status.job} {_standing(status)}", style="bold"),
        f"incarnation {status.incarnation}, lineage {status.lineage}, driver on {status.driver}",
        sep="  ",
        soft_wrap=True,
    )
    queries = status.queries
    columns: list[Column[QuerySnapshot]] = [
        Column("query", lambda query: query.uid),
        Column("state", lambda query: _state(query.state.value)),
        Column("epoch", lambda query: "" if query.last_epoch is None else str(query.last_epoch)),
        Column("epochs", lambda query: f"{query.epochs:,}"),
        Column("rows", lambda query: f"{query.rows:,}"),
        Column("bad rows", lambda query: f"{query.bad_rows:,}", used=any(query.bad_rows for query in queries)),
        Column(
            "failed rules",
            lambda query: "\n".join(f"{rule}: {rows:,}" for rule, rows in query.rule_failures.items()),
            used=any(query.rule_failures for query in queries),
        ),
        Column(
            "late rows, at least", lambda query: f"{query.late_rows:,}", used=any(query.late_rows for query in queries)
        ),
        Column(
            "rows in state",
            lambda query: "" if query.state_rows is None else f"{query.state_rows:,}",
            used=any(query.state_rows for query in queries),
        ),
        Column("lag", lambda query: lag_of(query, status.at), used=any(one.lag_rows is not None for one in queries)),
        Column(
            "channels finished",
            lambda query: "\n".join(f"{source}: {number:,}" for source, number in query.channels_finished.items()),
        ),
        Column("latency", latency_text, used=any(query.latencies for query in queries)),
        Column(
            "exchange",
            lambda query: "" if query.exchange is None else _exchange(query.exchange.to_json()),
            used=any(query.exchange is not None for query in queries),
        ),
        Column(
            "inbox",
            lambda query: _inboxes([one.to_json() for one in query.inboxes]),
            used=any(query.inboxes for query in queries),
        ),
        Column("reason", lambda query: query.reason),
    ]
    console.print(table(queries, columns))
    for query in filter(left_in_state, queries):
        console.print(Text(f"{query.uid}: {left_in_state(query)}"), soft_wrap=True)
    for incident in status.incidents:
        console.print(
            Text(
                f"{_text(incident['at'])}  {(incident['state'] or 'unknown').lower()}  {incident['operator']}: "
                f"{texts_of(incident)} ({incident['action']})"
            )
        )
    console.print(status.timeline)
    for line in status.damage:
        console.print(Text(f"DAMAGED: {line}", style="bold red"), soft_wrap=True)


def _exchange(found: Mapping[str, Any]) -> str:
    return f"{found['name']}: {exchange_text(found['rows'], found['bytes'], found['stored_bytes'])}"


def _inboxes(found: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"{one['name']}: {inbox_text(one)}" for one in found)


def _standing(status: JobStatus) -> str:
    if status.lost:
        return f"{status.state.value} when its driver was lost; start the job again to resume it"
    if status.silent and status.heartbeat is not None:
        return f"{status.state.value}, no heartbeat since {_text(status.heartbeat)} UTC: its driver may be lost"
    return f"{status.state.value}{', driver running' if status.alive else ''}"


def show_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], console: Console) -> None:
    """Print rows as a table: at full width unless on a terminal, so that nothing is cut off in a pipe or file."""

    def column(name: str) -> Column[Mapping[str, Any]]:
        return Column(name, lambda row: _text(row[name]), number=name in _NUMBERS)

    made = table(rows, [column(name) for name in names], box=None, pad_edge=False)
    # rich measures no wider than the width that it is given.
    widen(console, console.measure(made, options=console.options.update(width=100_000)).maximum)
    console.print(made)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}"
    if isinstance(value, bool):
        return "yes" if value else ""
    return str(value)


# -- top --------------------------------------------------------------------------------------------------------------


def top_view(page: Mapping[str, Any], height: int | None = None) -> Group:
    """The view of `spark-ext top`, cut to the height of the terminal; None means all queries."""
    job, rows = page["job"], top_rows(page)
    most = len(rows) if height is None else max(1, height - 5)
    head = headline(
        job["name"],
        job["state"],
        f"incarnation {job['incarnation']}",
        count(job["epochs"], "epoch"),
        count(job["rows"], "row"),
        "" if job["rate"] is None else f"{job['rate']:,.0f} rows/s",
        f"{datetime.fromtimestamp(page['at'] / 1000, timezone.utc):%H:%M:%S} UTC",
    )
    head.stylize("bold", 0, len(job["name"]))
    if job["silent"]:
        beat = datetime.fromtimestamp(job["heartbeat"] / 1000, timezone.utc)
        head.append(f"  no heartbeat since {beat:%Y-%m-%d %H:%M:%S} UTC", style=colour("DOWN").terminal)
    columns: list[Column[Mapping[str, Any]]] = [
        Column("query", lambda row: row["query"]),
        Column("state", lambda row: _state(row["state"])),
        Column("rows/s", lambda row: _number(row["rows_per_s"]), number=True),
        Column("epochs", lambda row: _number(row["epochs"]), number=True),
        Column("last epoch", lambda row: _number(row["last_epoch"]), number=True),
        Column("took", lambda row: "" if row["last_epoch_ms"] is None else duration(row["last_epoch_ms"] / 1000), True),
        Column("ago", lambda row: "" if row["age_s"] is None else duration(row["age_s"]), number=True),
        Column(
            "lag",
            lambda row: lag_text(row["lag_rows"], row["lag_age_s"]),
            number=True,
            used=any(row["lag_rows"] is not None for row in rows),
        ),
        Column("mostly", lambda row: mostly(row["parts_ms"]), used=any(row["parts_ms"] for row in rows)),
        Column(
            "exchange",
            lambda row: "" if row["exchange"] is None else _exchange(row["exchange"]),
            used=any(row["exchange"] is not None for row in rows),
        ),
        Column("inbox", lambda row: _inboxes(row["inboxes"]), used=any(row["inboxes"] for row in rows)),
        Column("incident", lambda row: Text(row["incident"][:8], style="red")),
        Column("reason", lambda row: shorten(row["reason"], REASON, placeholder=" ...")),
    ]
    shown = table(rows[:most], columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    more = len(rows) - most
    return Group(head, shown, *([Text(f"and {more} more", style="bright_black")] if more > 0 else []))


def mostly(parts: Mapping[str, int]) -> str:
    """The part of an epoch that took the longest, with its share: `user code 63%`; "" if nothing is known."""
    whole = sum(parts.values())
    if not whole:
        return ""
    longest = max(parts, key=lambda part: parts[part])
    return f"{longest.replace('_', ' ')} {round(100 * parts[longest] / whole)}%"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


# -- the live line ----------------------------------------------------------------------------------------------------


def show(take: Callable[[], JobSnapshot], wait: Callable[[float], bool], console: Console | None = None) -> None:
    """Show a running job until it has ended, on standard error by default.

    `wait` waits for its end, for at most the given seconds, and returns whether it has ended. A failure with which the
    run ends is raised by it, and not logged beside.
    """
    console = console or Terminal(stderr=True)
    log = logger("spark_ext.job")
    log.addFilter(_is_not_raised)
    try:
        if console.is_terminal:
            _show_live(take, wait, console)
        else:
            _show_lines(take, wait, console)
    finally:
        log.removeFilter(_is_not_raised)


def _is_not_raised(record: logging.LogRecord) -> bool:
    return not getattr(record, GIVEN_UP, False)


def _show_lines(take: Callable[[], JobSnapshot], wait: Callable[[float], bool], console: Console) -> None:
    """A line at once, at the end, and whenever something has changed; again and again while the job is started."""
    known, ended = None, False
    while not ended:
        ended = known is not None and wait(LOG_EVERY)
        snapshot = take()
        content = line(replace(snapshot, started=None, at=_NEVER)).plain  # without the time that has passed
        if ended or content != known or snapshot.state in STARTING:
            console.print(line(snapshot), soft_wrap=True)
        known = content


_NEVER: Final = datetime.min.replace(tzinfo=timezone.utc)


def _show_live(take: Callable[[], JobSnapshot], wait: Callable[[float], bool], console: Console) -> None:
    before = (sys.stdout, sys.stderr)
    # What goes into a pipe or file stays there: only output to the terminal is printed above the live line.
    live = Live(line(take()), console=console, refresh_per_second=4, redirect_stdout=sys.stdout.isatty())
    with live, _redirected_logs(tuple(zip(before, (sys.stdout, sys.stderr), strict=True))):
        while not wait(LIVE_EVERY):
            live.update(line(take()))
        live.update(line(take()))


@contextmanager
def _redirected_logs(streams: Sequence[tuple[TextIO, TextIO]]) -> Iterator[None]:
    """Let the root logger's handlers write to the streams that rich puts in place of the standard ones.

    A handler keeps the stream that it was made with; what it writes there tears the live line.
    """
    moved = []
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            for old, new in streams:
                if handler.stream is old is not new:
                    handler.setStream(new)
                    moved.append((handler, old))
                    break
    try:
        yield
    finally:
        for handler, old in moved:
            handler.setStream(old)


def line(snapshot: JobSnapshot) -> Text:
    """One line about the job, and one about each query when there are several."""
    parts = [clock(snapshot.seconds)]
    if snapshot.epochs or snapshot.rows:
        parts += [count(snapshot.epochs, "epoch"), count(snapshot.rows, "row")]
    if snapshot.rows:  # the first epoch of a query may be empty: no rate is no news then
        parts.append(f"{snapshot.rows / snapshot.seconds if snapshot.seconds > 0 else 0.0:,.0f} rows/s")
    several = len(snapshot.queries) != 1
    failed = snapshot.state is State.FAILED  # why is raised: it is said once
    about = [
        [_lag(query, snapshot.at), "" if failed and query.state is State.FAILED else _activity(query), _channels(query)]
        for query in snapshot.queries
    ]
    out = headline(snapshot.job, snapshot.state.value, *parts, *([] if several else about[0]))
    if several:
        for query, own in zip(snapshot.queries, about, strict=True):
            out.append("\n  ").append_text(headline(query.uid, query.state.value, *_figures(query), *own))
    return out


def _figures(query: QuerySnapshot) -> tuple[str, ...]:
    if not query.epochs and not query.rows:
        return ()
    number = "" if query.last_epoch is None else f"epoch {query.last_epoch}"
    pace = "" if query.last_epoch_ms is None else f"{query.last_epoch_ms:,} ms/epoch"
    return number, count(query.rows, "row"), pace


def _lag(query: QuerySnapshot, now: datetime) -> str:
    """How far it is behind, unless that is unknown or it has ended with nothing to read."""
    if query.lag_rows is None or (query.state.ended and not query.lag_rows):
        return ""
    return f"lag {lag_of(query, now)}"


def _activity(query: QuerySnapshot) -> str:
    """What the query is doing, where its figures do not say."""
    if query.state is State.CREATED:
        return "waiting to start"
    if query.state is State.RUNNING and not query.reason:
        if query.epochs:
            return ""
        waits = f"{query.phase}, " if query.phase else ""
        if query.last_epoch is None:
            return f"{waits}waiting for the first epoch"
        return f"resumed after epoch {query.last_epoch}, {waits}waiting for the next epoch"
    if query.state is State.DEPLOYING and query.phase:
        return query.phase
    if query.state is State.FINISHING:
        return "taking the final checkpoint"
    if query.finished_before:
        return "finished in an earlier run"
    first, _, _ = query.reason.partition("\n")
    return shorten(first, REASON, placeholder=" ...")


def _channels(query: QuerySnapshot) -> str:
    """How many channels have finished, and how many are being read."""
    if not query.sources:
        return ""
    finished = sum(query.channels_finished.values())
    counts = f"channels: {finished:,} finished"
    running = [source.channels_running for source in query.sources if source.channels_running is not None]
    if running:
        counts += f", {sum(running):,} running"
    return counts + ("  end of input" if all(source.finished for source in query.sources) else "")
