"""The files below a local folder, and which of their names are those of one file, because of symbolic links.

Links are followed, and a folder is walked once, by its own path if that is below the root, else by the first link.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that a listing found."""

    name: str  # relative to the listing's root
    size: int
    modified: int  # ns since 1970 UTC; 0: unknown

    @property
    def folder(self) -> str:
        """The file's folder, relative to the root; `.` for the root itself."""
        return self.name.rpartition("/")[0] or "."


def hidden(name: str) -> bool:
    """Whether Spark ignores a file: a part of its path begins with `.` or `_`, unless it is `_key=value`."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in name.split("/"))


class Found(NamedTuple):
    """A file by one of its names."""

    entry: Entry
    real: str  # path without symbolic links
    linked: bool  # through a link below the root


class TwiceError(Exception):
    """Two links lead to one file, whose own path is not among those that were found."""


def once(found: Sequence[Found]) -> list[Entry]:
    """The files, each by one name: its own path, else the only link to it."""
    own = {one.real for one in found if not one.linked}
    chosen = [one for one in found if not one.linked or one.real not in own]
    by_link: dict[str, str] = {}
    for one in chosen:
        if one.linked and (other := by_link.setdefault(one.real, one.entry.name)) != one.entry.name:
            raise TwiceError(f"'{other}' and '{one.entry.name}' are symbolic links to the same file '{one.real}'")
    return [one.entry for one in chosen]


@dataclass
class _Walk:
    root: str
    deep: bool
    real: str
    known: dict[tuple[int, int], str] = field(default_factory=dict)  # walked folders by device and number
    again: list[tuple[str, str]] = field(default_factory=list)  # links to walked folders, their names
    links: deque[str] = field(default_factory=deque)  # followed last: a folder is walked by its own path

    def files(self) -> Iterator[Found]:
        self.known[_identity(self.root)] = ""
        seen = []
        for one in self._below("", self.real, linked=False):
            seen.append(one)
            yield one
        while self.links:
            name = self.links.popleft()
            if self._is_new(name):
                for one in self._below(name, os.path.realpath(f"{self.root}/{name}"), linked=True):
                    seen.append(one)
                    yield one
        for name, walked in self.again:
            begin = f"{walked}/" if walked else ""
            for entry, real, _ in seen:
                if entry.name.startswith(begin):
                    yield Found(Entry(f"{name}/{entry.name[len(begin) :]}", entry.size, entry.modified), real, True)

    def _is_new(self, name: str) -> bool:
        try:
            walked = self.known.setdefault(_identity(f"{self.root}/{name}"), name)
        except FileNotFoundError:
            return False
        if walked != name:
            self.again.append((name, walked))
        return walked == name

    def _below(self, first: str, real: str, *, linked: bool) -> Iterator[Found]:
        waiting = [(first, real)]
        while waiting:
            folder, real = waiting.pop()
            for entry in _entries(f"{self.root}/{folder}" if folder else self.root, must=not folder):
                name = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if entry.is_dir():
                        if self.deep and entry.is_symlink():
                            self.links.append(name)
                        elif self.deep and self._is_new(name):
                            waiting.append((name, f"{real}/{entry.name}"))
                    elif entry.is_file():
                        info, link = entry.stat(), entry.is_symlink()
                        path = os.path.realpath(entry.path) if link else f"{real}/{entry.name}"
                        yield Found(Entry(name, info.st_size, info.st_mtime_ns), path, linked or link)
                except FileNotFoundError:
                    continue  # removed since the folder was listed


def walk(root: str, *, deep: bool) -> Iterator[Found]:
    """The files below a folder by all names that they have there, without those that are hidden."""
    return _Walk(root, deep, os.path.realpath(root).rstrip("/")).files()


def _entries(folder: str, *, must: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if not hidden(entry.name)), key=lambda entry: entry.name)
    except FileNotFoundError:
        if must:
            raise
        return []


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 - as fast as a listing of 100,000 files has to be
    return found.st_dev, found.st_ino
