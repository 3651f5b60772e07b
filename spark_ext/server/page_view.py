"""The document of the page for all who look at it: made again only when the ledger has changed, or time has passed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.views.page.document import POINTS, page
from spark_ext.views.page.epochs import Points, series
from spark_ext.views.page.facts import Facts, FactsReader
from spark_ext.views.page.history import whole
from spark_ext.views.page.incidents import detail

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

POLL_EVERY: Final = 1.0  # how often the ledger is looked at while somebody looks at the page, s
AGAIN: Final = 5.0  # after how long an unchanged document is made again, s: rates and availability change


@dataclass(frozen=True)
class Version:
    """The document at one time."""

    number: int
    facts: Facts
    document: Mapping[str, Any]  # with its queries by uid
    text: str
    made_at: float  # of a clock that never goes back, s


class PageView:
    """The page of one job. Safe for several threads; `clock` never goes back, s."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = FactsReader(ledger)
        self._clock = clock
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._polled_at = 0.0
        self._patch: tuple[int, int, str] | None = None

    def poll(self) -> Version:
        """The newest version; the ledger is looked at once a second at most."""
        with self._lock:
            now, before = self._clock(), self._version
            if before is not None and now - self._polled_at < POLL_EVERY:
                return before
            facts = self._reader.read()
            self._polled_at = self._clock()
            if before is not None and facts is before.facts and (_over(before) or now - before.made_at < AGAIN):
                return before
            document = page(facts, datetime.now(timezone.utc))
            self._version = Version(
                1 if before is None else before.number + 1,
                facts,
                keyed(document),
                json.dumps(document, separators=(",", ":")),
                now,
            )
            return self._version

    def facts(self) -> Facts:
        """What is there now: only what is new is read."""
        with self._lock:
            return self._reader.read()

    def patch(self, before: Version, after: Version) -> str:
        """What has changed, as it is sent. Those who follow the page mostly need the same one."""
        with self._lock:
            known = self._patch
            if known is None or known[:2] != (before.number, after.number):
                text = json.dumps(difference(before.document, after.document), separators=(",", ":"))
                known = self._patch = (before.number, after.number, text)
            return known[2]

    def series(self, query: str, since: int | None, until: int | None) -> Points:
        """The series of a query's epochs, or of all (""), between two times, ms since 1970 UTC; None: no bound."""
        epochs = self.poll().facts.epochs
        part = epochs.slices().get(query, slice(0, 0)) if query else slice(None)
        order = epochs.at[part].argsort(kind="stable")
        at, rows, ms, lag = (column[part][order] for column in (epochs.at, epochs.rows, epochs.ms, epochs.lag))
        first = 0 if since is None else int(at.searchsorted(since, "left"))
        last = len(at) if until is None else int(at.searchsorted(until, "right"))
        chosen = slice(first, last)
        return series(at[chosen], rows[chosen], ms[chosen], POINTS, lag[chosen] if query else None)

    def incident(self, incident_id: str) -> dict[str, Any] | None:
        """The details of an incident; None if it does not exist."""
        facts = self.poll().facts
        rows = whole([row for row in facts.incidents if row["incident_id"] == incident_id], facts.changes)
        return detail(rows[0], facts.changes) if rows else None


def _over(version: Version) -> bool:
    """Whether nothing changes with time, as no driver runs."""
    return version.facts.alive is False


DEPTH: Final = 3  # how many levels of objects are compared member by member


def keyed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its queries by uid, as patches see it."""
    return {**document, "queries": {query["uid"]: query for query in document["queries"]}}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The patch between two documents of `keyed`: `set`, [path, value] pairs, and `gone`; a path is a list of names."""
    changes: list[list[Any]] = []
    gone: list[list[str]] = []
    _compare(before, after, [], changes, gone)
    return {"set": changes, "gone": gone}


def _compare(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    path: list[str],
    changes: list[list[Any]],
    gone: list[list[str]],
) -> None:
    for name, value in after.items():
        old = before.get(name, _MISSING)
        if old is value or (old is not _MISSING and old == value):
            continue
        if len(path) + 1 < DEPTH and isinstance(old, Mapping) and isinstance(value, Mapping):
            _compare(old, value, [*path, name], changes, gone)
        else:
            changes.append([[*path, name], value])
    gone += [[*path, name] for name in before if name not in after]


_MISSING: Final = object()
