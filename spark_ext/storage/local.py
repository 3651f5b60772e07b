"""Folders on a file system, which machines may share."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.storage.folder import DRAFT, NOBODY, Folder, is_data, writer_of

if TYPE_CHECKING:
    from pyarrow import Buffer, NativeFile

_LEFT_AFTER: Final = 86_400  # An older draft is of a process that was killed, s
_ATTEMPTS: Final = 10  # How often a folder is made again that others remove at the same time
# What a file system says that cannot link these two names: another file system, or one without hard links.
_NO_LINK: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS}
)
_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.EBADF})  # Folders are not synced apart from files


class LocalFolder(Folder):
    """See `Folder`. Files are written under another name, then renamed or linked. Without `make` it must exist."""

    def __init__(self, path: Path, *, make: bool = True) -> None:
        super().__init__(str(path))
        self.path, self._make = path, make

    def below(self, name: str) -> LocalFolder:
        """See `Folder`. It is of the same class."""
        return type(self)(self.path / name, make=self._make)

    def read(self, name: str) -> bytes:
        """See `Folder`."""
        return (self.path / name).read_bytes()

    def write(
        self, name: str, content: bytes | str, *, durable: bool = False, private: bool = False, writer: str = NOBODY
    ) -> None:
        """See `Folder`."""
        target = self.path / name
        draft = self._draft(target, content, durable=durable, private=private, writer=writer)
        try:
            self._replace(draft, target)
        except BaseException:
            _discard(draft)
            raise
        if durable:
            self._sync(target.parent)

    def create_once(self, name: str, content: bytes | str, *, durable: bool = False, writer: str = NOBODY) -> bool:
        """See `Folder`. A hard link is atomic, also on NFS."""
        target = self.path / name
        draft = self._draft(target, content, durable=durable, private=False, writer=writer)
        try:
            self._link(draft, target)
        except FileExistsError:
            return False
        finally:
            _discard(draft)  # its failure is not the one to report; the draft's owner sweeps it
        if durable:
            self._sync(target.parent)
        return True

    def link(self, source: Path, name: str, *, durable: bool = False) -> None:
        """Make a file hold what another one holds: by a hard link, or else a copy; a file of this name is replaced.

        A hard link costs neither time nor space, and keeps the content after the other name is deleted. It is right
        only for files that nobody changes, such as those of Spark's checkpoints, whose writers rename new files.
        """
        target = self.path / name
        for _ in range(_ATTEMPTS):
            try:
                self._link(source, target)
            except FileExistsError:
                with suppress(FileNotFoundError):
                    if target.samefile(source):
                        break
                    target.unlink()
            except FileNotFoundError:
                source.stat()
                target.parent.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                if problem.errno not in _NO_LINK:
                    raise
                self._copy(source, target)
                break
            else:
                break
        else:
            raise FileExistsError(f"the file {target} is made and removed again and again")
        if durable:
            self.sync(name)

    def open_input(self, name: str) -> NativeFile:
        """See `Folder`."""
        import pyarrow as pa

        return pa.OSFile(str(self.path / name), "rb")

    def open_output(self, name: str) -> NativeFile:
        """See `Folder`."""
        import pyarrow as pa

        target = self.path / name
        try:
            return pa.OSFile(str(target), "wb")
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            return pa.OSFile(str(target), "wb")

    def mapped(self, name: str) -> Buffer:
        """See `Folder`."""
        import pyarrow as pa

        path = self.path / name
        return pa.memory_map(str(path)).read_buffer() if path.stat().st_size else pa.py_buffer(b"")

    def make(self, *, durable: bool = False) -> None:
        """Make the folder, unless it exists."""
        self._made(self.path, durable)

    def grown(self, name: str) -> GrowingFile:
        """Create a file, which must not exist, to which this process appends. The file's name is durable."""
        target = self.path / name
        self._made(target.parent, True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._sync(target.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return GrowingFile(target, descriptor)

    def sync(self, name: str) -> None:
        """See `Folder`. The file, then its folder."""
        self._sync(self.path / name)
        self._sync((self.path / name).parent)

    def sync_system(self) -> None:
        """Make durable what any process of this machine has written to the folder's file system.

        For files that others have written, as Spark and delta-rs do, which sync none: whatever was there before the
        call is on the disk after it. On a drive that machines share, what another machine has written is up to the
        drive. Raises an OSError if the disk has refused anything since the last call.
        """
        self._sync_system(self.path)

    def has(self, name: str) -> bool:
        """See `Folder`."""
        return os.path.isfile(f"{self.uri}/{name}")  # noqa: PTH113 - asked 50 times a second

    def modified(self, name: str) -> float | None:
        """See `Folder`."""
        try:
            return (self.path / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def names(self, under: str = "") -> list[str]:
        """See `Folder`."""
        try:
            return os.listdir(self.path / under)  # noqa: PTH208 - no objects for each name
        except FileNotFoundError:
            return []

    def files(self, under: str = "", *, data_only: bool = False) -> Iterator[str]:
        """See `Folder`. Symbolic links to folders are not followed."""
        return _below(self.uri, f"{under.rstrip('/')}/" if under else "", data_only)

    def delete(self, name: str) -> None:
        """See `Folder`."""
        (self.path / name).unlink(missing_ok=True)

    def delete_tree(self, under: str = "") -> None:
        """See `Folder`."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path / under)

    def prune(self, under: str = "") -> None:
        """See `Folder`."""
        with suppress(OSError):
            (self.path / under).rmdir()

    def lacking(self) -> str | None:
        """What the file system lacks of what commits need; None: nothing. Leaves no drafts in the folder."""
        self.make(durable=True)
        self._sweep()
        second = f"{DRAFT}{NOBODY}-{secrets.token_hex(8)}"
        first = self._draft(self.path / second, "1", durable=False, private=False, writer=NOBODY).name
        try:
            try:
                self._link(self.path / first, self.path / second)
            except OSError as problem:
                if problem.errno in _NO_LINK:
                    return "hard links"
                raise
            if self.create_once(second, "2"):
                return "exclusive creation of a file"
            try:
                self.write(second, "3")
            except OSError as problem:
                if problem.errno in _NO_LINK:
                    return "renaming over a file"
                raise
            if self.read(first) != b"1" or self.read(second) != b"3":
                return "renaming over a file"
            return None if {first, second} <= {*self.names()} else "listing of new files"
        finally:
            for name in first, second:
                _discard(self.path / name)

    def _sweep(self) -> None:
        """Remove drafts that killed processes have left in this folder."""
        before = time.time() - _LEFT_AFTER
        for name in self.names():
            if writer_of(name) == NOBODY:
                with suppress(OSError):
                    if (self.path / name).stat().st_mtime < before:
                        (self.path / name).unlink()

    def _draft(self, target: Path, content: bytes | str, *, durable: bool, private: bool, writer: str) -> Path:
        draft = target.with_name(f"{DRAFT}{writer}-{secrets.token_hex(8)}")
        descriptor = self._opened(draft, 0o600 if private else 0o666, durable)
        try:
            with open(descriptor, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                self._sync(draft)
        except BaseException:
            _discard(draft)
            raise
        return draft

    def _opened(self, draft: Path, mode: int, durable: bool) -> int:
        for _ in range(_ATTEMPTS):
            try:
                return os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except FileNotFoundError:
                # Others may remove it in between: a driver that has moved what an earlier attempt had left in it.
                if not self._make:
                    raise
                self._made(draft.parent, durable)
        raise FileNotFoundError(f"the folder {draft.parent} is removed again and again")

    def _made(self, folder: Path, durable: bool) -> None:
        missing = list(takewhile(lambda one: not one.exists(), (folder, *folder.parents)))
        folder.mkdir(parents=True, exist_ok=True)
        for one in missing if durable else ():
            self._sync(one.parent)

    # Each step that a power failure can separate from the next: a test records them.

    def _sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as problem:
            if problem.errno not in _NO_FOLDER_SYNC or not path.is_dir():
                raise
        finally:
            os.close(descriptor)

    def _sync_system(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if _libc().syncfs(descriptor) != 0:
                problem = ctypes.get_errno()
                raise OSError(problem, os.strerror(problem), str(path))
        finally:
            os.close(descriptor)

    def _link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def _replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def _copy(self, source: Path, target: Path) -> None:
        draft = target.with_name(f"{DRAFT}{NOBODY}-{secrets.token_hex(8)}")
        try:
            shutil.copyfile(source, draft)
            self._replace(draft, target)
        except BaseException:
            _discard(draft)
            raise


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class GrowingFile:
    """A file to which one process appends, and whose content is durable up to the last append that succeeded.

    After a failed write or sync nothing more is appended: the operating system may have dropped what it could not
    write, and says so once. What was appended before the failure stays durable.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.size, self.failed = path, 0, False
        self._descriptor = descriptor

    def append(self, content: bytes, *, sync: bool = True) -> None:
        """Append content whole, and make it durable, or leave it to the operating system when that happens."""
        if self.failed or self._descriptor < 0:
            raise OSError(errno.EIO, "an earlier write to this file has failed", str(self.path))
        try:
            left = memoryview(content)
            while left:
                left = left[self._write(left) :]
            if sync:
                self._sync()
        except BaseException:
            self.failed = True
            raise
        self.size += len(content)

    def close(self) -> None:
        """Close the file; what was appended stays as durable as it is."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, content: memoryview) -> int:
        return os.write(self._descriptor, content)

    def _sync(self) -> None:
        os.fdatasync(self._descriptor)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder within a file system; a file or an empty folder in its place is replaced."""
    source.replace(target)


def _discard(draft: Path) -> None:
    with suppress(OSError):
        draft.unlink(missing_ok=True)


def _below(root: str, prefix: str, data_only: bool) -> Iterator[str]:
    try:
        found = os.scandir(f"{root}/{prefix}")
    except FileNotFoundError:
        return
    with found:
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                yield prefix + entry.name
            elif not data_only or is_data(entry.name):
                yield from _below(root, f"{prefix}{entry.name}/", data_only)
