"""The plots of a job in a terminal: lines by plotext, which needs the extra `plot`, bars by rich."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spark_ext.clients.library import load
from spark_ext.views.plot.data import Bar, Line, Panel, Plots, time_text
from spark_ext.views.style import colour, count
from spark_ext.views.terminal import plain

COLOURS: Final = ("blue+", "orange+", "green+", "red+", "magenta+", "cyan+")  # plotext's names
OTHERS: Final = "gray"
HEIGHT: Final = 14  # lines of a panel, with its axis and its title
TICKS: Final = 5  # times that the axis shows


def view(shown: Plots, width: int) -> Group:
    """Draw the plots of a job, one below the other."""
    plotext: Any = load("plotext", "plot", "plot", "the Python of this command")
    head = Text(f"{shown.job} ", style="bold").append(shown.state, style=colour(shown.state).terminal)
    head.append(f"  {time_text(shown.at)} UTC")
    if shown.gaps:
        head.append(f"  {count(len(shown.gaps), 'time')} without a driver")
    if shown.incidents:
        head.append(f"  {count(len(shown.incidents), 'incident')}", style="red")
    parts: list[RenderableType] = [head]
    colours = dict(zip(shown.queries, COLOURS, strict=False))
    for panel in shown.panels:
        parts.append(Text())
        parts.append(
            Text(f"{panel.title}: {panel.nothing}", style="bright_black")
            if panel.nothing
            else Text.from_ansi(_lines(plotext, panel, colours, width))
        )
    if shown.bars is not None:
        parts += [Text(), _channels(shown.bars, shown.more)]
    return Group(*parts)


def _lines(plotext: Any, panel: Panel, colours: dict[str, str], width: int) -> str:
    """One panel as text with ANSI colours."""
    # Plotext has one figure for the whole process.
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(width, HEIGHT)
    plotext.theme("clear")
    plotext.title(plain(panel.heading))
    plotext.xlabel("time, UTC")
    drawn: list[tuple[Line, str, str | None]] = [(line, OTHERS, None) for line in panel.others]
    drawn += [(line, colours[line.query], plain(line.query)) for line in panel.lines]
    for line, shade, label in drawn:
        for part in _pieces(line):
            draw = plotext.plot if len(part) > 1 else plotext.scatter
            draw([at for at, _ in part], [value for _, value in part], color=shade, marker="braille", label=label)
            label = None  # a query is in the legend once
    first = min(line.at[0] for line, *_ in drawn) / 1000
    last = max(line.at[-1] for line, *_ in drawn) / 1000
    times = [first + (last - first) * place / (TICKS - 1) for place in range(TICKS)]
    form = "%H:%M:%S" if last - first < 86_400 else "%m-%d %H:%M"
    plotext.xticks(times, [datetime.fromtimestamp(at, timezone.utc).strftime(form) for at in times])
    top = panel.peak or 1.0
    plotext.ylim(0, top)
    steps = _steps(top)
    plotext.yticks(steps, [f"{step:,.10g}" for step in steps])
    try:
        return str(plotext.build()).rstrip("\n")
    finally:
        plotext.clear_figure()


def _pieces(line: Line) -> list[list[tuple[float, float]]]:
    """The values that are known, as runs without one that is not."""
    found: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(line.at, line.values, strict=True):
        if value is not None:
            found[-1].append((at / 1000, value))
        elif found[-1]:
            found.append([])
    return [part for part in found if part]


def _steps(top: float) -> list[float]:
    """Some round numbers from 0 up to the greatest value."""
    power = 10.0 ** math.floor(math.log10(top))
    step = next(size * power for size in (0.2, 0.5, 1, 2) if top / (size * power) <= 5)
    return [step * number for number in range(int(top / step + 1e-9) + 1)]


def _channels(bars: Sequence[Bar], more: int) -> RenderableType:
    if not bars:
        return Text("Channels that have finished: no channel is known yet", style="bright_black")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for name in ("source", "channels that have finished"):
        table.add_column(name, no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for bar in bars:
        table.add_row(
            Text(bar.source),
            ProgressBar(total=1, completed=bar.share, width=40, complete_style="green" if bar.ended else "blue"),
            Text(f"{bar.done:,} of {bar.done + bar.running:,}" + (", ended" if bar.ended else "")),
        )
    return Group(table, *([Text(f"and {count(more, 'further source')}", style="bright_black")] if more else []))
