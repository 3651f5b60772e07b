"""What holds a producer back: the planner of each of its sources notes it beside its registration for the driver.

As with the lag, nothing is decided about rows by a note. It belongs to one start of the job: one that an earlier start
has left says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from spark_ext.model.pressure import Hold
from spark_ext.spark.session import registry

EVERY: Final = 1.0  # how often a planner renews the figures of a note, s


class HoldNote:
    """The note of one source, for its planner, which may tell it the same at every look."""

    def __init__(self, place: Path, uid: str, start: int, clock: Callable[[], float]) -> None:
        self._place, self._uid, self._start, self._clock = place, uid, start, clock
        self._noted: Hold | None = None
        self._at = float("-inf")
        self._fresh = True  # whether an earlier planner may have left a note

    def tell(self, hold: Hold | None) -> None:
        """Note what holds the source now; None: nothing does."""
        now = self._clock()
        if hold is None and self._noted is None and not self._fresh:
            return
        if hold is not None and self._noted is not None and now - self._at < EVERY:
            return
        with suppress(OSError):  # a figure for display; it is written again in a second
            if hold is None:
                (self._place / registry.note(self._uid, "hold")).unlink(missing_ok=True)
            elif (self._place / f"{self._uid}.json").exists():
                found = {"start": self._start, **hold.to_json()}
                registry.write_private(self._place / registry.note(self._uid, "hold"), found)
            self._noted, self._at, self._fresh = hold, now, False


def noted_hold(place: Path, uids: Sequence[str], start: int) -> Hold | None:
    """What holds a query with these sources in a start of the job; None: they have noted nothing."""
    for uid in uids:
        found = registry.read_note(place, uid, "hold")
        if found is not None and found.get("start") == start:
            with suppress(KeyError, TypeError, ValueError):
                return Hold.from_json(found)
    return None
