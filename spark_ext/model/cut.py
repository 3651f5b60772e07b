"""The unaligned cut of a job: the newest consistent set of committed epochs, and what is in flight between them. Pure.

Exchanges are durable, so a checkpoint need not wait: it looks at the commit log of each query, at different times and
in any order, and `cut` takes from these looks one epoch per query, such that no consumer has read what its producer had
not written by its own epoch (a consistent cut in the sense of Chandy and Lamport). A consumer that was seen too far
ahead steps back, to an epoch that it has committed as well.

Taking the newest committed epoch of each query is not enough, whatever the order of the looks: a sink commits a little
before Spark does, so a consumer can have read, and committed, an epoch that is not in its producer's commit log yet.
Nor may the producer's epoch be the last one in the exchange: without Spark's commit its state cannot be restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from spark_ext.model.checkpoint_plan import NotNow, Reason
from spark_ext.model.dag import JobGraph, QueryNode

Place = tuple[int, int]  # a reader's place in a partition: entries that it has read in full, rows of the next one
EntryRows = Mapping[str, Mapping[int, Mapping[int, int]]]  # rows per exchange, entry and partition, where known


@dataclass(frozen=True)
class Position:
    """How far a reader has read an exchange.

    An entry of an exchange is what one epoch of its producer has written, to all partitions. Entries are numbered from
    0. The seal counts as an entry without rows, behind the last.
    """

    partitions: Mapping[int, Place] = field(default_factory=dict)
    rest: Place | None = None  # the place in all partitions that are not named; None if all are, or if nothing was read

    @classmethod
    def behind(cls, entries: int) -> Position:
        """The position of a reader that has read the first entries in full, in each partition."""
        return cls(rest=(entries, 0))

    def at(self, partition: int) -> Place:
        """The place in a partition."""
        return self.partitions.get(partition, self.rest or (0, 0))

    @property
    def released(self) -> int:
        """Entries that were read in full in every partition: the position needs none of them."""
        return min((entries for entries, _ in self._places()), default=0)

    @property
    def reached(self) -> int:
        """Entries that were read at least in part in any partition: the producer must have written them."""
        return max((entries + (rows > 0) for entries, rows in self._places()), default=0)

    def _places(self) -> Iterator[Place]:
        yield from self.partitions.values()
        if self.rest is not None:
            yield self.rest


START = Position()  # before the first row


@dataclass(frozen=True)
class CommittedEpoch:
    """An epoch of a query, with the positions after it."""

    number: int
    reads: Mapping[str, Position] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)  # by exchange, entries after this epoch; none is missing


@dataclass(frozen=True)
class QueryLog:
    """A look at a query: what it had committed at that time."""

    epochs: tuple[CommittedEpoch, ...] = ()  # ascending, from Spark's log; only with epoch 0 it is complete
    finished: bool = False  # its final checkpoint is complete: no epoch follows, and its exchanges are sealed
    sealed: Mapping[str, int] = field(default_factory=dict)  # by exchange, entries with the seal
    committed: int = -1  # newest committed epoch, also if it is not in `epochs`; -1: none
    exact: bool = False  # it belongs to the cut with its newest place only, as in an aligned checkpoint
    ended: Mapping[str, Position] = field(default_factory=dict)  # how far a finished query without `epochs` has read


@dataclass(frozen=True)
class CutPoint:
    """The place of a query in a cut."""

    epoch: int | None  # the last epoch that belongs to the cut; None: it has none yet
    finished: bool = False  # the query has finished in the cut; the seals of its exchanges belong to it


@dataclass(frozen=True)
class InFlight:
    """What a consumer has still to read of an exchange, up to its producer's place in a cut: channel state."""

    exchange: str
    query: str
    source: str
    begin: Position
    end: int  # entries of the exchange that belong to the cut; the seal is one of them if the producer has finished
    sealed: bool  # the end of the exchange belongs to the cut: no row follows those in flight
    rows: int | None  # the rows in flight; None if the size of an entry is not known


@dataclass(frozen=True)
class Cut:
    """A consistent cut of a job."""

    points: Mapping[str, CutPoint]
    in_flight: tuple[InFlight, ...]  # of every consumer of every exchange, also where nothing is in flight


@dataclass(frozen=True)
class _State:
    """A query after one of its epochs, before the first one, or at its end."""

    point: CutPoint
    reads: Mapping[str, Position]
    writes: Mapping[str, int]


def cut(graph: JobGraph, logs: Mapping[str, QueryLog], rows: EntryRows | None = None) -> Cut | NotNow:
    """The newest consistent cut that the looks allow: no query has an older epoch than in any other such cut.

    Consistent cuts of one set of logs are a lattice, as the later of two epochs of each query is consistent again; so
    there is one newest cut. One pass in the order of the flow finds it, because a query's epoch is limited by its
    upstreams only. A later look never gives any query an earlier place.

    A gated query belongs to the cut only once those that it waits for have finished there.

    Without a cut, it returns the query that would have to step back to an epoch that Spark has already removed, or that
    may not step back and is at a place that is not consistent with the others'.
    """
    states: dict[str, _State] = {}
    for node in graph:
        log = logs[node.uid]
        places = islice(_newest_first(node, log), 1 if log.exact else None)
        found = next((one for one in places if _consistent(one, node, graph, states)), None)
        if found is None:
            return NotNow(Reason.INCONSISTENT if log.exact else Reason.FORGOTTEN, node.uid)
        states[node.uid] = found
    in_flight = (part for exchange in graph.exchanges for part in _in_flight(exchange, graph, states, rows or {}))
    return Cut({query: state.point for query, state in states.items()}, tuple(in_flight))


def release_bound(
    graph: JobGraph,
    newest: Cut,
    held: Iterable[Mapping[tuple[str, str], Position]] = (),
    keep: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Per exchange the number of entries at its beginning that nobody needs any more.

    It is 0 for an exchange without consumers: a reader that comes later reads everything. A restart continues from
    `newest`, the cut of what is committed now, or later. A restore may return to the positions `held`, by query and
    source: those of each completed checkpoint that is kept and of each one under way, and the places at which a query
    has delivered the barrier of an aligned checkpoint that is not complete yet.
    """
    kept = keep or {}
    everything = (positions(newest), *held)
    bounds: dict[str, int] = {}
    for exchange in graph.exchanges:
        consumers = [(query, reader.uid) for query, reader in graph.consumers(exchange)]
        needed = [places[consumer].released for places in everything for consumer in consumers if consumer in places]
        needed += [kept[exchange]] if exchange in kept else []
        bounds[exchange] = min(needed) if consumers else 0
    return bounds


def positions(of: Cut) -> dict[tuple[str, str], Position]:
    """The position of each consumer in a cut, by query and source."""
    return {(part.query, part.source): part.begin for part in of.in_flight}


def _newest_first(node: QueryNode, log: QueryLog) -> Iterator[_State]:
    last = log.epochs[-1] if log.epochs else CommittedEpoch(-1)
    if log.finished:
        sealed = {exchange: last.writes.get(exchange, 0) + 1 for exchange in node.writes} | dict(log.sealed)
        reads = last.reads if log.epochs else log.ended
        yield _State(CutPoint(last.number if log.epochs else None, True), reads, sealed)
    for epoch in reversed(log.epochs):
        yield _State(CutPoint(epoch.number), epoch.reads, epoch.writes)
    if log.epochs[0].number == 0 if log.epochs else log.committed < 0:
        yield _State(CutPoint(None), {}, {})


def _consistent(state: _State, node: QueryNode, graph: JobGraph, states: Mapping[str, _State]) -> bool:
    if not all(states[gate].point.finished for gate in node.after) and (state.point != CutPoint(None)):
        return False
    return all(
        state.reads.get(reader.uid, START).reached
        <= states[graph.producer(reader.exchange)].writes.get(reader.exchange, 0)
        for reader in node.reads
    )


def _in_flight(exchange: str, graph: JobGraph, states: Mapping[str, _State], rows: EntryRows) -> Iterator[InFlight]:
    producer = states[graph.producer(exchange)]
    end, sealed = producer.writes.get(exchange, 0), producer.point.finished
    for query, reader in graph.consumers(exchange):
        begin = states[query].reads.get(reader.uid, START)
        count = _rows(rows.get(exchange, {}), begin, end - sealed)
        yield InFlight(exchange, query, reader.uid, begin, end, sealed, count)


def _rows(entries: Mapping[int, Mapping[int, int]], begin: Position, end: int) -> int | None:
    """The rows from a position to the end of the entry before `end`."""
    count = 0
    for entry in range(begin.released, end):
        if entry not in entries:
            return None
        for partition, size in entries[entry].items():
            full, part = begin.at(partition)
            count += 0 if full > entry else size - (part if full == entry else 0)
    return count
