"""What a failure calls for: whether it is tried again, when, and for how long. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ext.errors import CommitError, PreparedLostError, SparkExtError, StorageError, TerminalError


@dataclass(frozen=True)
class RestartPolicy:
    """When a failed query is started again: exponential back-off, a limit of attempts in a row.

    The count begins anew with each epoch that commits, so that an epoch that fails every time (a poison epoch) is not
    retried blindly. The form is Flink's exponential-delay strategy. While a server or disk outside is away, restarts
    go on for a time, however many they are: a database that fails over takes a minute, and a query that finds it away
    ends at once, so a few attempts would be used up in seconds.
    """

    attempts: int = 3
    """Restarts in a row without an epoch committed in between; 0: never restart."""
    initial_ms: int = 100
    """Wait before the first restart, ms."""
    factor: float = 4.0
    max_ms: int = 30_000
    outage_ms: int = 300_000
    """For how long an outage is ridden out, ms since the first failure in a row; without attempts never."""

    def delay_ms(self, failures: int, outage_ms: float | None = None) -> int | None:
        """How long to wait after the n-th failure in a row (from 1), ms; None: give up.

        Args:
            failures: in a row, this one too.
            outage_ms: when something outside is away, for how long queries have failed; None for other failures.
        """
        patient = self.attempts > 0 and outage_ms is not None and outage_ms < self.outage_ms
        if failures > self.attempts and not patient:
            return None
        # The exponent stays small: a float would overflow in an outage of days.
        return min(self.max_ms, round(self.initial_ms * self.factor ** min(failures - 1, 30)))


def is_terminal(error: SparkExtError | None) -> bool:
    """Whether a failure would come back with each attempt. What is not ours may pass, and is retried."""
    return isinstance(error, TerminalError)


def is_outage(error: SparkExtError | None) -> bool:
    """Whether something outside is away or full, or has just come back: it is waited for longer than other failures."""
    return isinstance(error, (StorageError, CommitError, PreparedLostError))
