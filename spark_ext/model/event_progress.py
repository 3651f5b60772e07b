"""What has become of a control event, from what the queries' offsets say. Pure.

An event that epochs obey is *applied* in a query from the first epoch whose offsets have reached it. It is
*acknowledged* once every query that it concerns has committed such an epoch, or can have none any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from spark_ext.model.configuration import SETTINGS, is_read
from spark_ext.model.control import Delivery, Event, Scope
from spark_ext.model.control_kinds import kinds
from spark_ext.model.offsets import Json, SourceOffset


class Standing(str, Enum):
    """Whether a query can still obey an event."""

    ABLE = "able"  # it runs, or will, and a source of it looks at events
    STOPPED = "stopped"  # it has ended in this start; the next one continues
    FINISHED = "finished"
    BLIND = "blind"  # None of its sources looks at events: they are Spark's own, or have ended


NO_SOURCE = (
    "has only sources of Spark's own, which cannot look at events: add sx.with_control(df) to it, or add the query as "
    "a function of the configuration"
)
"""Why a query cannot obey an event, and the way out."""


@dataclass(frozen=True)
class Step:
    """A step in the life of an event, to be recorded."""

    status: str
    query: str = ""
    epoch: int | None = None
    reason: str = ""
    result: Json = None


@dataclass(frozen=True)
class QueryView:
    """What events need to know of a query."""

    uid: str
    sources: frozenset[str]
    standing: Standing
    committed: int = -1
    ended_sources: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()  # keys of the configuration on which its plan depends
    passed: int = 0  # the last event that needs no restart of it any more
    since: int = -1  # the first epoch with its present plan
    lineage: int = 1
    begun: int = 0  # the start of the job in which it began


@dataclass(frozen=True)
class Rebuilt:
    """A query was restarted for an event."""

    epoch: int  # its first epoch after that
    took_ms: int
    completed: int | None = None  # the epoch that was interrupted, and completed before

    def note(self, query: str) -> str:
        """What there is to say about it."""
        first = "" if self.completed is None else f"; epoch {self.completed} was interrupted, and completed before"
        return f"query '{query}' was restarted before epoch {self.epoch}, in {self.took_ms} ms{first}"


@dataclass(frozen=True)
class Progress:
    """An open event that epochs obey."""

    event: Event
    applied: Mapping[str, int] = field(default_factory=dict)  # by query, its first epoch with the event
    outcomes: Mapping[str, Step] = field(default_factory=dict)  # said by its planner; without an entry it was obeyed
    rebuilt: Mapping[str, Rebuilt] = field(default_factory=dict)  # by query, its restart for the event
    silent: frozenset[str] = frozenset()  # of `applied`: without events in their offsets, they obey by a restart

    def _over(self, query: QueryView) -> bool:
        """Whether an event that is obeyed once was meant for an earlier history of a query, or came before it."""
        kind = kinds().get(self.event.kind)
        once = kind is not None and not kind.standing
        return once and (self.event.lineage < query.lineage or self.event.incarnation < query.begun)

    def concerns(self, query: QueryView) -> bool:
        """Whether the event is addressed to a query or to something in it."""
        target = self.event.target
        if target.scope is Scope.JOB:
            return True
        if target.scope is Scope.QUERY:
            return target.uid == query.uid
        return target.scope in (Scope.SOURCE, Scope.CHANNEL) and target.uid in query.sources

    def seen(self, query: QueryView, epoch: int, offsets: Mapping[str, SourceOffset]) -> Progress:
        """What an epoch's offsets say; epochs come in their order, each as soon as it is planned."""
        if query.uid in self.applied or not self.concerns(query) or self._ignored(query):
            return self
        return self if self.reached(offsets) < self.event.sequence else self._applied(query.uid, epoch)

    def reached(self, offsets: Mapping[str, SourceOffset]) -> int:
        """Up to which event the offsets have come, for those with this target."""
        target = self.event.target
        if target.scope in (Scope.SOURCE, Scope.CHANNEL):
            return offsets[target.uid].control if target.uid in offsets else 0
        return max((offset.control for offset in offsets.values()), default=0)

    def _applied(self, query: str, epoch: int) -> Progress:
        return replace(self, applied={**self.applied, query: epoch})

    def with_outcome(self, query: str, outcome: Mapping[str, Json]) -> Progress:
        """What the query's planner has recorded of the event."""
        step = Step(outcome["status"], query, reason=outcome.get("reason", ""), result=outcome.get("result"))
        return replace(self, outcomes={**self.outcomes, query: step})

    @property
    def _key(self) -> str:
        """The key of the user's configuration that the event sets; "" if it sets none."""
        value = self.event.value
        return str(value["key"]) if self.event.kind == "set_config" and isinstance(value, dict) else ""

    def _ignored(self, query: QueryView) -> bool:
        """Whether it is a setting of Spark's, and the query is no function of the configuration."""
        return self._key.startswith(SETTINGS) and not query.keys

    def _by_restart(self, query: QueryView) -> bool:
        """Whether the query obeys it by a restart alone: it has only sources of Spark's own."""
        return bool(self._key) and not query.sources and is_read(query.keys, self._key)

    def restarted(self, query: QueryView) -> Progress:
        """What a query has obeyed by a restart, or was started with."""
        aligned = self.event.delivery is Delivery.ALIGNED
        passed = query.uid in self.rebuilt if aligned else self.event.sequence <= query.passed
        if query.uid in self.applied or query.since < 0 or not passed:
            return self
        if not self.concerns(query) or not self._by_restart(query):
            return self
        applied = {**self.applied, query.uid: query.since}
        return replace(self, applied=applied, silent=self.silent | {query.uid})

    def first_step(self, query: str) -> Step:
        """The step that follows from having been seen in a query's epoch."""
        outcome = self.outcomes.get(query)
        if outcome is None:
            return Step("applied", query, self.applied[query])
        return replace(outcome, epoch=self.applied[query])

    def last_step(self, queries: Iterable[QueryView]) -> Step | None:
        """What has finally come of the event; None: not decided yet."""
        concerned = [query for query in queries if self.concerns(query)]
        without: list[str] = []
        for query in concerned:
            epoch = self.applied.get(query.uid)
            if epoch is not None:
                if query.committed < epoch and query.uid not in self.silent:
                    return None
            elif (why := self._cannot(query)) is None:
                return None
            else:
                without.append(f"query '{query.uid}' {why}")
        said = [self.outcomes[uid] for uid in self.applied if uid in self.outcomes]
        obeyed = [uid for uid in self.applied if uid not in self.outcomes or self.outcomes[uid].status == "applied"]
        results = [step.result for step in said if step.result is not None]
        if self.rebuilt:
            took = max(one.took_ms for one in self.rebuilt.values())
            results.append({"restarted": sorted(self.rebuilt), "took_ms": took})
        result = results[0] if len(results) == 1 else (results or None)
        notes = [step.reason for step in said if step.reason] + without
        notes += [one.note(uid) for uid, one in sorted(self.rebuilt.items())]
        reason = "; ".join(dict.fromkeys(notes))
        if obeyed:
            return Step("acknowledged", reason=reason, result=result)
        if said:
            return Step(said[0].status, reason=reason, result=result)
        status = "failed" if any(self._over(query) for query in concerned) else "rejected"
        return Step(status, reason=reason or "the job has nothing that it is addressed to")

    def _cannot(self, query: QueryView) -> str | None:
        """Why a query will never obey the event; None: it may, in this start or a later one."""
        target = self.event.target
        if query.standing is Standing.FINISHED:
            return "has finished"
        if self._over(query):
            return "has been restored, reset or added since"
        if target.scope in (Scope.SOURCE, Scope.CHANNEL) and target.uid in query.ended_sources:
            return f"has read source '{target.uid}' to its end"
        if self._ignored(query):
            return (
                "was added as a writer: settings of Spark's change in queries that are functions of the configuration"
            )
        if not query.sources and query.keys and self._key:
            return (
                None if self._by_restart(query) else f"does not depend on '{self._key}': its function has not read it"
            )
        if query.standing is Standing.BLIND:
            return "has read all its channel sources to their end" if query.sources else NO_SOURCE
        return None
