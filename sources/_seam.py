"""Where a bounded source ended: the greatest offset of each partition, or the greatest time, of the rows that it gave.

Computed by reading the columns in question once more, from exactly the channels that have finished: what has appeared
since is not counted, so that nothing lies between what was read and where the next stage begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

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

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.sources.contract import Limit, Seam

if TYPE_CHECKING:
    from spark_ext.sources.contract import ChannelSource

_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
_TIMES = (TimestampType, TimestampNTZType)


def check_columns(schema: StructType, columns: Sequence[str], who: str) -> StructType:
    """The columns of a seam, out of a stage's schema: `partition` columns and an offset, or one time.

    Raises:
        ConfigurationError: one is not there, or has another type.
    """
    for name in columns:
        if name not in schema.names:
            raise _refused(f"there is no column '{name}' for the seam; there are: {', '.join(schema.names)}", who)
    *partition, last = (schema[name] for name in columns)
    for field in partition:
        if not isinstance(field.dataType, (*_NUMBERS, StringType)):
            raise _refused(f"column '{field.name}' cannot name a partition: it is {_kind(field.dataType)}", who)
    if not isinstance(last.dataType, _NUMBERS if partition else (*_NUMBERS, *_TIMES)):
        raise _refused(f"column '{last.name}' cannot be an offset: it is {_kind(last.dataType)}", who)
    return StructType([schema[name] for name in columns])


def seam_of(source: ChannelSource, ended: Set[str], columns: Sequence[str]) -> Seam:
    """Read the columns of a source's finished channels.

    Args:
        source: fresh, with `declared` set to the columns of the seam.
        ended: ids of the channels that have finished; no other is looked at.
        columns: those that name a partition, then the offset; or a time alone.

    Raises:
        DataError: a channel that was read is no longer there.
    """
    greatest: pa.Table | None = None
    for batch in _batches(source, ended):
        found = pa.Table.from_batches([batch]).select(list(columns))
        tables = [found] if greatest is None else [greatest, found]
        greatest = _greatest(pa.concat_tables(tables), columns)
    if greatest is None:
        return Seam()
    last = greatest.column(columns[-1])
    if pa.types.is_timestamp(last.type):
        newest = pc.max(last.cast(pa.timestamp("us", last.type.tz)).cast(pa.int64())).as_py()
        return Seam(time=newest)
    rows = greatest.to_pylist()
    return Seam(
        {
            ":".join(str(row[name]) for name in columns[:-1]): row[columns[-1]]
            for row in rows
            if row[columns[-1]] is not None
        }
    )


def _greatest(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    *partition, last = columns
    found = table.group_by(partition).aggregate([(last, "max")])
    return found.rename_columns([*partition, last] if found.column_names[-1] == f"{last}_max" else [last, *partition])


def _batches(source: ChannelSource, ended: Set[str]) -> Iterator[pa.RecordBatch]:
    source.resume((), frozenset(ended))
    left = set(ended)
    for channel in source.discover():
        if channel.id not in left:
            continue
        left.discard(channel.id)
        at, finished = channel.begin, False
        while not finished:
            step = source.advance(channel, at, Limit())
            if step.end != at:
                yield from source.read(channel, at, step.end)
            elif not step.finished:
                break
            at, finished = step.end, step.finished
    if left:
        raise DataError(
            f"channel '{min(left)}' was read and is no longer there, so where the next stage begins cannot be told",
            operator=f"source '{source.options.uid}'",
            kept="all rows that were committed; the next stage has not begun",
            do="put it back as it was, and start again",
        )


def _kind(kind: DataType) -> str:
    return kind.simpleString()


def _refused(what: str, who: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        operator=who,
        kept="nothing was read",
        do="name columns as 'partition:offset', 'topic:partition:offset', or one column that grows",
    )
