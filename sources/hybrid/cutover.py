"""Where a bounded source ends: the greatest offset of each partition, or the greatest time, among its rows.

It is computed as epochs are planned, of exactly the rows that they will read, and stored in the offset: no gap can
appear before the next stage, whatever happens to the history afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_ext.errors import ConfigurationError, refused
from spark_ext.sources.staged import Cutover

_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
_TIMES = (TimestampType, TimestampNTZType)


def check_columns(schema: StructType, columns: Sequence[str], who: str) -> StructType:
    """The columns of a cutover, from a stage's schema: `partition` columns and an offset, or one time."""
    for name in columns:
        if name not in schema.names:
            existing = ", ".join(schema.names)
            raise _refused(
                f"option 'seam': column '{name}' does not exist; the stage itself, before 'select', has: {existing}",
                who,
            )
    *partition, last = (schema[name] for name in columns)
    for field in partition:
        if not isinstance(field.dataType, (*_NUMBERS, StringType)):
            raise _refused(f"column '{field.name}' cannot name a partition: it is {field.dataType.simpleString()}", who)
    if not isinstance(last.dataType, _NUMBERS if partition else (*_NUMBERS, *_TIMES)):
        raise _refused(f"column '{last.name}' cannot be an offset: it is {last.dataType.simpleString()}", who)
    return StructType([schema[name] for name in columns])


def extended(seen: Cutover, batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Cutover:
    """A cutover that covers further rows: columns that name a partition, then the offset; or a time alone."""
    offsets = dict(seen.offsets)
    for batch in batches:
        table = pa.Table.from_batches([batch]).select(list(columns))
        last = table.column(columns[-1])
        if pa.types.is_timestamp(last.type):
            seen = _later(seen, last.cast(pa.timestamp("us", last.type.tz)).cast(pa.int64()))
            continue
        for row in _greatest(table, columns).to_pylist():
            partition = ":".join(str(row[name]) for name in columns[:-1])
            if row[columns[-1]] is not None:
                offsets[partition] = max(row[columns[-1]], offsets.get(partition, row[columns[-1]]))
    return replace(seen, offsets=offsets)


def _later(seen: Cutover, times: pa.ChunkedArray) -> Cutover:
    newest = pc.max(times).as_py()
    before = None if seen.time is None else seen.time // 1000
    if newest is None or (before is not None and newest // 1000 < before):
        return seen
    rows = pc.sum(pc.greater_equal(times, newest // 1000 * 1000)).as_py()
    if seen.time is None or newest // 1000 != before:
        return replace(seen, time=newest, rows=rows)
    return replace(seen, time=max(newest, seen.time), rows=(seen.rows or 0) + rows)


def _greatest(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    *partition, last = columns
    found = table.group_by(partition).aggregate([(last, "max")])
    return found.rename_columns([*partition, last] if found.column_names[-1] == f"{last}_max" else [last, *partition])


def is_time(kind: DataType) -> bool:
    """Whether a column of this type is one of times."""
    return isinstance(kind, _TIMES)


def _refused(what: str, who: str) -> ConfigurationError:
    do = "name columns as 'partition:offset', 'topic:partition:offset', or one increasing column"
    return refused(what, who, do, kept="nothing was read")
