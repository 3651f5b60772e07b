"""The metrics of one run of a job: fed with the rows that it records, read whenever somebody asks.

Safe for several threads. Nothing here waits for a disk or a network but a thread that reads the past, once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.masking import logger, mask
from spark_ext.metrics import catalogue as m
from spark_ext.metrics.book import LIMIT, Book, Bound, Change, Sample, folded
from spark_ext.metrics.downtime import DowntimeMeter, Past, read_past
from spark_ext.metrics.gauges import Live, gauges
from spark_ext.metrics.recoveries import Recoveries, Recovery
from spark_ext.metrics.state_time import StateMeter
from spark_ext.metrics.tally import Tally
from spark_ext.views.incidents import class_of, query_of

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

log = logger("spark_ext.metrics")


@dataclass(frozen=True)
class Moment:
    """A row, and what followed from it."""

    row: Any  # None for a recovery that became known later
    changes: Sequence[Change] = ()
    recoveries: Sequence[Recovery] = ()


class Follower(Protocol):
    """Who is given each moment, on the thread that recorded the row: it must not wait for anything."""

    def take(self, moment: Moment) -> None:
        """Take a moment."""

    @property
    def dropped(self) -> int:
        """How many it could not keep up with."""

    def end(self) -> None:
        """The job has ended: nothing follows."""


class JobMetrics:
    """The metrics of one run; the clock is in UTC."""

    def __init__(
        self, job: str, limit: int = LIMIT, clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    ) -> None:
        self.job = job
        self._clock = clock
        self._version = version("spark-ext")
        self._lock = threading.Lock()
        self._bound = Bound(job, limit)
        self._tally, self._book = Tally(job), Book(self._bound)
        self._downtime, self._recoveries, self._states = DowntimeMeter(), Recoveries(), StateMeter()
        self._lost: list[IncidentRow] = []
        self._live: Callable[[], Live | None] = lambda: None
        self._last: list[Sample] | None = None
        self._ended: datetime | None = None
        self._failed = False
        self._followers: list[Follower] = []

    def follow(self, follower: Follower) -> None:
        """Give each further moment to a follower as well."""
        self._followers.append(follower)

    def tap(self, row: Any) -> None:
        """Take a row on its way to the ledger. Never raises: what is counted decides nothing."""
        try:
            with self._lock:
                changes = self._tally.take(row)
                if not changes and not isinstance(row, ExecutionStateRow):
                    return
                recoveries = self._recoveries.take(row)
                self._downtime.take(row)
                if isinstance(row, ExecutionStateRow):
                    self._states.take(row)
                if isinstance(row, IncidentRow) and row.type == "driver_lost":
                    self._lost.append(row)
                moment = self._applied(row, changes, recoveries)
            self._give(moment)
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception("a row of job '%s' could not be counted; further failures are not logged", self.job)

    def report(self, name: str, value: float, label: str, counts: bool) -> None:
        """Take a metric of a listener's own; see `MetricsContext`. Its series are limited as all are."""
        change = Change(m.LISTENER_COUNTER if counts else m.LISTENER_GAUGE, (self.job, mask(name), mask(label)), value)
        with self._lock:
            self._book.apply(change)

    def watch(self, live: Callable[[], Live | None]) -> None:
        """Read gauges from `live`: the job as it is now, or None if it does not run. It must not wait for anything."""
        self._live = live

    def read_past(self, ledger: Ledger, number: int) -> threading.Thread:
        """Read on a thread of its own, once, what the ledger says of the time before this start."""

        def read() -> None:
            try:
                past = read_past(ledger, number, tuple(self._lost))
            except Exception as problem:
                log.warning("could not read the earlier downtime of job '%s': %s", self.job, problem)
                past = Past(self._clock())
            self.begin(past)

        thread = threading.Thread(target=read, name=f"spark-ext-metrics-{self.job}", daemon=True)
        thread.start()
        return thread

    def begin(self, past: Past) -> None:
        """Take what was before this start."""
        with self._lock:
            self._downtime.begin(past)
            self._states.begin(past.started, past.states)
            cause = past.cause
            if cause is None or cause["type"] != "failure":
                return
            query = query_of(cause)
            late = self._recoveries.inherit(query, cause["incident_id"], class_of(cause["labels"]), cause["at"])
            moment = self._applied(None, [], late)
        self._give(moment)

    def samples(self) -> list[Sample]:
        """All values as they are now; after `end`, as they were then."""
        last, now = self._last, self._ended or self._clock()
        found = self._samples(now) if last is None else last
        with self._lock:
            # The past of a run that ended at once may become known after it.
            downtime = self._downtime.seconds(now)
            states, up = self._states.seconds(now)
            times = [Sample(m.STATE_SECONDS, (self.job, *name), value) for name, value in states.items()]
            times = [*folded(times, self._bound), *((Sample(m.UPTIME, (self.job,), up),) if states else ())]
        return [*found, *(Sample(m.DOWNTIME, (self.job, name), value) for name, value in downtime.items()), *times]

    def _samples(self, now: datetime) -> list[Sample]:
        live = self._live()
        with self._lock:
            found = [] if live is None else folded(gauges(live, self._version, now), self._bound)
            dropped = (Sample(m.DROPPED, (self.job,), one.dropped) for one in self._followers)
            return [*found, *self._book.samples(), *dropped]

    def end(self) -> None:
        """The run has ended: its last values stay, and nothing of the run is kept alive for them."""
        if self._last is None:
            self._ended = self._clock()
            self._last = self._samples(self._ended)
            self._live = lambda: None
            for follower in self._followers:
                follower.end()

    def _applied(self, row: Any, changes: Sequence[Change], recoveries: Sequence[Recovery]) -> Moment:
        further = [Change(m.RECOVERY_DURATION, (self.job, one.query, one.kind), one.seconds) for one in recoveries]
        for change in (*changes, *further):
            self._book.apply(change)
        return Moment(row, (*changes, *further), recoveries)

    def _give(self, moment: Moment) -> None:
        for follower in self._followers:
            follower.take(moment)
