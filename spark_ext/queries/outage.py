"""Looks at facts that fail: repeated for as long as an outage of the storage may last, and recorded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ext.errors import SparkExtError, StorageError
from spark_ext.model.restarts import Failures

if TYPE_CHECKING:
    from spark_ext.queries.context import WatchContext

UNREADABLE: Final = (OSError, StorageError)
"""What a look raises when the storage does not let it read: the facts are unknown, and may be known again soon."""

LOOK_AGAIN_MS = 1000
"""Longest wait between two looks during an outage, ms: the end of the outage is noticed within that time."""


class Outage:
    """Whether some facts can be read, and since when they cannot. For one thread.

    Args:
        what: the facts, for messages.
        who: job, and query if there is one.
        context: the job's.
    """

    def __init__(self, what: str, who: str, context: WatchContext) -> None:
        self._what = what
        self._who = who
        self._context = context
        policy = context.settings.restarts
        # A look repeats nothing, so it is taken again even in a job whose queries are never restarted.
        self._policy = replace(policy, attempts=max(1, policy.attempts), max_ms=LOOK_AGAIN_MS)
        self._failures = Failures()
        self._due_at = float("-inf")

    @property
    def on(self) -> bool:
        """Whether the last look has failed."""
        return self._failures.count > 0

    def due(self, now: float) -> bool:
        """Whether the next look may be taken.

        Args:
            now: s, on a clock that never goes back; the same one in all calls.
        """
        return now >= self._due_at

    def during(self, now: float, look: Callable[[], None]) -> StorageError | None:
        """Take a look, unless the last one has failed a moment ago.

        Args:
            now: as in `due`.
            look: may take in a part of the facts and then fail.

        Returns:
            What `failed` says.
        """
        if not self.due(now):
            return None
        try:
            look()
        except UNREADABLE as problem:
            return self.failed(problem, now)
        self.over()
        return None

    def failed(self, problem: Exception, now: float) -> StorageError | None:
        """A look has failed; the first one of an outage is an incident.

        Args:
            problem: what it has raised.
            now: as in `due`.

        Returns:
            The error when this has lasted too long; None while it is tolerated.
        """
        self._failures = self._failures.and_one_at(now)
        lasted = now - self._failures.since
        delay = self._policy.delay_ms(self._failures.count, lasted * 1000)
        text = problem.what if isinstance(problem, SparkExtError) else f"{type(problem).__name__}: {problem}"
        if delay is None:
            return StorageError(
                f"{self._what} could not be read, for {lasted:.3g} s: {text}",
                operator=self._who,
                kept="all committed epochs",
                do="make the storage of the state directory readable again (mount, network, credentials), and start "
                "the job again; the setting outage_patience is how long a job waits for it",
            )
        self._due_at = now + delay / 1000
        if self._failures.count == 1:
            what = f"{self._what} cannot be read: {text}"
            self._context.write_behind.incident(self._who, "storage", what, "read again until outage_patience is over")
        return None

    def over(self) -> None:
        """A look has succeeded."""
        if self.on:
            self._failures, self._due_at = Failures(), float("-inf")
