"""What happens to files between their discovery and the end of their reading: read exactly, or refused by name."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_ext.errors import DataError
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.files import lines, parquet
from tests.sources.files.files_kit import DDL, opened, read_all, source, table, write

KINDS = ["parquet", "csv", "json"]


def rewritten(path: Path, kind: str) -> None:
    size = path.stat().st_size
    fresh = path.with_name("_fresh")
    write(fresh, table(5000, 1000), kind)
    with path.open("r+b") as file:
        file.write(fresh.read_bytes().ljust(size, b"\n")[:size])


@pytest.mark.parametrize("changed_files", ["refuse", "accept"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_rewritten_in_place_while_it_is_read_is_refused(
    tmp_path: Path, kind: str, changed_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK", 1000)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 2)
    path = tmp_path / f"x.{kind}"
    write(path, table(1000, 1000), kind)
    os.utime(path, (1, 1))
    made, channel = opened(tmp_path, DDL, changed_files=changed_files)
    batches = made.read(channel, 0, made.advance(channel, 0, Limit()).end)
    assert next(batches).num_rows < 1000
    rewritten(path, kind)
    with pytest.raises(DataError, match=rf"x\.{kind}.*modified (after|while)") as refused:
        list(batches)
    assert ("accept" in refused.value.do) == (changed_files == "refuse")


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_file_read_in_one_step_and_rewritten_then_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    write(path, table(0, 5), kind)
    os.utime(path, (1, 1))
    made, channel = opened(tmp_path, DDL, multiline="true")
    batches = made.read(channel, 0, made.advance(channel, 0, Limit()).end)
    next(batches)
    path.touch()
    with pytest.raises(DataError, match="modified after it was discovered"):
        list(batches)


@pytest.mark.parametrize("changed_files", ["refuse", "accept"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_filled_after_discovery_is_not_taken_for_empty(tmp_path: Path, kind: str, changed_files: str) -> None:
    path = tmp_path / f"x.{kind}"
    path.touch()
    made, channel = opened(tmp_path, DDL, changed_files=changed_files)
    write(path, table(0, 3), kind)
    if changed_files == "refuse":
        with pytest.raises(DataError, match="had 0 bytes when it was discovered"):
            made.advance(channel, 0, Limit())
    else:
        step = made.advance(channel, 0, Limit())
        assert sum(batch.num_rows for batch in made.read(channel, 0, step.end)) == 3
        path.unlink()
        with pytest.raises(DataError, match="no longer exists"):
            made.advance(channel, 0, Limit())


def grown(path: Path, kind: str) -> None:
    if kind in ("csv", "json"):
        with path.open("ab") as file:
            file.write(b"\n" + path.read_bytes())
    else:
        write(path, table(0, 50), kind)


def linked(path: Path, kind: str) -> None:
    other = path.parent / "_other"
    write(other, table(0, 30), kind)
    path.unlink()
    path.symlink_to(other)


def a_folder(path: Path, _kind: str) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Callable[[Path, str], object]] = {
    "grown": grown,
    "renamed": lambda path, _: path.rename(path.with_name("y" + path.suffix)),
    "touched": lambda path, _: path.touch(),
    "truncated": lambda path, _: os.truncate(path, path.stat().st_size - 3),
    "rewritten": rewritten,
    "replaced": lambda path, kind: write(path, table(7, 23), kind),
    "deleted": lambda path, _: path.unlink(),
    "a folder": a_folder,
    "linked": linked,
}


@pytest.mark.parametrize("kind", [*KINDS, "orc", "avro"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_half_read_file_changed_before_a_restart_is_refused(
    tmp_path: Path, kind: str, change: Callable[[Path, str], object]
) -> None:
    path = tmp_path / f"x.{kind}"
    write(path, table(0, 23), kind)
    os.utime(path, (1, 1))
    made, channel = opened(tmp_path, DDL)
    step = made.advance(channel, 0, Limit(rows=10))
    change(path, kind)
    again = source(tmp_path, DDL)
    known = Channel(channel.id, None, channel.data)
    again.resume([known], frozenset())
    with pytest.raises(DataError, match=rf"file 'x\.{kind}'"):
        again.advance(known, step.end, Limit())
    with pytest.raises(DataError, match=rf"file 'x\.{kind}'") as refused:
        list(again.read(known, 0, step.end))
    assert "files-test" in refused.value.operator and refused.value.kept and refused.value.do


@pytest.mark.parametrize("kind", KINDS)
def test_a_half_read_file_is_not_taken_for_another_folders(tmp_path: Path, kind: str) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / f"x.{kind}", table(0, 23), kind)
        os.utime(tmp_path / folder / f"x.{kind}", (1, ord(folder)))
    (channel,) = source(tmp_path / "a", DDL).discover()
    known = Channel(channel.id, None, channel.data)
    step = source(tmp_path / "a", DDL).advance(channel, 0, Limit(rows=10))
    other = source(tmp_path / "b", DDL)
    other.resume([known], frozenset())
    with pytest.raises(DataError, match="modified after it was discovered"):
        other.advance(known, step.end, Limit())
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    assert source(tmp_path / "moved", DDL).advance(known, step.end, Limit()).finished


def test_a_file_that_has_been_read_is_known_by_its_name(tmp_path: Path) -> None:
    """As the page says: what is done to it later is not noticed, and under another name it is another file."""
    write(tmp_path / "x.csv", table(0, 3), "csv")
    finished = frozenset({channel.id for channel in source(tmp_path, DDL).discover()})
    write(tmp_path / "x.csv", table(0, 30), "csv")
    made = source(tmp_path, DDL)
    made.resume([], finished)
    assert {channel.id for channel in made.discover()} == finished
    (tmp_path / "x.csv").rename(tmp_path / "y.csv")
    assert [channel.id for channel in made.discover()] == ["y.csv"]


def test_a_row_group_shorter_than_its_footer_says_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.parquet", table(0, 5), "parquet")
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: iter(()))
    with pytest.raises(DataError, match=r"x\.parquet.*0 of 5 rows"):
        read_all(source(tmp_path, DDL))
