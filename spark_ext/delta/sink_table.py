"""One Delta table as the target of a sink: creation, columns, and the one commit by which an epoch becomes visible.

Under application ids the table keeps numbers: the epoch's, the incarnation's (`fence:<uid>`), and one drawn from the
job's id (`owner:<uid>`). Each commit looks at them and writes through one handle; see `fenced_log`.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from spark_ext.datafiles.writer import DataFile
from spark_ext.delta.entries import damaged_file
from spark_ext.delta.failures import error_number
from spark_ext.delta.features import check_fit, check_reserved, refuse
from spark_ext.delta.fenced_log import ATTEMPTS, NO_HOOKS, FencedLog, properties
from spark_ext.delta.merge import Merge
from spark_ext.delta.publish import MergeInto, Publish, add_files, append
from spark_ext.delta.restored import CLAIM, HISTORY, SINK, Entry, find_fault, newest_restore, taken_away
from spark_ext.delta.row_rules import check_files
from spark_ext.delta.transactions import (
    Fence,
    bad_rows_name,
    known_epochs,
    lineage_name,
    newest_epoch,
    owner_name,
    owner_number,
    rolled_back_name,
)
from spark_ext.errors import CommitError, ConfigurationError, SparkExtError, StateError, StorageError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import Claim, CommitOutcome, Epoch, FenceMark, not_the_target
from spark_ext.schemas import parquet_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ext.storage import Location


T = TypeVar("T")


class _Kept(threading.local):
    """Logs of this thread by (path, sink uid), with whose they are: sinks are built for each epoch.

    One per thread and not one per process, so that threads with sinks of one uid do not wait for each other's storage.
    Another query, lineage or start begins with a handle of its own.
    """

    def __init__(self) -> None:
        self.logs: dict[tuple[str, str], tuple[tuple[object, ...], FencedLog]] = {}
        self.checked: dict[tuple[str, str], int] = {}  # Versions up to which no commit of the sink was missing


_kept = _Kept()


class Target:
    """One table as the target of one sink. `without_nulls` are columns that the table need not allow to be null."""

    def __init__(
        self,
        location: Location,
        uid: str,
        *,
        partition_by: Sequence[str],
        adds_columns: bool,
        properties: Mapping[str, str],
        who: str = "",
        without_nulls: Collection[str] = (),
        merge: Merge | None = None,
    ) -> None:
        self.location, self.uid, self._without_nulls = location, uid, without_nulls
        self._partition_by = list(partition_by)
        self._adds_columns = adds_columns
        self._properties = dict(properties)
        self.who = who or f"sink '{uid}' (delta_2pc {location.uri})"
        self._merge = merge

    # -- the table ----------------------------------------------------------------------------------------------------

    def load(self) -> DeltaTable | None:
        """The table as it is now, or None."""
        log = self._log()
        log.refresh()
        return log.handle

    def _log(self) -> FencedLog:
        # Outside a job the user may delete the output: the next commit creates it again.
        return FencedLog(self.location.uri, TargetErrors(self.who), self.location.storage_options, required=False)

    def _kept_log(self, epoch: Epoch) -> FencedLog:
        key, whose = (self.location.uri, self.uid), (epoch.query_id, epoch.lineage, epoch.mark)
        owner, log = _kept.logs.get(key, (None, None))
        if log is None or owner != whose:
            log = self._log()
            _kept.logs[key] = (whose, log)
            _kept.checked.pop(key, None)
        return log

    def check(self, table: DeltaTable, schema: StructType) -> tuple[Any, ...]:
        """Refuse a table that the rows do not fit; returns the columns to add. See `check_fit`."""
        return check_fit(
            table,
            self._stored(schema),
            partition_by=self._partition_by,
            adds_columns=self._adds_columns,
            who=self.who,
            uri=self.location.uri,
            without_nulls=self._without_nulls,
            replaces=self._merge is not None,
        )

    def _stored(self, schema: StructType) -> StructType:
        """The columns of the rows that the table has."""
        return schema if self._merge is None else self._merge.upsert.stored(schema)

    def _create(self, log: FencedLog, schema: StructType, transactions: Sequence[Transaction]) -> None:
        """Create the table, fence included, unless another creator is faster."""
        check_reserved(schema, self._properties, self.who)
        log.create(
            Schema.from_json(parquet_types.table_schema(self._stored(schema)).json()),
            partition_by=self._partition_by,
            configuration=self._properties,
            transactions=transactions,
        )

    def _add_columns(self, table: DeltaTable, new: Sequence[Any], transactions: Sequence[Transaction]) -> None:
        """Add columns in a commit of their own, fenced like any: until the rows come they are null everywhere."""
        from pyspark.sql.types import StructType

        added = Schema.from_json(parquet_types.table_schema(StructType(list(new))).json())
        table.alter.add_columns(
            list(added.fields),
            commit_properties=properties(transactions, passes=0),
            post_commithook_properties=NO_HOOKS,
        )

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        schema: StructType,
        epoch: Epoch,
        files: Sequence[DataFile],
        also: Callable[[], Sequence[Transaction]] = tuple,
    ) -> tuple[CommitOutcome, int]:
        """Make an epoch visible, once, unless a newer incarnation has claimed the table; returns a version with it."""
        log = self._kept_log(epoch)
        fence = self.fence(epoch.mark)
        carried = fence.transactions if fence else ()
        publish = self._publish(log, schema, epoch, files)

        def attempt(table: DeltaTable | None) -> tuple[CommitOutcome, int] | None:
            self._check_target(log, epoch)
            if table is None:
                parquet_types.check_input(self._stored(schema), self._partition_by, self.who)
                reach(FailPoint.DELTA_BEFORE_CREATE)
                self._create(log, schema, carried)
                return None
            done = log.held(epoch.application)
            if epoch.is_held(done):
                if fence and not fence.holds(log.held):
                    # The table was created by an older incarnation after the claim, which then had nothing to fence.
                    add_files(table, (), properties(carried), self._partition_by)
                return CommitOutcome.ALREADY_COMMITTED, table.version()
            new = self.check(table, schema)
            if new:
                reach(FailPoint.DELTA_BEFORE_COLUMNS)
                self._add_columns(table, new, carried)
                return None
            check_files(table.schema().to_json(), self.location, files, f"{self.who}, epoch {epoch.number}")
            mark = () if epoch.early else (Transaction(epoch.application, epoch.number), newest_epoch(epoch))
            version = publish(table, (*mark, *carried, *also()))
            reach(FailPoint.DELTA_COMMITTED)
            return CommitOutcome.COMMITTED, version

        return self._settle(log, attempt, f"committing epoch {epoch.number}")

    def mark(self, epoch: Epoch) -> int | None:
        """The mark of bad rows that the table holds of the epoch's application, or None."""
        log = self._kept_log(epoch)
        with log.lock:
            log.refresh()
            return log.held(bad_rows_name(epoch))

    def _publish(self, log: FencedLog, schema: StructType, epoch: Epoch, files: Sequence[DataFile]) -> Publish:
        if self._merge is None:
            return append(epoch, files, self._partition_by)
        return MergeInto(self._merge, log, self.location, schema, epoch, files, self.who)

    def check_epoch(self, epoch: Epoch) -> None:
        """Look whether the table is still this start's; nothing is written."""
        log = self._kept_log(epoch)
        with log.lock:
            log.notice_loss()
            log.refresh()
            self._check_target(log, epoch)

    def _check_target(self, log: FencedLog, epoch: Epoch) -> None:
        """Compare the table, as last seen, with what was claimed and committed; see `Epoch.check_target`."""
        fence = self.fence(epoch.mark)
        if fence is None or (log.handle is None and not epoch.start and epoch.previous is None):
            return
        if log.handle is None:
            raise not_the_target("the table does not exist", self.who)
        log.check(fence)
        epoch.check_target(fence.held_mark(log.held), log.held(epoch.application), self.who)
        if epoch.start:
            key, version = (self.location.uri, self.uid), log.handle.version()
            self._refuse_restored(log.handle, _kept.checked.get(key))
            _kept.checked[key] = version

    def _refuse_restored(self, table: DeltaTable, seen: int | None) -> None:
        """Refuse a table from which RESTORE took commits of the sink since `seen`: the numbers stay, their rows go."""
        if seen is not None and seen > table.version():
            seen = None  # the table was put back from a backup that has all epochs
        since = HISTORY if seen is None else min(table.version() - seen, HISTORY)
        recent = table.history(since) if since else ()
        # Where a RESTORE leads is looked up only when there is one.
        if newest_restore(recent, self.uid, seen) is not None:
            fault = find_fault(self._history(table.version()), self.uid, seen)
            if fault is not None:
                raise fault.error(self.who)

    def _history(self, newest: int) -> Sequence[Entry]:
        """The table's last commits up to a version, newest first.

        delta-rs lists also what was committed after its handle was opened, and then numbers all commits too low.
        """
        log = self._log()
        log.refresh()
        for _ in range(ATTEMPTS):
            if log.handle is None:
                raise not_the_target("the table does not exist", self.who)
            entries = log.handle.history(max(log.handle.version() - newest, 0) + HISTORY)
            if not log.refresh():
                return [entry for entry in entries if entry["version"] <= newest]
        raise log.errors.contended("reading the history", ATTEMPTS)

    def claim(self, claim: Claim, schema: StructType | None) -> DeltaTable | None:
        """Fence older incarnations off; returns the table, or None if it does not exist and no schema is known."""
        log = self._log()
        fence = self.fence(claim.mark)
        mine = (
            *(fence.transactions if fence else ()),
            Transaction(owner_name(self.uid), owner_number(claim.job_id)),
            Transaction(lineage_name(self.uid), claim.lineage),
        )

        def attempt(table: DeltaTable | None) -> tuple[DeltaTable | None] | None:
            known = known_epochs(log.held, self.uid, claim)
            if table is None:
                claim.check_state(known, None, self.who)
                if schema is None:
                    return (None,)
                parquet_types.check_input(self._stored(schema), self._partition_by, self.who)
                self._create(log, schema, mine)
                return None
            self._check_claimant(log, claim)
            if not claim.restoring:
                self._refuse_damaged(table.version())
            claim.check_state(known, fence.held_mark(log.held) if fence else None, self.who)
            rolled_back = log.held(rolled_back_name(self.uid))
            if known and rolled_back is not None and rolled_back > claim.lineage:
                raise taken_away(claim.lineage, rolled_back, self.who)
            if claim.previous is not None or known or rolled_back == claim.lineage:
                self._refuse_restored(table, None)
            if fence and not fence.holds(log.held):
                reach(FailPoint.DELTA_BEFORE_FENCE)
                info = {CLAIM: f"claim of {self.uid}, incarnation {claim.incarnation}", SINK: self.uid}
                add_files(table, (), properties(mine, info=info), self._partition_by)
                return None
            return (table,)

        return self._settle(log, attempt, f"the claim by incarnation {claim.incarnation}")[0]

    def check_claim(self, claim: Claim) -> None:
        """Refuse what a claim refuses by the numbers in the log; nothing is written."""
        log = self._log()
        log.refresh()
        self._check_claimant(log, claim)
        fence = self.fence(claim.mark)
        held = fence.held_mark(log.held) if fence else None
        claim.check_state(known_epochs(log.held, self.uid, claim), held, self.who)

    def _refuse_damaged(self, newest: int) -> None:
        found = self.location.local and damaged_file(self.location.local, newest, self.uid)
        if found:
            version, name = found
            raise StateError(
                f"version {version} of the table has lost rows: its file {name} is missing or incomplete, as a power "
                "failure may leave the newest files",
                operator=self.who,
                kept="the table is unchanged; nothing was started",
                do=f"restore the file; or delete the files of _delta_log from {version:020}.json on and start the job "
                "again: it repeats these epochs, or refuses the table if they count as committed",
            )

    def settle_claimed(
        self, claim: Claim, attempt: Callable[[FencedLog, DeltaTable | None], T | None], doing: str
    ) -> T:
        """Look and write for the start of a job, until no other commit comes in between."""
        log = self._log()

        def checked(table: DeltaTable | None) -> T | None:
            self._check_claimant(log, claim)
            return attempt(log, table)

        return self._settle(log, checked, doing)

    def fence(self, mark: FenceMark) -> Fence | None:
        """What the commits of a start assert; None outside a job, where nothing is fenced."""
        return Fence(self.uid, mark.incarnation, mark.start) if mark.incarnation else None

    def check_fence(self, table: DeltaTable, mark: FenceMark) -> None:
        """Check the fence of a table that was loaded, before a read that depends on it."""
        fence = self.fence(mark)
        if fence is not None:
            fence.check(table.transaction_version, self.who)

    def settle(self, epoch: Epoch, attempt: Callable[[DeltaTable | None], T | None], doing: str) -> T:
        """Look and write until no other commit comes in between, through the handle that the epoch's commits use."""
        log = self._kept_log(epoch)

        def fenced(table: DeltaTable | None) -> T | None:
            log.check(self.fence(epoch.mark))
            return attempt(table)

        return self._settle(log, fenced, doing)

    def _settle(self, log: FencedLog, attempt: Callable[[DeltaTable | None], T | None], doing: str) -> T:
        def supported(table: DeltaTable | None) -> T | None:
            try:
                return attempt(table)
            except CommitFailedError as problem:
                # What delta-rs does not write it reports like a conflict; trying again would not help.
                if "Unsupported table features" in str(problem):
                    refuse((str(problem),), self.who, self.location.uri)
                raise

        return log.settle(supported, doing)

    def _check_claimant(self, log: FencedLog, claim: Claim) -> None:
        """Refuse a start of another job, and one that a newer one has fenced off."""
        owner = log.held(owner_name(self.uid))
        if owner is not None and owner != owner_number(claim.job_id):
            raise ConfigurationError(
                f"the table holds epochs that another job wrote under the sink uid '{self.uid}', "
                f"or this job '{claim.job}' before its state was deleted",
                operator=self.who,
                kept="the table is unchanged; nothing was started",
                do="give this sink another uid; or, if the state was deleted, restore it, "
                f"or delete the output at {self.location.uri} to write it again from the beginning",
            )
        log.check(self.fence(claim.mark))


@dataclass(frozen=True)
class TargetErrors:
    """The errors of a sink's table. Failures of its storage may pass; the job decides how long it waits."""

    operator: str

    def storage(self, problem: BaseException, doing: str) -> SparkExtError:
        """The error for a read or write that failed."""
        if error_number(problem, str(problem)) == errno.ENOTDIR:
            do = "let 'path' name a folder"
            return refused(f"{doing} failed: a part of the path is a file: {problem}", self.operator, do)
        return StorageError(
            f"{doing} failed: {problem}",
            operator=self.operator,
            kept="everything committed before",
            do="check the storage (space, permissions, network, storage_options)",
        )

    def not_created(self, problem: BaseException) -> SparkExtError:
        """The error for a table that could not be created."""
        if not isinstance(problem, DeltaError) or error_number(problem, str(problem)) is not None:
            return self.storage(problem, "creating the table")
        return ConfigurationError(
            f"the table could not be created: {problem}",
            operator=self.operator,
            kept="nothing was written",
            do="correct the options 'table_properties', 'partition_by' or 'path'",
        )

    def contended(self, doing: str, attempts: int) -> SparkExtError:
        """The error for a commit that gave way to other writers in each of its attempts."""
        return CommitError(
            f"{doing} failed: other writers committed to the table first, {attempts} times in a row",
            operator=self.operator,
            kept="the epoch's files, not yet visible",
            do="find out who commits to the table so often",
        )
