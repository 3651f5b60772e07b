"""Where something is: a local path or a URI, and the folder behind it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from spark_ext.errors import refused
from spark_ext.storage.folder import Folder
from spark_ext.storage.local import LocalFolder
from spark_ext.storage.options import is_s3
from spark_ext.storage.store import StoreFolder, filesystem_of

if TYPE_CHECKING:
    from pyarrow import NativeFile, fs


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

# What delta-rs takes for something else in a local path: it decodes `%20`, and `\` becomes `/`.
_NOT_FOR_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]|^\x00-\x1f\x7f]")


def local_path(uri: str) -> Path | None:
    """The local path behind a plain path or a `file:` URI; None for any other scheme."""
    if uri[:5].lower() == "file:":
        return Path(unquote(urlsplit(uri).path))
    return None if _SCHEME.match(uri) else Path(uri)


def child(uri: str, *names: str) -> str:
    """A path or URI below another."""
    return "/".join((uri.rstrip("/"), *names))


def sync_systems(places: Iterable[str]) -> None:
    """Make durable what is on the file systems of these places; what is in an object store is durable already."""
    synced: set[int] = set()
    for place in sorted(places):
        local = local_path(place)
        if local is None or not local.exists():
            continue  # a table that no epoch has made yet
        device = local.stat().st_dev
        if device not in synced:
            synced.add(device)
            LocalFolder(local).sync_system()


def folder_at(uri: str, *, make: bool = True) -> Folder:
    """The folder at a path or URI, opened by Arrow, whose file systems can be used after a fork.

    Without `make` it must exist. Its first use raises a ValueError where Arrow has no file system for it.
    """
    local = local_path(uri)
    return StoreFolder(uri, lambda: filesystem_of(uri)) if local is None else LocalFolder(local, make=make)


@dataclass(frozen=True)
class Location:
    """The root of a table, or another folder that delta-rs can open."""

    uri: str  # An absolute local path, or a URI
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, path: str, storage_options: Mapping[str, str]) -> Location:
        """The location for a path or URI that a user wrote.

        A relative path is made absolute at once, because executors may have another working directory.
        """
        local = local_path(path)
        return cls(path.rstrip("/") if local is None else str(local.expanduser().absolute()), storage_options)

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
    def folder(self) -> Folder:
        """The folder, with the options of the table: in S3 by Arrow, in other stores by those of `deltalake`."""
        if self.local is not None:
            return LocalFolder(self.local)
        return StoreFolder(self.uri, self._opened)

    def _opened(self) -> tuple[fs.FileSystem, str]:
        if is_s3(self.uri):
            # Other threads run while it waits, unlike while a store of `deltalake` does, and it can be used after a
            # fork.
            return filesystem_of(self.uri, self.storage_options)
        import pyarrow as pa
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        class Handler(DeltaStorageHandler):
            def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
                return pa.PythonFile(_AsBytes(self._handler.open_output_stream(path, metadata)), "w")

        return pyarrow.fs.PyFileSystem(Handler(self.uri, self.options)), ""

    def __getstate__(self) -> tuple[str, dict[str, str]]:
        """Executors get the location without the opened store."""
        return self.uri, dict(self.storage_options)

    def __setstate__(self, state: tuple[str, dict[str, str]]) -> None:
        object.__setattr__(self, "uri", state[0])
        object.__setattr__(self, "storage_options", state[1])


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


def check_for_delta(location: Location, who: str) -> None:
    """Refuse a local path at which delta-rs would look for a table in another folder, or end in an error of its own."""
    found = _NOT_FOR_DELTA.search(location.uri) if location.local is not None else None
    if found is not None:
        raise refused(
            f"the path {location.uri!r} contains {found[0]!r}, which the library for Delta tables takes for something "
            "else",
            who,
            "choose a path without \\ [ ] | ^, control characters, and % before two hexadecimal digits",
        )


_BLOCK: Final = 1 << 20


def link(source: str, target: str, *, durable: bool = False) -> None:
    """Make `target` hold what `source`, which nobody changes any more, holds; see `LocalFolder.link`."""
    there, here = local_path(source), local_path(target)
    if there is not None and here is not None:
        LocalFolder(here.parent).link(there, here.name, durable=durable)
    elif there is not None or here is not None or not _copied_by_store(source, target):
        folder, _, name = target.rstrip("/").rpartition("/")
        with _open(source) as stream, Location.of(folder, {}).folder.open_output(name) as out:
            while block := stream.read(_BLOCK):
                out.write(block)
        if durable and here is not None:
            LocalFolder(here.parent).sync(here.name)


def checksum(file: str) -> tuple[int, str]:
    """The size of a file, bytes, and its CRC-32 as eight hexadecimal digits."""
    size = crc = 0
    with _open(file) as stream:
        while block := stream.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, f"{crc:08x}"


def _copied_by_store(source: str, target: str) -> bool:
    """Let a store with the interface of S3 copy an object itself; False if it is another store, or cannot."""
    if not (is_s3(source) and is_s3(target)):
        return False
    system, there = filesystem_of(source)
    try:
        system.copy_file(there, filesystem_of(target)[1])
    except FileNotFoundError:
        raise
    except OSError:
        # Larger than the 5 GB of one request, or between stores of other owners.
        return False
    return True


def _open(file: str) -> NativeFile:
    folder, _, name = file.rpartition("/")
    return Location.of(folder, {}).folder.open_input(name)
