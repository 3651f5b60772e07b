"""One Delta table of the ledger, through one kept handle; written by delta-rs alone.

An append is one small commit, some 10 ms. Its cost grows with the number of commits since the log's last checkpoint
(0.1 ms each, measured), so the writer checkpoints its table's log every 64 commits, which costs 1 ms per commit.
A local file system has one engine write any one table: delta-rs creates a commit only if absent, Spark renames over it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Generic

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spark_ext.delta.failures import FAILURES, Place, guarded, log_folder, lost
from spark_ext.delta.fence import Fence
from spark_ext.delta.where import Where, sql
from spark_ext.errors import SparkExtError, StorageError
from spark_ext.failpoints import reach
from spark_ext.ledger.schema import R, arrow_schema, columns, from_arrow, to_arrow

log = logging.getLogger("spark_ext.ledger")

CHECKPOINT_EVERY = 64
"""Commits between two checkpoints of a table's log, and the most that a reader's handle takes one by one."""

REOPEN_AFTER = 60.0
"""Age at which a handle is thrown away, s: far below the time for which log files are kept."""

ATTEMPTS = 12
"""Attempts to commit against others, beyond those that delta-rs makes."""

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Checkpoints and log clean-up are not done per commit: clean-up lists the whole log each time."""

PROPERTIES: dict[str, str | None] = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
}
"""How long a slow reader can go on with an old version: log files and data files that a compaction replaced."""


class LedgerTable(Generic[R]):
    """A table of the ledger. Safe for several threads.

    Args:
        uri: path or URI of the table.
        row_type: what its rows are.
        storage_options: of the object store, as delta-rs names them.
    """

    def __init__(self, uri: str, row_type: type[R], storage_options: dict[str, str] | None = None) -> None:
        self.uri = uri
        self.row_type = row_type
        self.name = row_type.table
        self._storage_options = storage_options
        self.log = log_folder(uri)
        """Folder of the log when it is a local one."""
        self.swept_at: datetime | None = None
        """When maintenance last swept it, in this process."""
        self._lock = threading.RLock()
        self._delta: DeltaTable | None = None
        self._seen = False
        self._opened_at = 0.0
        self._opened_version = 0
        self._not_fenced: tuple[str, int] | None = None

    @property
    def place(self) -> Place:
        """Name and path, for messages."""
        return self.name, self.uri

    @property
    def version(self) -> int | None:
        """The version last seen; None when the table has not been seen."""
        return None if self._delta is None else self._delta.version()

    # -- looking ------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the table is there.

        Raises:
            StateError, StorageError: it cannot be told.
        """
        if self.log is not None:
            return self.log.is_dir()
        with guarded(self.place, "looking for the table"):
            return DeltaTable.is_deltatable(self.uri, self._storage_options)

    def refresh(self) -> bool:
        """See the newest version. On a local path that costs one `stat` when nothing has changed.

        Returns:
            Whether there is something new since the last look. A table that is not there yet has nothing new.

        Raises:
            StateError, StorageError: the table cannot be read.
        """
        with self._lock:
            before = self.version
            if before is None:
                if not self._seen and not self.exists():
                    return False
                self._reopen()
                return self._delta is not None
            assert self._delta is not None
            # A handle that is old, or far behind, may miss log files that were cleaned up; opening anew never does.
            if time.monotonic() - self._opened_at > REOPEN_AFTER or before - self._opened_version > CHECKPOINT_EVERY:
                self._reopen()
            elif self.log is None or (self.log / f"{before + 1:020}.json").exists():
                with guarded(self.place, "reading the log"):
                    self._delta.update_incremental()
                self._not_fenced = None
            return self.version != before

    def _reopen(self) -> None:
        self._delta, self._not_fenced = None, None
        with guarded(self.place, "opening the table"):
            try:
                self._delta = DeltaTable(self.uri, storage_options=self._storage_options)
            except TableNotFoundError:
                # Without a first commit, which a creator is about to write, this is not a table yet. One that was
                # there and is no longer is lost, and never made anew beside the rest.
                if self._seen or (self.log is not None and any(self.log.glob("*.json"))):
                    raise
                return
        self._seen = True
        self._opened_at, self._opened_version = time.monotonic(), self._delta.version()

    def read(self, columns: Sequence[str] | None = None, where: Where = ()) -> pa.Table:
        """Rows of the newest version. A table that is not there has none.

        Args:
            columns: names; None: all.
            where: which rows; files that cannot have any are not opened.

        Raises:
            StateError, StorageError: the table cannot be read.
        """
        schema = arrow_schema(self.row_type)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        with self._lock:
            self.refresh()
            if self._delta is None:
                return schema.empty_table()
            with guarded(self.place, "reading the table"):
                try:
                    return _scan(self._delta, schema, where)
                except FAILURES:
                    # Compacted and vacuumed since this handle was opened? The newest version has the same rows.
                    self._reopen()
                return _scan(self._delta, schema, where)

    def rows(self, where: Where = ()) -> list[R]:
        """Like `read`, as row objects."""
        return from_arrow(self.row_type, self.read(where=where))

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the table if it is not there; any number of processes may try at once.

        Raises:
            StateError, StorageError: it cannot be made.
        """
        with self._lock:
            self.refresh()
            if self._delta is not None:
                return
            with guarded(self.place, "creating the table"):
                try:
                    DeltaTable.create(
                        self.uri,
                        arrow_schema(self.row_type),
                        mode="error",
                        name=self.name,
                        configuration=PROPERTIES,
                        storage_options=self._storage_options,
                        post_commithook_properties=NO_HOOKS,
                    )
                except DeltaError:
                    # Someone else was faster, which either of delta-rs' checks may have noticed.
                    if not DeltaTable.is_deltatable(self.uri, self._storage_options):
                        raise
                self._reopen()

    def append(self, rows: Sequence[R], fence: Fence | None = None) -> None:
        """Add rows in one commit.

        Args:
            rows: at least one, else nothing is done.
            fence: of the incarnation that writes; None for a writer that belongs to none.

        Raises:
            FencedError: a newer incarnation has fenced the table; nothing was added.
            StorageError: not added, or (when the storage failed after the commit) not known to be.
            StateError: the table is gone or cannot be written.
        """
        if not rows:
            return
        data = to_arrow(self.row_type, rows)

        def write(delta: DeltaTable) -> None:
            self._write(delta, data, fence, retries=15)

        with self._lock:
            self._commit(write, fence, "appending")

    def compare_and_swap(self, rows: Sequence[R], expected_version: int, fence: Fence | None = None) -> bool:
        """Add rows if nothing was committed to the table since `expected_version`.

        Returns:
            Whether they were added.

        Raises:
            StateError, StorageError: the table cannot be written.
        """
        data = to_arrow(self.row_type, rows)
        with self._lock:
            self.refresh()
            if self.version != expected_version:
                return False
            try:
                with guarded(self.place, "a compare-and-swap"):
                    self._write(self._writable(), data, fence, retries=0)
            except CommitFailedError:
                self._reopen()
                return False
            return True

    def raise_fence(self, fence: Fence) -> None:
        """Shut older incarnations out: from here on their commits are refused.

        Raises:
            FencedError: a newer one has been here.
            StateError, StorageError: the table cannot be written.
        """

        def write(delta: DeltaTable) -> None:
            if delta.transaction_version(fence.application) == fence.number:
                return
            delta.create_write_transaction(
                [],
                mode="append",
                schema=delta.schema(),
                commit_properties=CommitProperties(app_transactions=[fence.transaction()], max_commit_retries=15),
                post_commithook_properties=NO_HOOKS,
            )
            delta.update_incremental()  # unlike a write, this leaves the handle where it was

        with self._lock:
            self._commit(write, fence, "fencing")

    def change(self, act: Callable[[DeltaTable, CommitProperties], None], fence: Fence | None, doing: str) -> bool:
        """Let maintenance change the table's files, in the order of all other commits of this process.

        Args:
            act: gets a handle that has just been opened, and what its commit has to carry.
            fence: as in `append`.
            doing: for messages.

        Returns:
            False when another commit came in between and nothing was done.

        Raises:
            FencedError, StateError, StorageError: as in `append`.
        """
        with self._lock:
            self._reopen()
            if self._delta is None:
                return False
            try:
                with guarded(self.place, doing):
                    self._check(self._delta, fence)
                    act(self._delta, _properties(fence, retries=3))
                    return True
            except CommitFailedError:
                return False
            finally:
                self._reopen()

    @contextmanager
    def opened(self) -> Iterator[DeltaTable | None]:
        """The handle, at the newest version, for looking at files; None when there is no table."""
        with self._lock:
            self.refresh()
            with guarded(self.place, "looking at the table"):
                yield self._delta

    def _commit(self, write: Callable[[DeltaTable], None], fence: Fence | None, doing: str) -> None:
        attempts = Retrying(
            retry=retry_if_exception_type(CommitFailedError),
            wait=wait_random_exponential(multiplier=0.02, max=0.5),
            stop=stop_after_attempt(ATTEMPTS),
            reraise=True,
        )
        try:
            for attempt in attempts:
                with attempt, guarded(self.place, doing):
                    delta = self._writable()
                    self._check(delta, fence)
                    before = delta.version()
                    try:
                        write(delta)
                    except CommitFailedError:
                        self._reopen()
                        raise
                    self._after(before)
        except CommitFailedError as conflict:
            raise StorageError(
                f"{doing} failed: other writers were faster {ATTEMPTS} times: {conflict}",
                operator=f"ledger table '{self.name}' at {self.uri}",
                kept="all that is in the ledger; these rows were not added",
                do="it is tried again; see whether a process writes to this table without pause",
            ) from conflict

    def _writable(self) -> DeltaTable:
        """The handle, when what it stands on is still there: delta-rs would write into a folder that has gone."""
        if self._delta is None:
            self.create()
            assert self._delta is not None
        if self.log is not None and not (self.log / f"{self._delta.version():020}.json").exists():
            self._reopen()
            if self._delta is None:
                raise lost(self.place, "writing", f"{self.log} is empty")
        return self._delta

    def _check(self, delta: DeltaTable, fence: Fence | None) -> None:
        """Compare fences: once after each refresh, as own commits cannot bring a higher number."""
        if fence is None or self._not_fenced == (fence.application, fence.number):
            return
        fence.check(delta.transaction_version(fence.application), self.name)
        self._not_fenced = (fence.application, fence.number)

    def _write(self, delta: DeltaTable, data: pa.Table, fence: Fence | None, retries: int) -> None:
        reach(f"ledger.{self.name}.before")
        there = [field.name for field in delta.schema().fields]
        wanted = [it.name for it in columns(self.row_type)]
        write_deltalake(
            delta,
            data,
            mode="append",
            # A table of another version of this package has more columns, or fewer.
            schema_mode=None if there == wanted else "merge",
            commit_properties=_properties(fence, retries),
            post_commithook_properties=NO_HOOKS,
        )
        reach(f"ledger.{self.name}.after")

    def _after(self, before: int) -> None:
        """Keep the log short; what fails here fails no append, and is done with a later one."""
        assert self._delta is not None
        if before // CHECKPOINT_EVERY == self._delta.version() // CHECKPOINT_EVERY:
            return
        try:
            with guarded(self.place, "checkpointing the log"):
                self._delta.create_checkpoint()
                self._reopen()
        except SparkExtError as problem:
            log.warning("%s", problem)


def _properties(fence: Fence | None, retries: int) -> CommitProperties:
    return CommitProperties(
        app_transactions=[fence.transaction()] if fence is not None else None, max_commit_retries=retries
    )


def _scan(delta: DeltaTable, schema: pa.Schema, where: Where) -> pa.Table:
    known = {field.name for field in delta.schema().fields}
    there = [name for name in schema.names if name in known]
    found = pa.table(delta.scan(columns=there, predicate=sql(where)))
    # A column that this version has and the table does not have yet is null.
    arrays = [
        found.column(field.name).cast(field.type) if field.name in there else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
