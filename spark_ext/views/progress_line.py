"""The live line of a running job, on standard error: state, time, epochs, rows and channels. Display only."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from textwrap import shorten
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from spark_ext.model.lifecycle import State
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot
from spark_ext.views.style import clock, colour, count, lag_text
from spark_ext.views.terminal import Terminal

LIVE_EVERY = 0.25
"""Interval between updates on a terminal, s."""

LOG_EVERY = 5.0
"""Interval between lines where there is no terminal, s."""

REASON_WIDTH = 100
"""Characters of a reason that are shown."""


def show(take: Callable[[], JobSnapshot], wait: Callable[[float], bool], console: Console | None = None) -> None:
    """Show a running job until it has ended.

    Args:
        wait: waits for the job's end for at most so many seconds; returns whether it has ended.
        console: where to; None: standard error.
    """
    console = console or Terminal(stderr=True)
    if console.is_terminal:
        _show_live(take, wait, console)
        return
    while not wait(LOG_EVERY):
        console.print(line(take()), soft_wrap=True)
    console.print(line(take()), soft_wrap=True)


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
    out = _state(snapshot.job, snapshot.state)
    out.append(f"  {clock(snapshot.seconds)}")
    if snapshot.epochs or snapshot.rows:
        rate = snapshot.rows / snapshot.seconds if snapshot.seconds > 0 else 0.0
        # The first epoch of a query may be empty: no rate is no news then.
        pace = f"  {rate:,.0f} rows/s" if snapshot.rows else ""
        out.append(f"  {count(snapshot.epochs, 'epoch')}  {count(snapshot.rows, 'row')}{pace}")
    if len(snapshot.queries) == 1:
        (query,) = snapshot.queries
        out.append(_joined(_lag(query, snapshot.at), _activity(query), _channels(query)))
        return out
    for query in snapshot.queries:
        out.append("\n  ").append_text(_state(query.uid, query.state))
        out.append(_joined(_figures(query), _lag(query, snapshot.at), _activity(query), _channels(query)))
    return out


def _state(name: str, state: State) -> Text:
    return Text(f"{name} ").append(state.value, style=colour(state.value).terminal)


def _joined(*parts: str) -> str:
    return "".join(f"  {part}" for part in parts if part)


def _figures(query: QuerySnapshot) -> str:
    if not query.epochs and not query.rows:
        return ""
    number = "" if query.last_epoch is None else f"epoch {query.last_epoch}"
    pace = "" if query.last_epoch_ms is None else f"{query.last_epoch_ms:,} ms/epoch"
    return _joined(number, count(query.rows, "row"), pace).strip()


def _lag(query: QuerySnapshot, now: datetime) -> str:
    """How far it is behind, unless that is unknown or it has ended with nothing to read."""
    if query.lag_rows is None or (query.state.ended and not query.lag_rows):
        return ""
    age = None if query.state.ended or query.lag_at is None else (now - query.lag_at).total_seconds()
    return f"lag {lag_text(query.lag_rows, age)}"


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
    if query.state is State.FINISHING:
        return "taking the final checkpoint"
    if query.finished_before:
        return "finished in an earlier run"
    first, _, _ = query.reason.partition("\n")
    return shorten(first, REASON_WIDTH, placeholder=" ...")


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
