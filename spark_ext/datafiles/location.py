"""The location of a table: file operations that delta-rs does not offer, on a local path or an object store.

Local paths go straight to the operating system, S3 through Arrow, everything else through the stores of `deltalake`,
with the same options as the table itself.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from spark_ext.errors import refused
from spark_ext.stores import filesystem_of, is_s3

if TYPE_CHECKING:
    from pyarrow import NativeFile

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


_NOT_FOR_DELTA = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]|^\x00-\x1f\x7f]")
"""What delta-rs takes for something else in a local path: it decodes `%20`, and `\\` becomes `/`."""


def check_for_delta(location: Location, who: str) -> None:
    """Refuse a local path at which delta-rs would look for a table in another folder, or end in an error of its own.

    Raises:
        ConfigurationError: names what the path may not contain.
    """
    found = _NOT_FOR_DELTA.search(location.uri) if location.local is not None else None
    if found is not None:
        raise refused(
            f"the path {location.uri!r} contains {found[0]!r}, which the library for Delta tables takes for something "
            "else",
            who,
            "choose a path without \\ [ ] | ^, control characters, and % before two hexadecimal digits",
        )


@dataclass(frozen=True)
class Location:
    """The root of a table."""

    uri: str
    """An absolute local path, or a URI."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, path: str, storage_options: Mapping[str, str]) -> Location:
        """The location for a path or URI that a user wrote.

        A relative path is made absolute at once, because executors may have another working directory.
        """
        if path.lower().startswith("file:"):
            path = unquote(urlsplit(path).path)
        if _SCHEME.match(path):
            return cls(path.rstrip("/"), storage_options)
        return cls(str(Path(path).expanduser().absolute()), storage_options)

    @property
    def local(self) -> Path | None:
        """The folder, when it is a local one."""
        return None if _SCHEME.match(self.uri) else Path(self.uri)

    @property
    def escape(self) -> str:
        """The escape character in folder names. Stores differ in how they treat `%` in a key."""
        return "%" if self.local else "_"

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options in the form that `deltalake` takes."""
        return dict(self.storage_options) or None

    @cached_property
    def _remote(self) -> Any:
        import pyarrow as pa
        import pyarrow.fs

        if is_s3(self.uri):
            # Other threads run while it waits, unlike while a store of `deltalake` does, and it can be used after a
            # fork.
            system, place = filesystem_of(self.uri, self.storage_options)
            return pyarrow.fs.SubTreeFileSystem(place, system)
        from deltalake.fs import DeltaStorageHandler

        class Handler(DeltaStorageHandler):
            def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
                return pa.PythonFile(_AsBytes(self._handler.open_output_stream(path, metadata)), "w")

        return pyarrow.fs.PyFileSystem(Handler(self.uri, self.options))

    def __getstate__(self) -> tuple[str, dict[str, str]]:
        """Executors get the location without the opened store."""
        return self.uri, dict(self.storage_options)

    def __setstate__(self, state: tuple[str, dict[str, str]]) -> None:
        object.__setattr__(self, "uri", state[0])
        object.__setattr__(self, "storage_options", state[1])

    def create(self, name: str) -> NativeFile:
        """Open a new file for writing, and make its folder.

        Raises:
            OSError: it cannot be written.
        """
        if self.local is None:
            return self._remote.open_output_stream(name)
        import pyarrow as pa

        target = self.local / name
        try:
            return pa.OSFile(str(target), "wb")
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            return pa.OSFile(str(target), "wb")

    def open(self, name: str) -> NativeFile:
        """Open a file for random reads.

        Raises:
            OSError: it cannot be read.
        """
        if self.local is None:
            return self._remote.open_input_file(name)
        import pyarrow as pa

        return pa.OSFile(str(self.local / name), "rb")

    def delete(self, name: str) -> None:
        """Remove a file; a missing one is ignored.

        Raises:
            OSError: it cannot be removed.
        """
        if self.local is not None:
            (self.local / name).unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            self._remote.delete_file(name)

    def make(self) -> None:
        """Make the folder, where there are folders.

        Raises:
            OSError: it cannot be made.
        """
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)

    def delete_all(self) -> None:
        """Remove the root and everything below it, logs of tables included.

        On an object store a table's log goes last, the newest file of it first: until nothing is left there is a table
        that can be opened, so what was interrupted can be repeated by one who opens it.

        Raises:
            OSError: something cannot be removed; what comes after it is left.
        """
        if self.local is not None:
            shutil.rmtree(self.local)
            return
        names = sorted(self._all(), reverse=True)
        for name in sorted(names, key=lambda name: "/_delta_log/" in f"/{name}"):
            self.delete(name)

    def files(self) -> Iterator[str]:
        """The names of all files below the root, relative to it, without the log's.

        Raises:
            OSError: the location cannot be listed.
        """
        if self.local is not None:
            yield from _below(self.local, "")
            return
        yield from (name for name in self._all() if not name.startswith("_delta_log/"))

    def _all(self) -> Iterator[str]:
        """As `files`, on an object store, with the log's."""
        import pyarrow.fs

        for found in self._remote.get_file_info(pyarrow.fs.FileSelector("", recursive=True, allow_not_found=True)):
            if found.type == pyarrow.fs.FileType.File:
                yield found.path.lstrip("/")

    def read(self, name: str) -> bytes | None:
        """A small file's content; None when there is none, or it cannot be read."""
        try:
            if self.local is not None:
                return (self.local / name).read_bytes()
            with self._remote.open_input_stream(name) as stream:
                content: bytes = stream.read()
                return content
        except OSError:
            return None


class _AsBytes:
    """A stream of `deltalake`'s, which takes nothing but bytes; pyarrow also hands it buffers of its own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        """Write something that has the form of a buffer."""
        content = bytes(data)
        self._stream.write(content)
        return len(content)


def _below(root: Path, prefix: str) -> Iterator[str]:
    import os

    try:
        entries = os.scandir(root / prefix)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                # Folders of the log, and those that other writers hide in the same way, hold no data files.
                if not entry.name.startswith("_") or "=" in entry.name:
                    yield from _below(root, name + "/")
            else:
                yield name
