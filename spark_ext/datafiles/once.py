"""A folder of small files that are created whole and only once: on a shared file system, or in an object store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from spark_ext.datafiles.exclusive import put_if_absent
from spark_ext.datafiles.location import Location
from spark_ext.stores.objects import Objects


class OnceFolder(Protocol):
    """The folder; made with its first file."""

    @property
    def place(self) -> str:
        """Its path or URI, for messages."""

    def names(self) -> list[str]:
        """Of its files; none when there is no folder.

        Raises:
            OSError: it cannot be listed.
        """

    def read(self, name: str) -> str:
        """A file's content.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """

    def put(self, name: str, text: str, writer: str) -> bool:
        """Create a file with its whole content, unless it exists.

        Args:
            name: of the file.
            text: its content.
            writer: part of the name of a draft, where there are drafts.

        Returns:
            Whether this call is known to have created it.

        Raises:
            OSError: it cannot be written.
        """

    def has(self, name: str) -> bool:
        """Whether there is such a file.

        Raises:
            OSError: the storage does not answer.
        """

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is ignored.

        Raises:
            OSError: it cannot be removed.
        """


class LocalOnceFolder:
    """On a path that all machines share.

    Args:
        path: absolute.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        """See `OnceFolder`."""
        return str(self._path)

    def names(self) -> list[str]:
        """See `OnceFolder`."""
        try:
            with os.scandir(self._path) as found:
                return [item.name for item in found]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> str:
        """See `OnceFolder`."""
        return (self._path / name).read_text(encoding="utf-8")

    def put(self, name: str, text: str, writer: str) -> bool:
        """See `OnceFolder`."""
        return put_if_absent(self._path / name, text, writer)

    def has(self, name: str) -> bool:
        """See `OnceFolder`."""
        return (self._path / name).exists()

    def delete(self, name: str) -> None:
        """See `OnceFolder`."""
        (self._path / name).unlink(missing_ok=True)


class StoreOnceFolder:
    """In an object store, by conditional writes.

    Args:
        uri: of the folder.
    """

    def __init__(self, uri: str) -> None:
        self._objects = Objects(uri, uri)
        self._uri = uri

    @property
    def place(self) -> str:
        """See `OnceFolder`."""
        return self._uri

    def names(self) -> list[str]:
        """See `OnceFolder`."""
        return self._objects.names()

    def read(self, name: str) -> str:
        """See `OnceFolder`."""
        return self._objects.read(name)

    def put(self, name: str, text: str, writer: str) -> bool:
        """See `OnceFolder`."""
        return self._objects.put(name, text)

    def has(self, name: str) -> bool:
        """See `OnceFolder`."""
        return self._objects.has(name)

    def delete(self, name: str) -> None:
        """See `OnceFolder`."""
        self._objects.delete(name)


def once_folder(location: Location) -> OnceFolder:
    """The folder at a location.

    Raises:
        EnvironmentProblem: the library for object stores is not installed.
    """
    return StoreOnceFolder(location.uri) if location.local is None else LocalOnceFolder(location.local)
