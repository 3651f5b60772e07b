"""The setting `target_epoch`: a source reads as many rows as an epoch of about that duration can take.

What an epoch of the query takes is measured from its plan to the next question of Spark's for an end, which comes once
it is committed. The limit follows in proportion, so it settles where epochs take as long as wanted, whatever a row
costs and whatever an epoch costs without any. Buffer debloating in Flink rests on the same idea.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST: Final = 1_000
"""Rows of the first epoch: nothing is known yet."""

GROWTH: Final = 4.0
"""By how much the limit grows at most from one epoch to the next."""

CLOSE: Final = 0.05
"""A deviation that changes nothing, as a fraction."""


class Pace:
    """The read limit of one source. Without a target there is none.

    Args:
        target_ms: wanted duration of an epoch, ms; 0: any.
        clock: s; never goes back.
    """

    def __init__(self, target_ms: int, clock: Callable[[], float]) -> None:
        self._target = target_ms / 1000
        self._clock = clock
        self._limit = FIRST
        self._rows = 0
        self._planned_at: float | None = None

    def limit(self, given: int | None) -> int | None:
        """How many rows an epoch may have.

        Args:
            given: the user's limit; None: there is none. It is never exceeded.
        """
        if not self._target:
            return given
        return self._limit if given is None else min(given, self._limit)

    def asked(self) -> None:
        """Spark asks for the end of the next epoch: the last one has been committed."""
        if self._planned_at is None:
            return
        took, rows = self._clock() - self._planned_at, self._rows
        self._planned_at = None
        if took <= 0:
            return
        ratio = self._target / took
        if abs(ratio - 1) <= CLOSE:
            return
        if ratio > 1 and rows < self._limit:
            return  # there was no more to read, which says nothing about what an epoch can take
        self._limit = max(1, round(min(rows, self._limit) * min(ratio, GROWTH)))

    def planned(self, rows: int) -> None:
        """An epoch has been planned."""
        if self._target and rows > 0:
            self._planned_at, self._rows = self._clock(), rows
