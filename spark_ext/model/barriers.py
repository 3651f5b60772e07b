"""Aligned barriers: when a source stamps one, how far it may be planned until then, and a query's cut. Pure.

A barrier is the number of a checkpoint, carried by offsets (Chandy and Lamport's marker, aligned as in Flink). The
offset that carries k first is the place of the barrier: everything up to it belongs to checkpoint k, the rest does not.

* A source that nobody delivers barriers to (it reads from outside the job, or its producer has finished or is gated)
  stamps k as soon as it sees that k is pending.
* An exchange carries k from the first entry whose epoch is the producer's cut. A source that reads the exchange stops
  behind this entry, stamps k, and stays there until all other sources of its query carry k or have ended. What they
  carry is read from the newest planned offsets in Spark's log: the query's cut is then in the log as well.
* A source whose input has ended, and was read to the end, counts as having delivered every barrier. It stamps nothing.
* Nothing waits for a barrier that is completed or aborted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

NO_BARRIER = 0  # what an offset carries before its first barrier; checkpoints are numbered from 1


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints that a planner knows of: a look at the ledger, which may be old.

    A checkpoint is recorded before any source stamps it, so a number above the newest one known is pending: the planner
    will know of it after its next look.
    """

    newest: int = NO_BARRIER  # of all that are known, in whatever state
    pending: frozenset[int] = frozenset()  # of these, those that are neither completed nor aborted

    def any_pending(self, above: int, upto: int) -> bool:
        """Whether one of the checkpoints `above` < k <= `upto` is pending."""
        return upto > max(above, self.newest) or any(above < one <= upto for one in self.pending)


@dataclass(frozen=True)
class SourceBarrier:
    """A source in the newest planned offsets of its query."""

    uid: str
    barrier: int = NO_BARRIER  # the newest one that its offset carries
    position: int = 0  # entries of its exchange read in full in every partition; the seal is the last
    ended: bool = False  # its input has ended and was read to the end, the seal included
    external: bool = False  # from outside the job: without a producer that its position must agree with, it never waits


@dataclass(frozen=True)
class BarrierEntry:
    """An entry of an exchange that carries a newer barrier than the entry before it."""

    entry: int
    barrier: int


@dataclass(frozen=True)
class Advance:
    """How far a source may be planned now."""

    upto: int | None  # how many entries the epoch may have read at its end, in each partition; None: no limit
    barrier: int  # what the offset carries once the limit is reached, or at once without a limit
    before: int  # what it carries as long as the limit is not reached
    waits_for: tuple[str, ...] = ()

    def stamp(self, position: int) -> int:
        """The barrier of an offset that is planned up to a position, in entries read in full."""
        return self.barrier if self.upto is None or position >= self.upto else self.before


def advance(
    source: SourceBarrier,
    others: Iterable[SourceBarrier],
    known: Checkpoints,
    ahead: Sequence[BarrierEntry] = (),
    own: int = NO_BARRIER,
) -> Advance:
    """What a source may plan for its next epoch; `source` and `others` are those of its query's newest planned offsets.

    A planner looks at the ledger (`known`, `own`) first and at the exchange (`ahead`) after it: once `own` is set, the
    exchange has all entries of its producer. `own` is the newest pending barrier that the source stamps by itself, see
    `CheckpointPlan.stamps_itself`; 0: none. Spark's own sources cannot stamp, and are not among the others.
    """
    carried = source.barrier
    if source.ended:
        return Advance(None, carried, carried)
    if not source.external:
        waits_for = tuple(
            other.uid for other in others if not other.ended and known.any_pending(other.barrier, upto=carried)
        )
        if waits_for:
            return Advance(source.position, carried, carried, waits_for)
    for met in ahead:
        if met.barrier > carried and known.any_pending(carried, upto=met.barrier):
            # A barrier of its own is stamped behind one that is still to be met: numbers never decrease.
            return Advance(met.entry + 1, met.barrier, carried)
    stamped = max(carried, own)
    return Advance(None, stamped, stamped)


def barrier_of(sources: Collection[SourceBarrier]) -> int:
    """The barrier that an epoch has delivered: the newest that all its sources carry, apart from those that have ended.

    If all have ended it is the newest that any of them carries. It never decreases from epoch to epoch. An exchange's
    writer stores it with the epoch's entry, and writes an entry without rows if the epoch has none and it has grown.
    """
    live = [source.barrier for source in sources if not source.ended]
    return min(live) if live else max((source.barrier for source in sources), default=NO_BARRIER)


def aligned_cut(epochs: Iterable[tuple[int, Collection[SourceBarrier]]], checkpoint: int) -> int | None:
    """The cut of a query: its first epoch in which all live sources carry the barrier, and at least one does, or None.

    A query whose sources have all ended without the barrier has no cut. It is recorded as finished once its final
    checkpoint is complete, see `CheckpointPlan.without`.
    """
    return next((number for number, sources in epochs if barrier_of(sources) >= checkpoint), None)
