"""Queries that are built and started when others have finished: `job.add(uid, function, after=...)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_ext.errors import SparkExtError, placed
from spark_ext.model.lifecycle import State
from spark_ext.queries.worker import Outcome, Worker

if TYPE_CHECKING:
    from spark_ext.jobs.composition import Gate
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun


class Gates:
    """The queries that wait. Its methods are for the coordinator's thread, and do not block."""

    def __init__(
        self,
        context: JobContext,
        execution: ExecutionGraph,
        gates: Sequence[Gate],
        build: Callable[[Gate], QueryRun],
        begin: Callable[[QueryRun], None],
    ) -> None:
        self.failure: SparkExtError | None = None  # why a query could not be built; None as long as all could
        self._context, self._execution, self._gates, self._build, self._begin = context, execution, gates, build, begin
        self._worker = Worker(f"spark-ext-gates-{context.job}", context.wake.set)
        self._building = ""

    def due(self) -> bool:
        """Whether one is being built, or has to be: all those for which it waits have finished."""
        return self.failure is None and (bool(self._building) or self._next() is not None)

    def _next(self) -> Gate | None:
        """The next query whose turn has come."""
        if self._context.holds_gates:
            return None
        finished = {run.spec.uid for run in self._execution.runs if run.state is State.FINISHED}
        waiting = self._execution.waiting
        return next((one for one in self._gates if one.uid in waiting and finished.issuperset(waiting[one.uid])), None)

    def tick(self) -> None:
        """Take in what has been built, and begin to build what is due."""
        self._worker.deliver()
        due = self._next()
        # One at a time: each has to be compared with those before it.
        if due is not None and not self._building and self.failure is None:
            self._building = due.uid
            self._worker.do(f"the building of query '{due.uid}'", partial(self._build, due), self._taken)

    def _taken(self, outcome: Outcome[QueryRun]) -> None:
        uid, self._building = self._building, ""
        if outcome.error is not None:
            self.failure = placed(
                outcome.error,
                f"job '{self._context.job}', query '{uid}'",
                "the query could not be built",
                kept="all committed epochs",
                do="correct the function that was given to job.add(...), and start the job again: what has finished is "
                "not run again",
            )
            return
        run = outcome.result()
        self._begin(run)
        self._execution.add(run)

    def close(self) -> None:
        """The job ends: what waits is not built any more."""
        self._worker.close()
