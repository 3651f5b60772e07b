"""What a job does for its ledger on a thread of its own: maintenance, alert rules, and a look at the fence."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import FencedError
from spark_ext.ledger import maintain
from spark_ext.masking import logger
from spark_ext.observing.alerts import Alerts
from spark_ext.queries.outage import UNREADABLE, Outage
from spark_ext.queries.worker import Outcome, Worker

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.queries.context import WatchContext

log = logger("spark_ext.job")

FENCE_EVERY = 5.0
"""How often an incarnation checks whether it has been fenced off, and whether its registrations are there, s."""


SHORT_RUNS: Final = 10
"""Of incarnations that end before maintenance is due, every so manyth maintains the ledger at its end."""


class Upkeep:
    """The ledger's worker. Its methods are for the coordinator's thread, and do not block."""

    def __init__(self, context: WatchContext, ledger: Ledger, keep: Callable[[], None]) -> None:
        self._context = context
        self._ledger = ledger
        self._keep = keep
        self._worker = self._hired()
        self._maintained_at = self._fence_at = time.monotonic()
        self._maintained = False
        self._looks = 0
        self._asked = False
        rules = context.write_behind.incidents.registry.alerts
        self._alerts = Alerts(context.job, ledger, context.write_behind) if rules else None
        self._outage = Outage("the newest incarnation in the ledger", f"job '{context.job}'", context)

    @property
    def looking(self) -> bool:
        """Whether a look at the fence is under way, or one that was asked for has failed and is due again."""
        return self._looks > 0 or self._asked

    @property
    def busy(self) -> str:
        """What its thread is doing; "" when it has nothing to do."""
        return self._worker.busy

    def tick(self, now: float) -> None:
        """Begin what is due, and take in what has been done."""
        self._worker.deliver()
        again = (self._outage.on or self._asked) and self._outage.due(now)
        if (again or now - self._fence_at >= FENCE_EVERY) and not self._worker.busy:
            self._fence_at = now
            self._look()
        if now - self._maintained_at >= self._context.settings.maintenance_interval / 1000 and not self._worker.busy:
            self._maintained_at = now
            self._worker.do("maintenance", self._maintain, _maintained)
        if self._alerts is not None and self._alerts.due(now) and not self._worker.busy:
            self._worker.do("alert rules", partial(self._alerts.evaluate, now), _evaluated)

    def look_at_fence(self) -> None:
        """Find out whether a newer incarnation has been started; `tick` raises it."""
        self._asked = True
        self._look()

    def _look(self) -> None:
        self._looks += 1
        self._worker.do("a look at the fence", self._check_fence, self._looked)

    def maintain_late(self) -> None:
        """The job ends: the ledger is maintained now and then also if runs are always shorter than the interval.

        For the thread that writes the last rows.
        """
        if not self._maintained and self._context.incarnation.number % SHORT_RUNS == 0:
            self._maintain()

    def at_last(self, action: Callable[[], object], then: Callable[[Outcome[object]], None]) -> None:
        """Carry out the last command, behind what is under way."""
        self._worker.do("the end", action, then)

    def deliver(self) -> None:
        """Take in what has been done."""
        self._worker.deliver()

    def give_up(self) -> None:
        """Leave a command that does not answer behind; what comes next has a thread of its own."""
        if self._worker.busy:
            log.warning("job '%s' has ended without an answer to %s", self._context.job, self._worker.busy)
            self._worker.abandon(lambda: None)
            self._worker = self._hired()

    def close(self) -> None:
        """No further command comes."""
        self._worker.close()

    def _hired(self) -> Worker:
        return Worker(f"spark-ext-upkeep-{self._context.job}", self._context.wake.set)

    def _looked(self, outcome: Outcome[None]) -> None:
        self._looks -= 1
        if isinstance(outcome.error, UNREADABLE):
            lasting = self._outage.failed(outcome.error, time.monotonic())
            if lasting is not None:
                raise lasting
            return
        outcome.result()
        self._outage.over()
        self._asked = False

    def _maintain(self) -> None:
        self._maintained = True
        number = self._context.incarnation.number
        fence = self._context.incarnation.fence
        maintain(self._ledger, datetime.now(timezone.utc), fence=fence, turn=number // SHORT_RUNS)

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


def _evaluated(outcome: Outcome[None]) -> None:
    if outcome.error is not None:  # no job ends for it
        log.warning("could not evaluate the alert rules; will retry: %s", outcome.error)


def _maintained(outcome: Outcome[Any]) -> None:
    if isinstance(outcome.error, UNREADABLE):
        log.warning("maintenance failed; will retry: %s", outcome.error)
    else:
        outcome.result()
