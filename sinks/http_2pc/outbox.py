"""The outbox of `http_2pc`: what is to be sent is recorded first, once and for all, and only then sent.

A small Delta table holds the epochs that are decided and not yet acknowledged by the receiver. One commit by the recipe
of `_delta.table` decides an epoch: from then on exactly these rows, cut into exactly these requests, are the epoch,
whoever sends them and however often. A replay that has prepared its rows anew, in whatever order, finds the decision
and sends what was decided. The same commit carries the incarnation, so that an older one can decide nothing any more.
Once the receiver has acknowledged all of it, a second commit removes the epoch and keeps its number.

This is the pattern known as the transactional outbox.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import types as spark

from spark_ext.datafiles.location import Place
from spark_ext.datafiles.writer import DataFile, DataFileWriter, Layout, owner_of
from spark_ext.errors import StateError, StorageError
from spark_ext.failpoints import reach
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, Task
from spark_ext.sinks.http_2pc.chunks import Chunk, Cut, Piece, chunks, pieces
from spark_ext.sinks.http_2pc.rows import JsonRows

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from spark_ext.delta.sink_table import Target

SCHEMA = spark.StructType(
    [
        spark.StructField("epoch", spark.StringType()),
        spark.StructField("cut", spark.StringType()),
        spark.StructField("rows", spark.IntegerType()),
        spark.StructField("lines", spark.StringType()),
    ]
)
"""A row is a piece: some rows of one task, as JSON lines."""

PROPERTIES = {
    # Epochs are removed as soon as they are acknowledged: the log need not remember them for long.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}

LOG_CHECKPOINT_EVERY = 100
"""Commits between two checkpoints of the table's log."""

_LAYOUT = Layout(
    partition_by=("epoch",),
    compression="zstd",
    row_group_bytes=16 * 1024**2,
    # One file per task, so that a task's pieces have one order.
    file_bytes=2**62,
    statistics_columns=0,
)

_TASK = re.compile(r"-p(\d+)-a\d+-[0-9a-f]{16}\.")


def label(lineage: int, query_id: str, number: int) -> str:
    """The epoch's value in the outbox's partition column."""
    return f"{lineage}-{query_id}-{number}"


def stage(
    place: Place,
    schema: spark.StructType,
    batches: Iterator[pa.RecordBatch],
    task: Task,
    cut: Cut,
    who: str,
) -> tuple[DataFile, ...] | None:
    """Phase one, in a task: the rows as pieces in a file of the outbox that no commit refers to yet.

    Raises:
        DataError: a value has no JSON form.
        StorageError: the outbox cannot be written.
    """
    rows = JsonRows(schema, who)
    files = DataFileWriter(place, SCHEMA, _LAYOUT, task)
    epoch = label(task.lineage, task.query_id, task.epoch)
    lines = (line for batch in batches for line in rows.lines(batch))
    try:
        return files.write(_batch(epoch, cut, piece) for piece in pieces(lines, cut))
    except OSError as problem:
        raise StorageError(
            f"the outbox could not be written: {problem}",
            operator=who,
            kept="nothing of this epoch was sent",
            do="see to the storage (space, permissions); the epoch is repeated",
        ) from problem


def _batch(epoch: str, cut: Cut, piece: Piece) -> pa.RecordBatch:
    import pyarrow as pa

    from spark_ext.schemas.arrow import arrow_schema

    columns = [[epoch], [cut.to_json()], [piece.rows], [piece.lines]]
    schema = arrow_schema(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


class Outbox:
    """The outbox of one sink.

    Args:
        place: its root.
        uid: the sink's.
        who: the sink, for messages.
    """

    def __init__(self, place: Place, uid: str, who: str) -> None:
        self.place, self._uid, self._who = place, uid, who

    @cached_property
    def _target(self) -> Target:
        from spark_ext.delta.sink_table import Target

        target = Target(self.place, self._uid, partition_by=("epoch",), merge_schema=False, properties=PROPERTIES)
        target.who = f"{self._who}, outbox {self.place.uri}"
        return target

    def check(self) -> None:
        """Refuse a place that cannot be an outbox.

        Raises:
            ConfigurationError: there is a table of another kind.
            StorageError: it cannot be read.
        """
        table = self._target.load()
        if table is not None:
            self._target.check(table, SCHEMA)

    def claim(self, claim: Claim) -> None:
        """Fence older incarnations off, then remove what they had prepared and not decided.

        What was decided stays: the epoch's replay sends it.

        Raises:
            FencedError: a newer incarnation has claimed it.
            ConfigurationError: another job's epochs are in it.
        """
        from spark_ext.delta.orphans import clean

        table = self._target.claim(claim, SCHEMA)
        reach("http.fenced")
        assert table is not None, "with a schema the claim makes the table"
        clean(self.place, table, claim, self._who)
        self._finish_removals(table)

    def _finish_removals(self, table: DeltaTable) -> None:
        """Files of epochs that were acknowledged, whose removal a crash has prevented.

        Nobody reads them any more: who still might has just been fenced off.
        """
        from deltalake.exceptions import DeltaError

        try:
            removed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
            self._remove([name for name in removed if owner_of(name) is not None])
        except (DeltaError, OSError) as problem:
            raise StorageError(
                f"what an earlier start has left in the outbox could not be looked at: {problem}",
                operator=self._who,
                kept="all that was decided",
                do="see to the outbox's storage, and start again",
            ) from problem

    def decide(self, epoch: Epoch, files: Sequence[DataFile]) -> bool:
        """Make these files the epoch, unless it was decided before.

        Returns:
            Whether the epoch still has to be sent; False when the receiver is known to have all of it.

        Raises:
            FencedError: a newer incarnation has claimed the outbox.
            StorageError: the outbox cannot be read or written.
        """
        outcome, _ = self._target.commit(SCHEMA, epoch, files)
        if outcome is CommitOutcome.COMMITTED:
            reach("http.decided")
            return True
        # A replay has prepared its rows in vain.
        kept = _names(self._table(), epoch)
        self._remove([file.path for file in files if file.path not in kept])
        return not _is_sent(self._table(), epoch)

    def decided(self, epoch: Epoch) -> Iterator[Chunk]:
        """The requests of a decided epoch, the same for everybody.

        Raises:
            FencedError: a newer incarnation has claimed the outbox.
            StateError: the outbox does not hold it any more.
            StorageError: it cannot be read.
        """
        import pyarrow.parquet as pq

        table = self._table()
        # A successor that has sent the epoch has also removed it.
        self._target.look(table, epoch.incarnation)
        names = _names(table, epoch)
        if not names:
            raise StateError(
                f"epoch {epoch.number} was recorded for sending, but the outbox does not hold it any more",
                operator=f"{self._who}, query id {epoch.query_id}, outbox {self.place.uri}",
                kept="what the receiver has taken of it; nothing was sent twice",
                do="see whether two queries use this uid and outbox at once, or whether files were removed by hand",
            )
        try:
            with self.place.open(names[0]) as file:
                first = next(pq.ParquetFile(file).iter_batches(batch_size=1, columns=["cut"]))
            cut = Cut.from_json(first.column(0)[0].as_py())
            yield from chunks(self._pieces(names), cut)
        except OSError as problem:
            raise StorageError(
                f"the outbox could not be read: {problem}",
                operator=self._who,
                kept="the epoch is recorded; what the receiver has taken of it is not repeated",
                do="see to the storage; the epoch is repeated",
            ) from problem

    def _pieces(self, names: Sequence[str]) -> Iterator[Piece]:
        import pyarrow.parquet as pq

        for name in names:
            with self.place.open(name) as file:
                for batch in pq.ParquetFile(file).iter_batches(batch_size=16, columns=["rows", "lines"]):
                    for row in batch.to_pylist():
                        yield Piece(row["rows"], row["lines"])

    def settle(self, epoch: Epoch) -> None:
        """The receiver has acknowledged all: remove the epoch and keep its number.

        Raises:
            FencedError, StorageError: as `decide`.
        """
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction

        from spark_ext.delta.log_checkpoints import keep_up

        marks = [Transaction(_sent(epoch), epoch.number)]
        if epoch.incarnation:
            marks.append(Transaction(f"fence:{self._uid}", epoch.incarnation))

        def attempt() -> tuple[int, list[str]]:
            # Looked at and written through one handle: a newer incarnation in between is a conflict.
            table = self._table()
            self._target.look(table, epoch.incarnation)
            if _is_sent(table, epoch):
                return table.version(), []
            names = _names(table, epoch)
            reach("http.before_settle")
            table.create_write_transaction(
                [],
                mode="overwrite",
                schema=table.schema(),
                partition_by=["epoch"],
                partition_filters=[("epoch", "=", label(epoch.lineage, epoch.query_id, epoch.number))],
                commit_properties=CommitProperties(max_commit_retries=10, app_transactions=marks),
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=False, cleanup_expired_logs=False
                ),
            )
            return table.version(), names

        version, names = self._target.until_settled(attempt, f"the acknowledgement of epoch {epoch.number}")
        reach("http.recorded")
        self._remove(names)
        keep_up(self.place, version, LOG_CHECKPOINT_EVERY)

    def _table(self) -> DeltaTable:
        table = self._target.load()
        if table is None:
            raise StateError(
                "the outbox has gone",
                operator=f"{self._who}, outbox {self.place.uri}",
                kept="what the receiver has taken",
                do="bring the outbox back: it knows which epochs were sent",
            )
        return table

    def _remove(self, names: Sequence[str]) -> None:
        with contextlib.suppress(OSError):
            for name in names:
                self.place.delete(name)
            if self.place.local is not None:
                for folder in {name.rpartition("/")[0] for name in names}:
                    (self.place.local / folder).rmdir()


def _sent(epoch: Epoch) -> str:
    """The id under which the table keeps the last epoch that the receiver has acknowledged."""
    return f"sent:{epoch.application}"


def _is_sent(table: DeltaTable, epoch: Epoch) -> bool:
    sent = table.transaction_version(_sent(epoch))
    return sent is not None and sent >= epoch.number


def _names(table: DeltaTable, epoch: Epoch) -> list[str]:
    """The files of a decided epoch by their tasks' numbers: the same order for everybody."""
    import pyarrow as pa

    files = pa.table(table.get_add_actions(flatten=True).select(["path", "partition.epoch"]))
    wanted = label(epoch.lineage, epoch.query_id, epoch.number)
    names = [file["path"] for file in files.to_pylist() if file["partition.epoch"] == wanted]
    return sorted(names, key=lambda name: (_task(name), name))


def _task(name: str) -> int:
    found = _TASK.search(name)
    return int(found[1]) if found else -1


def placed(outbox: str, uid: str, storage_options: Mapping[str, str]) -> Place:
    """The outbox of a sink inside the folder that the user gave, which sinks may share."""
    folder = Place.of(outbox, storage_options)
    return Place(f"{folder.uri.rstrip('/')}/{uid}", storage_options)
