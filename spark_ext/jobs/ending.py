"""The end of a job: what was asked of it, and its last steps. One that fails does not keep others from being taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spark_ext.control.job_events import acknowledge
from spark_ext.errors import SparkExtError, placed
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import logger
from spark_ext.model.lifecycle import State
from spark_ext.queries.worker import Outcome

if TYPE_CHECKING:
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.observing.upkeep import Upkeep
    from spark_ext.queries.context import JobContext

log = logger("spark_ext.job")
LOOK_EVERY = 0.02  # pause between two looks at what is waited for, s
CLOSE_WITHIN = 10.0  # how long the end waits for the last rows of the ledger when the storage does not answer, s
AT_LEAST = 1.0  # how long it waits, when the time for stopping is over, for what is about to end by itself, s


class EndRequest:
    """What was asked of a job: to stop, and by when, or to drain. Safe for several threads."""

    def __init__(self, context: JobContext, execution: ExecutionGraph) -> None:
        self.stop_by: float | None = None  # when queries that have not stopped are given up, s, monotonic
        self._context, self._execution = context, execution
        self._drained = context.drain
        self._lock = threading.Lock()

    @property
    def stopping(self) -> bool:
        """Whether the job has been asked to stop."""
        return self.stop_by is not None

    def stop(self, timeout: float | None = None) -> None:
        """Stop all queries, without end of input.

        One that has not ended within `timeout` seconds (None: the setting `stop_timeout`) is given up as CANCELED.
        """
        by = time.monotonic() + (self._context.settings.stop_timeout / 1000 if timeout is None else timeout)
        with self._lock:
            self.stop_by = by if self.stop_by is None else min(by, self.stop_by)
        self._context.wake.set()

    def drained(self, lineage: int) -> bool:
        """Whether a drain is in force for a query of this lineage; it stays in force until the job has finished."""
        return self._drained >= lineage

    def drain(self) -> None:
        """A drain has been written to the ledger: stop the queries whose sources cannot read it there."""
        # As in the ledger: also for a query that is built later.
        lineages = (run.lineage for run in self._execution.runs)
        self._drained = max(self._drained, self._context.incarnation.lineage, *lineages)
        self._context.wake.set()


class Ending:
    """Takes the last steps, and keeps the first failure among them."""

    def __init__(
        self, context: JobContext, upkeep: Upkeep, state: Callable[[], State], at_end: Sequence[Callable[[], object]]
    ) -> None:
        self.alive_at = time.monotonic()  # when nothing held the coordinator's thread last
        self.failure: SparkExtError | None = None  # what went wrong first after the end, which it does not change
        self._context, self._upkeep, self._state, self._at_end = context, upkeep, state, tuple(at_end)

    def show_life(self) -> None:
        """Nothing holds the coordinator's thread."""
        self.alive_at = time.monotonic()

    def attempt(self, what: str, step: Callable[[], object]) -> None:
        """Take a step; one that fails is logged."""
        try:
            step()
        except Exception as problem:
            log.warning("job '%s' has ended, and then %s failed: %s", self._context.job, what, problem, exc_info=True)
            if self.failure is None:
                self.failure = placed(
                    problem,
                    f"job '{self._context.job}'",
                    f"the job has ended, and then {what} failed",
                    kept="all committed epochs, and how the job has ended",
                    do="nothing, if the job has FINISHED; otherwise start it again, and it continues",
                )

    def wait(self, condition: Callable[[], bool], by: float, deliver: Callable[[], None]) -> None:
        """Wait for a condition, until `by`, s, monotonic."""
        while True:
            self.show_life()
            try:
                deliver()
            except Exception as problem:
                log.warning("error after job '%s' ended: %s", self._context.job, problem)
            left = by - time.monotonic()
            if condition() or left <= 0:
                return
            self._context.wake.wait(min(left, LOOK_EVERY))
            self._context.wake.clear()

    def write(self, by: float) -> None:
        """Write the last rows, by a thread of the upkeep: one that hangs is left behind; `by` is s, monotonic."""
        now = time.monotonic()
        by = max(now + AT_LEAST, min(by, now + CLOSE_WITHIN))
        self.wait(lambda: not self._upkeep.busy, by, self._upkeep.deliver)
        self._upkeep.give_up()
        ended: list[Outcome[object]] = []
        self._upkeep.at_last(self._write, ended.append)
        self.wait(lambda: bool(ended), time.monotonic() + CLOSE_WITHIN, self._upkeep.deliver)
        if not ended:
            log.warning("the last history of job '%s' was not written: the storage does not answer", self._context.job)
            # Its thread would do this, and hangs: the next start in this process must not find the job running.
            self._context.write_behind.forget()

    def _write(self) -> None:
        """On the upkeep's thread: the last rows, and the row that says that this incarnation has ended."""
        for action in self._at_end:
            self.attempt("a last action", action)
        state = self._state()
        try:
            if state is State.FINISHED or (state is State.SUSPENDED and self._context.holds_gates):
                acknowledge(self._context.write_behind, "drain")
            self._context.write_behind.flush()
            reach(FailPoint.JOB_ENDED)
        except Exception as problem:
            log.warning("the last history of job '%s' was not written: %s", self._context.job, problem)
        try:
            self._context.write_behind.end(state.value)
        except Exception as problem:
            log.warning("the end of job '%s' was not recorded: %s", self._context.job, problem)
