"""Polls of facts that fail: repeated for as long as an outage of the storage may last, and recorded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ext.errors import SparkExtError, StorageError
from spark_ext.model.restarts import Failures

if TYPE_CHECKING:
    from spark_ext.queries.context import WatchContext

UNREADABLE: Final = (OSError, StorageError)
"""What a poll raises when the storage cannot be read: the facts are unknown, and may be known again soon."""

POLL_AGAIN_MS = 1000
"""Longest wait between two polls during an outage, ms: its end is noticed within that time."""


class Outage:
    """Whether some facts can be read, and since when they cannot. For one thread."""

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
        """A poll has failed; the first one of an outage is an incident.

        Returns the error when this has lasted too long; None while it is tolerated.
        """
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
