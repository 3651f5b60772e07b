"""Decisions about a query, from facts alone: has its input ended, which finishes are new, what does a failure call for.

Pure: the facts are Spark's offset and commit logs, and what the ledger holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum


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

    def __str__(self) -> str:
        return self.value

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
