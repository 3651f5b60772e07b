"""Decisions about a query, from facts alone: has its input ended, which finishes are new, what does a failure call for.

Pure: the facts are Spark's offset and commit logs, and what the ledger holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from spark_ext.errors import CommitError, PreparedLostError, SparkExtError, StorageError, TerminalError
from spark_ext.model.end_of_input import is_end_of_input_offset, is_flushed
from spark_ext.model.offsets import Finished, SourceOffset, is_channel_offset
from spark_ext.spark.spark_log import LoggedOffsets


class State(str, Enum):
    """Where a query, or a job, stands. The names are Flink's, as far as Spark has the thing."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    FINISHING = "FINISHING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self in (State.FINISHED, State.FAILED, State.CANCELED)


_ORDER = (
    State.FAILED,
    State.FAILING,
    State.CANCELED,
    State.CREATED,
    State.RESTORING,
    State.RESTARTING,
    State.RUNNING,
    State.FINISHING,
)


def job_state(queries: Iterable[State]) -> State:
    """A job's state: the least of its queries that have not finished."""
    left = [state for state in queries if state is not State.FINISHED]
    return min(left, key=_ORDER.index) if left else State.FINISHED


def source_offsets(logged: LoggedOffsets) -> dict[str, SourceOffset]:
    """The channel sources' offsets in an epoch, by uid."""
    return {
        raw["uid"]: SourceOffset.from_json(raw)
        for raw in logged.sources
        if is_channel_offset(raw) and not is_end_of_input_offset(raw)
    }


def input_ended(logged: LoggedOffsets, sources: Iterable[str]) -> bool:
    """Whether all of a query's sources have ended in this epoch."""
    offsets = source_offsets(logged)
    return all(uid in offsets and offsets[uid].ended for uid in sources)


def same_input(one: LoggedOffsets, other: LoggedOffsets) -> bool:
    """Whether two epochs stand at the same place of all input; each run emits its own markers of the end."""
    places = ([raw for raw in logged.sources if not is_end_of_input_offset(raw)] for logged in (one, other))
    return next(places) == next(places)


def flushed(logged: LoggedOffsets, ends: Iterable[str]) -> bool:
    """Whether the end of input has passed all watermarks, and the epoch after it has emptied the state."""
    seen = {raw["uid"]: raw for raw in logged.sources if is_end_of_input_offset(raw)}
    return all(uid in seen and is_flushed(seen[uid]) for uid in ends)


def new_finishes(offset: SourceOffset, flagged: int) -> tuple[Finished, ...]:
    """Finished channels in an offset whose flags the ledger lacks, in their order."""
    return tuple(
        sorted(
            (finish for finish in offset.finished if finish.sequence > flagged),
            key=lambda finish: finish.sequence,
        )
    )


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


class FinalStep(str, Enum):
    """The steps of a final checkpoint, in their order; each is the status of a row in the ledger's `checkpoints`."""

    COMPLETED = "COMPLETED"
    """The fact: final offsets and sink epochs are recorded. From here on the query is never started again."""
    FLAGGED = "FLAGGED"
    """The finished flags of its channels, sources and of the query, which follow from it, are stored."""
    ACKNOWLEDGED = "ACKNOWLEDGED"
    """Sources know that their last epoch is safe, and sinks that no further one comes."""
    CLOSED = "CLOSED"
    """The query has stopped and its operators are closed."""


def steps_left(done: Mapping[str, object] | Iterable[str]) -> tuple[FinalStep, ...]:
    """The steps that a crash left undone, in order."""
    passed = set(done)
    return tuple(step for step in FinalStep if step.value not in passed)
