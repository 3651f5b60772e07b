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
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun


class Gates:
    """The queries that wait. Its methods are for the coordinator's thread, and do not block.

    Args:
        waiting: the queries.
        finished: queries that had finished before this start.
        build: calls the user's function and checks what it returns; on a thread of its own.
        begin: gives the query that was built the commands of its start.
        context: the job's.
    """

    def __init__(
        self,
        waiting: Sequence[Gate],
        finished: frozenset[str],
        build: Callable[[Gate], QueryRun],
        begin: Callable[[QueryRun], None],
        context: JobContext,
    ) -> None:
        self.failure: SparkExtError | None = None
        """Why a query could not be built; None as long as all could."""
        self._waiting = list(waiting)
        self._finished = finished
        self._build = build
        self._begin = begin
        self._context = context
        self._worker = Worker(f"spark-ext-gates-{context.job}", context.wake.set)
        self._building: str | None = None
        self._built: list[QueryRun] = []

    @property
    def uids(self) -> tuple[str, ...]:
        """The queries that still wait, in the order in which they were added."""
        return tuple(gate.uid for gate in self._waiting)

    @property
    def after(self) -> dict[str, tuple[str, ...]]:
        """Of each that still waits, the queries for whose end it waits and which had not finished before this start."""
        return {gate.uid: tuple(one for one in gate.after if one not in self._finished) for gate in self._waiting}

    def due(self, runs: Sequence[QueryRun]) -> bool:
        """Whether one is being built, or has to be: all those for which it waits have finished."""
        waits = self._next(runs) is not None
        return self.failure is None and (waits or self._building is not None or bool(self._built))

    def _next(self, runs: Sequence[QueryRun]) -> Gate | None:
        """The next query whose turn has come."""
        finished = self._finished | {run.spec.uid for run in runs if run.state is State.FINISHED}
        due = (gate for gate in self._waiting if finished.issuperset(gate.after))
        return None if self._context.holds_gates else next(due, None)

    def tick(self, runs: Sequence[QueryRun]) -> list[QueryRun]:
        """Begin to build what is due.

        Args:
            runs: the queries that are there.

        Returns:
            Those that have been built since the last call; they have been given the commands of their start.
        """
        self._worker.deliver()
        built, self._built = self._built, []
        due = self._next(runs)
        # One at a time: each has to be compared with those before it.
        if due is not None and self._building is None and not built and self.failure is None:
            self._building = due.uid
            self._worker.do(f"the building of query '{due.uid}'", partial(self._build, due), self._taken)
        return built

    def _taken(self, outcome: Outcome[QueryRun]) -> None:
        uid, self._building = self._building, None
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
        self._waiting = [gate for gate in self._waiting if gate.uid != uid]
        self._built.append(run)
        self._begin(run)

    def close(self) -> None:
        """The job ends: what waits is not built any more."""
        self._worker.close()
