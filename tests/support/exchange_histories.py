"""Simulated histories of linked queries: each epoch is planned, then visible to consumers, then committed by Spark."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ext.model.cut import CommittedEpoch, CutPoint, Place, Position, QueryLog
from spark_ext.model.dag import JobGraph

Row = tuple[int, int, int]  # entry, partition and number of a row in an exchange


@dataclass
class Exchange:
    partitions: int
    entries: list[list[int]] = field(default_factory=list)  # rows per entry and partition
    sealed: bool = False

    def rows(self, end: int) -> set[Row]:
        return {
            (entry, partition, row)
            for entry, sizes in enumerate(self.entries[:end])
            for partition, size in enumerate(sizes)
            for row in range(size)
        }

    def rows_before(self, position: Position) -> set[Row]:
        places = [position.at(partition) for partition in range(self.partitions)]
        return {one for one in self.rows(len(self.entries)) if (one[0], one[2]) < places[one[1]]}

    def behind(self, place: Place, partition: int, chance: random.Random) -> Place:
        """A place at or behind another one, in what is visible now."""
        entry, row = place
        end = len(self.entries) + self.sealed
        while entry < end and chance.random() < 0.7:
            size = self.entries[entry][partition] if entry < len(self.entries) else 0
            if row < size and chance.random() < 0.3:
                return entry, chance.randint(row + 1, size)
            entry, row = entry + 1, 0
        return entry, row


@dataclass
class Query:
    epochs: list[CommittedEpoch] = field(default_factory=list)
    """All, also the last one if it is only planned or visible."""
    moment: int = 3  # of the last epoch: 1 planned, 2 visible, 3 committed
    finished: bool = False

    @property
    def committed(self) -> int:
        return len(self.epochs) - (self.moment < 3)


class History:
    def __init__(self, graph: JobGraph, chance: random.Random, steps: int) -> None:
        self.graph = graph
        self.chance = chance
        self.exchanges = {exchange: Exchange(chance.randint(1, 3)) for exchange in graph.exchanges}
        self.queries = {query: Query() for query in graph.order}
        self.past: list[dict[str, tuple[int, bool]]] = []
        self._note()
        for _ in range(steps):
            self._step(chance.choice(graph.order))
            self._note()

    @property
    def rows(self) -> dict[str, dict[int, dict[int, int]]]:
        return {
            exchange: {entry: dict(enumerate(sizes)) for entry, sizes in enumerate(one.entries)}
            for exchange, one in self.exchanges.items()
        }

    def look(self, query: str, time: int) -> QueryLog:
        """What a look at a query at a time finds."""
        committed, finished = self.past[time][query]
        return QueryLog(tuple(self.queries[query].epochs[:committed]), finished)

    def looks(self, times: Mapping[str, int]) -> dict[str, QueryLog]:
        return {query: self.look(query, time) for query, time in times.items()}

    def any_times(self, chance: random.Random, since: int = 0) -> dict[str, int]:
        return {query: chance.randrange(since, len(self.past)) for query in self.graph.order}

    def later(self, times: Mapping[str, int], chance: random.Random) -> dict[str, int]:
        return {query: chance.randrange(time, len(self.past)) for query, time in times.items()}

    def problems(self, points: Mapping[str, CutPoint], looks: Mapping[str, QueryLog]) -> list[str]:
        """Why a job cannot be restored to a cut: counted by rows, with nothing of the code under test."""
        found = [
            f"{query} is not committed"
            for query, point in points.items()
            if (point.epoch is not None and point.epoch >= len(looks[query].epochs))
            or (point.finished and not looks[query].finished)
        ]
        for exchange, one in self.exchanges.items():
            producer = self.graph.producer(exchange)
            end = self.written(exchange, points[producer])
            rows = one.rows(end)
            for query, reader in self.graph.consumers(exchange):
                position = self.position(query, reader.uid, points[query])
                if not one.rows_before(position) <= rows:
                    found.append(f"{query} has read rows that {producer} has not written")
                places = [position.at(partition)[0] for partition in range(one.partitions)]
                # Entries without rows count as well: they may carry a barrier, or be the seal.
                if max(places) > end + points[producer].finished:
                    found.append(f"{query} has read entries or a seal that {producer} has not written")
        for query, point in points.items():
            if point != CutPoint(None) and not all(points[gate].finished for gate in self.graph[query].after):
                found.append(f"{query} was built before its gates opened")
        return found

    def written(self, exchange: str, point: CutPoint) -> int:
        epochs = self.queries[self.graph.producer(exchange)].epochs
        return 0 if point.epoch is None else epochs[point.epoch].writes[exchange]

    def position(self, query: str, source: str, point: CutPoint) -> Position:
        return Position() if point.epoch is None else self.queries[query].epochs[point.epoch].reads[source]

    def _note(self) -> None:
        self.past.append({uid: (one.committed, one.finished) for uid, one in self.queries.items()})

    def _step(self, uid: str) -> None:
        query, node, chance = self.queries[uid], self.graph[uid], self.chance
        if query.finished or not all(self.queries[gate].finished for gate in node.after):
            return
        if query.moment < 3:
            query.moment += 1
            if query.moment == 2:
                for exchange in node.writes:
                    one = self.exchanges[exchange]
                    for _ in range(query.epochs[-1].writes[exchange] - len(one.entries)):
                        one.entries.append([chance.randint(0, 3) for _ in range(one.partitions)])
            return
        if self._ended(uid) and query.epochs and chance.random() < 0.5:
            query.finished = True
            for exchange in node.writes:
                self.exchanges[exchange].sealed = True
            return
        reads = {}
        for reader in node.reads:
            one = self.exchanges[reader.exchange]
            before = query.epochs[-1].reads[reader.uid] if query.epochs else Position()
            reads[reader.uid] = Position(
                {part: one.behind(before.at(part), part, chance) for part in range(one.partitions)}
            )
        # An epoch without rows may leave no entry.
        writes = {exchange: len(self.exchanges[exchange].entries) + (chance.random() < 0.8) for exchange in node.writes}
        query.epochs.append(CommittedEpoch(len(query.epochs), reads, writes))
        query.moment = 1

    def _ended(self, uid: str) -> bool:
        epochs = self.queries[uid].epochs
        for reader in self.graph[uid].reads:
            one = self.exchanges[reader.exchange]
            if not (one.sealed and epochs and epochs[-1].reads[reader.uid].released == len(one.entries) + 1):
                return False
        return bool(self.graph[uid].reads) or self.chance.random() < 0.3
