"""Files that are copied once and never changed: hard links where that is possible, else copies, by a store itself."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from spark_ext.storage.filesystem import filesystem_of
from spark_ext.storage.local import LocalFolder
from spark_ext.storage.location import Location, local_path
from spark_ext.storage.options import is_s3

if TYPE_CHECKING:
    from pyarrow import NativeFile

_BLOCK: Final = 1 << 20


def link(source: str, target: str, *, durable: bool = False) -> None:
    """Make `target` hold what `source` holds; a target that exists is replaced. See `LocalFolder.link`.

    Args:
        source: local path or URI of a file that nobody changes any more.
        target: local path or URI; its folder is made.
        durable: survive a power failure, as in `Folder.write`.

    Raises:
        FileNotFoundError: the source does not exist.
        OSError: one of them cannot be read or written.
    """
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
