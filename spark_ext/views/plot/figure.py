"""The plots of a job as a figure of matplotlib, which needs the extra `plot`.

The figure belongs to nobody else: it is not one of pyplot's, so no backend is chosen and nothing stays in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from io import BytesIO
from typing import TYPE_CHECKING, Final

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from spark_ext.views.plot.data import ROWS, Bar, Line, Panel, Plots, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
"""Of queries, by uid. They can be told apart by people who see colours in another way (Okabe and Ito)."""

OTHERS: Final = "#B8BDC4"  # of all queries without a colour of their own

INK, FAINT, GRID, GAP, ALARM = "#24292F", "#6B7280", "#E5E7EB", "#F1F2F4", "#C5221F"

WIDTH: Final = 10.0  # inches
PANEL_HEIGHT: Final = 2.3  # inches
BAR_HEIGHT: Final = 0.3  # inches
LEAST_BARS: Final = 2  # for as many there is room, however few there are
COLUMNS: Final = 9  # entries in a line of the legend
TICKS: Final = ["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S"]  # by what ticks are apart: years to seconds
DATES: Final = ["", "%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d"]  # what stands beside the axis then
DPI: Final = 144  # points of an inch in an image


class JobFigure(Figure):
    """A figure that a notebook shows, whatever its backend is."""

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        self.savefig(out, format="png", dpi=DPI)
        return out.getvalue()


def figure(shown: Plots) -> JobFigure:
    """Draw the plots of a job, one below the other."""
    heights = [PANEL_HEIGHT] * len(shown.panels)
    if shown.bars is not None:
        heights.append(0.9 + BAR_HEIGHT * max(LEAST_BARS, len(shown.bars)))
    made = JobFigure(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained", facecolor="white")
    grid = made.add_gridspec(len(heights), 1, height_ratios=heights)
    colours = dict(zip(shown.queries, COLOURS, strict=False))
    first: Axes | None = None
    for number, panel in enumerate(shown.panels):
        axes = made.add_subplot(grid[number], sharex=first)
        first = first or axes
        _lines(axes, panel, shown, colours)
        if number + 1 < len(shown.panels):
            axes.tick_params(labelbottom=False)
        else:
            axes.set_xlabel("time, UTC", color=FAINT, fontsize=9)
    _head(made, shown, colours)
    if shown.bars is not None:
        _channels(made.add_subplot(grid[len(heights) - 1]), shown.bars, shown.more)
    return made


def _lines(axes: Axes, panel: Panel, shown: Plots, colours: dict[str, str]) -> None:
    _plain(axes, panel.heading)
    if panel.nothing:
        _say(axes, panel.nothing)
        return
    for since, until in shown.gaps:
        axes.axvspan(_time(since), _time(until), color=GAP, lw=0, zorder=0)  # type: ignore[arg-type]  # a date is a number
    for line in panel.others:
        _line(axes, line, OTHERS, 0.8)
    for line in panel.lines:
        _line(axes, line, colours[line.query], 1.4)
    axes.set_ylim(0, panel.peak * 1.08 or 1)
    # Incidents stand on the axis: a triangle hides no value.
    within = [at for at in shown.incidents if _first(panel) <= at <= max(shown.at, _last(panel))]
    if within:
        axes.plot(
            [_time(at) for at in within],  # type: ignore[arg-type]
            [0] * len(within),
            ls="",
            marker="^",
            ms=6,
            color=ALARM,
            clip_on=False,
            zorder=4,
        )
    locator = AutoDateLocator(tz=timezone.utc, minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, timezone.utc, TICKS, offset_formats=DATES))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=panel.unit == ROWS))
    if panel.unit == ROWS:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _line(axes: Axes, line: Line, colour: str, width: float) -> None:
    at = [_time(ms) for ms in line.at]
    if line.least and line.greatest and any(a != b for a, b in zip(line.least, line.greatest, strict=True)):
        axes.fill_between(at, _numbers(line.least), _numbers(line.greatest), color=colour, alpha=0.15, lw=0)  # type: ignore[arg-type]
    known = sum(value is not None for value in line.values)
    # A single epoch is no line, and of a few each can be seen.
    axes.plot(at, _numbers(line.values), color=colour, lw=width, marker="o" if known <= 40 else "", ms=3.5)  # type: ignore[arg-type]


def _head(made: Figure, shown: Plots, colours: dict[str, str]) -> None:
    """What is shown, and below it the legend of all panels: queries, and what the marks mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = any(not panel.nothing for panel in shown.panels)
    entries: list[Line2D | Patch] = [Line2D([], [], color=colour, lw=2, label=uid) for uid, colour in colours.items()]
    others = {line.query for panel in shown.panels for line in panel.others} - colours.keys()
    if others:
        entries.append(Line2D([], [], color=OTHERS, lw=2, label=f"{len(others)} more"))
    if shown.gaps and drawn:
        entries.append(Patch(color=GAP, label="no driver"))
    if shown.incidents and drawn:
        entries.append(Line2D([], [], ls="", marker="^", color=ALARM, label="incident"))
    title = f"{shown.job}   {shown.state}   {time_text(shown.at)} UTC"
    if not entries:
        made.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, weight="bold")
    else:
        made.legend(
            handles=entries,
            title=title,
            title_fontproperties={"size": 12, "weight": "bold"},
            alignment="left",
            loc="outside upper left",
            ncols=min(len(entries), COLUMNS),
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            handlelength=1.2,
            columnspacing=1.4,
        )


def _channels(axes: Axes, bars: Sequence[Bar], more: int) -> None:
    _plain(axes, "Channels that have finished" + (f" ({more} further sources are not shown)" if more else ""))
    axes.grid(visible=False)
    if not bars:
        _say(axes, "no channel is known yet")
        return
    places = range(len(bars))
    axes.barh(places, [1] * len(bars), color=GRID, height=0.6)
    axes.barh(
        places, [bar.share for bar in bars], color=[COLOURS[2] if bar.ended else COLOURS[0] for bar in bars], height=0.6
    )
    axes.set_yticks(places, [bar.source for bar in bars], fontsize=8)
    axes.set_ylim(max(LEAST_BARS, len(bars)) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    for place, bar in zip(places, bars, strict=True):
        text = f"{bar.done:,} of {bar.done + bar.running:,}" + (", ended" if bar.ended else "")
        axes.text(1.005, place, text, va="center", ha="left", fontsize=8, color=FAINT, clip_on=False)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(colors=FAINT, labelsize=8, length=3)
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.set_axisbelow(True)


def _say(axes: Axes, text: str) -> None:
    axes.set_yticks([])
    axes.set_xticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=9)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _first(panel: Panel) -> int:
    return min(line.at[0] for line in (*panel.lines, *panel.others))


def _last(panel: Panel) -> int:
    return max(line.at[-1] for line in (*panel.lines, *panel.others))
