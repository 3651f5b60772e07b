"""Rows that hold what functions saw of control events in their epoch, and what they must hold by the query's offsets.

`told` adds what `sx.control` says to the rows of `datagen`; `Told` reads them, and computes what each epoch must have.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.control import stamps
from spark_ext.jobs.controlling.lookup_versions import versions_in
from spark_ext.jobs.lookup import Lookup
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow, EpochRow
from spark_ext.model.configuration import Configuration
from spark_ext.model.offsets import LoggedOffsets, Range, SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.sources.runtime.sample import sampled, shares_of
from spark_ext.spark.logs.spark_log import SparkLog

SCHEMA = "source string, channel string, seq bigint, part int, epoch bigint, config string, events string, version long"


def generated(spark: SparkSession, uid: str, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    rows = spark.readStream.format("datagen").options(uid=uid, **given).load()
    return rows.select(F.lit(uid).alias("source"), F.col("channel").cast("string").alias("channel"), "seq")


def told(
    frame: DataFrame, query: str = "q", *, emits: int = 0, stages: bool = False, lookup: Lookup | None = None
) -> DataFrame:
    """The rows with what is in force where they are; of a lookup its only row, which has the number of its version.

    Each task with rows emits an event in every epoch that is a multiple of `emits`. With `stages` it reaches the fail
    point `rows.<value of the key stage>`.
    """

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        epoch, part, said = int(context.getLocalProperty("streaming.sql.batchId") or -1), context.partitionId(), False
        for batch in batches:
            seen = dict(sx.control.config())
            if stages:
                failpoints.reach(f"rows.{seen.get('stage')}")
            if emits and epoch % emits == 0 and batch.num_rows and not said:
                said = True
                sx.control.emit("told", {"query": query, "epoch": epoch, "part": part})
            numbers = [one.sequence for one in sx.control.events()]
            count = batch.num_rows
            yield pa.RecordBatch.from_arrays(
                [
                    *(batch.column(name) for name in ("source", "channel", "seq")),
                    pa.array([part] * count, pa.int32()),
                    pa.array([epoch] * count, pa.int64()),
                    pa.array([json.dumps(seen, sort_keys=True)] * count, pa.string()),
                    pa.array([json.dumps(numbers)] * count, pa.string()),
                    pa.array([version_in(lookup)] * count, pa.int64()),
                ],
                names=["source", "channel", "seq", "part", "epoch", "config", "events", "version"],
            )

    return frame.mapInArrow(look, SCHEMA)


def version_in(lookup: Lookup | None) -> int | None:
    found = None if lookup is None else lookup.get("version")
    assert lookup is None or (found is not None and lookup.table().to_pylist() == [found])
    return None if found is None else int(found["number"])


def pickled_by_value() -> None:
    """Let workers run `told`: they do not have the tests on their path."""
    from tests.support import controlled

    cloudpickle.register_pickle_by_value(controlled)


@dataclass(frozen=True)
class Epoch:
    number: int
    offsets: Mapping[str, SourceOffset]
    before: Mapping[str, SourceOffset]  # those of the epoch before it
    configuration: Configuration
    committed: bool = True
    """False for one that is planned: its rows may be there, as the sink commits before Spark does."""

    @property
    def control(self) -> int:
        """The last event that it obeys."""
        return max((offset.control for offset in self.offsets.values()), default=0)

    @property
    def control_before(self) -> int:
        return max((offset.control for offset in self.before.values()), default=0)

    def ranges(self, uid: str) -> dict[str, Range]:
        before, after = self.before.get(uid), self.offsets[uid]
        known = before.running if before is not None else {}
        found = {}
        for name, state in after.running.items():
            start = known[name].at if name in known else state.begin
            if not state.jumped:
                found[name] = Range(name, state.data, start, state.at)
        old = {one.channel for one in before.finished} if before is not None else set()
        for one in after.finished:
            if one.channel not in old:
                start = known[one.channel].at if one.channel in known else one.begin
                found[one.channel] = Range(one.channel, one.data, start, one.at)
        return {name: one for name, one in found.items() if one.start != one.end}

    def jumps(self, uid: str) -> dict[str, Any]:
        return {name: state.at for name, state in self.offsets[uid].running.items() if state.jumped}

    def rows(self) -> Counter[tuple[str, str, int]]:
        found: Counter[tuple[str, str, int]] = Counter()
        for uid in self.offsets:
            pieces = self.ranges(uid)
            shares = shares_of(self.configuration, uid, list(pieces.values()))
            for name, piece in pieces.items():
                numbers = pa.RecordBatch.from_pydict({"seq": pa.array(range(piece.start, piece.end), pa.int64())})
                for batch in sampled([numbers], piece, shares):
                    found.update((uid, name, number) for number in batch.column("seq").to_pylist())
        return found

    def paused(self, query: str, uid: str, channel: str) -> bool:
        targets = ("job", f"query:{query}", f"source:{uid}", f"source:{uid}/{channel}")
        return any(target in self.configuration.standing.get("pause", {}) for target in targets)


class Told:
    def __init__(self, state: Path, tables: Mapping[str, Path]) -> None:
        self.state, self.tables = state, tables
        self.ledger = Ledger(str(state))

    def checkpoint(self, query: str) -> str:
        return str(self.state / "queries" / query / "checkpoint")

    def table(self, query: str) -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(str(self.tables[query])):
            return []
        found: list[dict[str, Any]] = DeltaTable(str(self.tables[query])).to_pyarrow_table().to_pylist()
        return found

    def epochs(self, query: str) -> list[Epoch]:
        """The epochs of the query's present history, in their order; the last one may only be planned."""
        log = SparkLog(self.checkpoint(query))
        newest = log.newest_commit()
        newest = -1 if newest is None else newest
        logged: dict[int, LoggedOffsets] = {}
        for row in sorted(self.ledger.table(EpochRow).rows([("query", "=", query)]), key=lambda row: row.lineage):
            if isinstance(row.offsets, list) and row.epoch <= newest:
                logged[row.epoch] = LoggedOffsets(row.epoch, {}, tuple(row.offsets))
        for number in log.numbers("offsets"):
            found = log.offsets(number)
            if found is not None:
                logged[number] = found
        out: list[Epoch] = []
        before: Mapping[str, SourceOffset] = {}
        for number in sorted(number for number in logged if number <= newest + 1):
            offsets = source_offsets(logged[number])
            out.append(
                Epoch(
                    number, offsets, before, stamps.configuration(self.checkpoint(query), offsets.values()),
                    number <= newest,
                )
            )  # fmt: skip
            before = offsets
        return out

    @cached_property
    def queries(self) -> tuple[str, ...]:
        return tuple(self.tables)

    def events(self) -> list[ControlEventRow]:
        return sorted(self.ledger.table(ControlEventRow).rows(), key=lambda row: row.sequence)

    def steps(self) -> dict[str, list[ControlTransitionRow]]:
        """The transitions by event id, oldest first."""
        found: dict[str, list[ControlTransitionRow]] = defaultdict(list)
        for row in sorted(self.ledger.table(ControlTransitionRow).rows(), key=lambda row: row.at):
            found[row.event_id].append(row)
        return found

    def final(self, event_id: str) -> ControlTransitionRow | None:
        rows = self.ledger.table(ControlTransitionRow).rows([("event_id", "=", event_id), ("query", "=", "")])
        return next((row for row in rows if row.status in FINAL), None)

    def problems(self) -> list[str]:
        rows = (problem for query in self.queries for problem in self.wrong_rows(query))
        return [*rows, *self.wrong_events(), *self.wrong_cuts()]

    def wrong_rows(self, query: str) -> Iterator[str]:
        """Rows that an epoch must not have, or lacks; and those that saw another configuration than that of it."""
        of_epoch: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in self.table(query):
            of_epoch[row["epoch"]].append(row)
        epochs = self.epochs(query)
        if [one.number for one in epochs] != list(range(len(epochs))):
            yield f"{query}: epochs {[one.number for one in epochs][:3]}... {len(epochs)} of them, are not all there"
        broadcasts: dict[int, int] = {}
        for epoch in epochs:
            rows = of_epoch.pop(epoch.number, [])
            if not rows and not epoch.committed:
                continue
            found = Counter((row["source"], row["channel"], row["seq"]) for row in rows)
            wanted = epoch.rows()
            if found != wanted:
                more, less = found - wanted, wanted - found
                yield (
                    f"{query}: epoch {epoch.number} has {more.total()} rows too many, such as "
                    f"{min(more, default=None)}, and {less.total()} too few, such as {min(less, default=None)}"
                )
            config = json.dumps(epoch.configuration.user(query), sort_keys=True)
            others = {row["config"] for row in rows} - {config}
            if others:
                yield f"{query}: epoch {epoch.number} has the configuration {config}, and its rows saw {others}"
            number = {row["version"] for row in rows} - {one["version"] for one in versions_in(epoch.configuration)}
            if number - {None}:
                yield f"{query}: rows of epoch {epoch.number} saw the versions {number} of the lookup"
            seen = {row["events"] for row in rows}
            if len(seen) > 1:
                yield f"{query}: rows of epoch {epoch.number} saw {seen}"
            for number in (number for text in seen for number in json.loads(text)):
                if broadcasts.setdefault(number, epoch.number) != epoch.number:
                    yield f"{query}: event {number} was seen in the epochs {broadcasts[number]} and {epoch.number}"
                if not epoch.control_before < number <= epoch.control:
                    yield f"{query}: event {number} was seen in epoch {epoch.number}, which ends at {epoch.control}"
            yield from self._wrong_reads(query, epoch)
        if of_epoch:
            yield f"{query}: rows of epochs {sorted(of_epoch)}, which are not committed"

    def _wrong_reads(self, query: str, epoch: Epoch) -> Iterator[str]:
        for uid, offset in epoch.offsets.items():
            before = epoch.before.get(uid)
            if before is not None and offset.control < before.control:
                yield f"{query}: epoch {epoch.number} of {uid} has forgotten events {offset.control + 1} and later"
            for name, piece in epoch.ranges(uid).items():
                if epoch.paused(query, uid, name):
                    yield f"{query}: epoch {epoch.number} reads {piece} while it is paused"
            limit = epoch.configuration.standing.get("rate_limit", {}).get(f"source:{uid}", {}).get("") or {}
            read = sum(piece.end - piece.start for piece in epoch.ranges(uid).values())
            if limit.get("rows_per_epoch") and read > limit["rows_per_epoch"]:
                yield f"{query}: epoch {epoch.number} reads {read} rows of {uid}, and may read {limit}"

    def wrong_events(self) -> Iterator[str]:
        """Events that are there twice, and those whose transitions are not what the offsets say."""
        events = self.events()
        if [row.sequence for row in events] != list(range(1, len(events) + 1)):
            yield f"the sequences of {len(events)} events are not 1 to {len(events)}"
        keys = Counter(row.idempotency_key for row in events if row.idempotency_key)
        yield from (f"{count} events have the key {key}" for key, count in keys.items() if count > 1)
        first = {query: self._first_epochs(query) for query in self.queries}
        steps = self.steps()
        for row in events:
            finals = [step for step in steps[row.event_id] if step.query == "" and step.status in FINAL]
            if len(finals) > 1:
                yield f"{_name(row)} has the final steps {[step.status for step in finals]}"
            if row.kind in ("align", "release", "renamed", "reload") or row.delivery == "aligned":
                continue
            for step in steps[row.event_id]:
                if step.query and step.epoch is not None and step.lineage == self._lineage(step.query):
                    wanted = first[step.query](row)
                    if wanted is not None and step.epoch != wanted:
                        yield f"{_name(row)} is {step.status} at {step.query}/{step.epoch}, by the offsets at {wanted}"

    def wrong_cuts(self) -> Iterator[str]:
        """Aligned events that a query does not obey with the first epoch behind the barrier that all have passed."""
        released = [row for row in self.events() if row.kind == "release" and len(row.value) == 3]
        for query in self.queries if released else ():
            epochs, lineage = self.epochs(query), self._lineage(query)
            for row in released:
                barrier = row.value["checkpoint"]
                first = next((one for one in epochs if one.control >= row.sequence), None)
                if first is None or not first.before or row.lineage < lineage:
                    continue
                if (passed := _barrier(first.before)) is not None and passed < barrier:
                    yield f"{query}/{first.number} obeys {_name(row)} behind barrier {passed}, before {barrier}"
                earlier = next((one.before for one in epochs if one.number == first.number - 1), {})
                if earlier and (passed := _barrier(earlier)) is not None and passed >= barrier:
                    yield f"{query}/{first.number} obeys {_name(row)} later than behind barrier {barrier}"

    def _lineage(self, query: str) -> int:
        newest = SparkLog(self.checkpoint(query)).newest_offsets()
        logged = None if newest is None else SparkLog(self.checkpoint(query)).offsets(newest)
        return max((one.lineage for one in source_offsets(logged).values()), default=0) if logged is not None else 0

    def _first_epochs(self, query: str) -> Any:
        epochs = self.epochs(query)

        def first(row: ControlEventRow) -> int | None:
            uid = row.target.removeprefix("source:").partition("/")[0] if row.target.startswith("source:") else None
            for epoch in epochs:
                if uid is not None and uid not in epoch.offsets:
                    continue
                reached = epoch.offsets[uid].control if uid is not None else epoch.control
                if reached >= row.sequence:
                    return epoch.number
            return None

        return first


FINAL = ("acknowledged", "rejected", "failed", "expired")


def _barrier(offsets: Mapping[str, SourceOffset]) -> int | None:
    """The barrier that all sources have passed; None if all have ended."""
    return min((offset.barrier for offset in offsets.values() if not offset.ended), default=None)


def _name(row: ControlEventRow) -> str:
    return f"event {row.sequence} ({row.kind} for {row.target})"
