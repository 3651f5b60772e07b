"""The plots of a job from its ledger: what is read, and the library that is needed to draw it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.clients.library import load
from spark_ext.errors import refused
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from spark_ext.views.plot.data import PlotKind, Plots, plots
from spark_ext.views.status import open_ledger

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.views.plot.figure import JobFigure


def plots_of(ledger: Ledger, kinds: Iterable[PlotKind], now: datetime) -> Plots:
    """What is drawn of a job that was started at least once."""
    return plots(page(FactsReader(ledger).read(), now), kinds)


def draw(shown: Plots, operator: str) -> JobFigure:
    """Draw the plots with matplotlib."""
    load("matplotlib", "plot", operator, "the Python that draws")
    from spark_ext.views.plot.figure import figure

    return figure(shown)


def figure_of(state: str, kinds: Sequence[str], who: str) -> JobFigure:
    """The plots of a job by its state directory; see `Job.plot`."""
    names = [kind.value for kind in PlotKind]
    for kind in kinds:
        if kind not in names:
            raise refused(
                f"'{kind}' cannot be plotted", who, f"use one of: {', '.join(names)}", kept="nothing was read"
            )
    wanted = [PlotKind(kind) for kind in kinds]
    return draw(plots_of(open_ledger(state), wanted, datetime.now(timezone.utc)), who)
