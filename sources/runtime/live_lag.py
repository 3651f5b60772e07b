"""The lag of a source while an epoch runs, or none does: asked by a thread of its planner.

The thread asks the source when its last answer, which comes with each epoch, is older than an interval, and notes what
it says where the driver finds it (`spark.lag_notes`). It has the planner only between two calls of Spark's, and for a
small share of the time, however slow a source is with its answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from spark_ext.model.offsets import SourceOffset
from spark_ext.spark.session import lag_notes

SHARE: Final = 0.05  # of the time, at most, for answers: Spark's next call waits for one


class LiveLag:
    """Keeps the lag of one source up to date: an answer becomes `every` seconds old at most.

    `ask` is called while `turn` is held.
    """

    def __init__(
        self,
        uid: str,
        place: Path,
        every: float,
        ask: Callable[[SourceOffset], int | None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.turn: Final = threading.Lock()  # held while the source is used
        self._uid, self._place, self._every, self._ask = uid, place, every, ask
        self._clock, self._now = clock, now
        self._at: SourceOffset | None = None
        self._due = clock() + every
        self._over = False

    def planned(self, at: SourceOffset) -> None:
        """An epoch was planned, and the lag behind it was asked for. Called while `turn` is held."""
        self._at = at
        self._due = max(self._due, self._clock() + self._every)

    def start(self) -> None:
        """Ask on a thread of its own, until the process ends or the source is not registered any more."""
        threading.Thread(target=self._loop, name=f"spark-ext-lag-{self._uid}", daemon=True).start()

    def poll(self) -> float:
        """Ask if it is time to; returns how long there is nothing to do then, s."""
        left = self._due - self._clock()
        if left > 0:
            return left
        with self.turn:
            left = self._due - self._clock()
            if left > 0:  # an epoch has been planned meanwhile
                return left
            begun = self._clock()
            lag = None
            with suppress(Exception):  # A figure for display: what is wrong is found when the next epoch is planned.
                lag = None if self._at is None else self._ask(self._at)
            took = self._clock() - begun
            self._due = self._clock() + max(self._every, took / SHARE)
            at = self._now()
        if lag is not None:
            with suppress(OSError):
                self._over = not lag_notes.write(self._place, self._uid, lag, at)
        return self._due - self._clock()

    def _loop(self) -> None:
        while not self._over:
            time.sleep(max(0.0, self.poll()))
