"""Phase one: the rows of one task as Parquet files in the table's folder, which no reader sees before the commit.

Batches are collected into row groups, one file or more per partition value, and written as they fill up: a row group
bounds the memory. The name of a file identifies its owner, so that the files of a dead incarnation can be found.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from spark_ext.errors import NOTHING_VISIBLE, DataError
from spark_ext.model.commits import Epoch, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData
    from pyspark.sql.types import StructType

    from spark_ext.datafiles.statistics import Leaf
    from spark_ext.storage import Location

MOST_OPEN_FILES = 64  # by one task; with more partition values some are closed early
LONGEST_NAME = 255  # of a file or folder, bytes: that of every usual file system
_NAME = re.compile(r"part-(?P<uid>.+)-i(?P<incarnation>\d+)-e(?P<epoch>\d+)-p\d+-a\d+-[0-9a-f]{16}(\.\w+){1,2}")


@dataclass(frozen=True)
class DataFile:
    """One file that a task has written, as the commit records it."""

    path: str  # relative to the table's root
    size: int
    rows: int
    partition: Mapping[str, str | None]
    modified_ms: int
    statistics: str


@dataclass(frozen=True)
class Layout:
    """How files are written."""

    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    row_group_rows: int = 1_000_000
    row_group_bytes: int = 128 * 1024**2  # in Arrow memory; also the maximum that one task buffers
    file_bytes: int = 256 * 1024**2  # size at which a file is closed and a new one is started
    statistics_columns: int = 32


def file_name(task: Task, suffix: str) -> str:
    """A name that no other attempt at any epoch has, and that identifies the file's owner."""
    return (
        f"part-{_spelled(task.sink)}-i{task.incarnation}-e{task.epoch}-p{task.partition}-a{task.attempt}"
        f"-{secrets.token_hex(8)}{suffix}"
    )


def owner_of(path: str) -> tuple[str, int] | None:
    """Sink uid and incarnation from a file's path; None for a file that was not written by a sink of this kind."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return (found["uid"].replace("=", "~"), int(found["incarnation"])) if found else None


def _spelled(uid: str) -> str:
    # Object stores escape the tilde, and a uid has no equals sign.
    return uid.replace("~", "=")


class OpenFile(Protocol):
    """One open file of one partition value."""

    def write(self, table: pa.Table) -> int:
        """Write some rows; returns the file's size so far."""

    def close(self, partition: Mapping[str, str | None]) -> DataFile:
        """Finish the file."""

    def drop(self) -> None:
        """Close the open handles, whatever state they are in."""


class _File:
    """A Parquet file with statistics."""

    def __init__(
        self, place: Location, path: str, schema: pa.Schema, leaves: tuple[Leaf, ...], named: list[str], layout: Layout
    ) -> None:
        from pyarrow.parquet import ParquetWriter

        from spark_ext.datafiles.statistics import Statistics

        self.path = path
        self._statistics = Statistics(leaves)
        self._footer: list[FileMetaData] = []
        self._stream = place.folder.open_output(self.path)
        self._writer = ParquetWriter(
            self._stream,
            schema,
            compression=layout.compression,
            metadata_collector=self._footer,
            write_statistics=named or False,
            # A larger dictionary is abandoned: a column without repetition then takes half the time to write.
            dictionary_pagesize_limit=128 * 1024,
            store_schema=False,
            # As in Spark's files: smaller, and faster to read than bytes.
            store_decimal_as_integer=True,
        )
        # Spark before 4 rejects or shifts dates before 1582 in files that do not name their writer.
        self._writer.add_key_value_metadata({"org.apache.spark.version": "4.2.0"})

    def write(self, table: pa.Table) -> int:
        """Write a row group; returns the file's size so far."""
        self._statistics.see(table)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        return int(self._stream.tell())

    def close(self, partition: Mapping[str, str | None]) -> DataFile:
        """Finish the file."""
        self._writer.close()
        size = int(self._stream.tell())
        self._stream.close()
        found = self._statistics.json(self._footer[0])
        return DataFile(self.path, size, self._statistics.rows, partition, time.time_ns() // 1_000_000, found)

    def drop(self) -> None:
        """Close the open handles, whatever state they are in."""
        with contextlib.suppress(OSError, ValueError):
            self._writer.close()
        # On a full disk the close above fails, and the garbage collector would try again, with a warning.
        self._writer.is_open = False
        with contextlib.suppress(OSError, ValueError):
            self._stream.close()


@dataclass
class _Group:
    """The buffered rows of one partition value."""

    partition: Mapping[str, str | None]
    folder: str
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    file: OpenFile | None = None


class DataFileWriter:
    """Writes the rows of one task: `write` them all; or `add` batches, then `finish`, and after an error `discard`."""

    bad: Callable[[pa.RecordBatch, DataError], object] | None = None  # takes rows without a folder name; None: an error

    def __init__(self, place: Location, schema: StructType, layout: Layout, task: Task) -> None:
        from pyspark.sql.types import StructType

        from spark_ext.datafiles.statistics import leaves, names_with_statistics
        from spark_ext.schemas.arrow import arrow_schema

        self._place, self._layout, self._task = place, layout, task
        self._wanted = arrow_schema(schema, nullable=True)
        kept = [f for f in schema.fields if f.name not in layout.partition_by]
        self._kept = [f.name for f in kept]
        self._file_schema = arrow_schema(StructType(kept), nullable=True)
        self._leaves = leaves(StructType(kept), layout.statistics_columns)
        self._named = names_with_statistics(StructType(kept))
        self._keys = [next(f for f in schema.fields if f.name == name) for name in layout.partition_by]
        self._groups: dict[tuple[str | None, ...], _Group] = {}
        self._waiting = 0
        self._done: list[DataFile] = []
        self._begun: list[str] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> tuple[DataFile, ...] | None:
        """Write all rows; None without rows. After an error no file is left."""
        try:
            for batch in batches:
                self.add(batch)
            return self.finish() or None
        except BaseException:
            self.discard()
            raise

    def add(self, batch: pa.RecordBatch) -> None:
        """Add some rows."""
        if batch.num_rows == 0:
            return
        if batch.schema.types != self._wanted.types:
            # Spark sends timestamps in the session's zone, and strings in two sizes; the values are the same.
            batch = batch.cast(self._wanted)
        if not self._keys:
            self._collect((), {}, batch)
        else:
            for texts, rows in self._split(batch):
                partition = dict(zip(self._layout.partition_by, texts, strict=True))
                try:
                    self._collect(texts, partition, rows)
                except DataError as problem:
                    if self.bad is None or texts in self._groups:
                        raise
                    self.bad(rows, problem)
        while self._waiting >= self._layout.row_group_bytes:
            self._write(max(self._groups.values(), key=lambda group: group.size))

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        """The rows by their partition, without those that have none."""
        from spark_ext.datafiles.partitions import split

        who = f"sink '{self._task.sink}', epoch {self._task.epoch}"
        if self.bad is None:
            yield from split(batch, self._keys, who)
            return
        left = [batch]
        while left:
            rows = left.pop()
            try:
                # A value that cannot be spelled is met before anything is returned.
                yield from split(rows, self._keys, who)
            except DataError as problem:
                if rows.num_rows == 1:
                    self.bad(rows, problem)
                else:
                    middle = rows.num_rows // 2
                    left += [rows.slice(middle), rows.slice(0, middle)]

    def _folder(self, name: str, value: str | None) -> str:
        from spark_ext.datafiles.partition_values import folder

        return folder(name, value, self._place.escape)

    @property
    def _suffix(self) -> str:
        compression = self._layout.compression
        return ".parquet" if compression == "none" else f".{compression}.parquet"

    def _folders(self, partition: Mapping[str, str | None]) -> str:
        """The folder of a file, with a slash at its end."""
        folders = [self._folder(*item) for item in partition.items()]
        for column, folder in zip(partition, folders, strict=True):
            size = len(os.fsencode(folder))
            if self._place.local is not None and size > LONGEST_NAME:
                raise self._too_long(
                    f"a value of the partition column '{column}' makes the name of a folder {size} bytes long; file "
                    f"systems allow {LONGEST_NAME}: {folder[:60]}..."
                )
        return "".join(folder + "/" for folder in folders)

    def _too_long(self, what: str) -> DataError:
        return DataError(
            what,
            operator=f"sink '{self._task.sink}', epoch {self._task.epoch}, partition {self._task.partition}",
            kept=NOTHING_VISIBLE,
            do="shorten the value in the query, or partition by other columns",
        )

    def _opened(self, path: str) -> OpenFile:
        try:
            return self._open(path)
        except OSError as problem:
            if problem.errno != errno.ENAMETOOLONG:
                raise
            raise self._too_long(f"the path of a file is too long for the file system: {path[:200]}...") from problem

    def _open(self, path: str) -> OpenFile:
        return _File(self._place, path, self._file_schema, self._leaves, self._named, self._layout)

    def _collect(self, key: tuple[str | None, ...], partition: Mapping[str, str | None], batch: pa.RecordBatch) -> None:
        group = self._groups.get(key)
        if group is None:
            group = _Group(partition, self._folders(partition))
            self._groups[key] = group
        for part in _pieces(batch, self._layout.row_group_rows - group.rows, self._layout.row_group_rows):
            size = part.nbytes
            group.batches.append(part)
            group.rows += part.num_rows
            group.size += size
            self._waiting += size
            if group.rows >= self._layout.row_group_rows:
                self._write(group)

    def _write(self, group: _Group) -> None:
        """One row group to the file of this partition value."""
        import pyarrow as pa

        table = pa.Table.from_batches(group.batches).select(self._kept).cast(self._file_schema)
        if group.file is None:
            open_files = [one for one in self._groups.values() if one.file is not None]
            if len(open_files) >= MOST_OPEN_FILES:
                self._close(open_files[0])
            path = group.folder + file_name(self._task, self._suffix)
            self._begun.append(path)  # before it exists: a full disk may leave an empty file
            group.file = self._opened(path)
        size = group.file.write(table)
        self._waiting -= group.size
        group.batches, group.rows, group.size = [], 0, 0
        if size >= self._layout.file_bytes:
            self._close(group)

    def _close(self, group: _Group) -> None:
        assert group.file is not None
        self._done.append(group.file.close(group.partition))
        group.file = None

    def finish(self) -> tuple[DataFile, ...]:
        """Write what is buffered, and close all files."""
        for group in self._groups.values():
            if group.batches:
                self._write(group)
            if group.file is not None:
                self._close(group)
        return tuple(self._done)

    def discard(self) -> None:
        """After an error: delete what this attempt has written, which nobody will ever commit."""
        # Files that cannot be deleted now are cleaned up at the next start.
        for group in self._groups.values():
            if group.file is not None:
                group.file.drop()
        for path in self._begun:
            with contextlib.suppress(OSError):
                self._place.folder.delete(path)


def _pieces(batch: pa.RecordBatch, first: int, most: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices; the first one fills the current row group."""
    start, length = 0, first
    while start < batch.num_rows:
        yield batch.slice(start, length)
        start, length = start + length, most


def commit_info(epoch: Epoch, files: Sequence[DataFile]) -> dict[str, Any]:
    """The properties of an epoch's commit that `DESCRIBE HISTORY` shows."""
    return {
        "isBlindAppend": True,
        "spark_ext.sink": epoch.sink,
        "operationMetrics": {
            "numFiles": str(len(files)),
            "numOutputRows": str(sum(file.rows for file in files)),
            "numOutputBytes": str(sum(file.size for file in files)),
        },
        "userMetadata": json.dumps(
            {
                "sink": epoch.sink,
                "queryId": epoch.query_id,
                "epoch": epoch.number,
                "incarnation": epoch.incarnation,
                "lineage": epoch.lineage,
                **({"early": True} if epoch.early else {}),
            }
        ),
    }
