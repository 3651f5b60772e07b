"""What a power failure leaves, and that the recorder sees what processes do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.syncs import Call, Disk, calls
from tests.chaos.unsynced import compiled, read_tree


def disk(*done: tuple[object, ...]) -> Disk:
    """A disk with the folder `/d`, after calls: op and path, then the new name, or offset and data."""
    made = Disk("/d")
    for number, (op, path, *more) in enumerate(done):
        if op == "sync":
            made.apply(Call("s", f"/d/{path}", at=number + 1))
            made.apply(Call("S", f"/d/{path}", offset=number + 1))
        elif op == "W":
            made.apply(Call("W", f"/d/{path}", offset=int(str(more[0])), data=str(more[1]).encode()))
        else:
            made.apply(Call(str(op), f"/d/{path}", other=f"/d/{more[0]}" if more else ""))
    return made


WRITTEN = (("C", "a"), ("W", "a", 0, "one"))


def test_a_file_needs_its_data_and_its_name_synced() -> None:
    assert disk(*WRITTEN).left() == {}
    assert disk(*WRITTEN, ("sync", "a")).left() == {}
    assert disk(*WRITTEN, ("sync", "")).left() == {"a": b""}
    both = disk(*WRITTEN, ("sync", "a"), ("sync", ""), ("W", "a", 3, "two"))
    assert (both.left(), both.seen()) == ({"a": b"one"}, {"a": b"onetwo"})


def test_a_renamed_file_has_its_old_name_until_the_folder_is_synced() -> None:
    draft = (("C", "x"), ("W", "x", 0, "new"), ("sync", "x"), *WRITTEN, ("sync", "a"), ("sync", ""), ("R", "x", "a"))
    assert disk(*draft).left() == {"a": b"one", "x": b"new"}
    assert disk(*draft, ("sync", "")).left() == {"a": b"new"}
    assert disk(*draft).seen() == {"a": b"new"}


def test_a_deleted_file_comes_back_until_the_folder_is_synced() -> None:
    gone = (*WRITTEN, ("sync", "a"), ("sync", ""), ("U", "a"))
    assert disk(*gone).left() == {"a": b"one"}
    assert disk(*gone, ("sync", "")).left() == {}


def test_a_link_is_another_name_of_the_same_data() -> None:
    linked = disk(*WRITTEN, ("L", "a", "b"), ("sync", ""), ("W", "b", 0, "ONE"), ("sync", "a"))
    assert linked.left() == {"a": b"ONE", "b": b"ONE"}


def test_a_folder_counts_once_its_parent_is_synced() -> None:
    below = (("M", "f"), ("C", "f/a"), ("sync", "f/a"), ("sync", "f"))
    assert disk(*below).left() == {}
    assert disk(*below, ("sync", "")).left() == {"f": None, "f/a": b""}


def test_what_happens_during_a_sync_does_not_count() -> None:
    made = disk(*WRITTEN, ("sync", ""))
    made.apply(Call("s", "/d/a", at=50))
    made.apply(Call("W", "/d/a", offset=3, data=b"late"))
    made.apply(Call("S", "/d/a", offset=50))
    assert made.left() == {"a": b"one"}


def test_a_sync_of_the_file_system_is_one_of_all_that_was_there_when_it_began() -> None:
    made = disk(("M", "f"), ("C", "f/a"), ("W", "f/a", 0, "one"), ("U", "gone"))
    made.apply(Call("f", "/d", at=50))
    made.apply(Call("W", "/d/f/a", offset=3, data=b"late"))
    made.apply(Call("S", "/d", offset=50))
    assert made.left() == {"f": None, "f/a": b"one"}


def test_what_was_not_synced_may_be_there_as_well() -> None:
    assert disk(*WRITTEN).left(lambda: True) == {"a": b"one"}


def test_what_the_model_does_not_follow_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="not followed: X /d/a mmap"):
        disk(*WRITTEN).apply(Call("X", "/d/a", other="mmap"))
    with pytest.raises(ValueError, match="not there: W /d/b"):
        disk().apply(Call("W", "/d/b"))


PROGRAM = """
import os, pathlib, subprocess, sys, tempfile
import pyarrow as pa, deltalake
os.mkdir("f")
with open("f/x", "wb", buffering=0) as file:
    file.write(b"one")
    os.fdatasync(file.fileno())
    os.pwrite(file.fileno(), b"N", 1)
    file.truncate(2)
os.rename("f/x", "f/y")
os.link("f/y", "f/z")
os.unlink("f/y")
open("g", "a").write("more")
open("g", "a").write("over")
subprocess.run(["sh", "-c", "echo said > h; mkdir k; rmdir k"])
deltalake.write_deltalake("table", pa.table({"n": [1]}))
folder = os.open("f", os.O_RDONLY)
os.fsync(folder)
"""


@pytest.mark.slow(2, "compiles a library, and starts processes with it")
@pytest.mark.skipif(shutil.which("cc") is None, reason="it is compiled")
def test_the_recorder_sees_what_python_rust_and_shells_do(tmp_path: Path) -> None:
    root, record = tmp_path / "root", tmp_path / "record"
    root.mkdir()
    env = {**os.environ, **compiled(tmp_path, root, record)}
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, env=env, check=True)
    made = Disk(str(root))
    for call in calls(record.read_bytes()):
        made.apply(call)
    assert made.seen() == read_tree(root)
    assert {"f/z", "g", "h", "table/_delta_log/00000000000000000000.json"} <= made.seen().keys()
    assert made.left() == {}, "the folder itself was not synced"
