"""Files that are copied once and never changed: hard links where that is possible, else copies, by a store itself.

A hard link costs neither time nor space and keeps the content after the file's own name is deleted. It is right only
for files that nobody writes to in place, as those of Spark's checkpoints, whose writers make a new file and rename it.
"""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.datafiles.location import Location
from spark_ext.stores import filesystem_of, is_s3

if TYPE_CHECKING:
    from pyarrow import NativeFile

_NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES})
"""What a file system says that cannot link these two names: another file system, or one without hard links."""

_BLOCK: Final = 1 << 20


def put_copy(source: str, target: str) -> None:
    """Make `target` hold what `source` holds; a target that is there already is replaced.

    Args:
        source: local path or URI of a file that nobody changes any more.
        target: local path or URI; its folder is made.

    Raises:
        FileNotFoundError: there is no such source.
        OSError: one of them cannot be read or written.
    """
    there, here = Location.of(source, {}).local, Location.of(target, {}).local
    if there is None and here is None and _copied_by_store(source, target):
        return
    if there is None or here is None:
        _stream(source, target)
        return
    here.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if here.samefile(there):
            return
        here.unlink()
    try:
        os.link(there, here)
    except OSError as problem:
        if problem.errno not in _NO_LINK:
            raise
        draft = here.with_name(f".{here.name}.{os.getpid()}")
        shutil.copyfile(there, draft)
        draft.replace(here)


def checksum(file: str) -> tuple[int, str]:
    """The size of a file, bytes, and its CRC-32 as eight hexadecimal digits.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
    """
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


def _stream(source: str, target: str) -> None:
    folder, _, name = target.rstrip("/").rpartition("/")
    with _open(source) as stream, Location.of(folder, {}).create(name) as out:
        while block := stream.read(_BLOCK):
            out.write(block)


def _open(file: str) -> NativeFile:
    path = Location.of(file, {})
    if path.local is not None:
        import pyarrow as pa

        return pa.OSFile(str(path.local))
    folder, _, name = path.uri.rpartition("/")
    return Location.of(folder, {}).open(name)


def files_below(folder: Path) -> list[str]:
    """The names of all files below a local folder, relative to it, in order."""
    return sorted(str(item.relative_to(folder)) for item in folder.rglob("*") if item.is_file())
