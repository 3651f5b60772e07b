"""The contract of a folder, over each of its implementations: a file system, a store without a service, and S3."""

import errno
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ext.storage import Folder, LocalFolder, Location, StoreFolder, checksum, folder_at, link, local_path, move
from spark_ext.storage.folder import writer_of
from tests.servers.object_store import Bucket
from tests.support.fuse import refusing_disk
from tests.support.recording import Recording


class Contract:
    def test_a_file_is_read_as_it_was_written(self, folder: Folder) -> None:
        folder.write("a/b", b"\x00bytes", durable=True)
        folder.write("text", "ü", writer="7", private=True)
        folder.write("text", "second")
        assert (folder.read("a/b"), folder.read("text")) == (b"\x00bytes", b"second")
        assert sorted(folder.files()) == ["a/b", "text"], "no draft is left"

    def test_a_missing_file_is_told_apart(self, folder: Folder) -> None:
        folder.write("a/b", "1")
        for name in ("b", "c/d"):
            with pytest.raises(FileNotFoundError):
                folder.read(name)
            with pytest.raises(FileNotFoundError):
                folder.open_input(name).read()
            assert (folder.find(name), folder.has(name), folder.modified(name)) == (None, False, None)
        assert (folder.find("a/b"), folder.has("a/b"), folder.has("a")) == (b"1", True, False)
        assert folder.modified("a/b") == pytest.approx(time.time(), abs=60)

    def test_a_file_is_created_once_and_whole(self, folder: Folder) -> None:
        with ThreadPoolExecutor(8) as pool:
            put: Callable[[int], bool] = lambda n: folder.create_once("a/f", f"{n}" * 9_000, writer=str(n))  # noqa: E731
            made = list(pool.map(put, range(16)))
        assert made.count(True) == 1
        assert folder.read("a/f").decode() == f"{made.index(True)}" * 9_000
        assert not folder.create_once("a/f", "late", durable=True)
        assert list(folder.files()) == ["a/f"], "no draft is left"

    @pytest.mark.parametrize("size", [0, 5, (1 << 20) - 1, 1 << 20, 3_000_000])
    def test_a_file_is_mapped_as_it_is_then(self, folder: Folder, size: int) -> None:
        folder.write("a/f", content := os.urandom(size))
        folder.sync("a/f")
        found = folder.mapped("a/f")
        folder.write("a/f", "other")
        folder.delete("a/f")
        assert found.to_pybytes() == content
        with pytest.raises(FileNotFoundError):
            folder.mapped("a/f")

    def test_readers_find_the_one_content_or_the_other(self, folder: Folder) -> None:
        texts = [f"{number}" * 9_000 for number in range(8)]
        folder.write("f", texts[0])
        with ThreadPoolExecutor(4) as pool:
            written = [pool.submit(folder.write, "f", text) for text in texts]
            while not all(one.done() for one in written):
                assert folder.read("f").decode() in texts
        for one in written:
            one.result()
        assert list(folder.files()) == ["f"], "no draft is left"

    def test_a_folder_below_has_the_files_below(self, folder: Folder) -> None:
        folder.write("a/b/c", "1")
        below = folder.below("a").below("b")
        assert (below.read("c"), below.names()) == (b"1", ["c"])
        assert below.create_once("d", "2") and not folder.create_once("a/b/d", "3")
        assert folder.read("a/b/d") == b"2"

    def test_listings_are_of_one_folder_or_of_all_below(self, folder: Folder) -> None:
        assert (folder.names(), folder.names("x"), list(folder.files()), list(folder.files("x"))) == ([], [], [], [])
        for name in ("f", "a/g", "a/b/h", "_delta_log/0.json", "_day=1/i", "a/_b/j"):
            folder.write(name, name)
        assert sorted(folder.names()) == ["_day=1", "_delta_log", "a", "f"]
        assert sorted(folder.names("a")) == ["_b", "b", "g"]
        assert sorted(folder.files("a")) == ["a/_b/j", "a/b/h", "a/g"]
        assert len(list(folder.files())) == 6
        assert sorted(folder.files(data_only=True)) == ["_day=1/i", "a/b/h", "a/g", "f"]

    def test_what_is_deleted_is_gone_and_may_be_missing(self, folder: Folder) -> None:
        for name in ("f", "a/g", "a/b/h"):
            folder.write(name, name)
        folder.delete("f")
        folder.delete("f")
        folder.prune("a")
        assert sorted(folder.files()) == ["a/b/h", "a/g"], "only an empty folder is pruned"
        folder.delete_tree("a/b")
        folder.delete_tree("a/b")
        assert list(folder.files()) == ["a/g"]
        folder.delete_tree()
        folder.delete_tree()
        folder.prune()
        assert list(folder.files()) == []

    def test_streams_take_whatever_has_the_form_of_a_buffer(self, folder: Folder) -> None:
        """The stream of delta-rs takes nothing but bytes, and pyarrow hands it buffers."""
        block = b"0123456789" * 300_000
        with folder.open_output("sub/plain") as out:
            out.write(b"a")
            out.write(memoryview(block))
            out.write(pa.py_buffer(b"z"))
        assert folder.read("sub/plain") == b"a" + block + b"z"
        rows = pa.table({"n": list(range(300_000))})
        with folder.open_output("rows.arrow") as out, pa.ipc.new_file(out, rows.schema) as file:
            file.write_table(rows)
        with folder.open_input("rows.arrow") as source, pa.ipc.open_file(source) as found:
            assert found.read_all() == rows

    def test_a_link_holds_what_its_source_held(self, folder: Folder) -> None:
        folder.write("a", "first")
        folder.write("sub/c", "other")
        for _ in range(2):
            link(f"{folder.uri}/a", f"{folder.uri}/new/b")
            link(f"{folder.uri}/a", f"{folder.uri}/sub/c")
        folder.write("a", "second")
        assert (folder.read("new/b"), folder.read("sub/c")) == (b"first", b"first")
        assert checksum(f"{folder.uri}/new/b") == (5, "9271ee57")
        with pytest.raises(FileNotFoundError):
            link(f"{folder.uri}/missing", f"{folder.uri}/sub/c")
        assert sorted(folder.files()) == ["a", "new/b", "sub/c"]

    def test_a_table_is_deleted_log_last(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until nothing is left, who opens the table finds it whole: what was interrupted can be repeated."""
        names = ["x/part-0", "x/part-1", *(f"x/_delta_log/{version:020}.json" for version in range(3))]
        for name in names:
            folder.write(name, "")
        deleted: list[str] = []
        delete = type(folder).delete

        def noted(self: Folder, name: str) -> None:
            deleted.append(name)
            delete(self, name)

        monkeypatch.setattr(type(folder), "delete", noted)
        folder.delete_tree("x")
        assert list(folder.files()) == []
        assert not deleted or deleted == [*reversed(names[:2]), *reversed(names[2:])]


class TestLocal(Contract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> LocalFolder:
        return LocalFolder(tmp_path / "x")

    @pytest.mark.parametrize("put", [LocalFolder.write, LocalFolder.create_once])
    @pytest.mark.parametrize("step", ["_link", "_replace", "_sync"])
    def test_a_failure_leaves_no_draft(
        self, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch, put: Callable[..., object], step: str
    ) -> None:
        def broken(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        folder.write("other", "")
        monkeypatch.setattr(LocalFolder, step, broken)
        if (put is LocalFolder.write) is (step != "_link") or step == "_sync":
            with pytest.raises(OSError, match="No space left"):
                put(folder, "f", "text", durable=True)
            assert folder.names() == ["other"]

    def test_a_file_is_synced_before_it_has_its_name(self, tmp_path: Path) -> None:
        """A draft and its content, then the name, then the folder; those that were made, from the top down."""
        folder = Recording(tmp_path / "x")
        folder.write("a/f", "1", durable=True)
        assert folder.noted() == ["sync x", "sync .", "sync draft", "replace x/a/f", "sync x/a"]
        assert folder.create_once("a/g", "1", durable=True)
        assert folder.noted() == ["sync draft", "link x/a/g", "sync x/a"]
        folder.link(folder.path / "a/f", "b", durable=True)
        assert folder.noted() == ["link x/b", "sync x/b", "sync x"]
        folder.write("a/f", "2")
        assert folder.noted() == ["replace x/a/f"]

    def test_a_folder_is_made_only_where_that_is_wanted(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            LocalFolder(tmp_path / "gone", make=False).write("f", "")
        assert not (tmp_path / "gone").exists()

    def test_a_private_file_is_for_this_user_alone(self, folder: LocalFolder) -> None:
        folder.write("f", "1", private=True)
        assert stat.S_IMODE((folder.path / "f").stat().st_mode) == 0o600

    def test_without_hard_links_a_file_is_copied(self, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.write("a", "1")
        folder.write("b", "2")

        def unknown(source: Path, target: Path) -> None:
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        monkeypatch.setattr(LocalFolder, "_link", lambda self, source, target: unknown(source, target))
        folder.link(folder.path / "a", "b")
        assert (folder.read("b"), sorted(folder.names())) == (b"1", ["a", "b"])
        assert not (folder.path / "a").samefile(folder.path / "b")

    def test_a_draft_has_the_name_of_its_writer(self) -> None:
        names = (".draft-12-0ab", ".draft-0-x", "12.json", "draft-1-x")
        assert [writer_of(name) for name in names] == ["12", "0", None, None]

    def test_a_folder_is_moved_with_its_files(self, folder: LocalFolder) -> None:
        folder.write("a/f", "1")
        move(folder.path / "a", folder.path / "b")
        assert list(folder.files()) == ["b/f"]


class TestStoreOfDeltaRs(Contract):
    """A store that `deltalake` opens, here the one that needs no service."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        (tmp_path / "x").mkdir()
        return Location(f"file://{tmp_path}/x").folder


class TestStoreOfArrow(Contract):
    """A store that Arrow opens: S3, as tasks and planners reach it."""

    @pytest.fixture
    def folder(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Folder:
        bucket.use(monkeypatch)
        return folder_at(f"{bucket.uri}/some/x")

    def test_a_location_gives_its_own_options(self, bucket: Bucket) -> None:
        location = Location(f"s3a://{bucket.name}/x", bucket.options)
        location.folder.write("f", "1")
        assert (bucket.get("x/f"), location.folder.read("f")) == (b"1", b"1")


@pytest.mark.parametrize("step", range(9))
def test_deleting_a_table_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    table = tmp_path / "x"
    for number in range(3):
        write_deltalake(table, pa.table({"n": [number]}), mode="append")
    DeltaTable(table).create_checkpoint()
    place = Location(f"file://{tmp_path}").folder
    deleted: list[str] = []

    def delete(folder: StoreFolder, name: str) -> None:
        if len(deleted) == step:
            raise OSError("the store does not answer")
        deleted.append(name)
        (tmp_path / name).unlink()

    with monkeypatch.context() as broken:
        broken.setattr(StoreFolder, "delete", delete)
        if step < 8:
            with pytest.raises(OSError, match="does not answer"):
                place.delete_tree()
            assert DeltaTable(table).version() <= 2
        else:
            place.delete_tree()
    place.delete_tree()
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/a/b c", "/a/b c"), ("file:///a/b%20c", "/a/b c"), ("file:/a", "/a"), ("a/b", "a/b"), ("s3://b/c", None),
        ("hdfs://n/c", None),
    ],
)  # fmt: skip
def test_local_paths(uri: str, path: str | None) -> None:
    assert local_path(uri) == (None if path is None else Path(path))
    assert Location.of(uri, {}).local == (None if path is None else Path(path).absolute())


class _Linkless(LocalFolder):
    def _link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links")


class _WithoutCall(LocalFolder):
    """A file system in user space that does not implement links."""

    def _link(self, source: Path, target: Path) -> None:
        raise OSError(errno.ENOSYS, "not implemented")


class _Refusing(LocalFolder):
    def _replace(self, source: Path, target: Path) -> None:
        raise OSError(errno.ENOTSUP, "no renames")


class _Overwriting(LocalFolder):
    def _link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        os.link(source, target)


class _Renameless(LocalFolder):
    def _replace(self, source: Path, target: Path) -> None:
        if not target.exists():
            source.replace(target)


class _Forgetful(LocalFolder):
    def names(self, under: str = "") -> list[str]:
        return super().names(under)[:-1]


@pytest.mark.parametrize(
    ("kind", "lacking"),
    [
        (LocalFolder, None),
        (_Linkless, "hard links"),
        (_WithoutCall, "hard links"),
        (_Refusing, "renaming over a file"),
        (_Overwriting, "exclusive creation of a file"),
        (_Renameless, "renaming over a file"),
        (_Forgetful, "listing of new files"),
    ],
)
def test_what_a_file_system_lacks_is_named(kind: type[LocalFolder], lacking: str | None, tmp_path: Path) -> None:
    assert kind(tmp_path / "state").lacking() == lacking
    assert all(one.name.startswith(".") for one in (tmp_path / "state").iterdir())
    if kind is LocalFolder:
        assert not list((tmp_path / "state").iterdir())


def test_a_start_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    old, young, others = (tmp_path / f".draft-{name}" for name in ("0-old", "0-young", "7-of-an-incarnation"))
    for left in old, young, others:
        left.write_text("1")
    for left in old, others:
        os.utime(left, (1, 1))
    assert LocalFolder(tmp_path).lacking() is None
    assert sorted(tmp_path.iterdir()) == sorted([young, others])


@pytest.mark.process
@pytest.mark.parametrize(
    ("refused", "lacking"),
    [((), None), (("append",), None), (("links",), "hard links"), (("replace",), "renaming over a file")],
)
def test_a_real_file_system_that_refuses(refused: tuple[str, ...], lacking: str | None, tmp_path: Path) -> None:
    with refusing_disk(tmp_path / "volume", *refused) as volume:
        assert LocalFolder(volume / "state").lacking() == lacking
        (volume / "a").write_bytes(b"1")
        with pytest.raises(OSError, match="not supported") if "append" in refused else nullcontext():
            (volume / "a").open("ab").close()


@pytest.mark.process
def test_delta_rs_commits_by_a_hard_link_alone(tmp_path: Path) -> None:
    """So no way of this package's own lets a job run without them."""
    with refusing_disk(tmp_path / "volume", "links") as volume:
        with pytest.raises(OSError, match="not permitted"):
            write_deltalake(volume / "table", pa.table({"n": [1]}))
        assert not list((volume / "table/_delta_log").glob("*.json"))
