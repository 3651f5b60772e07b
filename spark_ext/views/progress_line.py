"""The live line of a running job, on standard error: state, epochs, rows, lag. Display only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from spark_ext.model.lifecycle import State
from spark_ext.model.query_offsets import source_offsets

if TYPE_CHECKING:
    from spark_ext.jobs.job import Job
    from spark_ext.queries.run import QueryRun

LIVE_EVERY = 0.25
"""Refresh on a terminal, s."""

LOG_EVERY = 5.0
"""One line so often where there is no terminal, s."""

_COLOURS = {State.RUNNING: "green", State.FINISHED: "bold green", State.FAILED: "bold red", State.RESTARTING: "yellow"}


def show(job: Job, console: Console | None = None) -> None:
    """Show a running job until it has ended."""
    console = console or Console(stderr=True)
    since = time.monotonic()
    if console.is_terminal:
        with Live(line(job, 0), console=console, refresh_per_second=4, transient=False) as live:
            while not job.wait(LIVE_EVERY):
                live.update(line(job, time.monotonic() - since))
            live.update(line(job, time.monotonic() - since))
        return
    while not job.wait(LOG_EVERY):
        console.print(line(job, time.monotonic() - since), soft_wrap=True)
    console.print(line(job, time.monotonic() - since), soft_wrap=True)


def line(job: Job, seconds: float) -> Text:
    """One line for the job, and one for each query when there are several."""
    runs = job.runs
    rows = sum(run.figures.input_rows for run in runs)
    epochs = sum(run.figures.epochs for run in runs)
    rate = rows / seconds if seconds > 0 else 0.0
    out = Text()
    out.append(f"{job.name} ")
    out.append(job.state.value, style=_COLOURS.get(job.state, "cyan"))
    out.append(f"  {epochs} epochs  {rows:,} rows  {rate:,.0f} rows/s  {int(seconds) // 60}:{int(seconds) % 60:02d}")
    if len(runs) > 1:
        for run in runs:
            out.append(f"\n  {run.spec.uid} ")
            out.append(run.state.value, style=_COLOURS.get(run.state, "cyan"))
            out.append(f"  {_query(run)}")
    elif runs:
        out.append(f"  {_channels(run=runs[0])}")
    return out


def _query(run: QueryRun) -> str:
    figures = run.figures
    return f"epoch {run.committed}  {figures.input_rows:,} rows  {figures.last_epoch_ms} ms/epoch  {_channels(run)}"


def _channels(run: QueryRun) -> str:
    """How many channels have finished, and how many are being read."""
    if run.offsets is None:
        return ""
    offsets = source_offsets(run.offsets).values()
    finished = sum(offset.sequence for offset in offsets)
    running = sum(len(offset.running) for offset in offsets)
    ended = "  end of input" if offsets and all(offset.ended for offset in offsets) else ""
    return f"channels: {finished} finished, {running} running{ended}"
