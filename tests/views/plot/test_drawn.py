"""The plots as a figure and as text: what stands in them."""

import re
from dataclasses import replace

import pytest
from rich.console import Console

from spark_ext.views.plot.data import Bar, Line, Panel, Plots
from spark_ext.views.plot.figure import figure
from spark_ext.views.plot.terminal import view

pytest.importorskip("matplotlib")
pytest.importorskip("plotext")

HOUR = 3_600_000
T0 = 1_767_225_600_000  # 2026-01-01 00:00 UTC, ms


def line(uid: str, *values: float | None) -> Line:
    return Line(query=uid, at=tuple(T0 + n * HOUR for n in range(len(values))), values=values)


def shown(*panels: Panel, bars: tuple[Bar, ...] | None = None, gaps: tuple[tuple[int, int], ...] = ()) -> Plots:
    return Plots(
        job="shop", state="RUNNING", at=T0 + 5 * HOUR, panels=panels, bars=bars, gaps=gaps, incidents=(T0 + HOUR,)
    )


DURATION = Panel(title="Duration of an epoch", unit="ms", lines=(line("a", 10, 20, None, 30), line("b", 1, 2, 3, 4)))
LAG = Panel(title="Rows still to be read", unit="rows", lines=(line("b", 1_000, 2_000, 0, 10),))
NOTHING = Panel(title="Rows still to be read", unit="rows", lines=(), nothing="no source of this job knows its lag")
BARS = (
    Bar(query="a", source="files", done=3, running=1, ended=False),
    Bar(query="b", source="table", done=2, running=0, ended=True),
)


def test_the_figure_has_units_utc_and_one_colour_for_each_query() -> None:
    made = figure(shown(DURATION, LAG, bars=BARS, gaps=((T0, T0 + HOUR),)))
    duration, lag, bars = made.axes
    titles = ["Duration of an epoch, ms", "Rows still to be read", "Channels that have finished"]
    assert [axes.get_title(loc="left") for axes in made.axes] == titles
    assert lag.get_xlabel() == "time, UTC"
    (legend,) = made.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "no driver", "incident"]
    assert legend.get_title().get_text() == "shop   RUNNING   2026-01-01 05:00:00 UTC"
    colours = {entry.get_label(): entry.get_color() for entry in legend.get_lines()}
    assert duration.lines[1].get_color() == lag.lines[0].get_color() == colours["b"] != colours["a"]
    assert [text.get_text() for text in bars.texts] == ["3 of 4", "2 of 2, ended"]
    assert made._repr_png_().startswith(b"\x89PNG")


def test_the_figure_says_what_is_not_known() -> None:
    made = figure(shown(NOTHING, bars=()))
    said = [text.get_text() for axes in made.axes for text in axes.texts]
    assert said == [NOTHING.nothing, "no channel is known yet"]
    assert made._repr_png_()


@pytest.mark.slow(0.5, "draws whole figures")
@pytest.mark.parametrize("bars", [None, (), BARS[:1], BARS * 12])
@pytest.mark.filterwarnings("error")  # matplotlib's, when a layout does not fit
def test_the_layout_fits(bars: tuple[Bar, ...] | None) -> None:
    assert figure(replace(shown(DURATION, bars=bars), incidents=()))._repr_png_()
    assert figure(shown(bars=bars or ()))._repr_png_()


def test_a_figure_is_none_of_pyplot() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    figure(shown(DURATION))
    assert pyplot.get_fignums() == before


def text_of(plotted: Plots, width: int = 90) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as found:
        console.print(view(plotted, width))
    return found.get()


def test_the_terminal_has_the_same() -> None:
    text = text_of(shown(DURATION, LAG, bars=BARS))
    assert text.startswith("shop RUNNING  2026-01-01 05:00:00 UTC  1 incident\n")
    assert "Duration of an epoch, ms" in text and "Rows still to be read" in text
    assert text.count("time, UTC") == 2
    ticks = re.findall(r"(\d\d:\d\d:\d\d) ", text.split("time, UTC")[0].splitlines()[-2])
    assert ticks == ["00:00:00", "00:45:00", "01:30:00", "02:15:00", "03:00:00"]
    assert re.search(r"^table +━+ +2 of 2, ended$", text, re.MULTILINE)
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 90


def test_the_terminal_says_what_is_not_known() -> None:
    assert "Rows still to be read: no source of this job knows its lag" in text_of(shown(NOTHING))
    assert "no channel is known yet" in text_of(shown(bars=()))


@pytest.mark.parametrize("values", [(0.0, 0.0), (5.0,), (0.001, 0.002), (None, 7.0), (1e9, 2e9)])
def test_any_values_can_be_drawn(values: tuple[float | None, ...]) -> None:
    panel = Panel(title="Rows read by an epoch", unit="rows", lines=(line("a", *values),))
    assert "00:00" in text_of(shown(panel))
    assert figure(shown(panel))._repr_png_()


def test_hundreds_of_queries_are_one_grey_entry() -> None:
    others = tuple(line(f"q{n}", 1, 2) for n in range(9))
    (legend,) = figure(shown(Panel(title="Rows", unit="rows", lines=(line("a", 1, 2),), others=others))).legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "9 more", "incident"]
