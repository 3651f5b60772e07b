"""Drives an exchange as a job would, but without Spark. Shared by `ExchangeContract` and its child processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import types as T

from spark_ext.exchange import decisions, kinds
from spark_ext.exchange.descriptor import Descriptor, nullable
from spark_ext.exchange.entries import Entry, EntryKind, LogState, Segment
from spark_ext.exchange.pinned import pin, put_back
from spark_ext.exchange.positions import Front, advance, pieces
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import Claim, Epoch, FenceMark, Task

if TYPE_CHECKING:
    from typing_extensions import Self

    from spark_ext.exchange.contract import Parts

ROWS = T.StructType([T.StructField("id", T.LongType()), T.StructField("name", T.StringType())])
"""Schema of the rows in most tests."""

WHO = "exchange 'flights'"


@dataclass(frozen=True)
class Place:
    """An exchange to be tested, of a kind whose segments are files `data/<name>`; a subclass is for any other kind.

    Child processes get it as well, so it holds names only, and a subclass must be one that they can import.
    """

    kind: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)  # of the kind

    in_order: ClassVar[bool] = False
    """Whether storage is freed only in the order in which it was written: a segment that no entry names then stays as
    long as what was written before it is needed."""
    points: ClassVar[tuple[str, ...]] = ()
    """Fail points of the kind itself, passed while it writes segments and entries, and puts an exchange back."""
    damageable: ClassVar[bool] = True
    """Whether `damage` can do anything: a store may not let anybody change what it has."""

    def at(self, path: str) -> Self:
        """Another exchange of the kind."""
        return replace(self, path=path)

    def parts(self) -> Parts:
        """Its parts, as a process has them that has just been started."""
        return kinds.parts(self.kind, self.path, WHO, self.options)

    def stored(self) -> set[str]:
        """The names of the segments that are stored, whether an entry names them or not."""
        return {file.name for file in (Path(self.path) / "data").rglob("i*") if file.is_file()}

    def holds(self, count: int, unnamed: int = 0) -> bool:
        """Whether `count` segments are stored, or with `in_order` up to `unnamed` more that cannot be freed yet."""
        return count <= len(self.stored()) <= count + (unnamed if self.in_order else 0)

    def damage(self, segment: str) -> None:
        """Make a segment unreadable."""
        file = Path(self.path) / "data" / segment
        file.write_bytes(file.read_bytes()[:-20])

    def lose(self, segment: str) -> None:
        """Remove a segment behind the exchange's back."""
        (Path(self.path) / "data" / segment).unlink()

    def descriptor(self, partitions: int = 3, **changes: Any) -> Descriptor:
        """A description with an id of its own."""
        columns = nullable(changes.pop("schema", ROWS)).jsonValue()
        made = Descriptor("flights", secrets.token_hex(8), "job-1", self.kind, partitions, ("id",), columns)
        return Descriptor(**{**made.__dict__, "options": self.options, **changes})


def numbered(first: int, end: int) -> pa.RecordBatch:
    """Rows with the ids [first, end)."""
    ids = list(range(first, end))
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "name": [f"n{one}" for one in ids]})


class Producer:
    """One start of the job that writes the exchange.

    Args:
        place: the exchange.
        incarnation: of the start.
        start: its random number.
        lineage: of its query.
        partitions: of the exchange, if this start makes it.
        job_id: of the job.
    """

    def __init__(
        self,
        place: Place,
        incarnation: int = 1,
        *,
        start: int = 0,
        lineage: int = 0,
        partitions: int = 3,
        job_id: str = "job-1",
    ) -> None:
        self.place, self.partitions, self.job_id = place, partitions, job_id
        self.parts = place.parts()
        self.mark = FenceMark(incarnation, start or incarnation * 1000)
        self.lineage = lineage

    def claim(self) -> Producer:
        """Take the exchange over, as the sink does at the start of a job."""
        mark, master = self.mark, self.parts.master
        claim = Claim("flights", "job", self.job_id, mark.incarnation, self.lineage, start=mark.start, query_id="q")
        decisions.refuse_claim(master.log.look(), claim, WHO)
        master.register(self.place.descriptor(self.partitions, job_id=self.job_id))
        master.log.append(lambda state: decisions.claim_entry(state, claim, WHO, 1), str(mark.incarnation))
        master.sweep(mark.incarnation)
        master.delete_released()
        return self

    def write(
        self, epoch: int, batch: pa.RecordBatch, task: int = 0, targets: Sequence[int] | None = None
    ) -> Segment | None:
        """One task of an epoch; by default a row goes to the partition `id % partitions`."""
        chosen = targets or [one % self.partitions for one in batch.column("id").to_pylist()]
        whose = Task("flights", "q", epoch, task, 0, self.mark.incarnation, self.lineage, self.mark.start)
        halves = [batch] if batch.num_rows < 2 else [batch.slice(0, batch.num_rows // 2)]
        if batch.num_rows >= 2:
            halves.append(batch.slice(batch.num_rows // 2))

        def given() -> Iterator[tuple[pa.RecordBatch, Sequence[int]]]:
            done = 0
            for half in halves:
                yield half, chosen[done : done + half.num_rows]
                done += half.num_rows

        return self.parts.writer.write(given() if batch.num_rows else iter(()), whose, self.partitions)

    def epoch(self, number: int, barrier: int | None = None) -> Epoch:
        """The identity of an epoch."""
        mark = self.mark
        return Epoch("flights", self.lineage, "q", number, mark.incarnation, start=mark.start, barrier=barrier)

    def commit(self, epoch: int, segments: Sequence[Segment | None], barrier: int | None = None) -> LogState | None:
        """The entry of an epoch; passes the fail points of a sink's commit."""
        there = [segment for segment in segments if segment is not None]

        def decide(state: LogState) -> Entry | None:
            whose = self.epoch(epoch, barrier)
            entry = decisions.epoch_entry(state, whose, there, self.partitions, WHO, 1)
            if entry is not None:
                reach(FailPoint.EXCHANGE_BEFORE_ENTRY)
            return entry

        state = self.parts.master.log.append(decide, str(self.mark.incarnation))
        reach(FailPoint.EXCHANGE_ENTRY)
        return state

    def run(self, epoch: int, first: int, end: int, tasks: int = 1, barrier: int | None = None) -> LogState | None:
        """An epoch with the ids [first, end), written by some tasks."""
        step = -(-(end - first) // tasks)
        bounds = [(at, min(at + step, end)) for at in range(first, end, step)] if step else []
        return self.commit(
            epoch, [self.write(epoch, numbered(*bound), task) for task, bound in enumerate(bounds)], barrier
        )

    def seal(self, epoch: int) -> LogState | None:
        """The end of the exchange."""
        return self.parts.master.log.append(
            lambda state: decisions.seal_entry(state, self.epoch(epoch), WHO, 1), str(self.mark.incarnation)
        )

    def register(self, consumer: str) -> LogState | None:
        """A source reads the exchange from now on."""
        return self.parts.master.log.append(
            lambda state: decisions.register_entry(state, consumer, f"query of {consumer}", 1),
            str(self.mark.incarnation),
        )

    def release(self, below: int, rows: int) -> LogState | None:
        """Write that the entries below a number are released; nothing is deleted yet."""
        return self.parts.master.log.append(
            lambda state: decisions.release_entry(state, below, rows, self.mark, WHO, 1), str(self.mark.incarnation)
        )

    def cut(self, after: int, total: int) -> LogState | None:
        """Abandon the entries after a number, as a restore does."""
        entry = Entry(EntryKind.CUT, 1, lineage=self.lineage, after=after, total=total)
        return self.parts.master.log.append(lambda state: entry, str(self.mark.incarnation))


class Reader:
    """A consumer with a position, in a process that has just been started.

    Args:
        place: the exchange.
        tasks: how many tasks read an epoch; each has parts of its own.
        at: where it begins; None: at the beginning.
    """

    def __init__(self, place: Place, tasks: int = 1, at: Front | None = None) -> None:
        self.parts = place.parts()
        about = self.parts.master.describe()
        assert about is not None
        self.front = at or Front(0, (0,) * about.partitions)
        self.rows: dict[int, list[int]] = {number: [] for number in range(about.partitions)}
        """Ids that were read, by partition, in order."""
        self.barriers: list[int] = []
        self.sealed = False
        self._tasks = [place.parts() for _ in range(tasks)]

    def step(self, most: int | None = None) -> bool:
        """One epoch of at most `rows` rows; whether it had any."""
        log = self.parts.master.log
        state = log.look()
        first = max(self.front.entry, state.released if not any(self.front.rows) else 0)
        step = advance(state, log.entry, Front(first, self.front.rows), most, None)
        for partition in self.rows:
            parts = self._tasks[partition % len(self._tasks)]
            parts.master.log.look()  # as a task does before it reads
            start, end = self.front.position(partition), step.front.position(partition)
            for piece in pieces(parts.master.log.entry, partition, [max(start[0], first), start[1]], end, WHO):
                for batch in parts.reader.read(piece):
                    assert batch.schema.names == ROWS.names
                    self.rows[partition] += batch.column("id").to_pylist()
        self.front, self.sealed = step.front, step.sealed
        if step.barrier is not None:
            self.barriers.append(step.barrier)
        return step.moved

    def all(self, most: int | None = None) -> Reader:
        """Read to the end, in epochs of at most `rows` rows."""
        while self.step(most) and not self.sealed:
            pass
        return self

    @property
    def ids(self) -> list[int]:
        """All ids that were read, sorted; a repeated row appears twice."""
        return sorted(one for part in self.rows.values() for one in part)


# -- what child processes do -------------------------------------------------------------------------------------------


def claim_and_run(place: Place, incarnation: int, epoch: int, first: int, end: int) -> None:
    """A start of the job that writes one epoch."""
    Producer(place, incarnation).claim().run(epoch, first, end)


def run_unclaimed(place: Place, incarnation: int, epoch: int, first: int, end: int) -> None:
    """A start that has claimed the exchange in another process writes one epoch."""
    Producer(place, incarnation).run(epoch, first, end)


def register_many(place: Place, who: str, count: int) -> None:
    """Append entries as fast as possible, beside other processes."""
    producer = Producer(place, 1)
    for number in range(count):
        assert producer.register(f"{who}-{number}") is not None


def release_and_delete(place: Place, incarnation: int, below: int, rows: int) -> None:
    """Release entries, and delete what is released."""
    producer = Producer(place, incarnation)
    producer.release(below, rows)
    producer.parts.master.delete_released()


def pin_all(place: Place, first: int, end: int, folder: str) -> None:
    """A savepoint of the exchange alone."""
    pin(place.parts().master, place.path, first, end, folder)


def put(place: Place, folder: str, number: int, lineage: int) -> None:
    """An exchange from such a savepoint."""
    put_back(folder, place.path, number=number, lineage=lineage, job_id="job-1", who=WHO)
