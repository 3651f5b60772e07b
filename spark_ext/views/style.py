"""Colours and formats that the views share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from spark_ext.model.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from spark_ext.views.snapshot import QuerySnapshot


class Colour(NamedTuple):
    """A state's colour."""

    terminal: str  # a style of rich
    html: str


OTHER = Colour("white", "#888")  # of a state that has no colour of its own

COLOURS = {
    "CREATED": Colour("bright_black", "#9aa0a6"),
    "SCHEDULING": Colour("bright_red", "#d56e0c"),
    "DEPLOYING": Colour("bright_cyan", "#7baaf7"),
    "RESTORING": Colour("cyan", "#4ecdc4"),
    "RUNNING": Colour("green", "#34a853"),
    "PAUSED": Colour("bright_blue", "#80868b"),
    "FINISHING": Colour("blue", "#4285f4"),
    "RESTARTING": Colour("yellow", "#fbbc04"),
    "FAILING": Colour("red", "#ea4335"),
    "SUSPENDED": Colour("bold cyan", "#12858a"),
    "FINISHED": Colour("bold green", "#188038"),
    "FAILED": Colour("bold red", "#c5221f"),
    "CANCELED": Colour("magenta", "#a142f4"),
    "DOWN": Colour("bold red", "#202124"),
}


def colour(state: str) -> Colour:
    """The colour of a state, by its name."""
    return COLOURS.get(state, OTHER)


def count(number: int, noun: str) -> str:
    """A number and what it counts: `1 epoch`, `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """How long something lasted: `120 ms`, `3.5 s`, `1:02 min`, `1:00:05`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return clock(seconds) if seconds >= 3600 else f"{clock(seconds)} min"


def left_in_state(query: QuerySnapshot) -> str:
    """What is left in the state of a query that has ended, in words; "" if that is nothing, or unknown."""
    if query.early_rows is not None:
        return f"{count(query.early_rows, 'row')} of open windows shown early"
    if not query.state_rows or not (query.finished or query.state is State.SUSPENDED):
        return ""
    rows = count(query.state_rows, "row")
    if query.finished:
        return f"{rows} left in its state"
    ends = ", such as open windows, which until='now' with emit='all' ends" if query.emits else ""
    return f"{rows} in its state for the next run{ends}"


STALE_S = 10.0  # a figure that is older is shown with its age, s


def lag_text(rows: int | None, age: float | None) -> str:
    """How far something is behind: `1,200`, or `1,200, 40 s ago` if that is not known to be true now; "": unknown."""
    if rows is None:
        return ""
    return f"{rows:,}" if age is None or age <= STALE_S else f"{rows:,}, {ago(age)} ago"


def lag_of(query: QuerySnapshot, now: datetime) -> str:
    """How far a query is behind."""
    age = None if query.state.ended or query.lag_at is None else (now - query.lag_at).total_seconds()
    return lag_text(query.lag_rows, age)


def size_text(size: float) -> str:
    """A number of bytes: `812 B`, `1.5 MiB`."""
    if size < 1024:
        return f"{size:,.0f} B"
    power = 1 if size < 1 << 20 else 2 if size < 1 << 30 else 3
    return f"{size / 1024**power:,.1f} {'KMG'[power - 1]}iB"


def exchange_text(rows: int, size: int, stored: int) -> str:
    """How full an exchange is: `1,200 rows, 1.5 MiB; 3.0 MiB on disk`."""
    return f"{count(rows, 'row')}, {size_text(size)}; {size_text(stored)} on disk"


def inbox_text(inbox: Mapping[str, Any]) -> str:
    """An inbox: `2 accepting; 1.5 MiB of 1.0 GiB, oldest 40 s; 1,200 events, p99 4 ms; 2 rejected`."""
    states = ", ".join(f"{number:,} {state}" for state, number in inbox["gateways"].items() if number)
    oldest = "" if inbox["oldest_s"] is None else f", oldest {ago(inbox['oldest_s'])}"
    left_out = [count(inbox[one], one.removesuffix("s")) for one in ("repeats", "conflicts") if inbox[one]]
    soon = [] if inbox["ack_p99_ms"] is None else [f"p99 {inbox['ack_p99_ms']:,} ms"]
    rejected = sum(inbox["rejected"].values())
    parts = [
        states or "no gateway",
        f"{size_text(inbox['bytes'])} of {size_text(inbox['max_bytes'])}{oldest}",
        ", ".join([count(inbox["acknowledged"], "event"), *left_out, *soon]),
        f"{rejected:,} rejected" if rejected else "",
    ]
    return "; ".join(part for part in parts if part)


def ago(seconds: float) -> str:
    """A duration without fractions of a second: `40 s`, `1:02 min`, `1:00:05`."""
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(seconds)


def latency_text(query: QuerySnapshot) -> str:
    """The newest latency of a query from each of its sources, by the slowest way: `orders 120 ms, rates 3.5 s`."""
    slowest: dict[str, int] = {}
    for one in query.latencies:
        slowest[one.source] = max(one.ms, slowest.get(one.source, 0))
    return ", ".join(f"{source} {duration(ms / 1000)}" for source, ms in slowest.items())


def clock(seconds: float) -> str:
    """Elapsed time: `0:05`, `1:00:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
