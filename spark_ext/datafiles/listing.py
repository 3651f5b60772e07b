"""Discovery of files: one listing of a folder, file or glob pattern, with sizes, filtered and ordered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import Literal

import pyarrow as pa
from pyarrow import fs

from spark_ext.datafiles.input_file import KEPT
from spark_ext.datafiles.local_tree import Entry, TwiceError, hidden, once, walk
from spark_ext.errors import ConfigurationError, StorageError, refused

_MAGIC = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class Listing:
    """What to list: a folder, a file or a glob pattern. A path that exists is never taken as a pattern.

    `pattern` is one of file names, without folders. By name is part by part, so that the files of a folder stay
    together.
    """

    filesystem: fs.FileSystem
    path: str
    operator: str
    recursive: bool = True
    pattern: str | None = None
    order: Literal["name", "modified"] = "name"

    @cached_property
    def root(self) -> str:
        """The folder that entry names are relative to: the listed folder, or that of the file or pattern."""
        if self._kind == fs.FileType.Directory:
            return self.path
        if self._kind == fs.FileType.File:
            return self.path.rpartition("/")[0]
        found = _MAGIC.search(self.path)
        return self.path[: found.start()].rpartition("/")[0] if found else self.path

    @cached_property
    def _kind(self) -> fs.FileType:
        return self._info(self.path).type

    def _info(self, path: str) -> fs.FileInfo:
        try:
            return self.filesystem.get_file_info(path)
        except (OSError, pa.ArrowException) as problem:
            raise self._unreachable(problem) from problem

    def _unreachable(self, problem: Exception) -> StorageError:
        return StorageError(
            f"'{self.path}' could not be listed: {problem}",
            operator=self.operator,
            kept=KEPT,
            do="check that the storage is reachable and that this user may list it; it will be retried",
        )

    def entries(self) -> list[Entry]:
        """All current files, in order. Names that begin with `_` or `.` are skipped."""
        # A local file that is reached by its own path and by a symbolic link is listed once, by its own path.
        self.check()
        if self._kind == fs.FileType.File:
            info = self._info(self.path)
            if info.type == fs.FileType.File:
                return [Entry(info.base_name, info.size, info.mtime_ns or 0)]
            raise self._absent()
        local = self.filesystem.type_name == "local"
        found = self._local() if local else [entry for entry in self._listed() if self._matches(entry.name)]
        if self.order == "name":
            return sorted(found, key=lambda entry: entry.name.split("/"))
        return sorted(found, key=lambda entry: (entry.modified, entry.name))

    def check(self) -> None:
        """Check the path, without a listing."""
        if self._kind == fs.FileType.NotFound and self._info(self.root).type != fs.FileType.Directory:
            raise self._absent()

    def _absent(self) -> ConfigurationError:
        return refused(
            f"no file or folder '{self.path}' exists",
            self.operator,
            "correct the option 'path'; executors must have access to it too",
        )

    @property
    def _deep(self) -> bool:
        return self.recursive or (self._kind != fs.FileType.Directory and "/" in self._glob)

    def _local(self) -> list[Entry]:
        try:
            return once([found for found in walk(self.root, deep=self._deep) if self._matches(found.entry.name)])
        except FileNotFoundError as problem:
            raise self._absent() from problem
        except OSError as problem:
            raise self._unreachable(problem) from problem
        except TwiceError as problem:
            raise refused(
                f"in '{self.root}' {problem}",
                self.operator,
                "remove one of them, or select files with the options 'path' and 'pattern'; a file is read once",
            ) from None

    def _listed(self) -> Iterator[Entry]:
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(self.root, recursive=self._deep))
        except FileNotFoundError as problem:
            raise self._absent() from problem
        except (OSError, pa.ArrowException) as problem:
            raise self._unreachable(problem) from problem
        skip = len(self.root.rstrip("/")) + 1
        for info in found:
            if info.type == fs.FileType.File:
                yield Entry(info.path[skip:], info.size, info.mtime_ns or 0)

    @property
    def _glob(self) -> str:
        return self.path[len(self.root.rstrip("/")) + 1 :]

    def _matches(self, name: str) -> bool:
        names, paths = self._patterns
        return (
            not hidden(name)
            and (names is None or names.match(name.rpartition("/")[2]) is not None)
            and (paths is None or paths.fullmatch(name) is not None)
        )

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        names = re.compile(translate(self.pattern)) if self.pattern else None
        tail = "(/.*)?" if self.recursive else "(/[^/]*)?"
        paths = None if self._kind == fs.FileType.Directory else re.compile(glob_regex(self._glob) + tail)
        return names, paths


def glob_regex(pattern: str) -> str:
    """A glob pattern as a regular expression: `*`, `?`, `[..]`, `{a,b}` within a name, `**` across folders."""
    out, at, braces = "", 0, 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 2
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 1
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and "]" in pattern[at + 2 :]:
            stop = pattern.index("]", at + 2)
            inside = pattern[at + 1 : stop].replace("\\", "\\\\")
            out, at = out + "[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]", stop
        elif char == "{" and "}" in pattern[at:]:
            out, braces = out + "(?:", braces + 1
        elif char == "}" and braces:
            out, braces = out + ")", braces - 1
        elif char == "," and braces:
            out += "|"
        else:
            out += re.escape(char)
        at += 1
    return out
