"""Files that are created whole and once, by whoever at once; what a crash leaves behind has its writer's name."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_ext.datafiles.exclusive import put_if_absent, replace, writer_of


def test_a_file_is_put_once_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "a" / "f"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: put_if_absent(file, f"{n}" * 10_000, str(n)), range(32)))
    assert made.count(True) == 1
    assert file.read_text() == f"{made.index(True)}" * 10_000
    assert [item.name for item in file.parent.iterdir()] == ["f"], "no draft is left"


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "f"
    assert put_if_absent(file, "first", "1")
    before = file.stat()
    assert not put_if_absent(file, "second", "2")
    assert (file.read_text(), file.stat().st_ino) == ("first", before.st_ino)
    assert [item.name for item in tmp_path.iterdir()] == ["f"]


def test_a_file_is_replaced_whole_and_its_readers_see_the_one_or_the_other(tmp_path: Path) -> None:
    file = tmp_path / "a" / "f"
    texts = [f"{number}" * 10_000 for number in range(10)]
    replace(file, texts[0], "0")
    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(replace, file, text, "1") for text in texts]
        while not all(one.done() for one in written):
            assert file.read_text() in texts
    assert file.read_text() in texts
    assert [item.name for item in file.parent.iterdir()] == ["f"], "no draft is left"


@pytest.mark.parametrize("put", [put_if_absent, replace])
@pytest.mark.parametrize("step", ["link", "replace", "write"])
def test_a_failure_leaves_neither_a_file_nor_a_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: object, step: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    target, name = {"link": (os, "link"), "replace": (Path, "replace"), "write": (Path, "write_text")}[step]
    monkeypatch.setattr(target, name, broken)
    if (put is replace) is (step != "link") or step == "write":
        with pytest.raises(OSError, match="No space left"):
            put(tmp_path / "f", "text", "1")  # type: ignore[operator]
        assert list(tmp_path.iterdir()) == []


def test_a_draft_has_the_name_of_its_writer() -> None:
    assert [writer_of(name) for name in (".draft-12-0ab", ".draft-0-x", "12.json", "draft-1-x")] == [
        "12",
        "0",
        None,
        None,
    ]
