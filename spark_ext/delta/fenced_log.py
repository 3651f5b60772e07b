"""One Delta log, and fenced commits to it: look, write through the same handle, look again after a conflict.

A commit looks at the log as its handle has loaded it: at the fence, and at any other number that is kept under an
application id. It writes through the same handle and carries these ids. Delta's own conflict check refuses it when the
log's next file is taken and one of the ids was committed in between; then the handle is brought up to date and all is
looked at again. So what was found still holds at the moment of the commit, however long the process was frozen.

That rests on one rule: between the look and the commit nothing else may bring the handle up to date, as this would hide
the conflict. A `FencedLog` holds its lock from the look to the commit, so threads may share one. Processes may not:
each opens its own, and they meet in the log only.

Log checkpoints and log clean-up are not part of a commit: both list the whole log each time. The user of a log makes
them where they cost least.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spark_ext.delta.failures import FAILURES, LogErrors, guarded, log_folder
from spark_ext.delta.transactions import Guard
from spark_ext.errors import refused

ATTEMPTS: Final = 40  # How often a commit that met others looks again
PASSES: Final = 15  # Commits of others without a common application id that delta-rs lets one attempt pass
# Only the commit itself.
NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
T = TypeVar("T")

Write = Callable[[DeltaTable, CommitProperties], None]  # Makes one commit with these properties and `NO_HOOKS`


class FencedLog:
    """The log of one table, through one kept handle. Safe for several threads.

    A table that was seen and is gone is an error if it is `required`; otherwise it is absent, and may be created
    again. At the age `max_age`, s, `refresh` opens a new handle.
    """

    def __init__(
        self,
        uri: str,
        errors: LogErrors,
        storage_options: Mapping[str, str] | None = None,
        *,
        required: bool,
        max_age: float = inf,
        max_advance: float = inf,
    ) -> None:
        self.uri = uri
        self.errors = errors
        self.folder = log_folder(uri)  # The log's folder when it is local
        self.lock = threading.RLock()  # Held from the look to the commit, and by callers that read through `handle`
        self._storage_options = dict(storage_options or {}) or None
        self._required = required
        self._max_age, self._max_advance = max_age, max_advance
        self._handle: DeltaTable | None = None
        self._seen = False
        self._opened_at = 0.0
        self._opened_version = 0
        self._passed: Guard | None = None
        # Numbers that were read, of one handle at one version: on an object store each costs requests.
        self._numbers: tuple[DeltaTable, int, dict[str, int | None]] | None = None
        # What the newest entry's file was, when it was read: of a table created again it is another one.
        self._entry: tuple[int, int, int] | None = None

    # -- the handle ---------------------------------------------------------------------------------------------------

    @property
    def handle(self) -> DeltaTable | None:
        """The table as last seen; None when it has not been seen."""
        return self._handle

    @property
    def version(self) -> int | None:
        """The version last seen; None when the table has not been seen."""
        return None if self._handle is None else self._handle.version()

    def held(self, application: str) -> int | None:
        """The newest number under an application id, as last seen, or None."""
        if self._handle is None:
            return None
        if self._numbers is None or self._numbers[0] is not self._handle or self._numbers[1] != self._handle.version():
            self._numbers = self._handle, self._handle.version(), {}
        found = self._numbers[2]
        try:
            if application not in found:
                found[application] = self._handle.transaction_version(application)
            return found[application]
        except FAILURES as problem:
            # The next look opens it anew, and finds out whether there is a table at all.
            self._handle = None
            raise self.errors.storage(problem, "reading the log") from problem

    def exists(self) -> bool:
        """Whether the table is there, by its log's folder when that is local. Leaves the handle as it is."""
        with guarded(self.errors, "looking for the table"):
            if self.folder is not None:
                return self.folder.is_dir()
            return DeltaTable.is_deltatable(self.uri, self._storage_options)

    def refresh(self) -> bool:
        """See the newest version; returns whether it is new. On a local path one `stat` when nothing has changed."""
        with self.lock:
            if self._handle is None:
                # A folder that is not there is the cheapest answer, for those who wait for the table.
                if self._seen or self.folder is None or self.exists():
                    self.reopen()
                return self._handle is not None
            before = self._handle.version()
            if time.monotonic() - self._opened_at > self._max_age or before - self._opened_version > self._max_advance:
                self.reopen()
            elif self._has_entry(before + 1):
                self._passed = None
                try:
                    self._handle.update_incremental()
                    self._entry = self.file_of(self._handle.version())
                except FAILURES as problem:
                    self._handle = None
                    raise self.errors.storage(problem, "reading the log") from problem
            return self.version != before

    def reopen(self) -> None:
        """Open a new handle, at the newest version."""
        with self.lock:
            self._handle, self._passed = None, None
            with guarded(self.errors, "opening the table"):
                try:
                    self._handle = DeltaTable(self.uri, storage_options=self._storage_options)
                except TableNotFoundError:
                    # Without its first commit, which a creator is about to write, this is not a table yet.
                    had_commits = self._seen or (self.folder is not None and any(self.folder.glob("*.json")))
                    if self._required and had_commits:
                        raise
                    return
            self._seen = True
            self._entry = self.file_of(self._handle.version())
            self._opened_at, self._opened_version = time.monotonic(), self._handle.version()

    def _has_entry(self, version: int) -> bool:
        """Whether the log has, or on an object store may have, the commit of a version."""
        if self.folder is None:
            return True
        with guarded(self.errors, "looking for the log"):
            return (self.folder / f"{version:020}.json").exists()

    def file_of(self, version: int) -> tuple[int, int, int] | None:
        """What tells the file of a version from another one of its name; None if it is absent or not local."""
        if self.folder is None:
            return None
        with guarded(self.errors, "looking for the log"), suppress(FileNotFoundError, NotADirectoryError):
            found = (self.folder / f"{version:020}.json").stat()
            return version, found.st_ino, found.st_mtime_ns
        return None

    def notice_loss(self) -> None:
        """Open it again when the log that the handle stands on has gone, or is another table's by now.

        Otherwise delta-rs would write into the empty folder, or into the other table. Local only: on an object store
        the question would cost a request for each commit.
        """
        if self._handle is None or self.folder is None:
            return
        found, before = self.file_of(self._handle.version()), self._entry
        if found is None or (before is not None and before[0] == found[0] and before != found):
            self.reopen()

    def moved(self) -> None:
        """Note that the handle has made a commit that it now stands on, as a MERGE of delta-rs leaves it."""
        if self._handle is not None:
            self._entry = self.file_of(self._handle.version())

    # -- commits ------------------------------------------------------------------------------------------------------

    def create(
        self,
        schema: pa.Schema | Schema,
        *,
        name: str | None = None,
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str | None] | None = None,
        own: bool = False,
        transactions: Sequence[Transaction] = (),
    ) -> None:
        """Create the table, once, however many processes try; with `own` also with properties that are not Delta's."""
        from spark_ext.schemas.parquet_types import from_delta, has_local_times

        delta = schema if isinstance(schema, Schema) else Schema.from_arrow(schema)
        if has_local_times(from_delta(delta.to_json()), only_in_maps=True):
            what = "timestamp_ntz in a map: the library delta-rs creates such a table without the feature that it needs"
            raise refused(what, self.errors.operator, "cast it to a timestamp in the query")
        with self.lock:
            try:
                DeltaTable.create(
                    self.uri,
                    schema,
                    mode="error",
                    partition_by=list(partition_by) or None,
                    name=name,
                    configuration=configuration,
                    raise_if_key_not_exists=not own,
                    storage_options=self._storage_options,
                    # Else delta-rs lets a creator that comes second replace the table, fence included, in version 1.
                    commit_properties=properties(transactions, passes=0),
                    post_commithook_properties=NO_HOOKS,
                )
            except FAILURES as problem:
                with guarded(self.errors, "creating the table"):
                    # Another creator was faster, which delta-rs notices in several ways.
                    raced = isinstance(problem, DeltaError) and DeltaTable.is_deltatable(
                        self.uri, self._storage_options
                    )
                if not raced:
                    raise self.errors.not_created(problem) from problem
            self.reopen()

    def check(self, guard: Guard | None) -> None:
        """Check a writer's guard: once per look, as what commits later through this handle carries it."""
        if guard is not None and guard != self._passed:
            guard.check(self.held, self.errors.operator)
            self._passed = guard

    def commit(self, write: Write, guard: Guard | None, doing: str) -> None:
        """Make one commit, fenced by `guard`, to a table that is there. Only a conflict costs a second look."""

        def attempt(table: DeltaTable | None) -> bool:
            self._write(write, table, guard, PASSES)
            return True

        self.settle(attempt, doing, newest=False)

    def compare_and_swap(self, write: Write, guard: Guard | None, expected: int, doing: str) -> bool:
        """Make one commit if the table is at the version expected, and nothing else is committed before it."""
        with self.lock:
            self.notice_loss()
            self.refresh()
            if self.version != expected:
                return False
            try:
                with guarded(self.errors, doing):
                    self._write(write, self._handle, guard, passes=0)
            except CommitFailedError:
                self.reopen()
                return False
            return True

    def commit_once(self, write: Write, guard: Guard | None, doing: str) -> bool:
        """Make one commit through a fresh handle; False if another one comes in between, or without a table."""
        with self.lock:
            self.reopen()
            if self._handle is None:
                return False
            try:
                with guarded(self.errors, doing):
                    self._write(write, self._handle, guard, passes=3)
                return True
            except CommitFailedError:
                return False
            finally:
                self.reopen()

    def settle(self, attempt: Callable[[DeltaTable | None], T | None], doing: str, *, newest: bool = True) -> T:
        """Look and write until no other commit comes in between.

        `attempt` is given the handle, None without a table. It returns what was found or done, or None to be
        called again on the newest version. Without `newest` an open handle is used as it is, and something
        newer is noticed only if it conflicts.
        """
        look = newest

        def once() -> T:
            nonlocal look
            for _ in range(ATTEMPTS):
                self.notice_loss()
                if look or self._handle is None:
                    self.refresh()
                look = True
                try:
                    settled = attempt(self._handle)
                except CommitFailedError:
                    raise
                except FAILURES as problem:
                    # Whether the handle is still right is not known.
                    self._handle = None
                    raise self.errors.storage(problem, doing) from problem
                if settled is not None:
                    return settled
            raise self.errors.contended(doing, ATTEMPTS)

        attempts = Retrying(
            retry=retry_if_exception_type(CommitFailedError),
            # At random, so that writers do not meet again and again.
            wait=wait_random_exponential(multiplier=0.02, max=0.2),
            stop=stop_after_attempt(ATTEMPTS),
        )
        with self.lock:
            try:
                return attempts(once)
            except RetryError as problem:
                raise self.errors.contended(doing, ATTEMPTS) from problem.last_attempt.exception()

    def _write(self, write: Write, table: DeltaTable | None, guard: Guard | None, passes: int) -> None:
        if table is None:
            raise TableNotFoundError(f"no table at {self.uri}")
        self.check(guard)
        write(table, properties(guard.transactions if guard else (), passes=passes))
        # The handle may have passed commits of others, whose ids this commit did not carry.
        self._passed = guard


def properties(
    transactions: Sequence[Transaction] = (), *, passes: int = PASSES, info: Mapping[str, Any] | None = None
) -> CommitProperties:
    """What a commit carries; it may pass `passes` commits of others without a common id: 0 for the next version."""
    return CommitProperties(dict(info or {}) or None, passes, list(transactions) or None)


def write_files(
    table: DeltaTable,
    files: Sequence[AddAction | RemoveAction],
    commit: CommitProperties,
    *,
    partition_by: Sequence[str] = (),
) -> None:
    """Add and remove data files in one commit; without any it only carries transactions. The handle stays behind it."""
    table.create_write_transaction(
        list(files),
        mode="append",
        schema=table.schema(),
        partition_by=list(partition_by) or None,
        commit_properties=commit,
        post_commithook_properties=NO_HOOKS,
    )
