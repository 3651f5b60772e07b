"""Keeps an incident that comes and goes from being as many notifications. Pure.

The first time that an incident is resolved its listeners are notified at once. Once it has been opened again, they are
notified that it is resolved only when it has stayed so for the window of its type: an incident that is opened again
before is, as far as they know, open all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from spark_ext.incidents.types import IncidentChange, IncidentState

MOST: Final = 5_000
"""How many incidents are remembered; the oldest are forgotten first."""


@dataclass
class Damper:
    """Decides which changes a listener is notified of, and when.

    Args:
        window: the window of a type by its name, s.
    """

    window: Callable[[str], float]
    _notified: dict[str, IncidentState] = field(default_factory=dict)
    """By id, the last state that was let through."""
    _reopened: dict[str, None] = field(default_factory=dict)
    _held: dict[str, tuple[float, IncidentChange]] = field(default_factory=dict)
    """Resolutions that wait, with when they are due."""

    def take(self, change: IncidentChange, now: float) -> bool:
        """Whether listeners are notified of a change now.

        Args:
            now: s, on any clock that never goes back.
        """
        if change.counted:
            return False
        one = change.incident.incident_id
        if change.new is IncidentState.RESOLVED:
            if one in self._reopened:
                self._held[one] = (now + self.window(change.incident.type), change)
                return False
        else:
            if change.old is not None:
                self._reopened[one] = None
            if self._held.pop(one, None) is not None:
                return False
        if self._notified.pop(one, None) is change.new:
            self._notified[one] = change.new
            return False
        self._notified[one] = change.new
        if len(self._notified) > MOST:
            oldest = next(iter(self._notified))
            del self._notified[oldest]
            self._reopened.pop(oldest, None)
        return True

    @property
    def due(self) -> float | None:
        """When the next held resolution is due; None: there is none."""
        return min((at for at, _ in self._held.values()), default=None)

    def release(self, now: float) -> Iterator[IncidentChange]:
        """The resolutions that are due."""
        for one in [one for one, (at, _) in self._held.items() if at <= now]:
            _, change = self._held.pop(one)
            self._reopened.pop(one, None)
            self._notified[one] = change.new
            yield change
