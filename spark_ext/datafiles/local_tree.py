"""The files below a local folder, and which of their names are those of one file, because of symbolic links.

Links are followed: a folder of links to files elsewhere is common. A folder is walked once, by its own path if that is
below the root, else by the first link to it; so a walk ends, and a link to a folder above does not repeat the tree.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_ext.datafiles.entry import Entry, hidden


class Found(NamedTuple):
    """A file by one of its names."""

    entry: Entry
    real: str
    """The file's path without symbolic links."""
    linked: bool
    """Whether the name goes through a link below the root."""


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
    """The root without symbolic links."""
    known: dict[tuple[int, int], str] = field(default_factory=dict)
    """The folders that were walked: their device and number, and their name."""
    again: list[tuple[str, str]] = field(default_factory=list)
    """Links to folders that were walked by another name, and that name."""
    links: deque[str] = field(default_factory=deque)
    """Links to folders. They are followed last, so that folders below the root are walked by their own paths."""

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
    """The files below a folder by all names that they have there, without those that are hidden.

    Args:
        deep: whether the folders in it are walked.
    """
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
