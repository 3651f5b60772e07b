"""The sink `exchange_2pc`: writes the rows of a query into an exchange, for other queries of the job to read.

    flights = job.exchange("flights", partitions=16, key="carrier")
    job.add("enrich", flights.write(enriched))

Tasks write their rows by partition where no reader looks for them; an epoch becomes visible with one entry in the
exchange's log. When the query has finished, a last entry seals the exchange, and the sources that read it end in their
turn. See `docs/linked-queries.md`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import pyarrow as pa
from pydantic import BeforeValidator, Field

from spark_ext.errors import NOTHING_VISIBLE, DataError, StorageError, refused
from spark_ext.exchange import decisions
from spark_ext.exchange.descriptor import Descriptor, nullable
from spark_ext.exchange.kinds import parts
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import not_the_target
from spark_ext.model.pressure import DEFAULT, in_flight
from spark_ext.options import Milliseconds, Names, Pairs
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.worker_internals import to_arrow_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ext.exchange.contract import ExchangeLog, Parts
    from spark_ext.exchange.entries import LogState, Segment

MOST: Final = 32_767


class ExchangeSinkOptions(SinkOptions):
    """Options of `exchange_2pc`."""

    path: str = Field(min_length=1)  # The exchange's folder: `exchanges/<name>` in the job's state directory
    kind: str = "arrow"
    kind_options: Pairs = Field(default_factory=dict)  # Options of the kind, a JSON object. `Exchange.write` sets them
    partitions: int = Field(default=16, gt=0, le=MOST)  # Number of partitions. Fixed by the first start
    key: Names = ()  # Columns whose values decide to which partition a row goes; none: partitions are filled in turn
    partition_column: str = ""  # Holds each row's partition number; not stored. `Exchange.write` adds it
    # What the slowest consumer may be behind: a number of rows, a size such as `1 GiB`, or `none`
    max_in_flight: Annotated[int | str | None, BeforeValidator(in_flight)] = DEFAULT
    keep: Milliseconds = 0  # Time for which rows are kept at least, ms, although all consumers have read them

    def identity(self) -> dict[str, str]:
        """The exchange's name: its folder moves with the job's state directory."""
        return {"path": self.path.rstrip("/").rpartition("/")[2]}


@dataclass(frozen=True)
class _Opened:
    """An exchange that the process which commits has opened."""

    start: int
    id: str
    parts: Parts


# By path, for the newest start: the committer is built for each epoch, the log keeps its place.
_opened: dict[str, _Opened] = {}


class ExchangeSink(TwoPhaseCommitSink):
    """Exactly-once rows for other queries. Order per key holds within what one task of the producer wrote."""

    options_type = ExchangeSinkOptions
    options: ExchangeSinkOptions
    records_barriers: ClassVar[bool] = True
    passes_watermarks: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._schema: StructType | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_parts"}

    @classmethod
    def name(cls) -> str:
        """`exchange_2pc`."""
        return "exchange_2pc"

    @property
    def _who(self) -> str:
        return f"sink '{self.options.uid}' (exchange {self.options.path})"

    @cached_property
    def _parts(self) -> Parts:
        return parts(self.options.kind, self.options.path, self._who, self.options.kind_options)

    def _log(self, epoch: Epoch) -> ExchangeLog:
        """The log as this process knows it from earlier epochs of this start."""
        path = self.options.path
        known = _opened.get(path)
        if known is not None and (known.start != epoch.start or not epoch.start):
            known = None
        found = self._parts if known is None else known.parts
        about = found.master.describe()
        if about is None:
            raise not_the_target("its folder contains no exchange", self._who)
        if known is None:
            known = _opened[path] = _Opened(epoch.start, about.id, found)
        if known.id != about.id:
            raise not_the_target("the exchange in its folder has another id", self._who)
        return known.parts.master.log

    def validate(self, schema: StructType) -> None:
        """Refuse types that Arrow does not have, and a key or partition column that is not there."""
        from pyspark.errors import PySparkTypeError

        names = schema.fieldNames()
        for name in (*self.options.key, *((self.options.partition_column,) if self.options.partition_column else ())):
            if name not in names:
                raise refused(f"column '{name}' does not exist", self._who, f"choose from: {', '.join(names)}")
        for field in schema.fields:
            try:
                to_arrow_type(field.dataType)
            except PySparkTypeError:
                raise refused(
                    f"column '{field.name}' has the type {field.dataType.simpleString()}, which Arrow does not support",
                    self._who,
                    "cast it before it is written",
                ) from None
        self._schema = schema

    # -- phase one ----------------------------------------------------------------------------------------------------

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Segment | None:
        """Write a segment that no entry names yet."""
        try:
            return self._parts.writer.write(self._split(batches), task, self.options.partitions)
        except OSError as problem:
            raise self._storage("could not be written", problem) from problem

    def _split(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Sequence[int] | None]]:
        column = self.options.partition_column
        for batch in batches:
            if not batch.num_rows:
                continue
            if not column:
                yield batch, None
                continue
            index = batch.schema.get_field_index(column)
            yield batch.remove_column(index), self._targets(batch.column(index))

    def _targets(self, numbers: pa.Array) -> Sequence[int]:
        """The partition of each row; a row of a partition that is not there would be read by nobody."""
        import numpy as np

        found: Any = numbers.to_numpy(zero_copy_only=False)
        if numbers.null_count or not np.issubdtype(found.dtype, np.integer):
            wrong: Any = "null" if numbers.null_count else str(numbers.type)
        elif (outside := (found < 0) | (found >= self.options.partitions)).any():
            wrong = found[outside][0]
        else:
            return found  # type: ignore[no-any-return]
        raise DataError(
            f"column '{self.options.partition_column}' has {wrong}, and the partitions of the exchange are numbered "
            f"0 to {self.options.partitions - 1}",
            operator=self._who,
            kept=NOTHING_VISIBLE,
            do="correct the expression of the column; Exchange.write adds one that is right",
        )

    # -- phase two ----------------------------------------------------------------------------------------------------

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Segment]) -> CommitOutcome:
        """Write the epoch's entry."""

        def decide(state: LogState) -> Any:
            entry = decisions.epoch_entry(state, epoch, prepared, self.options.partitions, self._who, _now())
            if entry is not None:
                reach(FailPoint.EXCHANGE_BEFORE_ENTRY)
            return entry

        try:
            if not epoch.start:
                self._parts.master.register(self.descriptor(schema, ""))
            written = self._log(epoch).append(decide, str(epoch.incarnation))
        except OSError as problem:
            kept = "what the tasks prepared; the next attempt finds out whether the epoch is committed"
            raise self._storage("could not be written", problem, kept) from problem
        if written is None:
            return CommitOutcome.ALREADY_COMMITTED
        reach(FailPoint.EXCHANGE_ENTRY)
        return CommitOutcome.COMMITTED

    def check(self, epoch: Epoch) -> None:
        """Look at the newest state of the log."""
        try:
            state = self._log(epoch).look()
        except OSError as problem:
            raise self._storage("could not be read", problem) from problem
        epoch.check_target(state.held, state.epochs.get(epoch.application), self._who)

    def claim(self, claim: Claim) -> None:
        """Fence older starts off with an entry, then delete what they have left."""
        assert self._schema is not None
        master, at = self._parts.master, _now()
        try:
            found = master.describe()
            if found is not None:
                found.merged(self.descriptor(self._schema, claim.job_id))
            decisions.refuse_claim(master.log.look(), claim, self._who)
            master.register(self.descriptor(self._schema, claim.job_id))
            reach(FailPoint.EXCHANGE_BEFORE_CLAIM)
            master.log.append(lambda state: decisions.claim_entry(state, claim, self._who, at), str(claim.incarnation))
            reach(FailPoint.EXCHANGE_CLAIMED)
            master.sweep(claim.incarnation)
            master.delete_released()
            reach(FailPoint.EXCHANGE_CLEANED)
        except OSError as problem:
            raise self._storage("could not be written", problem) from problem

    def on_final_checkpoint(self, epoch: Epoch) -> None:
        """Seal the exchange: the sources that read it end when they have read all of it."""
        at = _now()
        reach(FailPoint.EXCHANGE_BEFORE_SEAL)
        try:
            self._parts.master.log.append(
                lambda state: decisions.seal_entry(state, epoch, self._who, at), str(epoch.incarnation)
            )
        except OSError as problem:
            kept = "all rows; the seal is attempted again"
            raise self._storage("could not be sealed", problem, kept) from problem
        reach(FailPoint.EXCHANGE_SEALED)

    def descriptor(self, schema: StructType, job_id: str) -> Descriptor:
        """What this sink would make, with an id that was not used before; `job_id` is "" outside a job."""
        options = self.options
        stored = nullable(schema)
        columns = [field for field in stored.jsonValue()["fields"] if field["name"] != options.partition_column]
        return Descriptor(
            name=options.uid,
            id=secrets.token_hex(8),
            job_id=job_id,
            kind=options.kind,
            partitions=options.partitions,
            key=options.key,
            columns={"type": "struct", "fields": columns},
            max_in_flight=options.max_in_flight,
            keep=options.keep,
            options=options.kind_options,
        )

    def _storage(self, what: str, problem: OSError, kept: str = NOTHING_VISIBLE) -> StorageError:
        return StorageError(
            f"the exchange {what}: {problem}",
            operator=self._who,
            kept=kept,
            do="check the storage (space, permissions, hard links); the epoch will be retried",
        )


def _now() -> int:
    return time.time_ns() // 1_000_000
