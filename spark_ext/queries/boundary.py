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


class Phase(Enum):
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
    """A restart that is wanted. Changed by the query's run; for the deciding thread."""

    sequence: int
    """Of the event before which the sources hold; from then on the query has passed it."""
    by: float
    """Until when the query has to come to a boundary, s on its clock."""
    begun: float
    """When it was wanted, s on the same clock."""
    spec: QuerySpec | None = None
    """The query as it is to run; None: as it does."""
    prepare: Callable[[], None] | None = None
    """What has to be done before it is started, on the worker's thread."""
    phase: Phase = Phase.WAITING
    completed: int | None = None
    """The epoch that was interrupted, and has been run to its end."""
    epoch: int = -1
    """The first epoch after it."""
    took_ms: int = 0
    why: str = ""
    """Why it is late or over."""
    idle_since: float | None = field(default=None, repr=False)
    """Since when no epoch was planned and not committed, s."""

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.phase in (Phase.DONE, Phase.LATE, Phase.OVER)

    @property
    def completing(self) -> bool:
        """Whether only the epoch that is planned is to be run."""
        return self.phase is Phase.COMPLETING

    def done(self, epoch: int, now: float) -> None:
        """The query runs again.

        Args:
            epoch: its first one.
            now: s.
        """
        self.phase, self.epoch = Phase.DONE, epoch
        self.took_ms = round((now - self.begun) * 1000)

    def give_up(self, phase: Phase, why: str) -> None:
        """It does not take place."""
        self.phase, self.why = phase, why
