"""How a task's rows get into the partitions of an exchange, and a piece of them out again; for all kinds with files."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.model.commits import Task

BUFFER: Final = 64 * 1024**2  # bytes that a task collects before it writes
SLICE: Final = 1024  # rows that go to one partition at a time where no key says to which


def segment_name(task: Task, ending: str) -> str:
    """A name for what a task writes, by which its incarnation is known."""
    draw = secrets.token_hex(4)
    return f"i{task.incarnation}-e{task.epoch}-p{task.partition}-a{task.attempt}-{draw}.{ending}"


def collected(
    batches: Iterable[tuple[pa.RecordBatch, Sequence[int] | None]], task: Task, partitions: int, buffer: int
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """A task's rows as runs to be written, each time after `buffer` bytes: partitions in order, their rows in order.

    Without targets partitions are filled in turn.
    """
    # Small epochs would otherwise all begin with the same partition.
    turn = (task.epoch + task.partition) % partitions
    parts: dict[int, list[pa.RecordBatch]] = {}
    size = 0
    for batch, targets in batches:
        if not batch.num_rows:
            continue
        if targets is None:
            found = in_turn(batch, turn, partitions)
            turn = (turn + -(-batch.num_rows // SLICE)) % partitions
        else:
            found = by_partition(batch, targets)
        for partition, rows in found:
            parts.setdefault(partition, []).append(rows)
        size += batch.nbytes
        if size >= buffer:
            yield from sorted(parts.items())
            parts, size = {}, 0
    yield from sorted(parts.items())


def by_partition(batch: pa.RecordBatch, targets: Sequence[int]) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of a batch by partition, each in their order."""
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


def cut_out(batches: Iterable[pa.RecordBatch], skip: int, rows: int) -> Iterator[pa.RecordBatch]:
    """A number of rows of some batches, after those that are skipped."""
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        batch = batch.slice(skip, rows)
        skip, rows = 0, rows - batch.num_rows
        yield batch
        if not rows:
            return
