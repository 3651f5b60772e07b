"""The restarts of one query: consecutive failures, and when the next start is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.errors import SparkExtError, TransientError
from spark_ext.model.restarts import ANY_RUN, Action, AvailableNowRun, Cause, Decision, Failures, RestartPolicy, decide

if TYPE_CHECKING:
    from spark_ext.queries.describe_failure import Diagnosis


class Restarts:
    """Keeps what the decisions of `model.restarts` depend on.

    Args:
        ends_now: whether the query ends with what is there.
    """

    def __init__(self, policy: RestartPolicy, *, ends_now: bool) -> None:
        self.stopping = False
        """Whether the query has been asked to stop."""
        self.draining = False
        """Whether the query is being stopped for a drain."""
        self._policy = policy
        self._ends_now = ends_now
        self._failures = Failures()
        self._due_at: float | None = None

    def progressed(self) -> None:
        """An epoch has been committed, or a step of the final checkpoint taken: the next failure is the first."""
        self._failures = self._failures.progressed()

    def cause(self, *, failed: bool) -> Cause:
        """Why the Spark query has ended."""
        return Cause.of(failed=failed, draining=self.draining, stopping=self.stopping, ends_now=self._ends_now)

    def after(self, cause: Cause, found: Diagnosis | None, now: float, run: AvailableNowRun = ANY_RUN) -> Decision:
        """What follows the end of the Spark query, or a start or step that failed; sets when the next try is due."""
        decision = decide(
            cause,
            None if found is None else found.error,
            self._failures,
            self._policy,
            now,
            stopping=self.stopping,
            draining=self.draining,
            run=run,
            handling=None if found is None else found.handling,
            sign="" if found is None else found.sign,
        )
        self._failures = decision.failures
        if decision.action in (Action.RESTART, Action.RUN_AGAIN):
            self._due_at = now + decision.delay_ms / 1000
        return decision

    def due(self, now: float) -> bool:
        """Whether a restart was decided on, and its time has come."""
        return self._due_at is not None and now >= self._due_at

    def waiting(self, now: float) -> bool:
        """Whether the next try has to wait."""
        return self._due_at is not None and now < self._due_at

    def clear(self) -> None:
        """The next try begins: none is due any more."""
        self._due_at = None

    def stop(self) -> None:
        """The query is asked to stop: from now on a failure is no reason for a restart."""
        self.stopping = True

    def drain(self) -> None:
        """The query is stopped for a drain: its input ends with the epoch that was planned last."""
        self.draining = True


def as_error(problem: Exception, operator: str) -> SparkExtError:
    """The failure of a step as one of our errors, for the ledger."""
    if isinstance(problem, SparkExtError):
        return problem
    return TransientError(
        f"a step of the final checkpoint failed: {type(problem).__name__}: {problem}",
        operator=operator,
        kept="all rows are committed; the steps that were recorded are not repeated",
        do="fix the cause and run the job again: it continues with the step that failed",
    )
