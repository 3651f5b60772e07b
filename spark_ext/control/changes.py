"""The changes of control events, one after another: each new state of an event once, and none left out.

Transitions are written a little later than they happen, so a look goes back by a margin, and leaves out what it has
given before. Whoever continues elsewhere, with a mark, gets the changes of that margin again.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from spark_ext.control.requests import ControlRefused, Refusal

if TYPE_CHECKING:
    from spark_ext.control.event_state import EventState
    from spark_ext.control.history import History

MARGIN: Final = 60.0
"""How much later than it happens a transition may be written, s; an event that is not over is looked at anyway."""

_MARK: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,15})")


class Changes:
    """What has changed since the last look. For one thread at a time.

    Args:
        after: begins with all events after this sequence; None: with what changes from now on.
    """

    def __init__(self, history: History, after: int | None = None, mark: str | None = None) -> None:
        self._history = history
        self._open: dict[str, int] = {}
        """Events that are not over, with the number of steps that were given."""
        self._over: dict[str, float] = {}
        """Events that are over, with the time of their last step, as long as they could be read again."""
        if mark:
            found = _MARK.fullmatch(mark)
            if found is None:
                raise ControlRefused.because(
                    Refusal.MALFORMED, "the mark is not of this stream", "control events", "leave it out"
                )
            self._sequence, self._since = int(found[1]), int(found[2]) / 1000
            return
        self._sequence = history.newest() if after is None else after
        self._since = time.time()
        # What is known at the beginning is not given, but what becomes of it is.
        for state in history.changed(self._sequence, self._since - MARGIN):
            if state.sequence <= self._sequence:
                self._note(state)

    def take(self) -> list[tuple[str, EventState]]:
        """What is new, in the order of the events, each with the mark behind it."""
        begin = self._since - MARGIN
        found = {one.event_id: one for one in self._history.changed(self._sequence, begin)}
        missing = [event_id for event_id in self._open if event_id not in found]
        if missing:
            found.update((one.event_id, one) for one in self._history.events(missing))
        self._over = {event_id: at for event_id, at in self._over.items() if at >= begin}
        new = sorted((one for one in found.values() if self._is_new(one)), key=lambda one: one.sequence)
        return [(self._given(one), one) for one in new]

    def _is_new(self, state: EventState) -> bool:
        return state.event_id not in self._over and self._open.get(state.event_id) != len(state.steps)

    def _given(self, state: EventState) -> str:
        self._note(state)
        self._sequence = max(self._sequence, state.sequence)
        self._since = max([self._since, *(step.at.timestamp() for step in state.steps)])
        return f"{self._sequence}-{int(self._since * 1000)}"

    def _note(self, state: EventState) -> None:
        if state.final:
            self._open.pop(state.event_id, None)
            self._over[state.event_id] = max(step.at.timestamp() for step in state.steps)
        else:
            self._open[state.event_id] = len(state.steps)
