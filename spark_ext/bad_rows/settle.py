"""Moves the bad rows of committed epochs from files into the table. Runs in the driver.

What counts is decided by facts: Spark's log says which epochs are committed, the table which of them it holds. So it
can be repeated at any moment, by any driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ext.bad_rows.names import (
    WRITTEN,
    Again,
    EpochName,
    PendingFile,
    chosen,
    decided,
    default_table,
    epoch_of_written,
    failures_name,
    key_of,
    pending_folder,
    sinks_folder,
)
from spark_ext.bad_rows.row import BAD_FILE, METADATA, rows_in
from spark_ext.bad_rows.table import BadRowsTable, Owner, Role
from spark_ext.errors import StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.view import SourceView
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import Folder, LocalFolder, folder_at, sync_systems


@dataclass(frozen=True)
class Moved:
    """The bad rows of one epoch of a source or sink that are in the table now."""

    uid: str
    epoch: int
    rows: int
    table: str  # path or URI
    role: Role = "source"
    of: tuple[int, int] | None = None
    """Of a sink: rows that were bad, and rows that it was given, since its committing process began; None: unknown."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Of a sink: rows that fail rules, also those that are not in the table, by rule."""
    files: tuple[str, ...] = ()  # bad files among the rows


class Settler:
    """The bad rows of a query's sources and sinks. For one thread at a time."""

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
        self._sinks: Folder | None = None

    def waiting(self, uid: str) -> bool:
        """Whether there may be something to be moved: one lookup on a file system; on an object store always."""
        return may_hold(self._folder(uid))

    def settle(self, uid: str, upto: int | None = None) -> list[Moved]:
        """Move what committed epochs have left into tables, and remove what no epoch will ever need; what was added.

        Epochs count as committed by Spark's log, or up to a number that the caller knows.
        """
        # In this order: when an epoch is committed all its files are there.
        newest = self._newest(upto)
        folder = self._folder(uid)
        names = sorted(folder.files())
        files = [file for file in map(PendingFile.parse, names) if file is not None]
        again = [note for note in map(Again.parse, names) if note is not None]
        ripe, stale = self._judged(uid, chosen(files, again), newest)
        moved = self._move(uid, folder, ripe)
        _remove(folder, (*ripe, *stale))
        return moved

    def mark_read(self, uid: str, table: str | None) -> None:
        """Mark the bad files of a source in a table that it has read since they have changed."""
        newest = self._log.newest_commit()
        logged = None if newest is None else self._log.offsets(newest)
        offset = None if logged is None else source_offsets(logged).get(uid)
        if offset is None:
            return

        def read() -> frozenset[str]:
            view = SourceView(self._state, uid, self._lineage)
            known = view.finished_channels(offset.confirmed) if offset.confirmed else {}
            return frozenset((*known, *(one.channel for one in offset.finished)))

        uri = table or default_table(self._state)
        self._table(uri).replace_read(self._job_id, uid, read, self._lineage)

    def _table(self, uri: str) -> BadRowsTable:
        return self._tables.setdefault(uri, BadRowsTable(uri, self._options))

    def sinks_waiting(self) -> bool:
        """Whether there may be something of the query's sinks, as `waiting`."""
        found = self._sinks_folder()
        return found is not None and may_hold(found)

    def settle_sinks(self, upto: int | None = None) -> list[Moved]:
        """Like `settle`, for all sinks that the query has, or has had under other uids."""
        found = self._sinks_folder()
        if found is None:
            return []
        newest = self._newest(upto)
        moved = []
        for uid in sorted(found.names()):
            folder = folder_at(f"{found.uri}/{uid}")
            done = [
                epoch
                for epoch in map(EpochName.parse, sorted(folder.names()))
                if epoch is not None and (epoch.lineage, epoch.number) <= (self._lineage, newest)
            ]
            names = sorted(folder.files())
            ripe = self._ripe(names, done)
            counted = {epoch.number: self._failed(folder, names, epoch) for epoch in done}
            failed = {number: rules for number, rules in counted.items() if rules}
            for one in self._move(uid, folder, {file.epoch: (file,) for file in ripe.values()}, "sink"):
                said = _said(folder, ripe[one.epoch])
                moved.append(replace(one, of=said, failed=failed.pop(one.epoch, {})))
            table = default_table(self._state)
            moved += [Moved(uid, number, 0, table, "sink", failed=rules) for number, rules in sorted(failed.items())]
            _remove(folder, done)
            for name in names:
                written_in = epoch_of_written(name)
                if written_in is not None and written_in <= newest:
                    folder.delete(name)
            for empty in (WRITTEN, ""):
                folder.prune(empty)
        return moved

    def _failed(self, folder: Folder, names: Iterable[str], epoch: EpochName) -> dict[str, int]:
        """What was counted by rule in an epoch of this lineage."""
        name = failures_name(epoch)
        return dict(json.loads(folder.read(name))["failed"]) if epoch.lineage == self._lineage and name in names else {}

    def _ripe(self, names: Iterable[str], done: Iterable[EpochName]) -> dict[int, PendingFile]:
        """The files that count, by epoch. An epoch that is committed without a decision has no bad rows."""
        there = list(names)
        counts, mine = decided(there), {epoch for epoch in done if epoch.lineage == self._lineage}
        files = (file for file in map(PendingFile.parse, there) if file is not None)
        return {
            file.epoch.number: file
            for file in files
            if file.epoch in mine and counts.get(str(file.epoch)) == file.range
        }

    def _newest(self, upto: int | None) -> int:
        logged = self._log.newest_commit()
        return max((number for number in (logged, upto) if number is not None), default=-1)

    def _sinks_folder(self) -> Folder | None:
        """Where the bad rows of the query's sinks wait; None while Spark has given it no id."""
        if self._sinks is None and (query_id := self._log.query_id()) is not None:
            self._sinks = folder_at(sinks_folder(self._state, query_id))
        return self._sinks

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

    def _move(
        self, uid: str, folder: Folder, ripe: Mapping[EpochName, tuple[PendingFile, ...]], role: Role = "source"
    ) -> list[Moved]:
        if not ripe:
            return []
        by_table: dict[str, dict[int, tuple[PendingFile, ...]]] = {}
        for epoch, files in ripe.items():
            if not files:  # by the rules that count no row is bad
                continue
            by_table.setdefault(self._table_of(folder, files[0]), {})[epoch.number] = files
        query_id = self._log.query_id() or ""
        owner = Owner(self._job, self._job_id, self._query, uid, self._lineage, query_id, role)
        moved = []
        for uri, epochs in by_table.items():
            table = self._table(uri)
            bad_files = {number: list[str]() for number in epochs}
            reads = {number: partial(_tables, folder, files, bad_files[number]) for number, files in epochs.items()}
            added = table.add(owner, reads, datetime.now(timezone.utc))
            moved += [
                Moved(
                    uid, number, sum(file.rows for file in files), uri, role, files=tuple(sorted({*bad_files[number]}))
                )
                for number, files in sorted(epochs.items())
                if number in added
            ]
        sync_systems(by_table)  # the files are, and delta-rs syncs nothing
        return moved

    def _folder(self, uid: str) -> Folder:
        if uid not in self._folders:
            self._folders[uid] = folder_at(pending_folder(self._state, uid))
        return self._folders[uid]

    def _table_of(self, folder: Folder, file: PendingFile) -> str:
        metadata = pq.read_schema(pa.BufferReader(_content(folder, file))).metadata or {}
        return metadata[METADATA].decode() or default_table(self._state)


def may_hold(folder: Folder) -> bool:
    """Whether a folder may hold anything: one lookup on a file system; in an object store always, without a request."""
    return not isinstance(folder, LocalFolder) or bool(folder.names())


def _remove(folder: Folder, epochs: Iterable[EpochName]) -> None:
    for epoch in epochs:
        folder.delete_tree(str(epoch))
        reach(FailPoint.BAD_ROWS_DELETED)


def _said(folder: Folder, file: PendingFile) -> tuple[int, int] | None:
    """What the decision says of all rows so far."""
    try:
        said = json.loads(folder.read(f"{file.epoch}/decided/{file.range}.json"))
        return int(said["bad"]), int(said["given"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _tables(folder: Folder, files: tuple[PendingFile, ...], bad_files: list[str]) -> Iterator[pa.Table]:
    """The rows of files; those of bad files are named in `bad_files`."""
    for file in files:
        rows = rows_in(_content(folder, file))
        bad_files += [
            channel.partition(BAD_FILE)[0] for channel in rows["channel"].to_pylist() if BAD_FILE in (channel or "")
        ]
        yield rows


def _content(folder: Folder, file: PendingFile) -> bytes:
    try:
        return folder.read(file.name)
    except OSError as problem:
        what = f"bad rows that wait for their table cannot be read: {problem}"
        do = "check the storage; it is tried again"
        kept = "the files stay where they are"
        raise StorageError(what, operator=f"{folder.uri}/{file.name}", kept=kept, do=do) from problem
