"""A simulated job under aligned checkpoints: old views of the ledger, epochs in any order, aborts and early ends."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from spark_ext.model.barriers import BarrierEntry, Checkpoints, SourceBarrier, advance, aligned_cut, barrier_of
from spark_ext.model.checkpoint_plan import CheckpointPlan, Phase, plan_checkpoint
from spark_ext.model.dag import JobGraph


@dataclass
class Log:
    """An exchange: the barrier of each entry."""

    barriers: list[int] = field(default_factory=list)
    sealed: bool = False

    @property
    def end(self) -> int:
        return len(self.barriers) + self.sealed

    def ahead(self, position: int) -> list[BarrierEntry]:
        """The entries from a position on that carry a newer barrier than the one before them."""
        return [
            BarrierEntry(entry, self.barriers[entry])
            for entry in range(position, len(self.barriers))
            if self.barriers[entry] > (self.barriers[entry - 1] if entry else 0)
        ]


@dataclass(frozen=True)
class Ledger:
    """What is recorded of checkpoints: the plans of those that are pending, and the newest number."""

    newest: int = 0
    plans: tuple[tuple[int, CheckpointPlan], ...] = ()

    @property
    def known(self) -> Checkpoints:
        return Checkpoints(self.newest, frozenset(number for number, _ in self.plans))

    def own(self, query: str, exchange: str | None) -> int:
        """The newest pending barrier that a source stamps by itself."""
        return max((number for number, plan in self.plans if plan.stamps_itself(query, exchange)), default=0)


class BarrierJob:
    """A job whose epochs are planned with the functions under test.

    Queries without an exchange to read have sources of their own; others have some at random.
    """

    def __init__(self, graph: JobGraph, chance: random.Random, concurrent: int = 1) -> None:
        self.graph, self.chance, self.concurrent = graph, chance, concurrent
        self.logs = {exchange: Log() for exchange in graph.exchanges}
        self.reads = {reader.uid: reader.exchange for node in graph for reader in node.reads}
        self.epochs: dict[str, list[tuple[SourceBarrier, ...]]] = {}
        self.written: dict[str, list[dict[str, int]]] = {query: [] for query in graph.order}
        self.left: dict[str, int] = {}  # epochs until an external source ends
        for node in graph:
            sources = [SourceBarrier(reader.uid) for reader in node.reads]
            for number in range(chance.choice((1, 2)) if not sources else chance.choice((0, 0, 1))):
                sources.append(SourceBarrier(f"{node.uid}:{number}", external=True))
                self.left[sources[-1].uid] = chance.choice((1, 3, 6, 1_000))
            self.epochs[node.uid] = [tuple(sources)]
        self.finished: set[str] = set()
        self.ledger = Ledger()
        self.views: dict[str, Ledger] = {source.uid: self.ledger for one in self.epochs.values() for source in one[0]}
        self.cuts: dict[int, dict[str, int]] = {}  # of each pending checkpoint, the cuts that are delivered
        self.completed: list[tuple[int, CheckpointPlan, dict[str, int]]] = []
        self.aborted = 0

    def anything(self) -> None:
        what = self.chance.random()
        if what < 0.75:
            self.epoch(self.chance.choice(self.graph.order))
        elif what < 0.9:
            self.look(self.chance.choice(list(self.views)))
        elif what < 0.95:
            self.trigger()
        elif what < 0.96 and self.ledger.plans:
            self.abort(self.chance.choice(self.ledger.plans)[0])
        else:
            self.finish(self.chance.choice(self.graph.order))

    def fairly(self) -> None:
        for source in self.views:
            self.look(source)
        for query in self.graph.order:
            self.epoch(query)
            self.finish(query)

    def running(self, query: str) -> bool:
        """Gates open only while no checkpoint is pending."""
        return self.phase(query) is Phase.RUNNING

    def phase(self, query: str) -> Phase:
        if query in self.finished:
            return Phase.FINISHED
        if len(self.epochs[query]) > 1 or all(gate in self.finished for gate in self.graph[query].after):
            taking_part = all(query in plan.wait_for for _, plan in self.ledger.plans)
            if taking_part or len(self.epochs[query]) > 1:
                return Phase.RUNNING
        return Phase.GATED

    def look(self, source: str) -> None:
        self.views[source] = self.ledger

    def trigger(self) -> None:
        if len(self.ledger.plans) < self.concurrent:
            plan = plan_checkpoint(self.graph, {query: self.phase(query) for query in self.graph.order})
            assert isinstance(plan, CheckpointPlan)
            number = self.ledger.newest + 1
            self.ledger = Ledger(number, (*self.ledger.plans, (number, plan)))
            self.cuts[number] = {}
            self.collect()

    def abort(self, number: int) -> None:
        self.ledger = replace(self.ledger, plans=tuple(one for one in self.ledger.plans if one[0] != number))
        self.aborted += 1

    def epoch(self, query: str) -> None:
        """Plan an epoch from the newest planned offsets, and commit it; none if no offset changes."""
        if not self.running(query) or query in self.finished:
            return
        before = self.epochs[query][-1]
        after = tuple(self.planned(query, source, before) for source in before)
        if after == before and not (all(source.ended for source in after) and self.chance.random() < 0.2):
            return
        carried, barrier = barrier_of(before), barrier_of(after)
        for exchange in self.graph[query].writes:
            # An epoch without rows leaves an entry only if it has a newer barrier.
            if barrier > carried or self.chance.random() < 0.7:
                self.logs[exchange].barriers.append(barrier)
        self.epochs[query].append(after)
        self.written[query].append(
            {exchange: len(self.logs[exchange].barriers) for exchange in self.graph[query].writes}
        )
        self.collect()

    def planned(self, query: str, source: SourceBarrier, before: tuple[SourceBarrier, ...]) -> SourceBarrier:
        if source.ended:
            return source
        view, exchange = self.views[source.uid], self.reads.get(source.uid)
        log = self.logs[exchange] if exchange is not None else Log()
        others = [other for other in before if other.uid != source.uid]
        limit = advance(source, others, view.known, log.ahead(source.position), view.own(query, exchange))
        if source.external:
            rows = self.chance.random() < 0.7
            self.left[source.uid] -= rows
            position = source.position + rows
            return replace(source, position=position, barrier=limit.stamp(position), ended=self.left[source.uid] <= 0)
        upto = log.end if limit.upto is None else min(log.end, limit.upto)
        position = max(source.position, self.chance.choice((upto, self.chance.randint(source.position, upto))))
        ended = log.sealed and position == log.end
        return replace(source, position=position, barrier=limit.stamp(position), ended=ended)

    def finish(self, query: str) -> None:
        """The final checkpoint of a query, once all its sources have ended."""
        if query in self.finished or not self.running(query) or not all(one.ended for one in self.epochs[query][-1]):
            return
        self.finished.add(query)
        for exchange in self.graph[query].writes:
            self.logs[exchange].sealed = True
        plans = tuple(
            (number, plan if query in self.cuts[number] or query not in plan.wait_for else plan.without(query))
            for number, plan in self.ledger.plans
        )
        self.ledger = replace(self.ledger, plans=plans)
        self.collect()

    def collect(self) -> None:
        for number, plan in self.ledger.plans:
            cuts = self.cuts[number]
            for query in plan.missing(cuts):
                found = aligned_cut(enumerate(self.epochs[query]), number)
                if found is not None:
                    cuts[query] = found
            if not plan.missing(cuts):
                self.completed.append((number, plan, cuts))
                self.ledger = replace(self.ledger, plans=tuple(one for one in self.ledger.plans if one[0] != number))

    def behind(self) -> dict[str, int]:
        """Per consumer that has not ended, the entries that it has still to read."""
        return {
            source.uid: self.logs[self.reads[source.uid]].end - source.position
            for query, epochs in self.epochs.items()
            for source in epochs[-1]
            if not (source.external or source.ended or query in self.finished or self.phase(query) is Phase.GATED)
        }

    def problems(self) -> Iterator[str]:
        for number, plan, cuts in self.completed:
            if cuts.keys() != plan.wait_for:
                yield f"{number}: cuts of {sorted(cuts)}, waited for {sorted(plan.wait_for)}"
            for query, epoch in cuts.items():
                for source in self.epochs[query][epoch]:
                    exchange = self.reads.get(source.uid)
                    if exchange is not None:
                        yield from self._misplaced(number, plan, cuts, source, exchange)
            for before, after in self.graph.unfinished_upstreams(plan.finished):
                yield f"{number}: {after} has finished and {before} has not"

    def _misplaced(
        self, number: int, plan: CheckpointPlan, cuts: dict[str, int], source: SourceBarrier, exchange: str
    ) -> Iterator[str]:
        producer = self.graph.producer(exchange)
        if producer in plan.wait_for:
            barrier = self.written[producer][cuts[producer] - 1][exchange]
            if source.position != barrier:
                yield f"{number}: {source.uid} is at {source.position}, the barrier of {producer} at {barrier}"
        elif producer not in plan.finished and source.position:
            yield f"{number}: {source.uid} has read what {producer}, which was not built, wrote later"
