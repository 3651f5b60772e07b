"""Who commits what: the claim of a start, a task's attempt, and the identity of an epoch. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Claim:
    """A start of the job: who may commit from now on."""

    sink: str
    """The sink's uid."""
    job: str
    job_id: str
    """Tells two jobs of one name apart: a target that holds another job's epochs under this uid is refused."""
    incarnation: int
    """Grows by one with each start; an older one is fenced off."""
    lineage: int
    state: str = ""
    """Path or URI of the job's state directory, for a sink that keeps something there."""


@dataclass(frozen=True)
class Task:
    """One attempt at one partition of an epoch, on an executor."""

    sink: str
    query_id: str
    epoch: int
    partition: int
    attempt: int
    """Spark's task attempt id: unique within the Spark application."""
    incarnation: int
    """0 outside a job."""
    lineage: int


@dataclass(frozen=True)
class Epoch:
    """The identity of an epoch: equal for each attempt to commit it."""

    sink: str
    lineage: int
    query_id: str
    number: int
    incarnation: int
    """Not part of the identity: who is trying."""
    final: bool = False
    """Whether it comes after the last row, for a sink that `requires_finalization`."""

    @property
    def application(self) -> str:
        """The identity without the number: an id under which a target keeps the last committed number."""
        return f"spark_ext:{self.sink}:{self.lineage}:{self.query_id}"


class CommitOutcome(Enum):
    """What a commit found."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
