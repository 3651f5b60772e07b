"""A restart of a query between two epochs, at somebody's request: no failure, no wait, no epoch that is cut in two.

The query's sources hold before the event that calls for it, so nothing more is planned. Sources of Spark's own cannot
hold: the restart waits for a moment in which no epoch is under way. If one is interrupted nevertheless, it is run to
its end as it was planned, before the query continues with its new plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_ext.queries.spec import QuerySpec

IDLE_WITHIN: Final = 1.0
"""For how long a query of Spark's own sources may be between two epochs and seem busy before it is stopped, s."""


class RestartPhase(Enum):
    """How far it has come."""

    WAITING = "waiting for the boundary"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """What is planned decides what is next."""
    COMPLETING = "running the epoch that was interrupted"
    STARTING = "starting"
    DONE = "done"
    LATE = "late"
    """The query has not come to a boundary in time; it continues as it was."""
    OVER = "over"
    """The query is ending, or has ended."""


@dataclass
class BoundaryRestart:
    """A restart that is wanted. Its steps are taken by the query's launcher; for the deciding thread."""

    sequence: int
    """Of the event before which the sources hold; from then on the query has passed it."""
    by: float
    """Until when the query has to come to a boundary, s on its clock."""
    begun: float
    """When it was wanted, s on the same clock."""
    spec: QuerySpec
    """The query as it is to run."""
    prepare: Callable[[], None] | None = None
    """What has to be done before it is started, on the worker's thread."""
    phase: RestartPhase = RestartPhase.WAITING
    completed: int | None = None
    """The epoch that was interrupted, and has been run to its end."""
    epoch: int = -1
    """The first epoch after it."""
    took_ms: int = 0
    why: str = ""
    """Why it is late or over."""
    _idle_since: float | None = field(default=None, init=False, repr=False)
    """Since when no epoch was planned and not committed, s."""

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.phase in (RestartPhase.DONE, RestartPhase.LATE, RestartPhase.OVER)

    def enter(self, phase: RestartPhase) -> None:
        """Take the next step."""
        self.phase = phase

    def complete(self, epoch: int) -> None:
        """An epoch was interrupted: it is run to its end."""
        self.phase, self.completed = RestartPhase.COMPLETING, epoch

    def ended(self, *, failed: bool, ends_itself: bool) -> bool:
        """The Spark query has ended; returns whether that is a step of the restart.

        Args:
            ends_itself: whether Spark ends it when there is nothing to read. It may do so while the sources hold: that
                is not the end of its input.
        """
        by_itself = (RestartPhase.COMPLETING, RestartPhase.WAITING) if ends_itself else (RestartPhase.COMPLETING,)
        expected = self.phase is RestartPhase.STOPPING or (not failed and self.phase in by_itself)
        if expected:
            self.phase = RestartPhase.STOPPED
        return expected

    def idle_for(self, now: float, *, unsettled: bool) -> float | None:
        """How long no epoch has been under way, s; None: one is.

        Args:
            unsettled: whether an epoch is planned and not committed.
        """
        if unsettled:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        return None if self._idle_since is None else now - self._idle_since

    def done(self, epoch: int, now: float) -> None:
        """The query runs again."""
        self.phase, self.epoch = RestartPhase.DONE, epoch
        self.took_ms = round((now - self.begun) * 1000)

    def give_up(self, phase: RestartPhase, why: str) -> None:
        """It does not take place."""
        self.phase, self.why = phase, why
