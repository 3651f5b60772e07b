"""How the command line shows a job's status and the rows of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from spark_ext.views.status import JobStatus

PIPE_WIDTH = 160
"""Characters in a line where there is no terminal to say how many it has."""

_NUMBERS = frozenset({"epoch", "input_rows", "duration_ms", "lineage", "incarnation"})


def show_status(status: JobStatus, console: Console) -> None:
    """The job in a line, its queries as a table, its newest incidents, its timeline."""
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    console.print(
        Text(f"{status.job} {_state(status)}", style="bold"),
        f"incarnation {status.incarnation}, lineage {status.lineage}, driver on {status.driver}",
        sep="  ",
        soft_wrap=True,
    )
    table = Table("query", "state", "epoch", "epochs", "rows", "channels finished", "why")
    for query in status.queries:
        channels = "\n".join(f"{source}: {count}" for source, count in sorted(query.channels_finished.items()))
        epoch = "" if query.last_epoch is None else str(query.last_epoch)
        table.add_row(query.uid, query.state, epoch, str(query.epochs), f"{query.rows:,}", channels, Text(query.reason))
    console.print(table)
    for incident in status.incidents:
        console.print(
            Text(f"{_text(incident['at'])}  {incident['operator']}: {incident['what']} ({incident['action']})")
        )
    console.print(status.timeline)


def _state(status: JobStatus) -> str:
    if status.lost:
        return f"{status.state} when its driver was lost; start it again to go on"
    return f"{status.state}{', running' if status.alive else ''}"


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], console: Console) -> None:
    """Rows as a table; full width when not on a terminal, so that a pipe loses nothing."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_text(row[column])) for column in columns))
    if not console.is_terminal:
        # A measure is never wider than what it is asked for.
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
