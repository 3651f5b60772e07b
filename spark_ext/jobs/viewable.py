"""The part of a job's face that shows it: a live widget for notebooks, and plots."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.errors import refused
from spark_ext.incidents.types import IncidentState
from spark_ext.jobs.runnable import Runnable
from spark_ext.views.live import LastIncident

if TYPE_CHECKING:
    from spark_ext.jobs.widget import JobWidget
    from spark_ext.views.plot.figure import JobFigure


class Viewable(Runnable):
    """What a job offers to whoever looks at it; base of `Job`."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended."""

    def widget(self) -> JobWidget:
        """A widget for a notebook: state, rows, epochs, lag, channels and the last incident, refreshed each second.

        It follows the job while it is displayed and the job has not ended; make it before `run`, or after `start`.

        Returns:
            The widget; a notebook shows it when it is the last value of a cell.

        Raises:
            EnvironmentProblem: the extra `notebook` is not installed.
        """
        from spark_ext.jobs.widget import JobWidget

        return JobWidget(self)

    def plot(self, *kinds: str) -> JobFigure:
        """The job's epochs, lag and channels as a figure of matplotlib, from its ledger.

        The last rows of the ledger may be missing for a second or two while the job runs.

        Args:
            kinds: `epochs`, `lag`, `channels`; nothing: all of which something is known.

        Returns:
            The figure, which a notebook shows; `savefig(path)` writes it.

        Raises:
            ConfigurationError: there is no such kind.
            EnvironmentProblem: the extra `plot` is not installed.
            StateError: the job has never been started.
            StorageError: its ledger cannot be read.
        """
        from spark_ext.views.plot.data import PlotKind
        from spark_ext.views.plot.job import draw, plots_of
        from spark_ext.views.status import open_ledger

        who = f"job '{self.name}', plot"
        names = [kind.value for kind in PlotKind]
        for kind in kinds:
            if kind not in names:
                raise refused(
                    f"'{kind}' cannot be plotted", who, f"use one of: {', '.join(names)}", kept="nothing was read"
                )
        wanted = [PlotKind(kind) for kind in kinds]
        return draw(plots_of(open_ledger(self.state_directory), wanted, datetime.now(timezone.utc)), who)

    def last_incident(self) -> LastIncident | None:
        """The newest incident of the newest start in this process; None if there was none."""
        context = self._context
        entry = None if context is None else context.write_behind.incidents.last()
        if entry is None:
            return None
        found = entry.incident
        return LastIncident(found.type, found.what, found.at, entry.state is IncidentState.OPEN)
