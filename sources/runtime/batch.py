"""A `ChannelSource` as a batch reader of Spark: planned as a job's first run until now, in one go, and left as it is.

The planner and the code that reads ranges are those of streams, so the rows, casts, bad rows and errors are the same.
No hook of the source is called, and nothing is acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_ext.bad_rows.row import ROWS, SCHEMA, BadRow, completed, table_of
from spark_ext.control import current
from spark_ext.errors import DataError, ReplayError, refused
from spark_ext.masking import guarded
from spark_ext.model.offsets import Range, SourceOffset, ranges
from spark_ext.schemas.columns import spark_schema
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.runtime.planner import NoLedger, Planner
from spark_ext.sources.runtime.reader import ReadTask, assign, rows_of
from spark_ext.sources.staged import StagedSource
from spark_ext.spark.session import registry
from spark_ext.spark.watching.worker_process import begin_task, tune
from spark_ext.worker_internals import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING: Final = "nothing was written, and the source is as it was"

_planned: deque[ChannelSource] = deque(maxlen=4)
"""Sources that this process has planned: they hold what their tasks use, such as a snapshot of a database."""


def bad_rows_schema() -> StructType:
    """The columns of the table of bad rows."""
    return spark_schema(SCHEMA)


def plan(source: ChannelSource) -> list[InputPartition]:
    """The tasks that read a source to its end, or if it has none to where it ends now.

    Raises:
        ConfigurationError: it has no end, or has not reached it yet, or only a job can read it.
    """
    who = f"source '{source.options.uid}' ({source.name()})"
    if source.only_in_jobs:
        do = "write it to a table in a job, and read the table"
        raise refused(f"a batch read is not possible: {source.only_in_jobs}", who, do, NOTHING)
    bounded = source.ends if isinstance(source, StagedSource) else source.bounded
    if not bounded and not source.ends_now:
        raise refused(
            "a batch read needs an end, and this source has none and does not say how much it holds",
            who,
            "limit it by an option, as its page says ('rows' of datagen), or read it with spark.readStream",
            NOTHING,
        )
    planner = Planner(source, None, NoLedger())
    planner.prepare_available_now()
    at, pieces = SourceOffset(source.options.uid), list[Range]()
    while (end := planner.next(at)) is not at:
        pieces += ranges(at, end)
        at = end
    if bounded and not at.ended:
        raise refused(
            "a batch read reads the source to its end, which it has not reached: its end lies in the future, or what "
            "feeds it goes on",
            who,
            "wait for the end, or give the source an earlier one; a job reads it as it grows",
            NOTHING,
        )
    return assign(source, pieces, planner.readers)


class BatchReader(DataSourceReader):
    """One batch read of a source: `partitions` runs in a process beside the driver, `read` on executors.

    With `on_bad_row=quarantine` bad rows are left out, and written nowhere.
    """

    def __init__(self, source: ChannelSource, schema: StructType) -> None:
        registry.enter(source.given)
        source.declared = schema
        self._source, self._schema = source, schema

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        registry.enter(self._source.given)
        begin_task()

    @guarded()
    def partitions(self) -> list[InputPartition]:
        """The tasks. Each action plans once more, and sees the input as it is then."""
        with current.planning():
            found = plan(self._source)
        _planned.append(self._source)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, each batch in exactly the declared schema."""
        if self._source.options.on_bad_row == "quarantine":
            self._source._collect = self._limited()
        schema = to_arrow_schema(self._schema)
        for piece in _pieces(partition):
            with guarded(), _unrepeatable():
                yield from rows_of(self._source, schema, piece)
        tune()

    def _limited(self) -> Callable[[BadRow], None]:
        """Counts a task's bad rows, and raises an error if they are more than a whole run may have."""
        options, count = self._source.options, 0

        def leave_out(row: BadRow) -> None:
            nonlocal count
            count += 1
            if options.max_bad_rows is not None and count > options.max_bad_rows:
                raise DataError(
                    f"more than {options.max_bad_rows} rows are bad, which is what max_bad_rows allows; the last one: "
                    f"{row.reason}",
                    operator=f"source '{options.uid}', {row.position!r}",
                    kept=NOTHING,
                    do="look at them with the option bad_rows_of, correct the input or the declared schema, or raise "
                    "max_bad_rows",
                )

        return leave_out


class BadRowsReader(BatchReader):
    """The bad rows of a source, in the columns of their table, instead of its rows."""

    _uid: str | None

    @classmethod
    def of(cls, source: ChannelSource, rows: str, schema: StructType, *, named: bool) -> BadRowsReader:
        """The reader; `rows` is the schema of the rows, or `*`, and `schema` that of the frame."""
        who = f"source '{source.options.uid}'"
        if [one.name for one in schema] != SCHEMA.names:
            do = "put that schema into bad_rows_of, as DDL, and remove .schema(...)"
            raise refused(
                "bad_rows_of gives the columns of the table of bad rows, not those declared", who, do, NOTHING
            )
        try:
            found = source.schema() if rows.strip() == "*" else rows
            declared = found if isinstance(found, StructType) else columns(found)
        except ValueError as problem:
            do = "give the columns as DDL, such as 'id int, what string'; '*' for those of the source itself"
            raise refused(f"bad_rows_of is no schema: {problem}", who, do, NOTHING) from None
        made = cls(source, declared)
        made._uid = source.options.uid if named else None
        return made

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's bad rows, a thousand at a time or as they come with a batch of good ones."""
        schema, found = to_arrow_schema(self._schema), list[BadRow]()
        self._source._collect = found.append
        for piece in _pieces(partition):
            with guarded(), _unrepeatable():
                for _ in rows_of(self._source, schema, piece):
                    if len(found) >= ROWS:
                        yield self._batch(piece, found)
            if found:
                yield self._batch(piece, found)
        tune()

    def _batch(self, piece: Range, found: list[BadRow]) -> pa.RecordBatch:
        rows = table_of(piece.channel, found)
        found.clear()
        return completed(rows, {"uid": self._uid, "role": "source"}).combine_chunks().to_batches()[0]


def _pieces(partition: InputPartition) -> tuple[Range, ...]:
    # Where nothing is to be read Spark makes a task of its own.
    return partition.ranges if isinstance(partition, ReadTask) else ()


@contextmanager
def _unrepeatable() -> Iterator[None]:
    """Rows that have changed since they were planned: here, unlike in a stream, they can be planned once more."""
    try:
        yield
    except ReplayError as problem:
        raise ReplayError(problem.what, operator=problem.operator, kept=NOTHING, do="read it again") from problem
