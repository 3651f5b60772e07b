"""The queries of a running job, how they are linked, and those that are still to be built: what all its parts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ext.checkpoints.unaligned import Logged, QueryLook
from spark_ext.model.dag import JobGraph
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import Stands, Upstream, upstream_of

if TYPE_CHECKING:
    from spark_ext.queries.run import QueryRun


class ExecutionGraph:
    """Filled by the start of the job, and by gates as they open. Safe to read on any thread: all is replaced whole."""

    def __init__(self) -> None:
        self.runs: tuple[QueryRun, ...] = ()
        self.graph = JobGraph()  # of the queries that are built, and of those that wait
        # Queries that are not built yet, each with those for whose end it waits and which had not finished before.
        self.waiting: Mapping[str, tuple[str, ...]] = {}

    def plan(self, graph: JobGraph, waiting: Mapping[str, tuple[str, ...]]) -> None:
        """What the start has found, before a query runs."""
        self.graph, self.waiting = graph, waiting

    def add(self, run: QueryRun) -> None:
        """A query is under supervision from now on."""
        self.runs = (*self.runs, run)
        self.waiting = {uid: after for uid, after in self.waiting.items() if uid != run.spec.uid}

    def link(self, graph: JobGraph) -> None:
        """A query has been built, and with it more is known of how they are linked."""
        self.graph = graph

    def find(self, uid: str) -> QueryRun | None:
        """The query with a uid; None: it is not built, or not in the job."""
        return next((run for run in self.runs if run.spec.uid == uid), None)

    def looks(self) -> dict[str, QueryLook]:
        """A look at each query, from which a cut of the job is taken."""
        return {run.spec.uid: look_at(run) for run in self.runs}

    def logged(self, uid: str) -> Logged:
        """The committed epochs that Spark still has of a query."""
        run = self.find(uid)
        assert run is not None
        return run.observer.logged()

    def keep_registered(self) -> None:
        """Keep the registrations of all queries in the session registry."""
        for run in self.runs:
            run.keep_registered()

    def upstream(self, uid: str, *, gates_open: bool) -> Upstream:
        """About the queries that feed another one, in a run that ends with what is there; with gates open, or not."""
        stands = {run.spec.uid: Stands(run.state, run.committed) for run in self.runs}
        return upstream_of(self.graph.producers(uid), stands, self.waiting if gates_open else {})


def look_at(run: QueryRun) -> QueryLook:
    """A look at a query as it is now."""
    return QueryLook(run.application, run.recent, run.state is State.FINISHED, run.committed)
