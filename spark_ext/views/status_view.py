"""The display of a job's status and of its tables' rows on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from spark_ext.views.style import colour, lag_text, latency_text

if TYPE_CHECKING:
    from rich.console import Console

    from spark_ext.views.snapshot import QuerySnapshot
    from spark_ext.views.status import JobStatus

PIPE_WIDTH = 160
"""Characters in a line where the output is not a terminal."""

_NUMBERS = frozenset(
    {"epoch", "input_rows", "duration_ms", "lineage", "incarnation", "checkpoint_id", "rows_in_flight"}
)


def show_status(status: JobStatus, console: Console) -> None:
    """Print a line about the job, a table of its queries, its newest incidents, and its timeline."""
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    console.print(
        Text(f"{status.job} {_state(status)}", style="bold"),
        f"incarnation {status.incarnation}, lineage {status.lineage}, driver on {status.driver}",
        sep="  ",
        soft_wrap=True,
    )
    measured = any(query.latencies for query in status.queries)
    latency = ("latency",) if measured else ()
    bad = ("bad rows",) if any(query.bad_rows for query in status.queries) else ()
    late = ("late rows",) if any(query.late_rows for query in status.queries) else ()
    behind = ("lag",) if any(query.lag_rows is not None for query in status.queries) else ()
    table = Table(
        "query", "state", "epoch", "epochs", "rows", *bad, *late, *behind, "channels finished", *latency, "reason"
    )
    for query in status.queries:
        table.add_row(
            query.uid,
            Text(query.state.value, style=colour(query.state.value).terminal),
            "" if query.last_epoch is None else str(query.last_epoch),
            f"{query.epochs:,}",
            f"{query.rows:,}",
            *(f"{query.bad_rows:,}" for _ in bad),
            *(f"{query.late_rows:,}" for _ in late),
            *(_lag(query, status) for _ in behind),
            "\n".join(f"{source}: {number:,}" for source, number in query.channels_finished.items()),
            *(Text(latency_text(query)) for _ in latency),
            Text(query.reason),
        )
    console.print(table)
    for incident in status.incidents:
        console.print(
            Text(f"{_text(incident['at'])}  {incident['operator']}: {incident['what']} ({incident['action']})")
        )
    console.print(status.timeline)
    for line in status.damage:
        console.print(Text(f"DAMAGED: {line}", style="bold red"), soft_wrap=True)


def _lag(query: QuerySnapshot, status: JobStatus) -> str:
    at = None if query.state.ended else query.lag_at
    return lag_text(query.lag_rows, None if at is None else (status.at - at).total_seconds())


def _state(status: JobStatus) -> str:
    if status.lost:
        return f"{status.state.value} when its driver was lost; start the job again to resume it"
    if status.silent and status.heartbeat is not None:
        return f"{status.state.value}, no heartbeat since {_text(status.heartbeat)} UTC: its driver may be lost"
    return f"{status.state.value}{', driver running' if status.alive else ''}"


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], console: Console) -> None:
    """Print rows as a table: at full width unless on a terminal, so that nothing is cut off in a pipe or file."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_text(row[column])) for column in columns))
    if not console.is_terminal:
        # rich measures no wider than the width that it is given.
        wanted = console.measure(table, options=console.options.update(width=100_000)).maximum
        console.width = max(console.width, wanted)
    console.print(table)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}"
    if isinstance(value, bool):
        return "yes" if value else ""
    return str(value)
