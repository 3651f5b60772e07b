"""The rows of an `arrow` exchange: one Arrow IPC file per task and epoch, with a run of batches per partition.

Nothing refers to a file before its epoch's entry is in the log, and by then it is synced to disk. A reader maps a file
into memory and reads the batches of its runs alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from spark_ext.errors import RESET, StateError
from spark_ext.exchange.contract import ExchangeReader, ExchangeWriter
from spark_ext.exchange.distribution import BUFFER, collected, cut_out, segment_name
from spark_ext.exchange.entries import Run, Segment
from spark_ext.exchange.positions import Piece
from spark_ext.storage import LocalFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.model.commits import Task

_NAME: Final = re.compile(r"i(\d+)-e\d+-p\d+-a\d+-[0-9a-f]{8}\.arrow")


class ArrowWriter(ExchangeWriter):
    """See the module."""

    def __init__(self, folder: LocalFolder, buffer: int = BUFFER) -> None:
        self._folder, self._buffer = folder, buffer

    def write(
        self, batches: Iterator[tuple[pa.RecordBatch, Sequence[int] | None]], task: Task, partitions: int
    ) -> Segment | None:
        """See `ExchangeWriter.write`."""
        import pyarrow as pa

        file: pa.RecordBatchFileWriter | None = None
        name = segment_name(task, "arrow")
        runs: list[Run] = []
        try:
            for partition, together in collected(batches, task, partitions, self._buffer):
                if file is None:
                    self._folder.make(durable=True)
                    file = pa.ipc.new_file(str(self._folder.path / name), together[0].schema)
                batch = together[0] if len(together) == 1 else pa.concat_batches(together)
                file.write_batch(batch)
                runs.append(Run(partition, len(runs), 1, batch.num_rows))
        finally:
            if file is not None:
                file.close()
        if file is None:
            return None
        self._folder.sync(name)
        return Segment(name, (self._folder.path / name).stat().st_size, tuple(runs))


class ArrowReader(ExchangeReader):
    """See the module."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """See `ExchangeReader.read`."""
        import pyarrow as pa

        try:
            with pa.memory_map(str(self._folder.path / piece.segment)) as source:
                file = pa.ipc.open_file(source)
                numbers = range(piece.first, piece.first + piece.batches)
                yield from cut_out(map(file.get_batch, numbers), piece.skip, piece.rows)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as problem:
            raise StateError(
                f"the file of rows {self._folder.path / piece.segment} is damaged, as a power failure may leave "
                f"the newest files: {problem}",
                operator="the reader of an exchange",
                kept="nothing of this epoch was committed",
                do="restore the file from a backup; without one, reset the query that writes the exchange with "
                f"{RESET}",
            ) from None


def incarnation_of(name: str) -> int | None:
    """The incarnation that has written a segment; None for a file that is not one."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
