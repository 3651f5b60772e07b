"""The rows of a `kafka` exchange: a run is an Arrow IPC stream, in one message or several, and a segment is its runs.

All messages of a segment have its key and are in one partition, in order; those of other tasks may lie between. A run's
`first` is the offset of its first message, and `batches` the number of its messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from spark_ext.errors import RESET, StateError
from spark_ext.exchange.contract import ExchangeReader, ExchangeWriter
from spark_ext.exchange.distribution import BUFFER, collected, cut_out, segment_name
from spark_ext.exchange.entries import Run, Segment
from spark_ext.exchange.kafka.order import Stored
from spark_ext.exchange.kafka.topics import Topics
from spark_ext.exchange.positions import Piece
from spark_ext.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.model.commits import Task

_LENGTH: Final = 4  # bytes before each message of a segment that a savepoint keeps


class KafkaWriter(ExchangeWriter):
    """See the module."""

    def __init__(self, topics: Topics, buffer: int = BUFFER) -> None:
        self._topics, self._buffer = topics, buffer

    def write(
        self, batches: Iterator[tuple[pa.RecordBatch, Sequence[int] | None]], task: Task, partitions: int
    ) -> Segment | None:
        """See `ExchangeWriter.write`."""
        import pyarrow as pa

        counts: list[tuple[int, int, int]] = []  # partition, messages and rows of each run
        size = self._topics.options.chunk_bytes

        def chunks() -> Iterator[bytes]:
            for partition, together in collected(batches, task, partitions, self._buffer):
                out = pa.BufferOutputStream()
                with pa.ipc.new_stream(out, together[0].schema) as stream:
                    stream.write_batch(together[0] if len(together) == 1 else pa.concat_batches(together))
                whole = out.getvalue().to_pybytes()
                divided = [whole[at : at + size] for at in range(0, len(whole), size)]
                counts.append((partition, len(divided), sum(batch.num_rows for batch in together)))
                yield from divided

        found = chunks()
        first = next(found, None)
        if first is None:
            return None
        key = segment_name(task, "kafka")
        return stored(self._topics, key, task.partition, chain([first], found), counts)


def stored(
    topics: Topics, key: str, number: int, chunks: Iterator[bytes], counts: Sequence[tuple[int, int, int]]
) -> Segment:
    """Write the messages of a segment; `counts` (partition, messages and rows of each run) is complete after them."""
    names = topics.required()
    partition, size = number % names.partitions, 0

    def records() -> Iterator[tuple[bytes, bytes]]:
        nonlocal size
        for chunk in chunks:
            size += len(chunk) + _LENGTH
            yield key.encode(), chunk

    offsets = topics.send(names.rows, partition, records())
    topics.check(names)
    runs, at = [], 0
    for of_partition, messages, rows in counts:
        runs.append(Run(of_partition, offsets[at], messages, rows))
        at += messages
    return Segment(Stored(key, partition, offsets[-1]).name, size, tuple(runs))


class KafkaReader(ExchangeReader):
    """See the module."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """See `ExchangeReader.read`."""
        import pyarrow as pa

        try:
            found = messages(self._topics, piece.segment, piece.first, piece.batches)
            with pa.ipc.open_stream(b"".join(found)) as stream:
                batches = list(stream)
        except FileNotFoundError as gone:
            raise self._damaged(piece, f"is not there any more: {gone}") from None
        except pa.ArrowInvalid as problem:
            raise self._damaged(piece, f"is damaged: {problem}") from None
        yield from cut_out(batches, piece.skip, piece.rows)

    def _damaged(self, piece: Piece, what: str) -> StateError:
        return StateError(
            f"the segment {piece.segment} {what}",
            operator=self._topics.who,
            kept="nothing of this epoch was committed",
            do=f"restore the job from a savepoint; without one, reset the query that writes the exchange with {RESET}",
        )


def messages(topics: Topics, segment: str, first: int, count: int) -> list[bytes]:
    """Messages of a segment, from an offset on; FileNotFoundError if one is not there."""
    place, names = Stored.of(segment), topics.required()
    key = place.key.encode()
    found = [value for _, _, value in topics.read(names.rows, place.partition, first, place.end + 1, key, count)]
    if len(found) < count:
        raise FileNotFoundError(f"{count - len(found)} of its messages are missing")
    return found


def keep(topics: Topics, segment: Segment, folder: str) -> None:
    """Write the messages of a segment into a file, each after its length."""
    with Location.of(folder, {}).folder.open_output(f"data/{segment.name}") as out:
        for run in segment.runs:
            for message in messages(topics, segment.name, run.first, run.batches):
                out.write(len(message).to_bytes(_LENGTH, "big"))
                out.write(message)


def put_back(topics: Topics, segment: Segment, folder: str) -> Segment:
    """Write what `keep` has kept."""
    counts = [(run.partition, run.batches, run.rows) for run in segment.runs]
    number = Stored.of(segment.name).partition

    def chunks() -> Iterator[bytes]:
        with Location.of(folder, {}).folder.open_input(f"data/{segment.name}") as source:
            while length := source.read(_LENGTH):
                yield source.read(int.from_bytes(length, "big"))

    return stored(topics, f"i0-put-back-{token_hex(8)}.kafka", number, chunks(), counts)
