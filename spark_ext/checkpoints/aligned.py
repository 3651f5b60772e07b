"""An aligned checkpoint under way: whose barrier is still missing, and when all of it is there. Pure.

Sources that nobody delivers barriers to stamp it into their next offset, exchanges carry it on, and each query's cut is
its first committed epoch that carries it from all sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_ext.model.barriers import SourceBarrier, aligned_cut, barrier_of
from spark_ext.model.checkpoint_plan import CheckpointPlan
from spark_ext.model.dag import JobGraph
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.query_offsets import source_offsets


@dataclass(frozen=True)
class Member:
    """A query, as an aligned checkpoint sees it."""

    uid: str
    epochs: tuple[tuple[int, LoggedOffsets], ...] = ()  # its newest committed epochs, ascending
    finished: bool = False
    # Whether a source can carry a barrier. Without one, or with none left but Spark's own, the newest epoch is the cut.
    stamps: bool = True
    fed: Mapping[str, str] = field(default_factory=dict)  # exchange by uid of each source that reads one
    roots: tuple[str, ...] = ()  # uids of its other sources that can carry a barrier


@dataclass(frozen=True)
class Place:
    """The cut of a query."""

    epoch: int | None  # None: it has none, as it had finished without one
    offsets: LoggedOffsets | None
    finished: bool = False


@dataclass(frozen=True)
class Aligned:
    """The checkpoint `number`, with the cuts made until now."""

    number: int
    plan: CheckpointPlan
    delivered: Mapping[str, Place] = field(default_factory=dict)
    seen_upto: Mapping[str, int] = field(default_factory=dict)  # by query, the newest epoch without the barrier
    lost: frozenset[str] = frozenset()  # queries whose cut is unknown: Spark has deleted epochs before they were read

    @property
    def missing(self) -> frozenset[str]:
        """The queries whose cut is still waited for."""
        return self.plan.missing(self.delivered)

    def seen(self, members: Iterable[Member]) -> Aligned:
        """The checkpoint after a look at the queries.

        A query that has finished without delivering its cut is recorded as finished, and those behind it begin.
        """
        delivered, seen_upto, lost = dict(self.delivered), dict(self.seen_upto), set(self.lost)
        gone = []
        for one in members:
            if one.uid in delivered or one.uid not in self.plan.wait_for:
                continue
            place = self._place(one)
            if place is None and one.epochs:
                seen_upto[one.uid] = one.epochs[-1][0]
            if place is not None and self._follows(one, place):
                delivered[one.uid] = place
            elif place is not None:
                lost.add(one.uid)
            elif one.finished:
                gone.append(one.uid)
        plan = self.plan.without(*gone) if gone else self.plan
        return replace(self, plan=plan, delivered=delivered, seen_upto=seen_upto, lost=frozenset(lost))

    def _follows(self, one: Member, place: Place) -> bool:
        """Whether the epoch before a cut was looked at too: else an earlier one may have carried the barrier first."""
        if place.epoch is None or place.offsets is None or barrier_of(_barriers(place.offsets)) < self.number:
            return True
        before = [epoch for epoch, _ in one.epochs if epoch < place.epoch]
        last = max(before, default=self.seen_upto.get(one.uid, place.epoch - 1))
        return last + 1 >= place.epoch

    def _place(self, one: Member) -> Place | None:
        marked = ((epoch, _barriers(logged)) for epoch, logged in one.epochs)
        cut = aligned_cut(marked, self.number)
        if cut is not None:
            return Place(cut, dict(one.epochs)[cut])
        if one.stamps:
            return None
        epoch, offsets = one.epochs[-1] if one.epochs else (None, None)
        return Place(epoch, offsets)

    def stamps(self, members: Iterable[Member]) -> tuple[str, ...]:
        """The sources that stamp the barrier where they are, because nobody delivers it to them."""
        found = []
        for one in members:
            found += [uid for uid in one.roots if self.plan.stamps_itself(one.uid)]
            # The producer of one that is not in the graph has finished, and has left the job.
            there = ((uid, name) for uid, name in one.fed.items() if name in self.plan.graph.exchanges)
            found += [uid for uid, name in there if self.plan.stamps_itself(one.uid, name)]
        return tuple(found)


def _barriers(logged: LoggedOffsets) -> list[SourceBarrier]:
    offsets = source_offsets(logged)
    return [SourceBarrier(uid, offset.barrier, ended=offset.ended) for uid, offset in offsets.items()]


def unstamped_feed(graph: JobGraph, members: Mapping[str, Member]) -> str | None:
    """A query that writes an exchange for others and has no source that can carry a barrier, if any."""
    return next(
        (
            uid
            for uid, one in members.items()
            if not one.stamps and not one.finished and any(graph.consumers(name) for name in graph[uid].writes)
        ),
        None,
    )
