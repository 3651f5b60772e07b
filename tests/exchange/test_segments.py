"""What tasks write of an exchange and what readers find: every row, in its partition, in the order of the task."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_ext.errors import StateError
from spark_ext.exchange.arrow.segments import ArrowReader, ArrowWriter, incarnation_of
from spark_ext.exchange.distribution import SLICE
from spark_ext.exchange.entries import Segment
from spark_ext.exchange.positions import Piece
from spark_ext.model.commits import Task
from spark_ext.storage import LocalFolder


def task(epoch: int = 0, partition: int = 0) -> Task:
    return Task("s", "q", epoch, partition, 7, 3, 0)


def read(folder: Path, segment: Segment | None, partition: int, skip: int = 0, rows: int | None = None) -> list[Any]:
    """The rows of a partition, run by run; of each run those in [skip, skip + rows)."""
    found = []
    for run in segment.runs if segment is not None else ():
        if run.partition == partition:
            piece = Piece(segment.name, run.first, run.batches, skip, run.rows - skip if rows is None else rows)  # type: ignore[union-attr]
            for batch in ArrowReader(LocalFolder(folder)).read(piece):
                found += batch.to_pylist()
    return found


@given(
    batches=st.lists(st.lists(st.integers(0, 4), max_size=30), max_size=6),
    buffer=st.sampled_from([1, 100, 10**6]),
    keyed=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_each_row_is_in_its_partition_in_the_order_of_the_task(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], buffer: int, keyed: bool
) -> None:
    folder = tmp_path_factory.mktemp("s")
    number = 0
    given_rows: list[tuple[int, int]] = []

    def rows() -> Iterator[tuple[pa.RecordBatch, list[int] | None]]:
        nonlocal number
        for targets in batches:
            ids = range(number, number + len(targets))
            given_rows.extend(zip(targets, ids, strict=True))
            number += len(targets)
            yield pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())}), targets if keyed else None

    segment = ArrowWriter(LocalFolder(folder), buffer).write(rows(), task(), 5)
    found = [[row["id"] for row in read(folder, segment, partition)] for partition in range(5)]
    if keyed:
        assert found == [[row for target, row in given_rows if target == partition] for partition in range(5)]
    else:
        assert sorted(row for part in found for row in part) == [row for _, row in given_rows]
        assert all(part == sorted(part) for part in found)
    if segment is None:
        assert not given_rows
        assert list(folder.iterdir()) == [], "no file that no entry will name"
    else:
        assert segment.bytes == (folder / segment.name).stat().st_size
        assert sum(run.rows for run in segment.runs) == len(given_rows)
        if buffer == 1 and keyed:
            assert len(segment.runs) == sum(len(set(targets)) for targets in batches), "flushed after each batch"


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_reader_takes_any_part_of_a_run(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Also of a run of several batches, which another release may write."""
    folder = tmp_path_factory.mktemp("s")
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    schema, first = pa.schema([("id", pa.int64())]), 0
    with pa.ipc.new_file(str(folder / "f"), schema) as file:
        for size in [3, *sizes]:
            file.write_batch(pa.record_batch([pa.array(range(first - 3, first - 3 + size), pa.int64())], schema))
            first += size
    total = sum(sizes)
    skip = data.draw(st.integers(0, total - 1))
    rows = data.draw(st.integers(1, total - skip))
    found = ArrowReader(LocalFolder(folder)).read(Piece("f", 1, len(sizes), skip, rows))
    assert [row for batch in found for row in batch.column("id").to_pylist()] == list(range(skip, skip + rows))


def test_without_a_key_small_epochs_begin_with_other_partitions(tmp_path: Path) -> None:
    def rows(count: int) -> Iterator[tuple[pa.RecordBatch, None]]:
        yield pa.RecordBatch.from_pydict({"id": range(count)}), None

    large = ArrowWriter(LocalFolder(tmp_path)).write(rows(8 * SLICE), task(), 4)
    assert large is not None
    assert [(run.partition, run.rows) for run in large.runs] == [(number, 2 * SLICE) for number in range(4)]
    begun = set()
    for epoch in range(4):
        small = ArrowWriter(LocalFolder(tmp_path)).write(rows(3), task(epoch), 4)
        assert small is not None
        begun |= {run.partition for run in small.runs}
    assert begun == {0, 1, 2, 3}


def test_attempts_have_names_that_say_who_wrote_them(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1]})
    names = [ArrowWriter(LocalFolder(tmp_path)).write(iter([(rows, [0])]), task(5, 2), 1).name for _ in range(3)]  # type: ignore[union-attr]
    assert len(set(names)) == 3
    assert all(name.startswith("i3-e5-p2-a7-") and incarnation_of(name) == 3 for name in names)
    assert [incarnation_of(name) for name in ("notes.txt", "i3-e5.arrow", "i-e5-p2-a7-00000000.arrow")] == [None] * 3


def test_a_failed_task_leaves_a_file_that_its_incarnation_owns(tmp_path: Path) -> None:
    def rows() -> Iterator[tuple[pa.RecordBatch, None]]:
        yield pa.RecordBatch.from_pydict({"id": [1]}), None
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        ArrowWriter(LocalFolder(tmp_path), buffer=1).write(rows(), task(), 2)
    assert [incarnation_of(file.name) for file in tmp_path.iterdir()] == [3]


def test_many_partitions(tmp_path: Path) -> None:
    most = 32_767
    targets = [most - 1, 0, 17, most - 1]
    rows = pa.RecordBatch.from_pydict({"id": range(4)})
    segment = ArrowWriter(LocalFolder(tmp_path)).write(iter([(rows, targets)]), task(), most)
    assert segment is not None
    assert [(run.partition, run.rows) for run in segment.runs] == [(0, 1), (17, 1), (most - 1, 2)]
    assert read(tmp_path, segment, most - 1) == [{"id": 0}, {"id": 3}]


@pytest.mark.parametrize("left", [0, 100, -1, "other bytes"])
def test_a_damaged_file_is_refused_and_a_missing_one_may_return(tmp_path: Path, left: int | str) -> None:
    """A power failure may leave a damaged file. A missing one may be on storage that is unavailable: it is retried."""
    rows = pa.RecordBatch.from_pydict({"id": range(1000)})
    segment = ArrowWriter(LocalFolder(tmp_path)).write(iter([(rows, [0] * 1000)]), task(), 1)
    assert segment is not None
    file = tmp_path / segment.name
    content = file.read_bytes()
    file.write_bytes(content[:left] if isinstance(left, int) else b"x" * len(content))
    with pytest.raises(StateError, match=segment.name):
        read(tmp_path, segment, 0)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        read(tmp_path, segment, 0)
