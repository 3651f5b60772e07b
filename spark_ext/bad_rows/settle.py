"""Moves the bad rows of committed epochs from the files of tasks into the table. Runs in the driver.

What counts is decided by facts: Spark's log says which epochs are committed, the table which of them it holds. So it
can be repeated at any moment, by any driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ext.bad_rows.collector import METADATA
from spark_ext.bad_rows.folder import Folder
from spark_ext.bad_rows.names import EpochName, PendingFile, chosen, key_of, pending_folder
from spark_ext.bad_rows.table import BadRowsTable, Owner
from spark_ext.errors import StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.spark_log import SparkLog


@dataclass(frozen=True)
class Moved:
    """The bad rows of one epoch of a source that are in the table now."""

    uid: str
    epoch: int
    rows: int
    table: str
    """Path or URI."""


class Settler:
    """The bad rows of a query's sources. For one thread at a time.

    Args:
        job: its name.
        job_id: tells it from others of its name.
        state: path or URI of its state directory.
        query: the query's uid.
        lineage: the query's.
        checkpoint: path or URI of Spark's checkpoint directory of the query.
        storage_options: of the object store of the tables, as delta-rs names them.
    """

    def __init__(
        self,
        job: str,
        job_id: str,
        state: str,
        query: str,
        lineage: int,
        checkpoint: str,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._job, self._job_id, self._state, self._query = job, job_id, state, query
        self._lineage, self._options = lineage, storage_options
        self._log = SparkLog(checkpoint)
        self._tables: dict[str, BadRowsTable] = {}
        self._folders: dict[str, Folder] = {}

    def waiting(self, uid: str) -> bool:
        """Whether there may be something to be moved: one lookup on a file system; on an object store always.

        Raises:
            OSError: the state directory cannot be read.
        """
        return not self._folder(uid).empty

    def settle(self, uid: str, upto: int | None = None) -> list[Moved]:
        """Move what committed epochs have left, and remove what no epoch will ever need.

        Args:
            uid: of the source.
            upto: an epoch that is known to be committed, as are all before it; None: by Spark's log alone.

        Returns:
            What this call has added to tables.

        Raises:
            SparkExtError: a table cannot be written; the files stay.
            OSError: the state directory cannot be read.
        """
        # In this order: when an epoch is committed all its files are there.
        logged = self._log.newest_commit()
        newest = max((number for number in (logged, upto) if number is not None), default=-1)
        folder = self._folder(uid)
        files = [file for file in map(PendingFile.parse, folder.names()) if file is not None]
        ripe, stale = self._judged(uid, chosen(files), newest)
        moved = self._move(uid, folder, ripe)
        for epoch in (*ripe, *stale):
            folder.delete(str(epoch))
            reach(FailPoint.BAD_ROWS_DELETED)
        return moved

    def _judged(
        self, uid: str, found: Mapping[EpochName, tuple[PendingFile, ...]], newest: int
    ) -> tuple[dict[EpochName, tuple[PendingFile, ...]], list[EpochName]]:
        """What is to be moved, and what is to be removed: of epochs that were planned again, or of older lineages."""
        ripe, stale = {}, []
        for epoch, files in found.items():
            if epoch.lineage != self._lineage:
                stale += [epoch] if epoch.lineage < self._lineage else []
                continue
            logged = self._log.offsets(epoch.number)
            end = None if logged is None else source_offsets(logged).get(uid)
            if end is not None and key_of(end) != epoch.key:
                stale.append(epoch)
            elif epoch.number <= newest:
                ripe[epoch] = files
        return ripe, stale

    def _move(self, uid: str, folder: Folder, ripe: Mapping[EpochName, tuple[PendingFile, ...]]) -> list[Moved]:
        if not ripe:
            return []
        by_table: dict[str, dict[int, tuple[PendingFile, ...]]] = {}
        for epoch, files in ripe.items():
            by_table.setdefault(self._table_of(folder, files[0]), {})[epoch.number] = files
        owner = Owner(self._job, self._job_id, self._query, uid, self._lineage, self._log.query_id() or "")
        moved = []
        for uri, epochs in by_table.items():
            table = self._tables.setdefault(uri, BadRowsTable(uri, self._options))
            reads = {number: partial(_tables, folder, files) for number, files in epochs.items()}
            added = table.add(owner, reads, datetime.now(timezone.utc))
            moved += [
                Moved(uid, number, sum(file.rows for file in files), uri)
                for number, files in sorted(epochs.items())
                if number in added
            ]
        return moved

    def _folder(self, uid: str) -> Folder:
        if uid not in self._folders:
            self._folders[uid] = Folder(pending_folder(self._state, uid))
        return self._folders[uid]

    def _table_of(self, folder: Folder, file: PendingFile) -> str:
        metadata = pq.read_schema(BytesIO(_content(folder, file))).metadata or {}
        return str(metadata[METADATA].decode())


def _tables(folder: Folder, files: tuple[PendingFile, ...]) -> Iterator[pa.Table]:
    for file in files:
        yield pq.read_table(BytesIO(_content(folder, file)))


def _content(folder: Folder, file: PendingFile) -> bytes:
    try:
        return folder.read(file.name)
    except OSError as problem:
        raise StorageError(
            f"bad rows that wait for their table cannot be read: {problem}",
            operator=f"{folder.uri}/{file.name}",
            kept="the files stay where they are",
            do="check the storage; it is tried again",
        ) from problem
