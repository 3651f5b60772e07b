"""The execution state of a job: what it does, by what its queries do, and its record in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_ext.model.execution import HEALTHY, Shown, job_execution
from spark_ext.model.lifecycle import State

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun


class JobExecution:
    """What a job does; for the coordinator's thread.

    Args:
        context: the job's.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._ran = False
        self.shown = Shown(State.CREATED)
        """What it does."""

    def show(self, state: State, runs: Sequence[QueryRun]) -> None:
        """Record what it does, if that has changed.

        Args:
            state: of its life cycle.
            runs: its queries, without those that are still to be built.
        """
        queries = [(run.spec.uid, run.watched.shown) for run in runs]
        now = job_execution(state, queries, ran=self._ran)
        if state in (State.FAILING, State.FAILED):
            failed = (run.watched.incident for run in runs if run.state is State.FAILED)
            now = replace(now, incident=next(failed, None))
        self._ran = self._ran or (now.state in HEALTHY and now.incident is None)
        if replace(now, since=None) != replace(self.shown, since=None):
            self.shown = now
            self._context.write_behind.state("", now.state, now.reason, now.since, now.incident)
