"""Fewer looks of an idle source: the planner of a query that has had nothing to do for a while waits before it looks.

Spark asks an idle source for its end every 10 ms. What that costs is hardly the look itself: each time two processes
wake up, with cold caches. A planner that has found nothing for some time therefore looks every 30 ms only. An idle
query takes some half of the CPU time, and its first new rows are found up to 20 ms later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 50
"""Questions without an epoch after which a query is idle: half a second or more."""

PERIOD: Final = 0.03
"""Between two looks at an idle source, s. Of several sources of a query only the first one waits."""


class Idle:
    """Whether the query of a source is idle, as far as its planner can tell.

    A source without new rows may be one of several: a pause would then delay the epochs of the others. But Spark tells
    each source of a query of each epoch that was committed.

    Args:
        sleep: waits for a number of seconds.
        clock: s; never goes back.
    """

    def __init__(
        self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sleep = sleep
        self._clock = clock
        self._questions = 0
        self._looked_at = 0.0

    def epoch(self) -> None:
        """The query has planned or committed an epoch."""
        self._questions = 0

    def asked(self) -> None:
        """Spark asks for the end of the next epoch: if the query is idle, wait until the next look is due."""
        self._questions += 1
        if self._questions > PATIENCE:
            left = self._looked_at + PERIOD - self._clock()
            if left > 0:
                self._sleep(left)
        self._looked_at = self._clock()
