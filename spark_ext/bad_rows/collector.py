"""What a task does with the bad rows of a range: it collects them, and writes them as one file when the range ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_ext.bad_rows.names import Again, EpochName, PendingFile, key_of, pending_folder, range_name, table_in_file
from spark_ext.bad_rows.row import BadRow, Buffer
from spark_ext.errors import DataError, StateError, StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.offsets import Range
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import folder_at

NOTHING: Final = "everything up to the previous epoch; no row of this one was committed"


@dataclass(frozen=True)
class Destination:
    """Where the tasks of an epoch of a source leave its bad rows. Travels with each task."""

    state: str  # path or URI of the job's state directory
    checkpoint: str  # path or URI of Spark's checkpoint directory of the query
    uid: str
    table: str  # path or URI of the table in which they belong
    lineage: int
    key: str
    incarnation: int
    most: int | None = None  # a range with more bad rows stops the job; None: no limit
    rules: str = ""

    @property
    def who(self) -> str:
        """The source, for messages."""
        return f"source '{self.uid}'"

    def read_again(self) -> None:
        """Leave a note that this start reads an epoch that an earlier one had planned, before its tasks do."""
        number = epoch_of(SparkLog(self.checkpoint), self)
        if number is None:
            return  # it has read nothing of its own: it ends where an earlier one did
        note = Again(EpochName(number, self.lineage, self.key), self.incarnation, self.rules)
        try:
            folder_at(pending_folder(self.state, self.uid)).write(note.name, b"", durable=True)
        except OSError as problem:
            what = f"it cannot be recorded that epoch {number} is read again: {problem}"
            do = f"make {self.state} writable; the epoch is tried again"
            raise StorageError(what, operator=self.who, kept=NOTHING, do=do) from problem


class Collector:
    """The bad rows of one range; `keeps` decides by their numbers in it, from 1, and None keeps all."""

    def __init__(
        self,
        destination: Destination,
        piece: Range,
        number: Callable[[], int | None],
        keeps: Callable[[int], bool] | None = None,
    ) -> None:
        self._destination, self._piece, self._number, self._keeps = destination, piece, number, keeps
        self._rows = Buffer(table_in_file(destination.state, destination.table), piece.channel)
        self._found = 0
        self.count = 0  # bad rows that are kept

    def add(self, row: BadRow) -> None:
        """Take a row."""
        self._found += 1
        if self._keeps is not None and not self._keeps(self._found):
            return
        self.count += 1
        most = self._destination.most
        if most is not None and self.count > most:
            raise DataError(
                f"more than {most} rows of one range are bad, which is what max_bad_rows allows; the last one: "
                f"{row.reason}",
                operator=f"{self._destination.who}, channel '{self._piece.channel}', {json.dumps(row.position)}",
                kept=NOTHING,
                do="correct the input or the declared schema, or raise the option max_bad_rows, and start again",
            )
        self._rows.add(row)

    def finish(self) -> None:
        """The range was read to its end: write what was collected. Without bad rows nothing is done."""
        if not self.count:
            return
        to, piece = self._destination, self._piece
        epoch = EpochName(self._epoch(), to.lineage, to.key)
        name = range_name(piece.channel, piece.start, piece.end)
        reach(FailPoint.BAD_ROWS_BEFORE_FILE)
        try:
            file = PendingFile(epoch, to.incarnation, name, self.count, to.rules)
            folder_at(pending_folder(to.state, to.uid)).write(file.name, self._rows.content(), durable=True)
        except OSError as problem:
            what = f"bad rows cannot be written: {problem}"
            do = f"make {to.state} writable on all machines of the cluster; the epoch is tried again"
            raise StorageError(what, operator=f"{to.who}, channel '{piece.channel}'", kept=NOTHING, do=do) from problem
        reach(FailPoint.BAD_ROWS_FILE)

    def _epoch(self) -> int:
        number = self._number()
        if number is not None:
            return number
        # A thread of the user's own, in `foreachBatch`, has no properties of the epoch. It is among the newest.
        found = epoch_of(SparkLog(self._destination.checkpoint), self._destination)
        if found is None:
            what = "the epoch in which bad rows were read is not in Spark's log of the query"
            do = f"make {self._destination.checkpoint} readable under this path on all machines of the cluster"
            raise StateError(what, operator=self._destination.who, kept=NOTHING, do=do)
        return found


def epoch_of(log: SparkLog, to: Destination) -> int | None:
    """The epoch that ends where a destination says, by Spark's log, the newest first; None: no such epoch."""
    for number in sorted(log.numbers("offsets"), reverse=True):
        logged = log.offsets(number)
        end = None if logged is None else source_offsets(logged).get(to.uid)
        if end is not None and key_of(end) == to.key:
            if number and (before := log.offsets(number - 1)) is not None:
                former = source_offsets(before).get(to.uid)
                if former is not None and key_of(former) == to.key:
                    continue  # the source has read nothing in this epoch: it ends where an earlier one did
            return number
    return None
