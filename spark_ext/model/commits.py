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
    """Distinguishes two jobs of the same name: a target that holds another job's epochs under this uid is rejected."""
    incarnation: int
    """Increases by one with each start; older incarnations are fenced off."""
    lineage: int
    state: str = ""
    """Path or URI of the job's state directory, for a sink that stores data there."""


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
    """The identity of an epoch, the same for each attempt to commit it."""

    sink: str
    lineage: int
    query_id: str
    number: int
    incarnation: int
    """The incarnation that attempts the commit; not part of the identity."""
    final: bool = False
    """Whether it comes after the last row, for a sink that `requires_finalization`."""

    @property
    def application(self) -> str:
        """The identity without the number: an id under which a target keeps the last committed number."""
        return f"spark_ext:{self.sink}:{self.lineage}:{self.query_id}"


class CommitOutcome(Enum):
    """Result of a commit."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
