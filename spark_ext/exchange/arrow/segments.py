"""The rows of an `arrow` exchange: one Arrow IPC file per task and epoch, with a run of batches per partition.

A task collects rows, sorts them by partition in their order, and writes them as one batch per partition; when it has
collected `BUFFER` bytes it does so, and starts the next runs. Nothing refers to a file before its epoch's entry is in
the log. A reader maps a file into memory and reads the batches of its runs alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.errors import StateError
from spark_ext.exchange.contract import ExchangeReader, ExchangeWriter
from spark_ext.exchange.entries import Run, Segment
from spark_ext.exchange.positions import Piece

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.model.commits import Task

BUFFER: Final = 64 * 1024**2
"""Bytes that a task collects before it writes."""

SLICE: Final = 1024
"""Rows that go to one partition at a time where no key says to which."""

_NAME: Final = re.compile(r"i(\d+)-e\d+-p\d+-a\d+-[0-9a-f]{8}\.arrow")


class ArrowWriter(ExchangeWriter):
    """See the module.

    Args:
        folder: of the segments.
        buffer: bytes that a task collects before it writes.
    """

    def __init__(self, folder: Path, buffer: int = BUFFER) -> None:
        self._folder, self._buffer = folder, buffer

    def write(
        self, batches: Iterator[tuple[pa.RecordBatch, Sequence[int] | None]], task: Task, partitions: int
    ) -> Segment | None:
        """See `ExchangeWriter.write`."""
        import pyarrow as pa

        file: pa.RecordBatchFileWriter | None = None
        draw = secrets.token_hex(4)
        name = f"i{task.incarnation}-e{task.epoch}-p{task.partition}-a{task.attempt}-{draw}.arrow"
        runs: list[Run] = []
        written = 0
        # Small epochs would otherwise all begin with the same partition.
        turn = (task.epoch + task.partition) % partitions
        collected: list[tuple[int, pa.RecordBatch]] = []
        size = 0
        try:
            for batch, targets in batches:
                if not batch.num_rows:
                    continue
                if file is None:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    file = pa.ipc.new_file(str(self._folder / name), batch.schema)
                parts = by_partition(batch, targets) if targets is not None else in_turn(batch, turn, partitions)
                if targets is None:
                    turn = (turn + -(-batch.num_rows // SLICE)) % partitions
                collected += parts
                size += batch.nbytes
                if size >= self._buffer:
                    written = _flush(file, collected, runs, written)
                    collected, size = [], 0
            if file is not None:
                _flush(file, collected, runs, written)
        finally:
            if file is not None:
                file.close()
        if not runs:
            return None
        return Segment(name, (self._folder / name).stat().st_size, tuple(runs))


def by_partition(batch: pa.RecordBatch, targets: Sequence[int]) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of a batch by partition, each in their order.

    Args:
        batch: the rows.
        targets: the partition of each row.
    """
    import numpy as np
    import pyarrow as pa

    numbers = np.asarray(targets)
    # A stable sort of 16-bit integers is a radix sort.
    order = np.argsort(numbers.astype(np.int16), kind="stable")
    ordered = numbers[order]
    rows = batch.take(pa.array(order))
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    ends = [*starts[1:], len(ordered)]
    return [
        (int(ordered[start]), rows.slice(start, end - start)) for start, end in zip(starts.tolist(), ends, strict=True)
    ]


def in_turn(batch: pa.RecordBatch, turn: int, partitions: int) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of a batch in slices for one partition after the other, beginning with `turn`."""
    return [
        ((turn + number) % partitions, batch.slice(first, SLICE))
        for number, first in enumerate(range(0, batch.num_rows, SLICE))
    ]


def _flush(
    file: pa.RecordBatchFileWriter, collected: Sequence[tuple[int, pa.RecordBatch]], runs: list[Run], written: int
) -> int:
    """Write what was collected, one batch per partition; returns how many batches the file has then."""
    import pyarrow as pa

    parts: dict[int, list[pa.RecordBatch]] = {}
    for partition, rows in collected:
        parts.setdefault(partition, []).append(rows)
    for partition in sorted(parts):
        together = parts[partition]
        batch = together[0] if len(together) == 1 else pa.concat_batches(together)
        file.write_batch(batch)
        runs.append(Run(partition, written, 1, batch.num_rows))
        written += 1
    return written


class ArrowReader(ExchangeReader):
    """See the module.

    Args:
        folder: of the segments.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """See `ExchangeReader.read`."""
        import pyarrow as pa

        try:
            with pa.memory_map(str(self._folder / piece.segment)) as source:
                yield from _batches(pa.ipc.open_file(source), piece)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as problem:
            raise StateError(
                f"the file of rows {self._folder / piece.segment} is damaged, as a power failure may leave "
                f"the newest files: {problem}",
                operator="the reader of an exchange",
                kept="nothing of this epoch was committed",
                do="restore the file from a backup; if there is none, reset the query that writes the exchange with "
                "job.reset(<query>, cascade=True)",
            ) from None


def _batches(file: pa.RecordBatchFileReader, piece: Piece) -> Iterator[pa.RecordBatch]:
    skip, left = piece.skip, piece.rows
    for number in range(piece.first, piece.first + piece.batches):
        batch = file.get_batch(number)
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        batch = batch.slice(skip, left)
        skip, left = 0, left - batch.num_rows
        yield batch
        if not left:
            return


def incarnation_of(name: str) -> int | None:
    """The incarnation that has written a segment; None for a file that is not one."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
