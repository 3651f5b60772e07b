"""Which incidents are open, and which are the same: what an occurrence, a commit or an end changes. No clock or thread.

An occurrence that equals an earlier one (type, operator, fingerprint) and comes within the type's window after its last
one is the same incident, counted once more. An incident that was resolved meanwhile is opened again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from spark_ext.incidents.registry import Registry
from spark_ext.incidents.types import Incident, IncidentChange, IncidentState, Resolution

OPEN, RESOLVED = IncidentState.OPEN, IncidentState.RESOLVED
MOST_ALIKE: Final = 200  # open or recent incidents of one type and operator; all further ones are one incident
OTHER: Final = "other"  # the fingerprint of those further ones
OTHER_WINDOW: Final = timedelta(minutes=1)  # their least window
MOST_RESOLVED: Final = 1_000  # how many incidents that are resolved are remembered, so that they can be opened again
EACH_UPTO: Final = 10  # up to this count each one is recorded at once
COUNT_EVERY: Final = timedelta(minutes=1)  # how often a greater count is recorded while the incident stays open
Key = tuple[str, str, str]


@dataclass(frozen=True)
class IncidentEntry:
    """An incident in the book."""

    incident: Incident  # its last occurrence, under the id of the first
    state: IncidentState
    count: int = 1
    recorded: int = 1  # the count that the last change had
    recorded_at: datetime | None = None
    inherited: bool = False  # whether it has not happened since this start

    @property
    def key(self) -> Key:
        """By which an equal one is found."""
        return self.incident.type, self.incident.operator, self.incident.fingerprint


@dataclass(frozen=True)
class RecordedOccurrence:
    """The outcome of recording an occurrence."""

    incident: Incident
    changes: tuple[IncidentChange, ...]
    notable: bool  # more than a greater count: it is new, open again or new in this start, or its action is another


class Book:
    """The incidents of a job or of some queries. For one thread at a time."""

    def __init__(self, registry: Registry, inherited: Iterable[IncidentEntry] = ()) -> None:
        self._registry = registry
        self._entries: dict[str, IncidentEntry] = {}  # by id
        self._newest: dict[Key, str] = {}
        self._open: dict[str, dict[str, None]] = {}  # ids of open incidents by query, oldest first
        self._done: dict[str, None] = {}  # ids of those that are resolved, oldest first
        self._alike: dict[tuple[str, str], dict[str, None]] = {}  # by type and operator, last occurrence last
        self._uncounted: dict[str, None] = {}
        self.inherit(inherited)

    def entry(self, incident_id: str) -> IncidentEntry | None:
        """An incident; None if it is not known, or not any more."""
        return self._entries.get(incident_id)

    @property
    def all_resolved(self) -> bool:
        """Whether nothing is open; for any thread."""
        return not self._open

    def open(self, query: str | None = None) -> tuple[IncidentEntry, ...]:
        """The open incidents of a query, of the whole job (""), or all, oldest first."""
        queries = self._open if query is None else (query,)
        return tuple(self._entries[one] for name in queries for one in self._open.get(name, ()))

    @property
    def uncounted(self) -> bool:
        """Whether there are counts that no change has recorded."""
        return bool(self._uncounted)

    def inherit(self, entries: Iterable[IncidentEntry]) -> None:
        """Take over what an earlier start has left."""
        for entry in entries:
            self._put(entry)

    def occurred(self, incident: Incident) -> RecordedOccurrence:
        """Take an occurrence, with the id that it gets if it is new.

        Without a parent it gets the newest open incident from which its query, or the job, is recovering.
        """
        type_ = self._registry.of(incident.type)
        window = timedelta(milliseconds=type_.window)
        incident = self._among_many(incident, window)
        before = self._same(incident, window)
        if before is None:
            parent = incident.parent or self._recovering(incident)
            incident = replace(incident, parent=parent)
            state = RESOLVED if type_.resolved is Resolution.AT_ONCE else OPEN
            self._put(IncidentEntry(incident, state, recorded_at=incident.at))
            cause = "it is information" if state is RESOLVED else ""
            return RecordedOccurrence(incident, (_change(incident, None, state, cause, incident.at, 1),), notable=True)
        last, count = before.incident, before.count + 1
        incident = replace(incident, incident_id=last.incident_id, parent=last.parent)
        notable = incident.action != last.action or before.inherited
        state, cause = before.state, ""
        at_once = count <= EACH_UPTO or before.recorded_at is None or incident.at - before.recorded_at >= COUNT_EVERY
        if before.state is RESOLVED and type_.resolved is not Resolution.AT_ONCE:
            state, cause, notable = OPEN, "it happened again", True
        elif not at_once:
            self._put(replace(before, incident=incident, count=count, inherited=False))
            self._uncounted[incident.incident_id] = None
            return RecordedOccurrence(incident, (), notable)
        self._put(IncidentEntry(incident, state, count, count, incident.at))
        self._uncounted.pop(incident.incident_id, None)
        return RecordedOccurrence(
            incident, (_change(incident, before.state, state, cause, incident.at, count),), notable
        )

    def committed(self, query: str, cause: str, at: datetime) -> tuple[IncidentChange, ...]:
        """A query has committed an epoch, or has finished: what was open of it, and of the whole job, is resolved."""
        if not self._open.get(query) and not self._open.get(""):
            return ()
        return self._resolved((*self.open(query), *(self.open("") if query else ())), cause, at)

    def finished(self, cause: str, at: datetime) -> tuple[IncidentChange, ...]:
        """The whole job has finished: whatever an epoch would resolve is resolved."""
        return self._resolved(self.open(), cause, at)

    def resolve(self, incident_id: str, cause: str, at: datetime) -> tuple[IncidentChange, ...]:
        """One incident is over, whatever its type says. One that is not open is not changed."""
        entry = self._entries.get(incident_id)
        return () if entry is None or entry.state is RESOLVED else (self._close(entry, cause, at),)

    def adopt(self, queries: Mapping[str, str | None], cause: str, at: datetime) -> tuple[IncidentChange, ...]:
        """Give inherited incidents to the queries whose history they belong to now: by id the uid, or None."""
        changes = []
        for incident_id, query in queries.items():
            entry = self._entries.get(incident_id)
            if entry is None or entry.state is RESOLVED:
                continue
            if query is None:
                changes.append(self._close(entry, cause, at))
            elif query != entry.incident.query:
                self._forget_open(entry)
                self._put(replace(entry, incident=replace(entry.incident, query=query)))
        return tuple(changes)

    def counts(self, at: datetime, *, everything: bool = False) -> tuple[IncidentChange, ...]:
        """The counts that are due to be recorded, or all."""
        changes = []
        for incident_id in tuple(self._uncounted):
            entry = self._entries[incident_id]
            if everything or entry.recorded_at is None or at - entry.recorded_at >= COUNT_EVERY:
                del self._uncounted[incident_id]
                self._entries[incident_id] = replace(entry, recorded=entry.count, recorded_at=at)
                changes.append(_change(entry.incident, entry.state, entry.state, "", at, entry.count))
        return tuple(changes)

    def _same(self, incident: Incident, window: timedelta) -> IncidentEntry | None:
        if incident.fingerprint == OTHER:
            window = max(window, OTHER_WINDOW)
        found = self._newest.get((incident.type, incident.operator, incident.fingerprint))
        entry = None if found is None else self._entries[found]
        # A window of 0 means that each is one of its own, also at the same moment.
        if entry is None or not window or incident.at - entry.incident.at > window:
            return None
        return entry

    def _among_many(self, incident: Incident, window: timedelta) -> Incident:
        """The incident itself; beyond the limit, one that stands for all further ones of its type and operator."""
        alike = self._alike.get((incident.type, incident.operator), {})
        if len(alike) < MOST_ALIKE or self._same(incident, window) is not None:
            return incident
        for one in tuple(alike):
            entry = self._entries[one]
            if incident.at - entry.incident.at <= window:
                break
            if entry.state is RESOLVED:
                self._forget(entry)
        return incident if len(alike) < MOST_ALIKE else replace(incident, fingerprint=OTHER)

    def _recovering(self, incident: Incident) -> str | None:
        """The newest open incident from which the query, or the job, is recovering."""
        queries = dict.fromkeys((incident.query, ""))
        open_ = [entry.incident for query in queries for entry in self.open(query)]
        found = [one for one in open_ if self._registry.of(one.type).interrupts]
        return max(found, key=lambda one: one.at).incident_id if found else None

    def _resolved(self, entries: Iterable[IncidentEntry], cause: str, at: datetime) -> tuple[IncidentChange, ...]:
        return tuple(
            self._close(entry, cause, at)
            for entry in entries
            if self._registry.of(entry.incident.type).resolved is not Resolution.REPORT
        )

    def _close(self, entry: IncidentEntry, cause: str, at: datetime) -> IncidentChange:
        self._forget_open(entry)
        self._put(replace(entry, state=RESOLVED, recorded=entry.count, recorded_at=at))
        self._uncounted.pop(entry.incident.incident_id, None)
        return _change(entry.incident, OPEN, RESOLVED, cause, at, entry.count)

    def _put(self, entry: IncidentEntry) -> None:
        one, key = entry.incident, entry.key
        self._entries[one.incident_id] = entry
        self._newest[key] = one.incident_id
        alike = self._alike.setdefault(key[:2], {})
        alike.pop(one.incident_id, None)
        alike[one.incident_id] = None
        self._done.pop(one.incident_id, None)
        if entry.state is OPEN:
            self._open.setdefault(one.query, {})[one.incident_id] = None
            return
        self._done[one.incident_id] = None
        if len(self._done) > MOST_RESOLVED:
            self._forget(self._entries[next(iter(self._done))])

    def _forget_open(self, entry: IncidentEntry) -> None:
        ids = self._open.get(entry.incident.query, {})
        ids.pop(entry.incident.incident_id, None)
        if not ids:
            self._open.pop(entry.incident.query, None)

    def _forget(self, entry: IncidentEntry) -> None:
        """Forget one that is resolved."""
        incident_id = entry.incident.incident_id
        del self._entries[incident_id], self._done[incident_id]
        self._uncounted.pop(incident_id, None)
        alike = self._alike[entry.key[:2]]
        del alike[incident_id]
        if not alike:
            del self._alike[entry.key[:2]]
        if self._newest.get(entry.key) == incident_id:
            del self._newest[entry.key]


def _change(
    incident: Incident, old: IncidentState | None, new: IncidentState, cause: str, at: datetime, count: int
) -> IncidentChange:
    return IncidentChange(incident=incident, old=old, new=new, cause=cause, at=at, count=count)
