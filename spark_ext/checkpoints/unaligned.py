"""An unaligned checkpoint of a job: one committed epoch of each query, whatever lies between them in the exchanges.

Nothing waits for it: `model.cut` finds the newest consistent cut that looks at the running queries allow. What the
exchanges hold between two queries of the cut is in flight, by reference: it is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.exchange.consumers import front_of
from spark_ext.exchange.positions import Front
from spark_ext.model.checkpoint_plan import NotNow, Reason
from spark_ext.model.cut import START, CommittedEpoch, Cut, Position, QueryLog, cut
from spark_ext.model.offsets import LoggedOffsets

if TYPE_CHECKING:
    from spark_ext.exchange.view import ExchangeView
    from spark_ext.model.dag import JobGraph, QueryNode

Logged = Sequence[tuple[int, LoggedOffsets]]  # committed epochs with their offsets, ascending
Held = Mapping[str, LoggedOffsets | None]  # by query, offsets that a restore may begin from; None: from the first row


@dataclass(frozen=True)
class QueryLook:
    """A look at a query."""

    application: str  # under which its exchange knows its epochs; see `Epoch.application`
    epochs: Logged = ()
    finished: bool = False
    committed: int = -1  # its newest committed epoch if it is not among them; -1: it is
    exact: bool = False  # a cut at another place than the newest one is none: that of an aligned checkpoint is given

    @property
    def newest(self) -> int:
        """Its newest committed epoch; -1: it has none."""
        return max(self.committed, self.epochs[-1][0] if self.epochs else -1)


@dataclass(frozen=True)
class Taken:
    """A cut, and what is known at its place."""

    cut: Cut
    offsets: Mapping[str, LoggedOffsets | None]  # by query, of its last epoch in the cut
    rows_in_flight: int | None  # still to be read, over all consumers; None: the size of an entry is not known
    at: datetime  # when it was taken, UTC


@dataclass
class Unaligned:
    """Takes cuts of a job; for one thread."""

    older: Callable[[str], Logged]
    _known: dict[tuple[str, str, int], CommittedEpoch] = field(default_factory=dict)

    def take(
        self, graph: JobGraph, looks: Mapping[str, QueryLook], views: Mapping[str, ExchangeView]
    ) -> Taken | NotNow:
        """The newest consistent cut, or why none can be made now. A query without a look has not been built."""
        logs = {node.uid: self._log(node, looks.get(node.uid), views) for node in graph}
        found = cut(graph, logs)
        if isinstance(found, NotNow) and found.reason is Reason.FORGOTTEN and found.query in looks:
            look = looks[found.query]
            # What has been committed since the look may not be in the cut: releases rely on later looks giving no
            # earlier cuts, and such epochs may carry barriers with greater numbers than the checkpoint has.
            epochs = tuple(one for one in self.older(found.query) if one[0] <= look.newest)
            more = replace(look, epochs=epochs)
            looks = {**looks, found.query: more}
            logs[found.query] = self._log(graph[found.query], more, views)
            found = cut(graph, logs)
        if isinstance(found, NotNow):
            return found
        self._forget(looks)
        offsets = {
            query: dict(looks[query].epochs).get(point.epoch) if query in looks and point.epoch is not None else None
            for query, point in found.points.items()
        }
        return Taken(found, offsets, _rows_in_flight(found, views), datetime.now(timezone.utc))

    def _log(self, node: QueryNode, look: QueryLook | None, views: Mapping[str, ExchangeView]) -> QueryLog:
        if look is None:
            return QueryLog()
        epochs = tuple(self._epoch(node, look, epoch, logged, views) for epoch, logged in look.epochs)
        sealed = {name: number + 1 for name in node.writes if (number := views[name].state.sealed) is not None}
        # Finished it has only when others can see that: the seal comes before the end of the final checkpoint.
        finished = look.finished and len(sealed) == len(node.writes)
        ended = {}
        if finished and not epochs:
            # It had finished before this start.
            ends = {reader.uid: views[reader.exchange].state.sealed for reader in node.reads}
            ended = {uid: Position.behind(number + 1) for uid, number in ends.items() if number is not None}
        return QueryLog(epochs, finished, sealed, look.newest, look.exact, ended)

    def _epoch(
        self, node: QueryNode, look: QueryLook, epoch: int, logged: LoggedOffsets, views: Mapping[str, ExchangeView]
    ) -> CommittedEpoch:
        key = (node.uid, look.application, epoch)
        if key not in self._known:
            reads = {reader.uid: position_in(logged, reader.uid, views[reader.exchange]) for reader in node.reads}
            writes = {name: views[name].entries_upto(look.application, epoch) for name in node.writes}
            self._known[key] = CommittedEpoch(epoch, reads, writes)
        return self._known[key]

    def _forget(self, looks: Mapping[str, QueryLook]) -> None:
        oldest = {(look.application, uid): look.epochs[0][0] for uid, look in looks.items() if look.epochs}
        self._known = {
            (uid, application, epoch): one
            for (uid, application, epoch), one in self._known.items()
            if epoch >= oldest.get((application, uid), epoch + 1)
        }


def held_positions(
    held: Held, readers: Mapping[str, Mapping[str, str]], views: Mapping[str, ExchangeView]
) -> dict[tuple[str, str], Position]:
    """How far the sources of some queries had read, by query and source; see `release_bound`."""
    found = {}
    for name, queries in readers.items():
        for uid, query in queries.items():
            if query in held:
                offsets = held[query]
                found[query, uid] = START if offsets is None else position_in(offsets, uid, views[name])
    return found


def position_in(logged: LoggedOffsets, uid: str, view: ExchangeView) -> Position:
    """How far a source has read an exchange, by the offsets of its query."""
    front = front_of(logged, uid, view.about.partitions)
    if front is None:
        # It has read the seal, which therefore is there.
        sealed = view.state.sealed
        assert sealed is not None
        return Position.behind(sealed + 1)
    if not any(front.rows):
        return Position.behind(front.entry)
    return Position({partition: (front.entry, row) for partition, row in enumerate(front.rows)})


def _rows_in_flight(found: Cut, views: Mapping[str, ExchangeView]) -> int | None:
    total = 0
    for part in found.in_flight:
        view = views[part.exchange]
        places = [part.begin.at(partition) for partition in range(view.about.partitions)]
        front = Front(places[0][0], tuple(row for _, row in places))
        rows = view.rows_between(part.source, front, part.end)
        if rows is None:
            return None
        total += rows
    return total
