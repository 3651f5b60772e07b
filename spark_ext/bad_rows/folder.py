"""A folder of small files that are written whole or not at all, on a file system or an object store.

Tasks use it too: it needs pyarrow alone, as delta-rs fails in a process that was forked from one that has used it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.fs as pafs

from spark_ext.spark.logs.spark_log import local_path
from spark_ext.stores import filesystem_of

_DRAFT = ".draft-"


class Folder:
    """A folder, which need not exist.

    Args:
        uri: local path, `file:` URI, or any URI that pyarrow can open.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._local = local_path(uri)
        if self._local is None:
            self._remote, self._root = filesystem_of(uri)

    @property
    def empty(self) -> bool | None:
        """Whether it holds nothing: one lookup. None on an object store, where that would take a request.

        Raises:
            OSError: it cannot be read.
        """
        if self._local is None:
            return None
        try:
            with os.scandir(self._local) as found:
                return next(found, None) is None
        except FileNotFoundError:
            return True

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole, in the place of one with this name.

        Raises:
            OSError: it cannot be written.
        """
        if self._local is None:
            with self._remote.open_output_stream(f"{self._root}/{name}") as stream:
                stream.write(content)
            return
        target = self._local / name
        draft = target.with_name(f"{_DRAFT}{secrets.token_hex(8)}")
        try:
            _fill(draft, content)
            draft.replace(target)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes:
        """A file's content.

        Raises:
            OSError: it cannot be read.
        """
        if self._local is not None:
            return (self._local / name).read_bytes()
        with self._remote.open_input_stream(f"{self._root}/{name}") as stream:
            return bytes(stream.read())

    def names(self) -> list[str]:
        """The names of all files, relative to the folder, sorted.

        Raises:
            OSError: it cannot be listed.
        """
        if self._local is not None:
            return sorted(_below(self._local, ""))
        selector = pafs.FileSelector(self._root, recursive=True, allow_not_found=True)
        found = self._remote.get_file_info(selector)
        prefix = len(self._root.rstrip("/")) + 1
        return sorted(info.path[prefix:] for info in found if info.type == pafs.FileType.File)

    def top(self) -> list[str]:
        """The names of what is directly in the folder.

        Raises:
            OSError: it cannot be listed.
        """
        if self._local is not None:
            try:
                return sorted(item.name for item in self._local.iterdir())
            except FileNotFoundError:
                return []
        found = self._remote.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is ignored.

        Raises:
            OSError: it cannot be removed.
        """
        with suppress(FileNotFoundError):
            if self._local is not None:
                (self._local / name).unlink()
            else:
                self._remote.delete_file(f"{self._root}/{name}")

    def prune(self, name: str = "") -> None:
        """Remove a folder in this one, or this one itself, if it is empty; what cannot be removed stays.

        Args:
            name: of the folder; "" for this one. An object store has no empty folders.
        """
        if self._local is not None:
            with suppress(OSError):
                (self._local / name).rmdir()

    def delete(self, name: str) -> None:
        """Remove a folder in this one with all that it holds; one that is not there is ignored.

        Raises:
            OSError: it cannot be removed.
        """
        if self._local is not None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._local / name)
            return
        with suppress(FileNotFoundError):
            self._remote.delete_dir(f"{self._root}/{name}")


def _fill(draft: Path, content: bytes) -> None:
    # The folder may be removed in between: by a driver that has moved what an earlier attempt had left in it.
    for _ in range(10):
        draft.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            return
    raise FileNotFoundError(f"the folder {draft.parent} is removed again and again")


def _below(root: Path, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(root / prefix))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(root, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name
