"""The one commit by which the rows of an epoch become visible: their files are added, or the rows are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from deltalake.transaction import AddAction, RemoveAction

from spark_ext.datafiles.writer import DataFile, commit_info
from spark_ext.delta import merge_apart
from spark_ext.delta.fenced_log import FencedLog, properties, write_files
from spark_ext.delta.merge import Merge
from spark_ext.delta.restored import SINK
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import Task

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Transaction
    from pyspark.sql.types import StructType

    from spark_ext.model.commits import Epoch
    from spark_ext.storage import Location


class Publish(Protocol):
    """Makes the rows of an epoch visible."""

    def __call__(self, table: DeltaTable, transactions: Sequence[Transaction]) -> int:
        """Make one commit through the handle that was looked at; called again after a conflict.

        Returns:
            The version that it has made.
        """


@dataclass(frozen=True)
class Append:
    """Adds the files of an epoch."""

    epoch: Epoch
    files: Sequence[DataFile]
    partition_by: Sequence[str]

    def __call__(self, table: DeltaTable, transactions: Sequence[Transaction]) -> int:
        """Add the files; commits of others that have nothing to do with it may be passed."""
        reach(FailPoint.DELTA_BEFORE_COMMIT)
        add_files(
            table, self.files, properties(transactions, info=commit_info(self.epoch, self.files)), self.partition_by
        )
        return table.version() + 1


@dataclass(frozen=True)
class MergeInto:
    """Merges the rows that an epoch has staged in files. They are read once, however often the merge is repeated."""

    merge: Merge
    log: FencedLog
    location: Location
    schema: StructType
    epoch: Epoch
    files: Sequence[DataFile]
    who: str

    @cached_property
    def _rows(self) -> pa.Table:
        return self.merge.rows(self.location, self.schema, self.files, self._place)

    @property
    def _place(self) -> str:
        return f"{self.who}, epoch {self.epoch.number}"

    @property
    def _info(self) -> dict[str, Any]:
        """What the table's history shows of it, beside what delta-rs says of a MERGE."""
        shown = commit_info(self.epoch, self.files)
        return {name: shown[name] for name in (SINK, "userMetadata")}

    def __call__(self, table: DeltaTable, transactions: Sequence[Transaction]) -> int:
        """Merge the rows in the very next version; where they change nothing, only the numbers are committed."""
        rows = self._rows
        commit = properties(transactions, passes=0, info=self._info)
        if merge_apart.is_needed(table, rows, self.location):
            return self._apart(table, rows, commit)
        reach(FailPoint.DELTA_BEFORE_COMMIT)
        if self.merge.write(table, rows, commit, self._place):
            self.log.moved()
            return table.version()
        add_files(table, (), commit, table.metadata().partition_columns)
        return table.version() + 1

    def _apart(self, table: DeltaTable, rows: pa.Table, commit: CommitProperties) -> int:
        epoch = self.epoch
        task = Task(epoch.sink, epoch.query_id, epoch.number, 0, 0, epoch.incarnation, epoch.lineage)
        added, removed = merge_apart.merged(self.merge, table, rows, self.location, task, self._place) or ((), ())
        reach(FailPoint.DELTA_BEFORE_COMMIT)
        # An attempt that fails may have been committed: what it has written is left to the next claim.
        add_files(table, added, commit, table.metadata().partition_columns, removed)
        return table.version() + 1


def add_files(
    table: DeltaTable,
    files: Sequence[DataFile],
    commit: CommitProperties,
    partition_by: Sequence[str] = (),
    removed: Sequence[RemoveAction] = (),
) -> None:
    """Add data files, and remove others, in one commit through the handle that was looked at."""
    added = [
        AddAction(
            path=file.path,
            size=file.size,
            partition_values=file.partition,
            modification_time=file.modified_ms,
            data_change=True,
            stats=file.statistics,
        )
        for file in files
    ]
    write_files(table, [*removed, *added], commit, partition_by=partition_by)
