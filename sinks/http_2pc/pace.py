"""How many requests a sink sends per second at most."""

from __future__ import annotations


class Pace:
    """Times for requests at equal distances; what was not used is not made up for."""

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate
        self._next = 0.0

    def take(self, now: float) -> float:
        """Take the next time.

        Args:
            now: s, by any clock that never goes back.

        Returns:
            How long to wait for it, s.
        """
        at = max(now, self._next)
        self._next = at + self._gap
        return at - now


_paces: dict[tuple[str, float], Pace] = {}
"""Sink objects are created again for each epoch."""


def pace_of(sink: str, rate: float) -> Pace:
    """The pace of a sink in this process."""
    return _paces.setdefault((sink, rate), Pace(rate))
