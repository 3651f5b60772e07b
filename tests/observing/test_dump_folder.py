"""The folder of dumps: bounded in number and size, private, and where a heap cannot be written, refused in words."""

import json
import time
from pathlib import Path

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.observing.dump_folder import ABOUT, FOLDER, STACKS, DumpFolder, check_dumps
from spark_ext.settings import JobSettings


def names(state: Path) -> set[str]:
    return {path.name for path in (state / FOLDER).iterdir()}


def write(folder: DumpFolder, name: str, at: float, text: str = "stacks") -> None:
    folder.write(name, {"at": at}, text)


def test_the_oldest_go_first_and_the_others_are_private(tmp_path: Path) -> None:
    folder = DumpFolder(str(tmp_path), 2, 1 << 20)
    for at, name in enumerate(("zz", "aa", "mm")):
        write(folder, name, at)
    place = tmp_path / FOLDER
    assert names(tmp_path) == {"aa", "mm"} and (place / "mm" / STACKS).read_text() == "stacks"
    assert folder.there("aa") and not folder.there("zz")
    assert sorted((one.name, one.at) for one in folder.kept()) == [("aa", 1.0), ("mm", 2.0)]
    assert json.loads((place / "mm" / ABOUT).read_text())["bytes"] == len("stacks")
    assert [path.stat().st_mode & 0o077 for path in (place, place / "mm")] == [0, 0]


def test_what_a_killed_driver_left_goes_before_all_others(tmp_path: Path) -> None:
    folder = DumpFolder(str(tmp_path), 2, 1 << 20)
    write(folder, "whole", 1)
    write(folder, "half", 2)
    (tmp_path / FOLDER / "half" / ABOUT).unlink()
    write(folder, "new", time.time())
    assert names(tmp_path) == {"whole", "new"}


def test_the_size_of_all_files_counts(tmp_path: Path) -> None:
    folder = DumpFolder(str(tmp_path), 5, 1_000)
    write(folder, "a", 1)
    (tmp_path / FOLDER / "a" / "heap.hprof").write_bytes(b"x" * 900)
    write(folder, "b", 2)
    assert names(tmp_path) == {"a", "b"}
    write(folder, "c", 3, "y" * 200)
    assert names(tmp_path) == {"b", "c"}


def test_room_is_made_besides_the_one_that_needs_it(tmp_path: Path) -> None:
    folder = DumpFolder(str(tmp_path), 3, 1_000)
    for at, name in enumerate("abc"):
        write(folder, name, at)
    folder.make_room(950, besides="a")
    assert names(tmp_path) == {"a"}


def test_nothing_of_others_is_deleted(tmp_path: Path) -> None:
    folder = DumpFolder(str(tmp_path), 1, 1 << 20)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("mine")
    (tmp_path / FOLDER / "link").symlink_to(elsewhere)
    write(folder, "a", 1)
    write(folder, "b", 2)
    assert names(tmp_path) == {"notes.txt", "link", "b"} and (elsewhere / "kept").exists()


def test_on_an_object_store_the_same_holds() -> None:
    folder = DumpFolder("memory:///state", 2, 1_000)
    for at, name in enumerate(("zz", "aa", "mm")):
        write(folder, name, at)
    assert {one.name: one.size for one in folder.kept()} == {"aa": 6, "mm": 6}
    write(folder, "large", 4, "y" * 990)
    assert {one.name for one in folder.kept()} == {"mm", "large"}
    assert (folder.path("mm"), folder.local("mm")) == ("memory:///state/dumps/mm", None)


def test_a_heap_on_an_object_store_is_refused(tmp_path: Path) -> None:
    for dumps in ("off", "stacks"):
        check_dumps(JobSettings.of("j", {"dumps": dumps}), "s3://bucket/state", "job 'j'")
    heap = JobSettings.of("j", {"dumps": "heap"})
    check_dumps(heap, str(tmp_path), "job 'j'")
    with pytest.raises(ConfigurationError, match="local path only") as refused:
        check_dumps(heap, "s3://bucket/state", "job 'j'")
    assert "dumps='stacks'" in refused.value.do
