"""Which queries take part in a checkpoint of a job: a function of the graph and of each query's phase. Pure.

The rules are those of Flink's checkpoints after tasks have finished (FLIP-147). Barriers enter the graph at the queries
to trigger, travel through the exchanges, and the checkpoint completes when every query to wait for has delivered its
cut. Queries that have finished are recorded as finished, with nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from spark_ext.model.checkpoint_metadata import Finish
from spark_ext.model.dag import JobGraph
from spark_ext.model.lifecycle import State


class Phase(Enum):
    """What a checkpoint can expect of a query."""

    RUNNING = "running"  # it plans epochs, or takes the steps of its end: until it has finished it is waited for
    FINISHED = "finished"
    GATED = "gated"  # it is not built yet, because a query of its `after` has not finished
    STARTING = "starting"
    RESTARTING = "restarting"
    FAILED = "failed"
    CANCELED = "canceled"  # it was stopped before its end: its sources deliver nothing any more
    SUSPENDED = "suspended"  # has read what was there, in a run that ends with that: delivers nothing more

    @classmethod
    def of(cls, state: State, *, gated: bool = False) -> Phase:
        """The phase of a query in a state, which is not one that jobs alone have."""
        return cls.GATED if gated else _PHASES[state]


_PHASES: Mapping[State, Phase] = {
    State.CREATED: Phase.STARTING,
    State.RUNNING: Phase.RUNNING,
    State.FINISHING: Phase.RUNNING,
    State.RESTARTING: Phase.RESTARTING,
    State.FINISHED: Phase.FINISHED,
    State.FAILED: Phase.FAILED,
    State.CANCELED: Phase.CANCELED,
    State.SUSPENDED: Phase.SUSPENDED,
}


class Reason(Enum):
    """Why no checkpoint can be taken now."""

    STARTING = "the query has not started yet"
    RESTARTING = "the query is being restarted"
    FAILED = "the query has failed"
    CANCELED = "the query was canceled before its end"
    SUSPENDED = "the query has read what was there, and waits for the end of this run"
    FORGOTTEN = "Spark has removed the epoch that a consistent cut needs"
    INCONSISTENT = "its place in the checkpoint does not fit those of the queries that it depends on"


@dataclass(frozen=True)
class NotNow:
    """No checkpoint can be taken at present. Not an error: the next attempt decides again."""

    reason: Reason
    query: str

    def __str__(self) -> str:
        return f"query '{self.query}': {self.reason.value}"


_REASONS: Mapping[Phase, Reason] = {
    Phase.STARTING: Reason.STARTING,
    Phase.RESTARTING: Reason.RESTARTING,
    Phase.FAILED: Reason.FAILED,
    Phase.CANCELED: Reason.CANCELED,
    Phase.SUSPENDED: Reason.SUSPENDED,
}


@dataclass(frozen=True)
class CheckpointPlan:
    """What a checkpoint needs of each query. Gated queries are in none of the three sets."""

    graph: JobGraph
    trigger: frozenset[str]  # those that run whose producers have all finished or are gated
    wait_for: frozenset[str]
    finished: frozenset[str]

    def without(self, *queries: str) -> CheckpointPlan:
        """The plan once queries have finished before they delivered their cut: their consumers are triggered instead.

        A query that has delivered its cut counts as running for this checkpoint, even if it has finished since:
        its consumers find the barrier in its exchanges. Do not pass it.
        """
        gone = set(queries) - self.finished
        if not gone <= self.wait_for:
            raise ValueError(f"not waited for: {', '.join(sorted(gone - self.wait_for))}")
        left = self.wait_for - gone
        below = {after for query in gone for after in self.graph.downstreams(query)} & left
        found = {query for query in below if left.isdisjoint(self.graph.producers(query))}
        return CheckpointPlan(self.graph, (self.trigger - gone) | found, left, self.finished | gone)

    def stamps_itself(self, query: str, exchange: str | None = None) -> bool:
        """Whether a source stamps the barrier where it is, because nobody delivers the barrier to it.

        One whose producer has finished does not: it counts as having delivered every barrier when it has read the seal.
        If it stamped in the middle of what is left to read, two ways of the same rows would be cut at different rows.
        Without an `exchange` it reads from outside the job.
        """
        if query not in self.wait_for:
            return False
        if exchange is None:
            return True
        producer = self.graph.producer(exchange)
        return producer not in self.wait_for and producer not in self.finished

    def missing(self, delivered: Collection[str]) -> frozenset[str]:
        """The queries whose cut is still awaited; the checkpoint completes when this is empty."""
        return self.wait_for.difference(delivered)

    def finish(self, query: str, sources: Iterable[Finish], *, started: bool = True) -> Finish:
        """What the checkpoint records about the end of a query."""
        if query in self.finished:
            return Finish.FULLY if started else Finish.ON_RESTORE
        return Finish.PARTLY if any(source is not Finish.NONE for source in sources) else Finish.NONE


def plan_checkpoint(graph: JobGraph, phases: Mapping[str, Phase]) -> CheckpointPlan | NotNow:
    """The plan of a checkpoint that is triggered now, or the first query in the flow that prevents one; in linear time.

    While an aligned checkpoint is pending no gate may open: the plan counts a gated query as one without data.
    """
    running: set[str] = set()
    trigger: list[str] = []
    finished: list[str] = []
    for query in graph.order:
        phase = phases[query]
        if phase in _REASONS:
            return NotNow(_REASONS[phase], query)
        if phase is Phase.FINISHED:
            finished.append(query)
        elif phase is Phase.RUNNING:
            # Producers come first in this order, so it is known by now which of them run.
            if running.isdisjoint(graph.producers(query)):
                trigger.append(query)
            running.add(query)
    return CheckpointPlan(graph, frozenset(trigger), frozenset(running), frozenset(finished))
