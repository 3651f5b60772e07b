"""A version of a Delta table as a whole, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_ext.errors import StorageError, refused
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.sources.contract import Limit
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.delta_snapshot.version import TableVersion

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def columns_of(path: str, version: int | None, operator: str) -> StructType:
    """The columns of a version; None: the newest one."""
    return TableVersion(path, version, None, operator).schema


def read_whole(
    path: str, version: int | None, columns: StructType, max_bytes: int, uid: str, operator: str
) -> tuple[str, int, pa.Table]:
    """Read columns of a version (None: the newest one); returns the table's id, the version, and the rows.

    Refuses more than `max_bytes` in Arrow's memory before it has read more.
    """
    try:
        if version is None:
            version = TableVersion(path, None, None, operator).version
        source = DeltaSnapshot({"uid": uid, "path": path, "version": str(version)})
        source.declared = columns
        batches, size = [], 0
        for channel in source.discover():
            for batch in source.read(channel, 0, source.advance(channel, 0, Limit()).end):
                size += batch.nbytes
                if size > max_bytes:
                    raise refused(
                        f"version {version} of the table is larger than max_bytes, {max_bytes} bytes in memory",
                        operator,
                        "name fewer columns, or raise max_bytes: each Python worker holds two versions at most",
                    )
                batches.append(batch)
    except OSError as problem:
        raise StorageError(
            f"the table could not be read: {type(problem).__name__}: {problem}",
            operator=operator,
            kept="everything that was committed",
            do="check that the storage is reachable; it will be retried",
        ) from problem
    return source.table_id, version, pa.Table.from_batches(batches, arrow_schema(columns))
