"""The one commit by which the rows of an epoch become visible: their files are added, or the rows are merged.

delta-rs writes out values of partitions and bounds of times in its own way, see `merge`. Where that would change one,
and where the name of a folder would be too long, the merge takes place apart: the files with rows of the epoch's keys
are copied into a table without partitions and bounds, in a temporary folder. The epoch's rows are merged into that one,
by the same rule, and what it then holds is written to new files as those of an append. One commit puts them in the
place of the files that were copied.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import types as spark

from spark_ext.datafiles.partition_values import folder
from spark_ext.datafiles.partitions import split
from spark_ext.datafiles.writer import LONGEST_NAME, DataFile, DataFileWriter, Layout, commit_info
from spark_ext.delta.features import refuse
from spark_ext.delta.fenced_log import FencedLog, properties, write_files
from spark_ext.delta.merge import Merge
from spark_ext.delta.restored import SINK
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import Task
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.parquet_types import from_delta, table_schema
from spark_ext.schemas.values import refuse_far_times

if TYPE_CHECKING:
    from deltalake import CommitProperties, Transaction
    from pyspark.sql.types import StructType

    from spark_ext.model.commits import Epoch
    from spark_ext.storage import Location


# Types of partitions with values that delta-rs changes or has no folders for; it changes all of `timestamp`.
_CHANGED: Final = (spark.StringType, spark.FloatType, spark.DoubleType, spark.DecimalType)
_TIME: Final = re.compile(r'"(date|timestamp(_ntz)?)"')


@dataclass(frozen=True)
class _Old:
    """A file of the table."""

    path: str
    size: int
    partition: dict[str, pa.Scalar]

    def texts(self, schema: spark.StructType, who: str) -> dict[str, str | None]:
        """The partition as in the log."""
        if not self.partition:
            return {}
        row = pa.record_batch({name: pa.repeat(value, 1) for name, value in self.partition.items()})
        ((found, _),) = split(row, [schema[name] for name in self.partition], who)
        return dict(zip(self.partition, found, strict=True))


def _needs_apart(table: DeltaTable, rows: pa.Table, location: Location) -> bool:
    """Whether delta-rs would change a value, of these rows or of the table, or could not store it."""
    text, names = table.schema().to_json(), table.metadata().partition_columns
    schema = from_delta(text)
    if any(isinstance(schema[name].dataType, spark.TimestampType) for name in names) or _has_far_times(rows):
        return True
    if not (names or _TIME.search(text)):
        return False
    actions = _actions(table)
    longest = LONGEST_NAME if location.local is not None else None
    for name in names:
        if isinstance(schema[name].dataType, _CHANGED):
            columns = [actions[f"partition.{name}"], *([rows[name]] if name in rows.column_names else ())]
            values = [value for column in columns for value in pc.unique(column).to_pylist()]
            if any(_is_changed(name, value, longest) for value in values):
                return True
    return _lacks_bounds(actions)


def _has_far_times(rows: pa.Table) -> bool:
    try:
        for batch in rows.to_batches():
            refuse_far_times(batch)
    except ValueError:
        return True
    return False


def _lacks_bounds(actions: pa.Table) -> bool:
    """Whether a file has times without a bound: some of them have no text form."""
    for field in actions.schema:
        side, _, name = field.name.partition(".")
        if side in ("min", "max") and pa.types.is_temporal(field.type):
            some = pc.less(actions[f"null_count.{name}"], actions["num_records"])
            if pc.any(pc.and_(actions[field.name].is_null(), some)).as_py():
                return True
    return False


def _is_changed(name: str, value: str | float | Decimal | None, longest: int | None) -> bool:
    if isinstance(value, Decimal):
        return value < 0 and value.as_tuple().exponent != 0
    if isinstance(value, float):
        value = format(Decimal(repr(value)), "f")  # delta-rs writes no exponents
    return longest is not None and len(folder(name, value, shortened=False)) > longest


def _merged_apart(
    merge: Merge, table: DeltaTable, rows: pa.Table, location: Location, task: Task, who: str
) -> tuple[Sequence[DataFile], Sequence[RemoveAction]] | None:
    """Write the files that an epoch adds, and name those that it removes; None if no row changes."""
    refuse(
        {"deletionVectors"} & set(table.protocol().reader_features or ()) and ("deletion vectors",), who, location.uri
    )
    schema, names = from_delta(table.schema().to_json()), table.metadata().partition_columns
    keys = rows.select(list(merge.upsert.key))
    old = [one for one in _files(table, names) if _has_any(location, one, keys)]
    wanted = arrow_schema(schema, nullable=True)
    with TemporaryDirectory(prefix="spark-ext-merge-") as place:
        apart = DeltaTable.create(
            place,
            Schema.from_json(table_schema(schema).json()),
            # Bounds would not hold for all values; nothing is passed over.
            configuration={"delta.dataSkippingNumIndexedCols": "0"},
        )
        if old:
            batches = (_completed(batch, one, wanted) for one in old for batch in _batches(location, one))
            write_deltalake(apart, pa.RecordBatchReader.from_batches(wanted, batches), mode="append")
        if not merge.write(apart, rows, None, who):
            return None
        files = [Path(uri) for uri in apart.file_uris()]
        found = (batch.select(wanted.names) for file in files for batch in pq.ParquetFile(file).iter_batches())
        layout = Layout(partition_by=tuple(names), compression=merge.compression, row_group_rows=merge.row_group_rows)
        added = DataFileWriter(location, schema, layout, task).write(found) or ()
    now = time.time_ns() // 1_000_000
    return added, [RemoveAction(one.path, True, now, one.size, one.texts(schema, who)) for one in old]


def _actions(table: DeltaTable) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _files(table: DeltaTable, partition_by: Sequence[str]) -> list[_Old]:
    actions = _actions(table)
    columns = {name: actions[f"partition.{name}"] for name in partition_by}
    paths, sizes = map(unquote, actions["path"].to_pylist()), actions["size_bytes"].to_pylist()
    return [
        _Old(path, size, {name: values[row] for name, values in columns.items()})
        for row, (path, size) in enumerate(zip(paths, sizes, strict=True))
    ]


def _has_any(location: Location, file: _Old, keys: pa.Table) -> bool:
    """Whether a file has a row of any of these keys."""
    for name in keys.column_names:
        value = file.partition.get(name)
        if value is not None and not pc.is_in(value.cast(keys[name].type), value_set=keys[name]).as_py():
            return False
    return any(
        pa.Table.from_batches([_completed(batch, file, keys.schema)])
        .join(keys, keys.column_names, join_type="left semi")
        .num_rows
        for batch in _batches(location, file, keys.column_names)
    )


def _batches(location: Location, file: _Old, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    # Spark's times of 96 bits have years that nanoseconds do not have.
    with (
        location.folder.open_input(file.path) as stream,
        pq.ParquetFile(stream, coerce_int96_timestamp_unit="us") as parquet,
    ):
        there = set(parquet.schema_arrow.names)
        chosen = None if columns is None else [name for name in columns if name in there]
        yield from parquet.iter_batches(columns=chosen)


def _completed(batch: pa.RecordBatch, file: _Old, wanted: pa.Schema) -> pa.RecordBatch:
    """Rows of a file with these columns: its partition's values, and nulls in columns that it does not have."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.repeat(file.partition[field.name].cast(field.type), batch.num_rows)
        if field.name in file.partition
        else pa.nulls(batch.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


# Makes the rows of an epoch visible in one commit, through the handle that was looked at; called again after a
# conflict. Returns the version that it has made.
Publish: TypeAlias = "Callable[[DeltaTable, Sequence[Transaction]], int]"


def append(epoch: Epoch, files: Sequence[DataFile], partition_by: Sequence[str]) -> Publish:
    """Adds the files of an epoch; commits of others that have nothing to do with it may be passed."""

    def publish(table: DeltaTable, transactions: Sequence[Transaction]) -> int:
        reach(FailPoint.DELTA_BEFORE_COMMIT)
        add_files(table, files, properties(transactions, info=commit_info(epoch, files)), partition_by)
        return table.version() + 1

    return publish


@dataclass(frozen=True)
class MergeInto:
    """Merges the rows that an epoch has staged in files. They are read once, however often the merge is repeated."""

    merge: Merge
    log: FencedLog
    location: Location
    schema: StructType
    epoch: Epoch
    files: Sequence[DataFile]
    who: str

    @cached_property
    def _rows(self) -> pa.Table:
        return self.merge.rows(self.location, self.schema, self.files, self._place)

    @property
    def _place(self) -> str:
        return f"{self.who}, epoch {self.epoch.number}"

    @property
    def _info(self) -> dict[str, Any]:
        """What the table's history shows of it, beside what delta-rs says of a MERGE."""
        shown = commit_info(self.epoch, self.files)
        return {name: shown[name] for name in (SINK, "userMetadata")}

    def __call__(self, table: DeltaTable, transactions: Sequence[Transaction]) -> int:
        """Merge the rows in the very next version; where they change nothing, only the numbers are committed."""
        rows = self._rows
        commit = properties(transactions, passes=0, info=self._info)
        if _needs_apart(table, rows, self.location):
            return self._apart(table, rows, commit)
        reach(FailPoint.DELTA_BEFORE_COMMIT)
        if self.merge.write(table, rows, commit, self._place):
            self.log.moved()
            return table.version()
        add_files(table, (), commit, table.metadata().partition_columns)
        return table.version() + 1

    def _apart(self, table: DeltaTable, rows: pa.Table, commit: CommitProperties) -> int:
        epoch = self.epoch
        task = Task(epoch.sink, epoch.query_id, epoch.number, 0, 0, epoch.incarnation, epoch.lineage)
        added, removed = _merged_apart(self.merge, table, rows, self.location, task, self._place) or ((), ())
        reach(FailPoint.DELTA_BEFORE_COMMIT)
        # An attempt that fails may have been committed: what it has written is left to the next claim.
        add_files(table, added, commit, table.metadata().partition_columns, removed)
        return table.version() + 1


def add_files(
    table: DeltaTable,
    files: Sequence[DataFile],
    commit: CommitProperties,
    partition_by: Sequence[str] = (),
    removed: Sequence[RemoveAction] = (),
) -> None:
    """Add data files, and remove others, in one commit through the handle that was looked at."""
    added = [
        AddAction(
            path=file.path,
            size=file.size,
            partition_values=file.partition,
            modification_time=file.modified_ms,
            data_change=True,
            stats=file.statistics,
        )
        for file in files
    ]
    write_files(table, [*removed, *added], commit, partition_by=partition_by)
