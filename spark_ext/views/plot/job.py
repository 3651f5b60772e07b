"""The plots of a job from its ledger: what is read, and the library that is needed to draw it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from spark_ext.clients.library import load
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from spark_ext.views.plot.data import PlotKind, Plots, plots

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.views.plot.figure import JobFigure


def plots_of(ledger: Ledger, kinds: Iterable[PlotKind], now: datetime) -> Plots:
    """What is drawn of a job that was started at least once.

    Args:
        now: UTC.
    """
    return plots(page(FactsReader(ledger).look(), now), kinds)


def draw(shown: Plots, who: str) -> JobFigure:
    """Draw the plots with matplotlib."""
    load("matplotlib", "plot", who, "the Python that draws")
    from spark_ext.views.plot.figure import figure

    return figure(shown)
