"""Which history belongs to a query: its lineage, the names that it had, and what a lineage takes over. Pure.

Rows of the ledger have the name and the lineage that their query had when they were written. A reset gives a query a
new lineage, so that its rows no longer count. A rename leaves the lineage as it is and gives the *old name* a new one,
so that rows of the old name and the old lineage are the renamed query's, even if another query takes that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

FIRST: Final = 1  # lineage of a job that was never reset and has no renamed query


@dataclass(frozen=True)
class LineageEvent:
    """A query, or all, have a new lineage, or a query has a new name."""

    query: str  # the query, under its new name if it was renamed; "" for all
    lineage: int
    incarnation: int  # the start in which it happened
    renamed_from: str | None = None  # the former name of a renamed query; None for a new lineage
    parent: int | None = None  # the lineage that a new one continues; None: it starts from scratch
    cut: Mapping[str, int] = field(default_factory=dict)  # per source, the last finish of the parent that counts


@dataclass(frozen=True)
class Span:
    """A part of a query's history: rows of this name, written in these incarnations."""

    query: str
    since: int  # the first incarnation
    before: int | None = None  # the first incarnation that no longer belongs to it; None: all do

    def holds(self, query: str, incarnation: int) -> bool:
        """Whether a row belongs to it."""
        return query == self.query and self.since <= incarnation and (self.before is None or incarnation < self.before)


@dataclass(frozen=True)
class Rename:
    """A query has another name."""

    old: str
    new: str
    lineage: int  # that the old name has since then. What belongs to the name and is older is the renamed query's.


@dataclass(frozen=True)
class Lineages:
    """The lineages of a job's queries."""

    events: tuple[LineageEvent, ...] = ()

    @property
    def newest(self) -> int:
        """The newest lineage of the job: that in which a query begins that was never started."""
        return max((event.lineage for event in self.events), default=FIRST)

    def of(self, query: str) -> int | None:
        """The lineage that the events give a query; None: no event is about it."""
        event = self._last(query, self.events)
        return None if event is None else event.lineage

    def names(self, query: str, lineage: int) -> tuple[str, ...]:
        """The names under which rows of a query's lineage were written, newest first."""
        names, name = [query], query
        for event in reversed(self.events):
            if event.renamed_from is not None and (event.query, event.lineage) == (name, lineage):
                name = event.renamed_from
                names.append(name)
        return tuple(dict.fromkeys(names))

    def spans(self, query: str) -> tuple[Span, ...]:
        """The parts of a query's history, newest first, for rows that carry no lineage of the query."""
        spans: list[Span] = []
        events, before = self.events, None
        while True:
            event = self._last(query, events)
            spans.append(Span(query, 0 if event is None else event.incarnation, before))
            if event is None or event.renamed_from is None:
                return tuple(spans)
            query, before = event.renamed_from, event.incarnation
            events = events[: events.index(event)]

    @cached_property
    def renames(self) -> tuple[Rename, ...]:
        """All renames, in their order, which is that of their lineages."""
        found = []
        for event in self.events:
            if event.renamed_from is not None:
                given = [
                    one.lineage
                    for one in self.events
                    if one.renamed_from is None
                    and (one.query, one.incarnation) == (event.renamed_from, event.incarnation)
                    and one.lineage > event.lineage
                ]
                found += [Rename(event.renamed_from, event.query, min(given))] if given else []
        return tuple(sorted(found, key=lambda rename: rename.lineage))

    def present_name(self, query: str, lineage: int) -> str:
        """The name that a query has now, given its name while `lineage` was the job's newest one."""
        return self.later_names(query, lineage)[-1]

    def later_names(self, query: str, lineage: int) -> tuple[str, ...]:
        """A name that a query had, and those that it was given since, newest last; see `present_name`."""
        names = [query]
        for rename in self.renames:
            if rename.old == names[-1] and lineage < rename.lineage:
                names.append(rename.new)
                lineage = rename.lineage
        return tuple(names)

    def renamed(self, query: str, old: str) -> bool:
        """Whether a query has had a name, in its present lineage."""
        lineage = self.of(query)
        return lineage is not None and old in self.names(query, lineage)[1:]

    @staticmethod
    def _last(query: str, events: Iterable[LineageEvent]) -> LineageEvent | None:
        found = None
        for event in events:
            if event.query == query or (event.renamed_from is None and event.query == ""):
                found = event
        return found


def counted(lineage: int, source: str, events: Iterable[LineageEvent]) -> tuple[tuple[int, int | None], ...]:
    """Which finished flags of a source count: by lineage, newest first, up to which finish sequence (None: all).

    A lineage that continues an older one keeps its flags up to the cut, and none behind it; that one in turn keeps
    those of its own parent. A source that the cut does not name had finished nothing.
    """
    parents = {event.lineage: event for event in events if event.renamed_from is None}
    found: list[tuple[int, int | None]] = [(lineage, None)]
    limit: int | None = None
    event = parents.get(lineage)
    while event is not None and event.parent is not None and event.parent < event.lineage:
        upto = event.cut.get(source, 0)
        limit = upto if limit is None else min(limit, upto)
        found.append((event.parent, limit))
        event = parents.get(event.parent)
    return tuple(found)


@dataclass(frozen=True)
class Restored:
    """A restore that has been completed."""

    lineage: int
    parent: int | None
    checkpoint: int | None  # the retained checkpoint from which; None: a savepoint


def checkpoint_to_restore(
    retained: Mapping[int, int], lineage: int, restores: Iterable[Restored]
) -> tuple[int | None, str]:
    """The newest checkpoint that serves after the job's state was damaged; or None, and why none does.

    It serves if it is a part of the history that the job continues: taken in the present lineage, or in one that
    this one continues, before the point where it does. One from which the job has been restored already, and after
    which it has completed no other, does not: what was damaged then would be damaged again.
    """
    by_lineage = {restore.lineage: restore for restore in restores}
    upto: int | None = None
    at: int | None = lineage
    begun = by_lineage.get(lineage)
    while at is not None:
        there = [number for number, own in retained.items() if own == at and (upto is None or number <= upto)]
        if there:
            newest = max(there)
            if begun is not None and begun.checkpoint == newest:
                return None, f"it has been restored from checkpoint {newest}, and has completed none since"
            return newest, ""
        link = by_lineage.get(at)
        if link is None or link.checkpoint is None:
            break
        at, upto = link.parent, link.checkpoint if upto is None else min(upto, link.checkpoint)
    return None, "no checkpoint of its present history is retained"
