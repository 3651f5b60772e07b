"""The outbox of `http_2pc`: requests are recorded before they are sent, in a small Delta table.

One fenced commit (see `delta.fenced_log`) decides an epoch: from then on it consists of exactly these rows, divided
into exactly these requests, and of the bad rows that their tasks put aside, whichever process sends them and how often.
A replay that has prepared its rows again finds the decision and sends what was decided. Once the receiver has
acknowledged the whole epoch, a second commit removes its rows and keeps its number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from spark_ext.datafiles.writer import DataFile, owner_of
from spark_ext.errors import StateError, StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch
from spark_ext.sinks.http_2pc.outbox_pieces import (
    SCHEMA,
    Chunk,
    ChunkPart,
    ChunkRule,
    chunks,
    decided_mark_id,
    files_of,
    is_sent,
    label,
    marked,
    recorded_url,
    sent_id,
)
from spark_ext.storage import Location

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction

    from spark_ext.delta.sink_table import Target

PROPERTIES = {
    # Epochs are removed as soon as they are acknowledged, so the log need not keep them for long.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}

LOG_CHECKPOINT_EVERY = 100  # Commits between two checkpoints of the table's log


class Outbox:
    """The outbox of one sink."""

    def __init__(self, location: Location, uid: str, who: str) -> None:
        self.location, self._uid, self._who = location, uid, who

    @cached_property
    def _target(self) -> Target:
        from spark_ext.delta.sink_table import Target

        return Target(
            self.location,
            self._uid,
            partition_by=("epoch",),
            adds_columns=False,
            properties=PROPERTIES,
            who=f"{self._who}, outbox {self.location.uri}",
        )

    def check(self) -> None:
        """Raise an error if the location cannot hold an outbox."""
        table = self._target.load()
        if table is not None:
            self._target.check(table, SCHEMA)

    def check_claim(self, claim: Claim) -> None:
        """Refuse what `claim` refuses; nothing is written."""
        self._target.check_claim(claim)

    def claim(self, claim: Claim) -> None:
        """Fence off older incarnations, then remove what they prepared but did not decide.

        Decided epochs are kept: their replay sends them.
        """
        from spark_ext.delta.upkeep import clean

        table = self._target.claim(claim, SCHEMA)
        reach(FailPoint.HTTP_FENCED)
        assert table is not None, "with a schema the claim creates the table"
        clean(self.location, table, claim, self._who)
        self._finish_removals(table)

    def _finish_removals(self, table: DeltaTable) -> None:
        """Remove the files of acknowledged epochs that were left by a crash.

        Nobody reads them any more: an incarnation that might has just been fenced off.
        """
        from deltalake.exceptions import DeltaError

        try:
            removed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
            self._remove([name for name in removed if owner_of(name) is not None])
        except (DeltaError, OSError) as problem:
            raise StorageError(
                f"the files left in the outbox by an earlier start could not be listed: {problem}",
                operator=self._who,
                kept="all decided epochs",
                do="check the outbox's storage, and start the job again",
            ) from problem

    def check_epoch(self, epoch: Epoch) -> None:
        """Look whether the outbox is still this start's."""
        self._target.check_epoch(epoch)

    def decide(
        self,
        epoch: Epoch,
        files: Sequence[DataFile],
        keep: Callable[[], int | None] = lambda: None,
        adopt: Callable[[int | None], object] = lambda mark: None,
    ) -> bool:
        """Decide that the epoch is these files, unless it is decided; returns whether it still has to be sent."""
        from deltalake import Transaction

        mark = decided_mark_id(epoch)
        outcome, _ = self._target.commit(SCHEMA, epoch, files, lambda: [Transaction(mark, keep() or 0)])
        if outcome is CommitOutcome.COMMITTED:
            reach(FailPoint.HTTP_DECIDED)
            return True
        # The files that a replay has prepared are not needed.
        kept = files_of(self._table(), epoch)
        self._remove([file.path for file in files if file.path not in kept])
        return self.adopt(epoch, adopt)

    def decide_empty(self, epoch: Epoch, keep: Callable[[], int | None]) -> CommitOutcome:
        """Decide that an epoch has no rows to be sent, as all of them are bad, and record it as sent, in one commit."""
        from deltalake import Transaction

        def also() -> list[Transaction]:
            return [Transaction(sent_id(epoch), epoch.number), *marked(epoch, keep())]

        return self._target.commit(SCHEMA, epoch, (), also)[0]

    def adopt(self, epoch: Epoch, adopt: Callable[[int | None], object]) -> bool:
        """Adopt the mark of bad rows, or None, that an earlier attempt decided on; returns if it is unsent."""
        table = self._table()
        if is_sent(table, epoch):
            return False
        adopt(table.transaction_version(decided_mark_id(epoch)) or None)
        return True

    def mark(self, epoch: Epoch) -> int | None:
        """The mark of bad rows that the outbox holds of the epoch's application, or None."""
        return self._target.mark(epoch)

    def decided(self, epoch: Epoch) -> Iterator[Chunk]:
        """The requests of a decided epoch; the same on every call, in any process."""
        import pyarrow.parquet as pq

        table = self._table()
        # A successor that has sent the epoch has also removed it.
        self._target.check_fence(table, epoch.mark)
        names = files_of(table, epoch)
        if not names:
            raise StateError(
                f"epoch {epoch.number} was recorded for sending, but the outbox no longer holds it",
                operator=f"{self._who}, query id {epoch.query_id}, outbox {self.location.uri}",
                kept="what the receiver has accepted of it; nothing was sent twice",
                do="check whether two queries use this uid and outbox at once, and whether files were deleted by hand",
            )
        try:
            with self.location.folder.open_input(names[0]) as file:
                first = next(pq.ParquetFile(file).iter_batches(batch_size=1, columns=["cut"]))
            cut = ChunkRule.from_json(first.column(0)[0].as_py())
            yield from chunks(self._pieces(names), cut, self._job(table, epoch))
        except OSError as problem:
            raise StorageError(
                f"the outbox could not be read: {problem}",
                operator=self._who,
                kept="the epoch is recorded; what the receiver has accepted of it is not sent again",
                do="check the storage; the epoch will be retried",
            ) from problem

    def _job(self, table: DeltaTable, epoch: Epoch) -> str:
        """What tells the job that has claimed the outbox from all others; "" outside a job.

        It is read from the outbox, which no other job can claim: so all who send the epoch find the same.
        """
        from spark_ext.delta.transactions import owner_name

        owner = table.transaction_version(owner_name(self._uid)) if epoch.incarnation else None
        return "" if owner is None else f"{owner:016x}"

    def _pieces(self, names: Sequence[str]) -> Iterator[ChunkPart]:
        import pyarrow.parquet as pq

        for name in names:
            with self.location.folder.open_input(name) as file:
                for batch in pq.ParquetFile(file).iter_batches(batch_size=16, columns=["rows", "lines", "cut"]):
                    for row in batch.to_pylist():
                        yield ChunkPart(row["rows"], row["lines"], recorded_url(row["cut"]))

    def settle(self, epoch: Epoch, mark: int | None = None) -> bool:
        """Remove an epoch that was acknowledged completely, and keep its number; False if that was done before."""
        from deltalake import Transaction

        from spark_ext.delta.fenced_log import NO_HOOKS, properties
        from spark_ext.delta.upkeep import checkpoint_if_due

        fence = self._target.fence(epoch.mark)
        carried = (
            Transaction(sent_id(epoch), epoch.number),
            *marked(epoch, mark),
            *(fence.transactions if fence else ()),
        )

        def attempt(table: DeltaTable | None) -> tuple[int, list[str], bool]:
            if table is None:
                raise self._lost()
            if is_sent(table, epoch):
                return table.version(), [], False
            names = files_of(table, epoch)
            reach(FailPoint.HTTP_BEFORE_SETTLE)
            table.create_write_transaction(
                [],
                mode="overwrite",
                schema=table.schema(),
                partition_by=["epoch"],
                partition_filters=[("epoch", "=", label(epoch.lineage, epoch.query_id, epoch.number))],
                commit_properties=properties(carried),
                post_commithook_properties=NO_HOOKS,
            )
            return table.version(), names, True

        version, names, recorded = self._target.settle(epoch, attempt, f"recording that epoch {epoch.number} was sent")
        reach(FailPoint.HTTP_RECORDED)
        self._remove(names)
        checkpoint_if_due(self.location, version, LOG_CHECKPOINT_EVERY)
        return recorded

    def _table(self) -> DeltaTable:
        table = self._target.load()
        if table is None:
            raise self._lost()
        return table

    def _lost(self) -> StateError:
        return StateError(
            "the outbox no longer exists",
            operator=f"{self._who}, outbox {self.location.uri}",
            kept="what the receiver has accepted",
            do="restore the outbox from a backup: it records which epochs were sent",
        )

    def _remove(self, names: Sequence[str]) -> None:
        with contextlib.suppress(OSError):
            for name in names:
                self.location.folder.delete(name)
            if self.location.local is not None:
                for folder in {name.rpartition("/")[0] for name in names}:
                    (self.location.local / folder).rmdir()


def placed(outbox: str, uid: str, storage_options: Mapping[str, str]) -> Location:
    """Location of a sink's outbox, inside the directory that the user has configured and that sinks may share."""
    folder = Location.of(outbox, storage_options)
    return Location(f"{folder.uri.rstrip('/')}/{uid}", storage_options)
