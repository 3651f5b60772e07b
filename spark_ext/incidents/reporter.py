"""Takes incidents from any thread, keeps the book of them, and hands on what has changed.

It knows neither jobs nor the ledger: its creator decides where the rows go, and which listeners are notified. A call
costs a lookup in the book and an append; nothing here waits for a disk or a listener.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from spark_ext.incidents.book import Book, IncidentEntry, RecordedOccurrence
from spark_ext.incidents.dispatch import Dispatcher
from spark_ext.incidents.registry import Registry, shipped
from spark_ext.incidents.types import Incident, IncidentChange, Severity, fingerprint_of, query_in
from spark_ext.masking import logger, mask

log = logger("spark_ext.job")
STOPPED: Final = "stopped: FAILED"  # the action of a failure for which a query or job is given up
GIVEN_UP: Final = "given_up"  # attribute of log records: whether the run ends with this failure, and raises it

LONGEST_CAUSE = 500  # characters of a cause that are kept


def _nothing(*_: object) -> None:
    pass


class Incidents:
    """The incidents of a job, or of some queries. Safe for several threads. Without a registry, of shipped types."""

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        on_noted: Callable[[RecordedOccurrence, Any], None] = _nothing,
        on_changed: Callable[[Sequence[IncidentChange]], None] = _nothing,
        dispatcher: Dispatcher | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.registry = registry or shipped()
        self.dispatcher = dispatcher
        self._book = Book(self.registry)
        self._on_noted = on_noted
        self._on_changed = on_changed
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.RLock()
        self._last = ""  # id of the incident that was reported last

    def entry(self, incident_id: str) -> IncidentEntry | None:
        """An incident; None if it is not known, or not any more."""
        with self._lock:
            return self._book.entry(incident_id)

    def last(self) -> IncidentEntry | None:
        """The incident that was reported last; None if none was, or if it is not known any more."""
        with self._lock:
            return self._book.entry(self._last)

    def open(self, query: str | None = None) -> tuple[IncidentEntry, ...]:
        """The open incidents of a query, of the whole job (""), or all, oldest first."""
        with self._lock:
            return self._book.open(query)

    def report(
        self,
        operator: str,
        type_: str,
        what: str,
        action: str,
        *,
        evidence: Any = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        fingerprint: str | None = None,
    ) -> str:
        """Take an incident, and log it; returns its id, that of the earlier one if it is the same once more.

        Args:
            parent: id of the incident during whose recovery it happened; None: found by what is open.
            fingerprint: equal for equal incidents of this type and operator; None: made from `what` and `labels`.
        """
        found = Incident(
            incident_id=self._new_id(),
            type=type_,
            severity=self.registry.of(type_).severity,
            operator=operator,
            query=query_in(operator),
            at=self._clock(),
            what=what,
            action=action,
            labels=dict(labels or {}),
            fingerprint=fingerprint_of(what, labels) if fingerprint is None else fingerprint,
            parent=parent,
        )
        with self._lock:
            noted = self._book.occurred(found)
            self._last = noted.incident.incident_id
            if noted.notable:
                self._on_noted(noted, evidence)
            self._hand_on(noted.changes)
        if noted.notable:
            # Its first line: the rest, and the stack, are in the table.
            level = logging.INFO if found.severity is Severity.INFO else logging.WARNING
            about = {GIVEN_UP: action == STOPPED}
            log.log(level, "%s: %s (%s)", operator, what.partition("\n")[0], action, extra=about)
        return noted.incident.incident_id

    def committed(self, query: str, epoch: int) -> None:
        """A query has committed an epoch: what it had to recover from is resolved, and so is what the job had."""
        if self._book.all_resolved:
            return  # as for nearly all epochs
        self._change(lambda at: self._book.committed(query, f"query '{query}' has committed epoch {epoch}", at))

    def ended(self, query: str) -> None:
        """A query has finished: all its input is committed."""
        self._change(lambda at: self._book.committed(query, f"query '{query}' has finished", at))

    def all_ended(self) -> None:
        """The job has finished."""
        self._change(lambda at: self._book.finished("the job has finished", at))

    def resolve(self, incident_id: str, cause: str) -> bool:
        """An incident is over."""
        return bool(self._change(lambda at: self._book.resolve(incident_id, mask(cause)[:LONGEST_CAUSE], at)))

    def inherit(self, entries: Iterable[IncidentEntry]) -> None:
        """Take over what earlier starts have left, before anything is reported."""
        with self._lock:
            self._book.inherit(entries)

    def adopt(self, queries: Mapping[str, str | None], cause: str) -> None:
        """Give inherited incidents to the queries that continue their history; see `Book.adopt`."""
        self._change(lambda at: self._book.adopt(queries, cause, at))

    def count(self, *, everything: bool = False) -> None:
        """Hand on the counts that are due, or all of them."""
        if self._book.uncounted:
            self._change(lambda at: self._book.counts(at, everything=everything))

    @property
    def uncounted(self) -> bool:
        """Whether there are counts that were not handed on yet."""
        return self._book.uncounted

    def close(self, within: float) -> None:
        """Deliver what is queued to the listeners, within a limit in s. No further changes follow."""
        if self.dispatcher is not None:
            self.dispatcher.close(within)

    def _change(self, change: Callable[[datetime], tuple[IncidentChange, ...]]) -> tuple[IncidentChange, ...]:
        with self._lock:
            changes = change(self._clock())
            self._hand_on(changes)
        return changes

    def _hand_on(self, changes: tuple[IncidentChange, ...]) -> None:
        if not changes:
            return
        self._on_changed(changes)
        if self.dispatcher is not None:
            for change in changes:
                self.dispatcher.put(change)
