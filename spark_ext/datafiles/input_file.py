"""One input file: its location, its state when it was discovered, and its errors.

It must stay as it was, or a replayed epoch would read other rows: size and modification time are compared.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from spark_ext.datafiles.uri import shown, without_secrets
from spark_ext.errors import DataError, StorageError, refused
from spark_ext.storage import filesystem_of

if TYPE_CHECKING:
    from spark_ext.errors import SparkExtError

KEPT = "no row of this epoch was committed; all earlier epochs and positions are unchanged"
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}  # by suffix
_PIECE = 1 << 20  # bytes that are read of a padded gzip file at once, and unpacked of it at once
# Of a damaged footer pyarrow raises whatever follows from its names and numbers.
_FAULTS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


def resolve(path: str, operator: str) -> tuple[fs.FileSystem, str]:
    """The file system of a local path or URI, and the absolute path in it, without a trailing slash."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" not in path:
        return fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        filesystem, inner = filesystem_of(path)
    except (pa.ArrowException, OSError, ValueError) as problem:
        # Without the cause: its text has the URI, and so has the traceback that shows it.
        raise refused(
            f"no file system for the path '{shown(path)}': {without_secrets(str(problem), path)}",
            operator,
            "use a local path or a URI that pyarrow.fs supports, such as s3://bucket/folder",
        ) from None
    return filesystem, inner.rstrip("/")


@dataclass(frozen=True)
class InputFile:
    """A file as it was discovered."""

    filesystem: fs.FileSystem
    path: str  # absolute, in `filesystem`
    name: str  # relative to the source's root; for messages
    size: int
    modified: int | None  # ns since 1970 UTC; None: not compared
    uid: str
    constants: Mapping[str, str | None] = field(default_factory=dict)  # columns of one value, as text
    if_gone: str = "restore the file, or restore the job from a checkpoint before the file was discovered"
    accepted: bool = False  # read as it was when this object was made, not as discovered

    @property
    def local(self) -> bool:
        """Whether it is on a local file system."""
        return bool(self.filesystem.type_name == "local")

    @property
    def operator(self) -> str:
        """The source and the file, for errors."""
        return f"source '{self.uid}', file '{self.path}'"

    @property
    def compression(self) -> str | None:
        """The codec of a compressed text file, by its suffix."""
        return COMPRESSED.get(Path(self.path).suffix.lower())

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Read the file, and check before and after it that the file is as it was discovered."""
        self.verify()
        try:
            yield
        except DataError:
            self.verify()  # a file that is being rewritten is not damaged
            raise
        self.verify()

    def as_it_is(self) -> InputFile:
        """The file as it is now, whatever has changed since its discovery; it may not change while it is read."""
        with self.faults():
            found = self.filesystem.get_file_info(self.path)
        if found.type != fs.FileType.File:
            raise self._gone()
        return replace(self, size=found.size, modified=found.mtime_ns, accepted=True)

    def refusal(self, what: str, do: str) -> DataError:
        """An error that names this file."""
        return DataError(f"file '{self.name}': {what}", operator=self.operator, kept=KEPT, do=do)

    def verify(self) -> None:
        """Check that the file is as it was discovered."""
        with self.faults():
            found = self.filesystem.get_file_info(self.path)
        if found.type != fs.FileType.File:
            raise self._gone()
        if found.size != self.size:
            since = "when reading it began" if self.accepted else "when it was discovered"
            raise self._changed(f"it had {self.size} bytes {since} and has {found.size} now")
        if self.modified is not None and found.mtime_ns != self.modified:
            since = "while it was read" if self.accepted else "after it was discovered"
            raise self._changed(f"it was modified {since}")

    def _gone(self) -> DataError:
        return self.refusal("it no longer exists", self.if_gone)

    def _changed(self, how: str) -> DataError:
        do = (
            "start again when the file is complete"
            if self.accepted
            else "restore the file with its modification time, or load with changed_files=accept"
        )
        return self.refusal(
            f"{how}; its rows may differ from those that were planned",
            f"{do}. A writer should fill a file under a name that begins with '_' or '.', and rename it when it is "
            "complete",
        )

    def open(self) -> pa.NativeFile:
        """Open the file for random access."""
        with self.faults():
            return self.filesystem.open_input_file(self.path)

    def unpacked(self) -> pa.NativeFile:
        """Open a text file for reading from its beginning, without its compression."""
        # A gzip file may be padded with zeros, as tapes and some uploads do it; Arrow takes them for damage.
        raw = self.open()
        if self.compression == "gzip":
            raw = raw.get_stream(0, _end_of_gzip(raw, self.size))
        return pa.input_stream(raw, self.compression)

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Convert errors of Arrow and of the storage."""
        try:
            yield
        except _FAULTS as problem:
            raise self.to_error(problem) from problem

    def to_error(self, problem: Exception) -> SparkExtError:
        """An error of Arrow as one of this package's."""
        if isinstance(problem, FileNotFoundError):
            return self._gone()
        # Arrow raises an OSError without a number for invalid pages and footers; on an object store a lost connection
        # looks the same, and is retried.
        if isinstance(problem, OSError) and (problem.errno or not self.local):
            return StorageError(
                f"file '{self.name}' could not be read: {problem}",
                operator=self.operator,
                kept=KEPT,
                do="check that the storage is reachable and the file is readable for this user; it will be retried",
            )
        return self.refusal(
            f"it is damaged or does not match the declared schema: {problem}",
            "replace it with an undamaged copy and start again with the option changed_files=accept, or correct the "
            "schema",
        )


def _end_of_gzip(raw: pa.NativeFile, size: int) -> int:
    """Where the last member ends, if only zeros follow it; otherwise the size of the file, which Arrow then judges."""
    # A member ends with the length of its content: two zeros are padding, or the content is small.
    if size < 2 or any(raw.read_at(2, size - 2)):
        return size
    at = 0
    with contextlib.suppress(zlib.error):
        while at < size:
            at = _end_of_member(raw, at)
            if _is_padding(raw, at):
                return at
    return size


def _end_of_member(raw: pa.NativeFile, at: int) -> int:
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while piece := raw.read_at(_PIECE, at):
        at += len(piece)
        while piece and not member.eof:
            member.decompress(piece, _PIECE)
            piece = member.unconsumed_tail
        if member.eof:
            return at - len(member.unused_data)
    raise zlib.error("the file ends within a member")


def _is_padding(raw: pa.NativeFile, at: int) -> bool:
    while piece := raw.read_at(_PIECE, at):
        if piece.strip(b"\0"):
            return False
        at += len(piece)
    return True
