"""Phase one of `http_2pc`, in tasks: rows become pieces of requests, in files that no commit refers to yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import types as spark

from spark_ext.bad_rows.sift import Bad, behind, sift
from spark_ext.datafiles.writer import DataFile, DataFileWriter, Layout
from spark_ext.errors import DataError, StorageError
from spark_ext.sinks.contract import Epoch, Task
from spark_ext.sinks.http_2pc.addresses import Addresses
from spark_ext.sinks.http_2pc.chunks import ChunkPart, ChunkRule, pieces
from spark_ext.sinks.http_2pc.rows import JsonRows
from spark_ext.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Transaction


SCHEMA = spark.StructType(
    [
        spark.StructField("epoch", spark.StringType()),
        spark.StructField("cut", spark.StringType()),
        spark.StructField("rows", spark.IntegerType()),
        spark.StructField("lines", spark.StringType()),
    ]
)
"""A row of the table is a piece: some rows of one task, as JSON lines."""

_LAYOUT = Layout(
    partition_by=("epoch",),
    compression="zstd",
    row_group_bytes=16 * 1024**2,
    # One file per task, so that the order of a task's pieces is fixed.
    file_bytes=2**62,
    statistics_columns=0,
)


def stage(
    location: Location,
    schema: spark.StructType,
    batches: Iterator[pa.RecordBatch],
    task: Task,
    cut: ChunkRule,
    who: str,
    addresses: Addresses | None = None,
    bad: Bad | None = None,
) -> tuple[DataFile, ...] | None:
    """Phase one, in a task: write the rows as pieces to a file in the outbox that no commit refers to yet.

    Args:
        addresses: of the rows, if they have any of their own; they are recorded with them.
        bad: takes the number of a row that has no JSON form or no address, the row, and why; None: it is an error.
    """
    files = DataFileWriter(location, SCHEMA, _LAYOUT, task)
    epoch = label(task.lineage, task.query_id, task.epoch)
    try:
        return files.write(_batch(epoch, cut, piece) for piece in _pieces(schema, batches, cut, who, addresses, bad))
    except OSError as problem:
        raise StorageError(
            f"the outbox could not be written: {problem}",
            operator=who,
            kept="nothing of this epoch was sent",
            do="check the storage (space, permissions); the epoch will be retried",
        ) from problem


Sent = TypeVar("Sent")


def _each(
    batches: Iterator[pa.RecordBatch], convert: Callable[[pa.RecordBatch], Iterable[Sent]], bad: Bad | None
) -> Iterator[Sent]:
    """What the rows become, without those that are bad."""
    first = 0
    for batch in batches:
        if bad is None:
            yield from convert(batch)
            continue
        try:
            yield from list(convert(batch))
        except DataError:
            for found in sift(batch, lambda part: list(convert(part)), DataError, behind(bad, first)):
                yield from found
        first += batch.num_rows


def _pieces(
    schema: spark.StructType,
    batches: Iterator[pa.RecordBatch],
    cut: ChunkRule,
    who: str,
    addresses: Addresses | None,
    bad: Bad | None,
) -> Iterator[ChunkPart]:
    if addresses is None:
        yield from pieces(_each(batches, JsonRows(schema, who).lines, bad), cut)
        return
    body = addresses.body(schema)
    rows = JsonRows(body, who)

    def addressed(batch: pa.RecordBatch) -> Iterable[tuple[str, str]]:
        return zip(addresses.of(batch), rows.lines(batch.select(body.names)), strict=True)

    # One iterator for both: a row's line comes with its address.
    urls, lines = tee(_each(batches, addressed, bad))
    yield from pieces((line for _, line in lines), cut, (url for url, _ in urls))


def _batch(epoch: str, cut: ChunkRule, piece: ChunkPart) -> pa.RecordBatch:
    import pyarrow as pa

    from spark_ext.schemas.arrow import arrow_schema

    columns = [[epoch], [cut.to_json(piece.url)], [piece.rows], [piece.lines]]
    schema = arrow_schema(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


# -- what the table records of an epoch -------------------------------------------------------------------------------


_TASK: Final = re.compile(r"-p(\d+)-a\d+-[0-9a-f]{16}\.")


def label(lineage: int, query_id: str, number: int) -> str:
    """The epoch's value in the outbox's partition column."""
    return f"{lineage}-{query_id}-{number}"


def sent_id(epoch: Epoch) -> str:
    """The id under which the table records the last epoch acknowledged by the receiver."""
    return f"sent:{epoch.application}"


def decided_mark_id(epoch: Epoch) -> str:
    """The id under which a decision keeps the mark of the rows that tasks have put aside; 0 means no rows."""
    return f"decided_bad_rows:{epoch.application}"


def decision(epoch: Epoch, mark: int | None) -> list[Transaction]:
    """What a decision says of the rows that are not in its files."""
    from deltalake import Transaction

    return [Transaction(decided_mark_id(epoch), mark or 0)]


def marked(epoch: Epoch, mark: int | None) -> list[Transaction]:
    """The transaction that keeps the mark of an epoch's bad rows."""
    if mark is None:
        return []
    from deltalake import Transaction

    from spark_ext.delta.transactions import bad_rows_name

    return [Transaction(bad_rows_name(epoch), mark)]


def is_sent(table: DeltaTable, epoch: Epoch) -> bool:
    """Whether the receiver is known to have all of an epoch."""
    sent = table.transaction_version(sent_id(epoch))
    return sent is not None and sent >= epoch.number


def files_of(table: DeltaTable, epoch: Epoch) -> list[str]:
    """The files of a decided epoch, in the order of their tasks' numbers: the same in any process."""
    import pyarrow as pa

    files = pa.table(table.get_add_actions(flatten=True).select(["path", "partition.epoch"]))
    wanted = label(epoch.lineage, epoch.query_id, epoch.number)
    names = [file["path"] for file in files.to_pylist() if file["partition.epoch"] == wanted]
    return sorted(names, key=lambda name: (_task(name), name))


def _task(name: str) -> int:
    found = _TASK.search(name)
    return int(found[1]) if found else -1
