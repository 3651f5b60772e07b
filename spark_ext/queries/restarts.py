"""The restarts of one query: consecutive failures, and when the next start is due; and polls during an outage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ext.errors import SparkExtError, StorageError, TransientError
from spark_ext.model.restarts import ANY_RUN, Action, AvailableNowRun, Cause, Decision, Failures, RestartPolicy, decide

if TYPE_CHECKING:
    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.describe_failure import Diagnosis

UNREADABLE: Final = (OSError, StorageError)  # by a poll when the storage cannot be read; facts may be known again soon

POLL_AGAIN_MS = 1000  # longest wait between two polls during an outage, ms: its end is noticed within that time


class Outage:
    """Whether some facts can be read, and since when they cannot. For one thread.

    Polls that fail are repeated for as long as an outage of the storage may last, and recorded once.
    """

    def __init__(self, what: str, operator: str, context: WatchContext) -> None:
        self._what = what
        self._operator = operator
        self._context = context
        policy = context.settings.restarts
        # A poll repeats nothing, so it is retried even in a job whose queries are never restarted.
        self._policy = replace(policy, attempts=max(1, policy.attempts), max_ms=POLL_AGAIN_MS)
        self._failures = Failures()
        self._due_at = float("-inf")

    @property
    def on(self) -> bool:
        """Whether the last poll has failed."""
        return self._failures.count > 0

    def due(self, now: float) -> bool:
        """Whether the next poll is due. `now` is in s, on a clock that never goes back; the same one in all calls."""
        return now >= self._due_at

    def during(self, now: float, poll: Callable[[], None]) -> StorageError | None:
        """Poll, unless that has failed a moment ago; returns what `failed` says.

        The poll may take in a part of the facts and then fail.
        """
        if not self.due(now):
            return None
        try:
            poll()
        except UNREADABLE as problem:
            return self.failed(problem, now)
        self.over()
        return None

    def failed(self, problem: Exception, now: float) -> StorageError | None:
        """A poll has failed: the first one of an outage is an incident. Returns the error once it lasts too long."""
        self._failures = self._failures.and_one_at(now)
        lasted = now - self._failures.since
        delay = self._policy.delay_ms(self._failures.count, lasted * 1000)
        text = problem.what if isinstance(problem, SparkExtError) else f"{type(problem).__name__}: {problem}"
        if delay is None:
            return StorageError(
                f"{self._what} could not be read, for {lasted:.3g} s: {text}",
                operator=self._operator,
                kept="all committed epochs",
                do="make the storage of the state directory readable again (mount, network, credentials), and start "
                "the job again; the setting outage_patience is how long a job waits for it",
            )
        self._due_at = now + delay / 1000
        if self._failures.count == 1:
            what = f"{self._what} cannot be read: {text}"
            self._context.write_behind.incident(
                self._operator, "storage", what, "read again until outage_patience is over"
            )
        return None

    def over(self) -> None:
        """A poll has succeeded."""
        if self.on:
            self._failures, self._due_at = Failures(), float("-inf")


class Restarts:
    """Keeps what the decisions of `model.restarts` depend on. `ends_now`: the query ends with what is there."""

    def __init__(self, policy: RestartPolicy, *, ends_now: bool) -> None:
        self.stopping = False  # whether the query has been asked to stop
        self.draining = False  # whether the query is being stopped for a drain
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


def as_error(problem: Exception, operator: str, step: str = "a step of the final checkpoint") -> SparkExtError:
    """The failure of a step as one of our errors, for the ledger."""
    if isinstance(problem, SparkExtError):
        return problem
    return TransientError(
        f"{step} failed: {type(problem).__name__}: {problem}",
        operator=operator,
        kept="all rows are committed; the steps that were recorded are not repeated",
        do="fix the cause and run the job again: it continues with the step that failed",
    )
