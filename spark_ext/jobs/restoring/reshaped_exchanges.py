"""Exchanges that a restore puts back with other partitions or another key than those of its savepoint.

What was in flight is put back into a draft of the former exchange, read there, distributed by the new key, written
into a draft of the new one, and kept as a savepoint keeps it. From there it is put back like any exchange, and the
consumers' positions are translated in the copies of their checkpoints. All of this is prepared before the restore
changes anything; a restore that is interrupted begins again.

Rows are read and written by tasks of Spark, without a shuffle: a task reads the rows of a unit in order, Spark computes
their partitions as it does for the producer, and the same task writes them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_ext.checkpoints.savepoint import UNCHANGED, exchange_folder
from spark_ext.errors import ConfigurationError
from spark_ext.exchange.entries import Run, Segment
from spark_ext.exchange.kinds import parts, parts_at
from spark_ext.exchange.pinned import Pinned, read_pinned
from spark_ext.exchange.place import ABOUT
from spark_ext.exchange.positions import Front, Piece
from spark_ext.exchange.redistribution import Redistribution, redistribution
from spark_ext.failpoints import FailPoint, reach
from spark_ext.jobs.exchange import PARTITION, with_partition
from spark_ext.model.commits import Task
from spark_ext.model.offsets import Range, Running, SourceOffset
from spark_ext.sources.runtime.conform import conform
from spark_ext.storage import Location, child
from spark_ext.worker_internals import to_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_ext.exchange.contract import ExchangeMaster, Parts
    from spark_ext.exchange.descriptor import Descriptor, Shape
    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.queries.spec import QuerySpec

UNIT: Final = "__spark_ext_unit"  # the column that says to which unit a row belongs
FORMER: Final = "former"  # folders of drafts
FRESH: Final = "fresh"


@dataclass(frozen=True)
class ReshapedExchange:
    """An exchange as a restore puts it back."""

    name: str
    saved: str  # its folder in the savepoint
    pinned: Pinned  # as it was saved
    shape: Shape  # the new one
    options: Mapping[str, str]  # of its kind
    fronts: Mapping[str, Front]  # where the consumers stood
    id: str

    @cached_property
    def plan(self) -> Redistribution:
        """How the log is written again."""
        return redistribution(self.pinned.log, self.fronts, f"exchange '{self.name}'")

    @property
    def end(self) -> int:
        """The number after its last entry."""
        return self.plan.end

    @property
    def described(self) -> str:
        """What was changed, for the ledger."""
        return f"exchange '{self.name}': {self.shape}"

    def translated(self, offset: SourceOffset) -> SourceOffset:
        """A consumer's offset, which says where it stood in the savepoint's exchange."""
        front = self.plan.front(offset.uid, self.shape.partitions)
        channels = range(self.shape.partitions)
        return replace(offset, running={str(one): Running(front.position(one), self.id) for one in channels})

    def write(self, spark: SparkSession, folder: str, incarnation: int) -> None:
        """Write the rows, and the log that names them, below a folder of drafts."""
        kept = child(folder, exchange_folder(self.name))
        about = replace(self.pinned.about, options=self.options)
        reshaped = replace(about, id=self.id, partitions=self.shape.partitions, key=self.shape.key)
        former = _Draft.made(about, child(folder, f"{FORMER}/{self.name}"))
        fresh = _Draft.made(reshaped, child(folder, f"{FRESH}/{self.name}"))
        log = self.pinned.log
        entries = {
            number: replace(entry, segments=tuple(former.master.put_back(one, self.saved) for one in entry.segments))
            for number, entry in log.entries.items()
        }
        plan = redistribution(replace(log, entries=entries), self.fronts, f"exchange '{self.name}'")
        units = [unit for part in plan.parts for unit in part.units]
        segments = _written(spark, former, fresh, units, incarnation) if units else {}
        for segment in segments.values():
            fresh.master.keep(segment, kept)
        numbers = iter(range(len(units)))
        by_part = [[segments[next(numbers)] for _ in part.units] for part in plan.parts]
        Pinned(reshaped, plan.written(self.id, by_part, self.shape.partitions)).write(kept)
        former.master.delete()
        fresh.master.delete()


@dataclass(frozen=True)
class _Draft:
    """An exchange that exists while a restore is prepared."""

    about: Descriptor
    folder: str

    @property
    def parts(self) -> Parts:
        """Each process makes its own."""
        return parts(self.about.kind, self.folder, f"exchange '{self.about.name}'", self.about.options)

    @classmethod
    def made(cls, about: Descriptor, folder: str) -> _Draft:
        """A new one."""
        found = cls(about, folder)
        found.master.register(about)
        return found

    @cached_property
    def master(self) -> ExchangeMaster:
        """Its master."""
        return self.parts.master

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.about, self.folder)


def delete_drafts(folder: str) -> None:
    """Delete what drafts below a folder have stored elsewhere."""
    for name in Location.of(folder, {}).folder.files():
        place, _, file = name.rpartition("/")
        if file == ABOUT and {FORMER, FRESH}.intersection(place.split("/")):
            parts_at(child(folder, place), "the draft of an exchange").master.delete()


class ReshapedExchanges:
    """The exchanges that get another shape than the savepoint's: one that is given, or that the job declares."""

    def __init__(
        self, comparison: Comparison, composition: Composition, specs: Sequence[QuerySpec], shapes: Mapping[str, Shape]
    ) -> None:
        self._found: dict[str, ReshapedExchange] = {}
        self._readers: dict[str, str] = {}  # the exchange that a source reads
        saved = comparison.saved
        for name, made in composition.exchanges.items():
            if name not in saved.metadata.exchanges:
                continue
            operator = f"job '{comparison.job}', exchange '{name}', {saved.who}"
            place = child(saved.folder, exchange_folder(name))
            pinned, shape = read_pinned(place, operator), shapes.get(name, made.shape)
            if pinned.about.shape == shape:
                continue
            _check_key(pinned, shape, operator)
            fronts = dict(_fronts(name, comparison, composition, specs, pinned.about.partitions))
            self._readers |= dict.fromkeys(fronts, name)
            options = made.options if made.kind == pinned.about.kind else pinned.about.options
            self._found[name] = ReshapedExchange(name, place, pinned, shape, options, fronts, secrets.token_hex(8))

    def __iter__(self) -> Iterator[ReshapedExchange]:
        return iter(self._found.values())

    def get(self, name: str) -> ReshapedExchange | None:
        """One of them; None for an exchange that is put back as it was."""
        return self._found.get(name)

    def translated(self, offsets: Mapping[str, SourceOffset]) -> dict[str, SourceOffset]:
        """The offsets of those sources, by uid, whose positions are translated."""
        return {
            uid: self._found[self._readers[uid]].translated(offset)
            for uid, offset in offsets.items()
            if uid in self._readers
        }

    def write(self, spark: SparkSession, folder: str, incarnation: int) -> None:
        """Write all of them below a folder, as a savepoint has them."""
        for one in self._found.values():
            one.write(spark, folder, incarnation)
            reach(FailPoint.RESCALE_REDISTRIBUTED)


def _check_key(pinned: Pinned, shape: Shape, operator: str) -> None:
    columns = pinned.about.schema.fieldNames()
    missing = [column for column in shape.key if column not in columns]
    if missing:
        raise ConfigurationError(
            f"the new key has the column '{missing[0]}', which the rows in flight do not have; their columns are: "
            f"{', '.join(columns)}",
            operator=operator,
            kept=UNCHANGED,
            do="use columns of these rows; or let the consumers read all of it first, with an aligned savepoint",
        )


def _fronts(
    name: str, comparison: Comparison, composition: Composition, specs: Sequence[QuerySpec], partitions: int
) -> Iterator[tuple[str, Front]]:
    """Where the consumers stood that had begun, and had not read the seal."""
    for spec in specs:
        saved = comparison.saved_query(spec.uid)
        if saved is None or saved.finished or saved.epoch is None:
            continue
        for reader in composition.reads(spec):
            source = saved.sources.get(reader.uid)
            offset = None if source is None else source.offset
            if reader.exchange == name and offset is not None and offset.running and not offset.ended:
                positions = {channel: one.at for channel, one in offset.running.items()}
                yield reader.uid, Front.of(positions, partitions, f"source '{reader.uid}'")


# -- in Spark ---------------------------------------------------------------------------------------------------------


def _written(
    spark: SparkSession, former: _Draft, fresh: _Draft, units: Sequence[Sequence[Piece]], incarnation: int
) -> dict[int, Segment]:
    from pyspark.sql.types import IntegerType, StructField, StructType

    schema = fresh.about.schema
    with_unit = StructType([*schema.fields, StructField(UNIT, IntegerType())])
    stored = [(number, json.dumps([astuple(piece) for piece in unit])) for number, unit in enumerate(units)]
    # By hash of the number: one task may get more than another, and on Connect a local table is one partition.
    rows: DataFrame = spark.createDataFrame(stored, f"{UNIT} int, pieces string").repartition(UNIT)
    rows = rows.mapInArrow(partial(_read, former, to_arrow_schema(with_unit)), with_unit)
    rows = with_partition(rows, fresh.about.shape, f"exchange '{fresh.about.name}'")
    write = partial(_write, fresh, to_arrow_schema(schema), incarnation)
    found = rows.mapInArrow(write, f"{UNIT} int, segment string").collect()
    return {row[UNIT]: _segment(row["segment"]) for row in found}


def _read(former: _Draft, schema: pa.Schema, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    reader = former.parts.reader
    for number, text in ((row[UNIT], row["pieces"]) for batch in given for row in batch.to_pylist()):
        for piece in (Piece(*one) for one in json.loads(text)):
            for batch in reader.read(piece):
                yield conform(batch.append_column(UNIT, pa.repeat(number, batch.num_rows)), schema, _range(piece), "")


def _write(
    fresh: _Draft, schema: pa.Schema, incarnation: int, given: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    writer, shape = fresh.parts.writer, fresh.about.shape
    for number, rows in groupby(_by_unit(given), key=lambda pair: pair[0]):
        task = Task("", "", number, 0, 0, incarnation, 0)
        batches = (_targets(batch, schema, keyed=bool(shape.key)) for _, batch in rows)
        segment = writer.write(batches, task, shape.partitions)
        assert segment is not None, "a unit has rows"
        found = {UNIT: pa.array([number], pa.int32()), "segment": [json.dumps(segment.to_json())]}
        yield pa.RecordBatch.from_pydict(found)


def _by_unit(given: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches with the rows of one unit each; those of a unit are consecutive."""
    import numpy as np

    for batch in given:
        numbers = batch.column(UNIT).to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(starts):
            if end > start:
                yield int(numbers[start]), batch.slice(start, end - start)


def _targets(batch: pa.RecordBatch, schema: pa.Schema, *, keyed: bool) -> tuple[pa.RecordBatch, Any]:
    targets = batch.column(PARTITION).to_numpy(zero_copy_only=False) if keyed else None
    return conform(batch, schema, Range("", None, 0, 0), ""), targets


def _range(piece: Piece) -> Range:
    return Range(piece.segment, None, piece.skip, piece.skip + piece.rows)


def _segment(text: str) -> Segment:
    name, size, runs = json.loads(text)
    return Segment(name, size, tuple(Run(*run) for run in runs))
