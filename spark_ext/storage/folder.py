"""What a folder of files can do, on a file system and in an object store alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyarrow import Buffer, NativeFile

DRAFT: Final = ".draft-"  # How the names of unfinished files begin; the writer's name follows, up to the next hyphen
NOBODY: Final = "0"  # The writer of drafts that a start removes from the state directory after a day


def writer_of(name: str) -> str | None:
    """The writer of a draft; None for a file that is not one."""
    return name.removeprefix(DRAFT).split("-")[0] if name.startswith(DRAFT) else None


class Folder(ABC):
    """A folder at a path or URI, which need not exist. Names are relative to it, with slashes between their parts.

    Every operation raises an OSError if the storage fails.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @abstractmethod
    def below(self, name: str) -> Folder:
        """A folder in this one."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A file's content."""

    def find(self, name: str) -> bytes | None:
        """A file's content; None if it does not exist."""
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    @abstractmethod
    def write(
        self, name: str, content: bytes | str, *, durable: bool = False, private: bool = False, writer: str = NOBODY
    ) -> None:
        """Write a file whole, in the place of one with this name: readers find the one or the other."""

    @abstractmethod
    def create_once(self, name: str, content: bytes | str, *, durable: bool = False, writer: str = NOBODY) -> bool:
        """Create a file whole, unless it exists, however many try: a compare-and-swap. Returns whether this call did.

        After a lost answer of an object store the file may exist by this call, though it returns False.
        """

    @abstractmethod
    def open_input(self, name: str) -> NativeFile:
        """Open a file for random reads."""

    @abstractmethod
    def open_output(self, name: str) -> NativeFile:
        """Open a new file for writing, and make its folder. A crash may leave a part of it on a file system."""

    @abstractmethod
    def mapped(self, name: str) -> Buffer:
        """A file's content as it is now, for random reads of a large one: not in memory but where the system has it."""

    @abstractmethod
    def sync(self, name: str) -> None:
        """Make a file durable that something else has written and closed."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is such a file: a single lookup."""

    @abstractmethod
    def modified(self, name: str) -> float | None:
        """When a file was written, s since 1970; None if it does not exist."""

    @abstractmethod
    def names(self, under: str = "") -> list[str]:
        """The names of what is directly in the folder, or in one below it, in no order; none if it does not exist."""

    @abstractmethod
    def files(self, under: str = "", *, data_only: bool = False) -> Iterator[str]:
        """The names of all files below the folder, or below one in it, in no order, all relative to this folder."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; one that does not exist is ignored."""

    @abstractmethod
    def delete_tree(self, under: str = "") -> None:
        """Remove a folder in this one, or this one itself, with everything below it; a missing one is ignored.

        On an object store the log of a Delta table goes last, its newest file first: until nothing is left, the table
        can be opened, so the next process that opens it can repeat what was interrupted.
        """

    @abstractmethod
    def prune(self, under: str = "") -> None:
        """Remove a folder in this one, or this one itself, if it is empty; failures are ignored."""


def is_data(folder: str) -> bool:
    """Whether readers of tables look into a folder of this name: not into logs, but into values of partitions."""
    return not folder.startswith("_") or "=" in folder
