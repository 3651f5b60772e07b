"""The lifecycle events of a job's last day, for all who follow them, and where each of them stands."""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.server.problems import Problem
from spark_ext.views.events import events_since

if TYPE_CHECKING:
    from spark_ext.incidents.types import LifecycleEvent
    from spark_ext.views.page.facts import Facts

HISTORY: Final = timedelta(days=1)  # how far back events are kept for a client that comes again
LATE: Final = timedelta(hours=1)  # by how much an event may come late to a client that was away
POLL_EVERY: Final = 1.0  # how often the ledger is looked at while somebody follows, s

_MARK: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,17})-([0-9]{1,9})")
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_US: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class Mark:
    """How far a client has come: by then it had been given, or had left out, `known` of the events of the last hour."""

    job: str  # the first characters of the job's id
    at: datetime  # of the newest of them
    known: int

    @classmethod
    def parse(cls, text: str) -> Mark:
        """From the header `Last-Event-ID`."""
        found = _MARK.fullmatch(text)
        if found is None:
            raise Problem(400, "malformed", "the Last-Event-ID is not of this stream", "leave it out")
        return cls(found[1], _BEGIN + int(found[2]) * _US, int(found[3]))

    def __str__(self) -> str:
        return f"{self.job}-{(self.at - _BEGIN) // _US}-{self.known}"


@dataclass(frozen=True)
class Kept:
    """The events that are kept at one moment."""

    job: str  # see `Mark`
    oldest: datetime  # events before are not kept
    first: int  # number of the first one of `events`
    events: Sequence[LifecycleEvent]


class EventLog:
    """The events, in the order in which they became known here. Safe for several threads."""

    def __init__(
        self,
        facts: Callable[[], Facts],
        sources: Callable[[], Callable[[str], Collection[str]]],
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._read, self._sources, self._clock = facts, sources, clock
        self._lock = threading.Lock()
        self._facts: Facts | None = None
        self._polled_at = float("-inf")
        self._known: dict[str, LifecycleEvent] = {}
        self._first = 0  # number of the oldest one that is kept

    def poll(self) -> Kept:
        """What is there; the ledger is read once a second."""
        with self._lock:
            oldest = self._clock() - HISTORY
            if time.monotonic() - self._polled_at >= POLL_EVERY or self._facts is None:
                self._take(self._read(), oldest)
                self._polled_at = time.monotonic()
            assert self._facts is not None
            job = str(self._facts.newest["job_id"])[:8]
            return Kept(job, oldest, self._first, tuple(self._known.values()))

    def _take(self, facts: Facts, since: datetime) -> None:
        for one in [one for one, event in self._known.items() if event.at < since]:
            del self._known[one]
            self._first += 1
        if facts is not self._facts:
            for one, event in events_since(facts, since, self._sources()).items():
                self._known.setdefault(one, event)
            self._facts = facts


class Followed:
    """What one client is given. For one thread at a time.

    It begins behind the mark of an earlier stream, or with the events from `since` on, or else with what is new.
    """

    def __init__(self, log: EventLog, mark: Mark | None, since: datetime | None) -> None:
        self._log, kept = log, log.poll()
        self._job, events, oldest = kept.job, kept.events, kept.oldest
        self._next = kept.first + len(events)
        self.lost: dict[str, Any] | None = None  # what it cannot be given any more
        begin = since
        if mark is not None:
            begin = mark.at + _US
            if mark.job != self._job:
                begin, self.lost = oldest, _lost(None, oldest, "the mark is that of another job, or of a former state")
            elif mark.at < oldest:
                self.lost = _lost(mark.at, oldest, "older events are not kept for this stream")
            elif mark.at > oldest + HISTORY:
                begin = oldest  # by a clock that is ahead: what has come since cannot be told from it
            elif _count(sorted(one.at for one in events if one.at <= mark.at), mark.at) != mark.known:
                begin = mark.at - LATE  # some came late: given again, with the same ids, are those of the last hour
        elif since is not None and since < oldest:
            begin, self.lost = oldest, _lost(since, oldest, "older events are not kept for this stream")
        times = [one.at for one in events]
        self._at = max(times, default=oldest) if begin is None else begin - _US
        self._waiting = [one for one in events if begin is not None and one.at >= begin]
        self._waiting.sort(key=lambda one: one.at)
        self._times = sorted(one.at for one in events if begin is None or one.at < begin)

    def take(self) -> Iterator[tuple[Mark, LifecycleEvent]]:
        """What is new, each with the mark behind it."""
        kept = self._log.poll()
        new = [*self._waiting, *kept.events[max(0, self._next - kept.first) :]]
        self._waiting, self._next = [], kept.first + len(kept.events)
        for event in new:
            insort(self._times, event.at)
            self._at = max(self._at, event.at)
            yield Mark(self._job, self._at, _count(self._times, self._at)), event
        del self._times[: bisect_right(self._times, self._at - LATE)]


def _count(times: Sequence[datetime], at: datetime) -> int:
    """How many there are in the hour up to a time; they are sorted."""
    return bisect_right(times, at) - bisect_right(times, at - LATE)


def _lost(since: datetime | None, until: datetime, reason: str) -> dict[str, Any]:
    return {"since": None if since is None else since.isoformat(), "until": until.isoformat(), "reason": reason}
