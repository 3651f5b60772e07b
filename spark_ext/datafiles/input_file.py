"""One input file: where it is, what it was when it was discovered, and how its faults are told.

A file that a channel stands for must stay as it was discovered, or a replayed epoch would read other rows.
Size and time of modification are therefore kept with the channel and compared before each read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from spark_ext.errors import ConfigurationError, DataError, StorageError

if TYPE_CHECKING:
    from spark_ext.errors import SparkExtError

KEPT = "no row of this epoch was committed; what earlier epochs committed stays, and so do the positions"
"""What an error while planning or reading an epoch leaves behind."""

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Endings of text files that are read through a decompressor."""


def resolve(path: str, operator: str) -> tuple[fs.FileSystem, str]:
    """The file system of a local path or URI, and the absolute path in it, without a slash at its end.

    Raises:
        ConfigurationError: no file system is known for the URI.
    """
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" not in path:
        return fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        filesystem, inner = fs.FileSystem.from_uri(path)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise ConfigurationError(
            f"no file system for the path '{path}': {problem}",
            operator=operator,
            kept="nothing was read",
            do="give a local path or a URI that pyarrow.fs knows, such as s3://bucket/folder",
        ) from problem
    return filesystem, inner.rstrip("/")


@dataclass(frozen=True)
class InputFile:
    """A file as it was discovered."""

    filesystem: fs.FileSystem
    path: str
    """Absolute, in `filesystem`."""
    name: str
    """Relative to the source's root; for messages."""
    size: int
    """Bytes."""
    modified: int | None
    """Nanoseconds since 1970 UTC; None: not compared."""
    uid: str
    """Of the source."""
    constants: Mapping[str, str | None] = field(default_factory=dict)
    """Columns that the file does not hold: one value, as text, for all its rows."""
    if_gone: str = "put it back as it was, or restore the job from a checkpoint before the file was discovered"
    """What to do when it is no longer there."""

    @property
    def local(self) -> bool:
        """Whether it is on a local file system."""
        return bool(self.filesystem.type_name == "local")

    @property
    def compression(self) -> str | None:
        """The codec of a compressed text file, by its ending."""
        return COMPRESSED.get(Path(self.path).suffix.lower())

    def as_it_is(self) -> InputFile:
        """The file as it is now, whatever it was when it was discovered."""
        with self.faults():
            found = self.filesystem.get_file_info(self.path)
        return replace(self, size=found.size or 0, modified=None)

    def refusal(self, what: str, do: str) -> DataError:
        """An error that names this file."""
        return DataError(
            f"file '{self.name}': {what}",
            operator=f"source '{self.uid}', file '{self.path}'",
            kept=KEPT,
            do=do,
        )

    def verify(self) -> None:
        """Check that the file is what was discovered.

        Raises:
            DataError: it has gone, or its size or time of modification is another.
            StorageError: it could not be looked at.
        """
        with self.faults():
            found = self.filesystem.get_file_info(self.path)
        if found.type != fs.FileType.File:
            raise self.refusal(
                "it was there when it was discovered and has gone",
                self.if_gone,
            )
        if found.size != self.size:
            raise self._changed(f"it had {self.size} bytes when it was discovered and has {found.size} now")
        if self.modified is not None and found.mtime_ns != self.modified:
            raise self._changed("it was written to after it was discovered")

    def _changed(self, how: str) -> DataError:
        return self.refusal(
            f"{how}; its rows may be others than those that were planned",
            "put the file back as it was, with its time of modification, or load with changed_files=accept. A "
            "writer should fill a file under a name that begins with '_' or '.', and rename it when it is complete",
        )

    def open(self) -> pa.NativeFile:
        """The file's bytes, to be read at any place."""
        with self.faults():
            return self.filesystem.open_input_file(self.path)

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Tell what goes wrong inside as ours.

        Raises:
            DataError: the content is not what it should be; repeating gives the same.
            StorageError: the storage failed; it may recover.
        """
        try:
            yield
        except (pa.ArrowException, OSError) as problem:
            raise self.tell(problem) from problem

    def tell(self, problem: Exception) -> SparkExtError:
        """What Arrow says, as our error."""
        if isinstance(problem, FileNotFoundError):
            return self.refusal(
                "it was there when it was discovered and has gone",
                self.if_gone,
            )
        # Arrow raises an OSError without a number for pages and footers that make no sense; on an object store
        # a lost connection looks the same, and is tried again.
        if isinstance(problem, OSError) and (problem.errno or not self.local):
            return StorageError(
                f"file '{self.name}' could not be read: {problem}",
                operator=f"source '{self.uid}', file '{self.path}'",
                kept=KEPT,
                do="check that the storage is reachable and the file readable for this user; it is tried again",
            )
        return self.refusal(
            f"it is damaged or does not hold what is declared: {problem}",
            "put an undamaged copy in its place and start again with the option changed_files=accept, or correct "
            "the schema",
        )
