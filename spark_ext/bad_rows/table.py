"""The Delta table of bad rows: one commit moves in the rows of committed epochs of an operator, exactly once.

A commit carries the number of its newest epoch under an application id of its source or sink. A repeated commit finds
the number and adds nothing; a driver that was given up and wakes up finds that of its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spark_ext.bad_rows.row import BAD_FILE, SCHEMA, completed
from spark_ext.datafiles.uri import shown
from spark_ext.delta import light_arrow
from spark_ext.delta.failures import FAILURES, TableRef
from spark_ext.delta.fenced_log import NO_HOOKS, FencedLog, properties, write_files
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import logger

log = logger("spark_ext.bad_rows")

CLOSED: Final = 1 << 62  # the number of an application id under which no epoch is added any more
MAINTAIN_EVERY: Final = 64
"""Commits after which small files are compacted, and files and log files removed that are no longer needed."""


Role: TypeAlias = Literal["source", "sink"]  # whether rows are those of a source or of a sink


@dataclass(frozen=True)
class Owner:
    """Whose rows are added."""

    job: str
    job_id: str
    query: str
    uid: str
    lineage: int
    query_id: str  # Spark's id of the query: the numbers of epochs are its own
    role: Role = "source"

    @property
    def application(self) -> str:
        """The application id of its commits."""
        whose = f"sink:{self.job_id}" if self.role == "sink" else self.job_id
        return f"bad_rows:{whose}:{self.uid}:{self.lineage}:{self.query_id}"


Epochs = Mapping[int, Callable[[], Iterator[pa.Table]]]
"""By the number of an epoch, what reads its rows, with the columns `COLLECTED`."""


class BadRowsTable:
    """The table, which is created with the first row. For one thread at a time."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self._options = dict(storage_options or {}) or None
        errors = TableRef(
            f"table of bad rows at {shown(uri)}", "all rows in it; those that are not in it yet wait in the job's state"
        )
        self._log = FencedLog(uri, errors, self._options, required=False)

    def add(self, owner: Owner, epochs: Epochs, at: datetime) -> frozenset[int]:
        """Add the rows of committed epochs in one commit, unless that was done; returns the epochs that were added.

        No epoch with bad rows is missing up to the newest of them.
        """

        def attempt(table: DeltaTable | None) -> frozenset[int] | None:
            done = self._log.held(owner.application)
            new = sorted(number for number in epochs if done is None or number > done)
            if not new:
                return frozenset()
            if table is None:
                self._log.create(SCHEMA, name="bad_rows")
                return None
            rows = pa.RecordBatchReader.from_batches(SCHEMA, _rows(owner, epochs, new, at))
            reach(FailPoint.BAD_ROWS_BEFORE_COMMIT)
            self._append(table, rows, properties([Transaction(owner.application, new[-1])]))
            reach(FailPoint.BAD_ROWS_COMMITTED)
            return frozenset(new)

        added = self._log.settle(attempt, "adding bad rows")
        if added:
            self._maintain()
        return added

    @staticmethod
    def _append(table: DeltaTable, rows: pa.RecordBatchReader, commit: CommitProperties) -> None:
        there = [field.name for field in table.schema().fields]
        write_deltalake(
            table,
            rows,
            mode="append",
            # A table of another version of this package has more columns, or fewer.
            schema_mode=None if there == SCHEMA.names else "merge",
            commit_properties=commit,
            post_commithook_properties=NO_HOOKS,
        )

    def _maintain(self) -> None:
        """Keep the table small, now and then. What fails is made up for later; others may change the table, too."""
        table = self._log.handle
        if table is None or table.version() % MAINTAIN_EVERY:
            return
        try:
            table.optimize.compact(post_commithook_properties=NO_HOOKS)
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(dry_run=False)
        except FAILURES as problem:
            log.warning("the table of bad rows at %s could not be compacted: %s", shown(self.uri), problem)
        self._log.reopen()

    def close(self, applications: Sequence[str]) -> None:
        """Let no epoch be added under these application ids any more."""

        def attempt(table: DeltaTable | None) -> bool | None:
            if table is None:
                return True
            open_ones = [name for name in applications if self._log.held(name) != CLOSED]
            if open_ones:
                write_files(table, (), properties([Transaction(name, CLOSED) for name in open_ones]))
                table.update_incremental()
            return True

        self._log.settle(attempt, "closing a lineage of bad rows")

    def replace_read(self, job_id: str, uid: str, read: Callable[[], Container[str]], lineage: int) -> None:
        """Mark the rows of bad files of a source that it has read since; `read` has the names of what it has read."""
        whose = f"job_id = '{job_id}' and uid = '{uid}' and role = 'source' and replaced_in is null"

        def attempt(table: DeltaTable | None) -> bool | None:
            if table is None:
                return True
            found = light_arrow.read_all(table.scan(["channel"], f"{whose} and channel like '%{BAD_FILE}%'"))
            channels = sorted({*found["channel"].to_pylist()})
            known = read() if channels else ()
            texts = (one.replace("'", "''") for one in channels if one.partition(BAD_FILE)[0] in known)
            done = [f"'{text}'" for text in texts]
            if done:
                _mark(table, str(lineage), f"{whose} and channel in ({', '.join(done)})")
                self._log.reopen()
            return True

        self._log.settle(attempt, "marking the bad files that were read since")

    def replace(self, job_id: str, uid: str, counts: str, lineage: int, role: Role = "source") -> None:
        """After a restore: mark the rows of an operator that do not count any more, and those that count again."""

        def attempt(table: DeltaTable | None) -> bool | None:
            if table is not None:
                whose = f"job_id = '{job_id}' and uid = '{uid}' and role = '{role}'"
                for value, wrong in (
                    (str(lineage), f"replaced_in is null and not ({counts})"),
                    ("null", f"replaced_in is not null and ({counts})"),
                ):
                    _mark(table, value, f"{whose} and {wrong}")
                self._log.reopen()
            return True

        self._log.settle(attempt, "marking the bad rows that a restore takes back")


def _mark(table: DeltaTable, replaced_in: str, where: str) -> None:
    """Set the lineage in which rows were replaced, or null, in one commit."""
    table.update(
        updates={"replaced_in": f"cast({replaced_in} as bigint)"},
        predicate=where,
        commit_properties=properties(),
        post_commithook_properties=NO_HOOKS,
    )


def _rows(owner: Owner, epochs: Epochs, numbers: Sequence[int], at: datetime) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        for found in epochs[number]():
            yield from completed(found, {**asdict(owner), "epoch": number, "at": at}).to_batches()
