"""What a job does for its ledger beside its queries, on a thread of its own: maintenance, and a look at the fence."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.errors import FencedError
from spark_ext.ledger import maintain
from spark_ext.queries.worker import Outcome, Worker

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.queries.context import JobContext

FENCE_EVERY = 5.0
"""How often an incarnation checks whether it has been fenced off, and whether its registrations are there, s."""


class Upkeep:
    """The ledger's worker. Its methods are for the coordinator's thread, and do not block.

    Args:
        context: the job's.
        ledger: for reading and maintenance.
        keep: keeps the queries' registrations in the session registry.
    """

    def __init__(self, context: JobContext, ledger: Ledger, keep: Callable[[], None]) -> None:
        self._context = context
        self._ledger = ledger
        self._keep = keep
        self._worker = Worker(f"spark-ext-upkeep-{context.job}", context.wake.set)
        self._maintained_at = self._fence_at = time.monotonic()
        self._looks = 0

    @property
    def looking(self) -> bool:
        """Whether a look at the fence is under way."""
        return self._looks > 0

    def tick(self, now: float) -> None:
        """Begin what is due, and take in what has been done.

        Args:
            now: s, monotonic.

        Raises:
            FencedError: a newer incarnation owns the ledger.
        """
        self._worker.deliver()
        if now - self._fence_at >= FENCE_EVERY and not self._worker.busy:
            self._fence_at = now
            self.look_at_fence()
        if now - self._maintained_at >= self._context.settings.maintenance_interval / 1000 and not self._worker.busy:
            self._maintained_at = now
            self._worker.do("maintenance", self._maintain, _result)

    def look_at_fence(self) -> None:
        """Find out whether a newer incarnation has been started; `tick` raises it."""
        self._looks += 1
        self._worker.do("a look at the fence", self._check_fence, self._looked)

    def at_last(self, action: Callable[[], object], then: Callable[[Outcome[object]], None]) -> None:
        """Carry out the last command, behind what is under way."""
        self._worker.do("the end", action, then)

    def deliver(self) -> None:
        """Take in what has been done."""
        self._worker.deliver()

    def close(self) -> None:
        """No further command comes."""
        self._worker.close()

    def _looked(self, outcome: Outcome[None]) -> None:
        self._looks -= 1
        outcome.result()

    def _maintain(self) -> None:
        maintain(self._ledger, datetime.now(timezone.utc), fence=self._context.incarnation.fence)

    def _check_fence(self) -> None:
        self._keep()
        newest = self._ledger.newest_incarnation()
        if newest is not None and newest > self._context.incarnation.number:
            raise FencedError(
                f"incarnation {newest} of the job has been started; this is {self._context.incarnation.number}",
                operator=f"job '{self._context.job}'",
                kept="all committed epochs; the newer incarnation continues from them",
                do="let the newer one run; nothing has to be done here",
            )


def _result(outcome: Outcome[Any]) -> None:
    outcome.result()
