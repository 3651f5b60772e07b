"""How long the job, or one of its queries, took from a failure to the commit of the next epoch. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from spark_ext.ledger.schema import EpochRow, ExecutionStateRow, IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.views.incidents import class_of, query_of

_ENDED = frozenset({State.FINISHED.value, State.SUSPENDED.value, State.CANCELED.value})


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A recovery that has succeeded."""

    query: str  # uid of the query; empty: the job, after its driver was lost
    incident_id: str  # the failure that began it
    kind: str  # the class of that failure
    since: datetime
    until: datetime  # when the next epoch was committed
    epoch: int  # that epoch
    of: str  # uid of the query whose epoch it was
    incarnation: int  # the start of the job in which that was
    failures: int = 1  # failures on the way, the first one included

    @property
    def seconds(self) -> float:
        """Its length, s."""
        return (self.until - self.since).total_seconds()


@dataclass
class _Open:
    incident_id: str
    kind: str
    since: datetime
    failures: int = 1


@dataclass
class Recoveries:
    """Follows the rows of a running job. For one thread at a time."""

    _open: dict[str, _Open] = field(default_factory=dict)
    _first: EpochRow | None = None

    def take(self, row: Any) -> list[Recovery]:
        """The recoveries that end with a row."""
        if isinstance(row, IncidentRow) and row.type in ("failure", "driver_lost"):
            # A driver that was lost is found by the next start.
            seen = (row.evidence or {}).get("last_seen") if row.type == "driver_lost" else None
            since = row.at if seen is None else datetime.fromisoformat(seen)
            self._begin(query_of({"operator": row.operator}), row.incident_id, class_of(row.labels), since)
        elif isinstance(row, ExecutionStateRow) and row.state in _ENDED:
            # There will be no further epoch to recover to.
            self._open.pop(row.operator, None)
        elif isinstance(row, EpochRow):
            self._first = self._first or row
            return self._end(row)
        return []

    def inherit(self, query: str, incident_id: str, kind: str, since: datetime) -> list[Recovery]:
        """An earlier start of a query, or of the job (""), ended with a failure: this start recovers from it.

        It has done so if an epoch was committed before the failure became known.
        """
        if query in self._open:
            return []
        self._begin(query, incident_id, kind, since)
        return [] if self._first is None else self._end(self._first)

    def _begin(self, query: str, incident_id: str, kind: str, since: datetime) -> None:
        if query in self._open:
            self._open[query].failures += 1
        else:
            self._open[query] = _Open(incident_id, kind, since)

    def _end(self, row: EpochRow) -> list[Recovery]:
        found = []
        for query in ("", row.query):
            begun = self._open.get(query)
            if begun is not None and row.committed_at > begun.since:
                del self._open[query]
                epoch: dict[str, Any] = {"epoch": row.epoch, "of": row.query, "incarnation": row.incarnation}
                found.append(Recovery(query=query, until=row.committed_at, **epoch, **vars(begun)))
        return found
