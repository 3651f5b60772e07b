"""The states of a query and of a job, which may follow which, and the steps of a final checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum


class State(str, Enum):
    """The state of a query, or of a job. The names are Flink's, where Spark has an equivalent."""

    CREATED = "CREATED"
    SCHEDULING = "SCHEDULING"
    DEPLOYING = "DEPLOYING"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FINISHING = "FINISHING"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"  # has read what was there, in a run that ends with that; Flink's word
    FINISHED = "FINISHED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    def __str__(self) -> str:
        return self.value

    @property
    def ended(self) -> bool:
        """Whether it is final: no state follows in this run."""
        return self in (State.FINISHED, State.SUSPENDED, State.FAILED, State.CANCELED)


LEGAL: Mapping[State, frozenset[State]] = {
    State.CREATED: frozenset({State.RUNNING, State.FINISHING, State.FINISHED, State.FAILED, State.CANCELED}),
    State.RUNNING: frozenset({State.RESTARTING, State.FINISHING, State.SUSPENDED, State.FAILED, State.CANCELED}),
    State.RESTARTING: frozenset({State.RUNNING, State.FINISHING, State.SUSPENDED, State.FAILED, State.CANCELED}),
    State.FINISHING: frozenset({State.FINISHED, State.FAILED, State.CANCELED}),
    State.SUSPENDED: frozenset(),
    State.FINISHED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELED: frozenset(),
}
"""Which states of a query may follow a state. The others divide its time for those who watch it; see `execution`."""


class IllegalTransition(AssertionError):
    """A query was about to enter a state that cannot follow the one it is in: an error in this project's code."""


def can_follow(before: State, after: State) -> bool:
    """Whether a query may enter a state from another one. A state does not follow itself."""
    return after in LEGAL.get(before, frozenset())


ORDER = (
    State.FAILING,
    State.CREATED,
    State.SCHEDULING,
    State.DEPLOYING,
    State.RESTORING,
    State.RESTARTING,
    State.RUNNING,
    State.PAUSED,
    State.FINISHING,
)
"""From the least advanced state to the most; without those that are final."""


def job_state(queries: Iterable[State]) -> State:
    """A job's state: the least advanced state of its queries that have not ended, FAILING if one has failed.

    It is final once all of them have ended: FAILED if one has failed, else CANCELED if one was, else SUSPENDED if one
    is, else FINISHED.
    """
    states = list(queries)
    left = [state for state in states if not state.ended]
    if left:
        return State.FAILING if State.FAILED in states else min(left, key=ORDER.index)
    return next((end for end in (State.FAILED, State.CANCELED, State.SUSPENDED) if end in states), State.FINISHED)


class FinalStep(str, Enum):
    """The steps of a final checkpoint, in their order; each is the status of a row in the ledger's `checkpoints`."""

    COMPLETED = "COMPLETED"  # final offsets and sink epochs are recorded; from here on the query is never started again
    FLAGGED = "FLAGGED"  # the finished flags of channels, sources and query, which follow from it, are stored
    ACKNOWLEDGED = "ACKNOWLEDGED"  # sources know that their last epoch is safe, and sinks that no further one comes
    CLOSED = "CLOSED"  # the query has stopped and its operators are closed


def steps_left(done: Mapping[str, object] | Iterable[str]) -> tuple[FinalStep, ...]:
    """The steps that a crash left undone, in order."""
    passed = set(done)
    return tuple(step for step in FinalStep if step.value not in passed)
