"""A file that grows: what is durable, and what becomes of it after a failure."""

import errno
import os
import resource
from pathlib import Path

import pytest

from spark_ext.storage import GrowingFile, LocalFolder
from tests.support.recording import Recording


@pytest.fixture
def file(tmp_path: Path) -> GrowingFile:
    return LocalFolder(tmp_path).grown("a/f")


def test_its_name_is_durable_before_anything_is_in_it(tmp_path: Path) -> None:
    folder = Recording(tmp_path / "x")
    folder.grown("a/f").close()
    assert folder.noted() == ["sync x", "sync .", "sync x/a"]
    with pytest.raises(FileExistsError):
        folder.grown("a/f")


def test_what_is_appended_is_synced_unless_that_is_not_asked_for(
    file: GrowingFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    sync = os.fdatasync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.append(file.path.read_bytes())

    monkeypatch.setattr(os, "fdatasync", noted)
    file.append(b"one")
    file.append(b"two", sync=False)
    file.append(b"three")
    assert synced == [b"one", b"onetwothree"] and file.size == 11
    file.close()
    file.close()
    with pytest.raises(OSError, match="an earlier write"):
        file.append(b"four")


def test_after_a_failed_sync_nothing_more_is_appended(file: GrowingFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.append(b"one")
    # The next sync would succeed: the operating system has said what it had to say.
    with pytest.raises(OSError, match="an earlier write to this file has failed"):
        file.append(b"two")
    assert (file.path.read_bytes(), file.size) == (b"one", 0)


def test_a_write_that_has_no_room_fails_for_good(file: GrowingFile) -> None:
    """A limit on the size of files does what a full disk does: a part is written, and the rest fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file.append(b"x" * 900)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            file.append(b"y" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(OSError, match="an earlier write"):
        file.append(b"z")
    assert file.path.read_bytes() == b"x" * 900 + b"y" * 100 and file.size == 900
