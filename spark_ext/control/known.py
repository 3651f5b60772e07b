"""What the ledger knows of a job's structure: whom an event may be addressed to, and whether the job can obey it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_ext.ledger.identity import OBSERVER, lineages
from spark_ext.ledger.incarnation import is_alive
from spark_ext.ledger.schema import DefinitionRow, FinishedRow, JobRow
from spark_ext.model.control import Scope, Target
from spark_ext.model.definitions import QueryDefinition, Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_ext.ledger import Ledger
    from spark_ext.model.lineages import Lineages


@dataclass(frozen=True)
class KnownQuery:
    """One query of the job."""

    sources: frozenset[str] = frozenset()  # uids of its channel sources
    sinks: frozenset[str] = frozenset()
    finished: bool = False
    reads: tuple[tuple[str, str], ...] = ()  # keys of the configuration, each with the type as which it reads it


@dataclass(frozen=True)
class KnownJob:
    """The job, as its ledger describes it."""

    name: str = ""
    job_id: str = ""
    incarnation: int = 0  # the newest start; 0: there was none
    lineage: int = 1  # the newest lineage
    queries: Mapping[str, KnownQuery] = field(default_factory=dict)
    running: bool | None = None  # whether its newest start runs; None: unknown, as its driver is on another host
    observer: bool = False  # whether this is no job, but an Observer, which obeys nothing
    driver: tuple[int, float] = (0, 0.0)  # the process of its newest start, and when that began

    @property
    def finished(self) -> bool:
        """Whether all of its queries have finished."""
        return bool(self.queries) and all(query.finished for query in self.queries.values())

    def queries_of(self, target: Target) -> tuple[str, ...]:
        """The queries that an event with this target concerns; empty when the job has no such thing."""
        if target.scope is Scope.JOB:
            return tuple(self.queries)
        if target.scope is Scope.QUERY:
            return (target.uid,) if target.uid in self.queries else ()
        if target.scope is Scope.SINK:
            return tuple(uid for uid, query in self.queries.items() if target.uid in query.sinks)
        return tuple(uid for uid, query in self.queries.items() if target.uid in query.sources)

    @classmethod
    def read(cls, ledger: Ledger) -> KnownJob:
        """Read the ledger."""
        jobs = ledger.jobs()
        started = [row for row in jobs if row.event == "started"]
        if not started:
            return cls()
        newest = started[-1]
        flags = [(row.query, row.lineage) for row in ledger.table(FinishedRow).rows([("kind", "=", "query")])]
        known = lineages(jobs)
        queries: dict[str, KnownQuery] = {}
        begun: dict[str, int] = {}
        for row in sorted(ledger.table(DefinitionRow).rows(), key=lambda row: (row.incarnation, row.at)):
            made_of = QueryDefinition.from_json(row.definition)
            queries[row.query] = KnownQuery(
                frozenset(one.uid for one in made_of.of(Role.SOURCE)),
                frozenset(one.uid for one in made_of.of(Role.SINK)),
                _finished(row.query, flags, known),
                made_of.reads,
            )
            begun[row.query] = row.incarnation
        for event in jobs:
            gone = {"removed": event.query, "renamed": event.renamed_from or ""}.get(event.event, "")
            if begun.get(gone, event.incarnation + 1) <= event.incarnation:  # else another query has the uid since
                queries.pop(gone, None)
        return cls(
            newest.job,
            newest.job_id,
            newest.incarnation,
            max(row.lineage for row in jobs),
            queries,
            _runs(newest, jobs),
            newest.kind == OBSERVER,
            (newest.driver_pid, newest.driver_started),
        )


class Structure:
    """The job's structure, read again only when a table of it has changed, or whether the driver runs may have."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tables = [ledger.tables[row_type.table] for row_type in (JobRow, FinishedRow, DefinitionRow)]
        self._seen: tuple[int | None, ...] = ()
        self._known = KnownJob()

    def poll(self) -> KnownJob:
        """The job now."""
        for table in self._tables:
            table.refresh()
        seen = tuple(table.version for table in self._tables)
        if seen != self._seen:
            self._known = KnownJob.read(self._ledger)
            self._seen = seen
        if self._known.running and not is_alive(*self._known.driver):
            self._known = replace(self._known, running=False)
        return self._known


def _finished(query: str, flags: Iterable[tuple[str, int]], known: Lineages) -> bool:
    """Whether a query has finished in its present lineage, under whichever name."""
    lineage = known.of(query)
    names = (query,) if lineage is None else known.names(query, lineage)
    return any(name in names and lineage in (None, begun) for name, begun in flags)


def _runs(newest: JobRow, jobs: Sequence[JobRow]) -> bool | None:
    if any(row.event == "ended" and row.incarnation == newest.incarnation for row in jobs):
        return False
    if newest.host != socket.gethostname():
        return None
    return is_alive(newest.driver_pid, newest.driver_started)
