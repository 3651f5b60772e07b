"""The restarts of one query: consecutive failures, and when the next start is due."""

from __future__ import annotations

from spark_ext.errors import SparkExtError
from spark_ext.model.restarts import Action, Cause, Decision, Failures, RestartPolicy, decide


class Restarts:
    """Keeps what the decisions of `model.restarts` depend on.

    Args:
        policy: the job's.
        available_now: whether the query has the trigger `availableNow`.
    """

    def __init__(self, policy: RestartPolicy, *, available_now: bool) -> None:
        self._stopping = False
        self._draining = False
        self._policy = policy
        self._available_now = available_now
        self._failures = Failures()
        self._due_at: float | None = None

    @property
    def stopping(self) -> bool:
        """Whether the query has been asked to stop."""
        return self._stopping

    @property
    def draining(self) -> bool:
        """Whether the query is being stopped for a drain."""
        return self._draining

    def epoch_committed(self) -> None:
        """An epoch has been committed: the next failure is the first."""
        self._failures = Failures()

    def cause(self, *, failed: bool) -> Cause:
        """Why the Spark query has ended.

        Args:
            failed: whether it ended with a failure.
        """
        return Cause.of(
            failed=failed, draining=self._draining, stopping=self._stopping, available_now=self._available_now
        )

    def after(self, cause: Cause, error: SparkExtError | None, now: float, *, same_input: bool = False) -> Decision:
        """What follows the end of the Spark query, or a start that failed; sets when a restart is due.

        Args:
            cause: why it ended.
            error: the failure, if that is the cause.
            now: s, on a clock that never goes back.
            same_input: see `decide`.
        """
        decision = decide(
            cause, error, self._failures, self._policy, now, stopping=self._stopping, same_input=same_input
        )
        self._failures = decision.failures
        if decision.action is Action.RESTART:
            self._due_at = now + decision.delay_ms / 1000
        return decision

    def due(self, now: float) -> bool:
        """Whether a restart is due."""
        return self._due_at is not None and now >= self._due_at

    def clear(self) -> None:
        """The query starts: no restart is due any more."""
        self._due_at = None

    def stop(self) -> None:
        """The query is asked to stop: from now on a failure is no reason for a restart."""
        self._stopping = True

    def drain(self) -> None:
        """The query is stopped for a drain: its input ends with the last committed epoch."""
        self._draining = True
