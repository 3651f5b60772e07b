"""One Delta table of the ledger: its rows, read and appended through one fenced log; written by delta-rs alone.

An append is one small commit, some 10 ms. Its cost grows with the number of commits since the log's last checkpoint
(0.1 ms each, measured), so the writer checkpoints its table's log every 64 commits, which costs 1 ms per commit.
On a local file system only one engine may write a table: delta-rs creates a commit if absent, Spark renames over it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Generic

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from spark_ext.delta import light_arrow
from spark_ext.delta.failures import FAILURES, TableRef, guarded
from spark_ext.delta.fenced_log import NO_HOOKS, FencedLog, write_files
from spark_ext.delta.transactions import Fence, Guard
from spark_ext.delta.where import Where, sql
from spark_ext.errors import SparkExtError
from spark_ext.failpoints import reach
from spark_ext.ledger.columns import R, arrow_schema, columns, from_arrow, to_arrow
from spark_ext.masking import logger

log = logger("spark_ext.ledger")

CHECKPOINT_EVERY = 64  # commits between two checkpoints of a table's log
LEAST_FREE = 16 * 1024  # bytes that must be free for an append: on a full disk delta-rs panics, with a backtrace
MOST_ONE_BY_ONE = CHECKPOINT_EVERY + 16  # commits that a handle takes one by one: a checkpoint takes a while

REOPEN_AFTER = 60.0  # age at which a handle is thrown away, s: far below the time for which log files are kept

PROPERTIES: dict[str, str | None] = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
}  # how long a slow reader can use an old version: log files and data files that a compaction replaced


def checkpoint_due(before: int, after: int) -> bool:
    """Whether a commit that has brought a table from one version to another one is followed by a checkpoint."""
    return before // CHECKPOINT_EVERY != after // CHECKPOINT_EVERY


class LedgerTable(Generic[R]):
    """A table of the ledger. Safe for several threads. Once seen it must stay: one that is gone is lost state."""

    def __init__(self, uri: str, row_type: type[R], storage_options: dict[str, str] | None = None) -> None:
        self.uri = uri
        self.row_type = row_type
        self.name = row_type.table
        self.storage_options = storage_options
        kept = "everything in the ledger so far; it stays readable"
        self.errors = TableRef(f"ledger table '{self.name}' at {uri}", kept=kept)  # what failures are raised as
        self._log = FencedLog(
            uri, self.errors, storage_options, required=True, max_age=REOPEN_AFTER, max_advance=MOST_ONE_BY_ONE
        )
        self.log = self._log.folder  # folder of the log when it is a local one
        self.swept_at: datetime | None = None  # when maintenance last swept it, in this process

    @property
    def version(self) -> int | None:
        """The version last seen; None when the table has not been seen."""
        return self._log.version

    def exists(self) -> bool:
        """Whether the table is there."""
        return self._log.exists()

    def refresh(self) -> bool:
        """See the newest version; whether it is new. On a local path it costs one `stat` if nothing has changed."""
        return self._log.refresh()

    def read(self, columns: Sequence[str] | None = None, where: Where = ()) -> pa.Table:
        """Rows of the newest version; files that cannot have any are not opened. A missing table has none."""
        schema = arrow_schema(self.row_type)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        with self._log.lock:
            self.refresh()
            if self._log.handle is None:
                return light_arrow.empty(schema)
            with guarded(self.errors, "reading the table"):
                try:
                    return _scan(self._log.handle, schema, where)
                except FAILURES:
                    # Compacted and vacuumed since this handle was opened? The newest version has the same rows.
                    self._log.reopen()
                return _scan(self._log.handle, schema, where)

    def rows(self, where: Where = ()) -> list[R]:
        """Like `read`, as row objects."""
        return from_arrow(self.row_type, self.read(where=where))

    @contextmanager
    def opened(self) -> Iterator[DeltaTable | None]:
        """The handle, at the newest version, for looking at files; None without a table."""
        with self._log.lock:
            self.refresh()
            with guarded(self.errors, "looking at the table"):
                yield self._log.handle

    def create(self) -> None:
        """Create the table if it is not there; any number of processes may try at once."""
        with self._log.lock:
            self.refresh()
            if self._log.handle is None:
                self._log.create(arrow_schema(self.row_type), name=self.name, configuration=PROPERTIES)

    def append(self, rows: Sequence[R], fence: Fence | None = None) -> None:
        """Add rows, if any, in one commit; fenced unless the writer belongs to no incarnation."""
        if rows:
            data = to_arrow(self.row_type, rows)
            self._commit(lambda table, commit: self._write(table, data, commit), fence, "appending")

    def compare_and_swap(
        self, rows: Sequence[R], expected_version: int, fence: Guard | None = None, *, checkpoint: bool = True
    ) -> bool:
        """Add rows, perhaps none, if nothing was committed to the table since `expected_version`.

        Without `checkpoint` the caller calls `checkpoint_log` when it is due.
        """
        data = to_arrow(self.row_type, rows) if rows else None

        def write(table: DeltaTable, commit: CommitProperties) -> None:
            if data is not None:
                self._write(table, data, commit)
            else:
                _write_nothing(table, commit)

        before = self.version
        done = self._log.compare_and_swap(write, fence, expected_version, "a compare-and-swap")
        if done and before is not None and checkpoint:
            self._checkpoint_if_due(before)
        return done

    def checkpoint_log(self) -> None:
        """Write a checkpoint of the log, on the calling thread, while others commit."""
        with guarded(self.errors, "checkpointing the log"):
            # A handle of its own: the kept one belongs to whoever holds the lock.
            DeltaTable(self.uri, storage_options=self.storage_options).create_checkpoint()
        self._log.reopen()

    def raise_fence(self, fence: Fence) -> None:
        """Shut older incarnations out: from here on their commits are refused."""

        def write(table: DeltaTable, commit: CommitProperties) -> None:
            if not fence.holds(table.transaction_version):
                _write_nothing(table, commit)

        self._commit(write, fence, "fencing")

    def change(self, act: Callable[[DeltaTable, CommitProperties], None], fence: Fence | None, doing: str) -> bool:
        """Let maintenance change the table's files; False if another commit came in between and nothing was done."""
        return self._log.commit_once(act, fence, doing)

    def _commit(self, write: Callable[[DeltaTable, CommitProperties], None], fence: Fence | None, doing: str) -> None:
        with self._log.lock:
            if self._log.handle is None:
                self.create()
            before = 0

            def counted(table: DeltaTable, commit: CommitProperties) -> None:
                nonlocal before
                before = table.version()
                write(table, commit)

            self._log.commit(counted, fence, doing)
            self._checkpoint_if_due(before)

    def _write(self, table: DeltaTable, data: pa.Table, commit: CommitProperties) -> None:
        if self.log is not None:
            disk = os.statvfs(self.log)
            if disk.f_blocks and disk.f_bavail * disk.f_frsize < LEAST_FREE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reach(f"ledger.{self.name}.before")
        there = [field.name for field in table.schema().fields]
        wanted = [it.name for it in columns(self.row_type)]
        write_deltalake(
            table,
            data,
            mode="append",
            # A table of another version of this package has more columns, or fewer.
            schema_mode=None if there == wanted else "merge",
            commit_properties=commit,
            post_commithook_properties=NO_HOOKS,
        )
        reach(f"ledger.{self.name}.after")

    def _checkpoint_if_due(self, before: int) -> None:
        """Keep the log short; a failure here fails no append, and a later append makes up for it."""
        table = self._log.handle
        if table is None or not checkpoint_due(before, table.version()):
            return
        try:
            with guarded(self.errors, "checkpointing the log"):
                table.create_checkpoint()
            self._log.reopen()
        except SparkExtError as problem:
            log.warning("%s", problem)


def _write_nothing(table: DeltaTable, commit: CommitProperties) -> None:
    write_files(table, (), commit)
    table.update_incremental()  # unlike an append, this leaves the handle where it was


def _scan(table: DeltaTable, schema: pa.Schema, where: Where) -> pa.Table:
    known = {field.name for field in table.schema().fields}
    there = [name for name in schema.names if name in known]
    found = light_arrow.read_all(table.scan(columns=there, predicate=sql(where)))
    # A column that this version has and the table does not have yet is null.
    arrays = [
        found.column(field.name).cast(field.type) if field.name in there else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
