"""The folder `dumps` of a state directory: a folder per incident, limited in number and size."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import refused
from spark_ext.model.dumps import KeptDump, excess
from spark_ext.storage import Location, child, local_path

if TYPE_CHECKING:
    from spark_ext.settings import JobSettings

FOLDER: Final = "dumps"  # in the state directory
ABOUT: Final = "dump.json"  # what a dump is about, and when it was taken
STACKS: Final = "stacks.txt"
HEAP: Final = "heap.hprof"
UNFINISHED: Final = "heap.part.hprof"  # a heap that is being written, or was when its driver ended


def check_dumps(settings: JobSettings, state: str, operator: str) -> None:
    """Refuse a setting that this state directory does not allow."""
    if settings.dumps == "heap":
        refuse_heap(state, operator)


def refuse_heap(state: str, operator: str) -> None:
    """Refuse a dump of the heap where the JVM cannot write one."""
    if Location.of(state, {}).local is None:
        raise refused(
            f"a JVM writes its heap to a local path only, and the state directory is {state}",
            operator,
            "ask for the stacks alone (dumps='stacks'), or use a local state directory",
            kept="nothing was started",
        )


class DumpFolder:
    """Writes dumps, and deletes the oldest: it keeps at most `most`, of `size` bytes. For one thread at a time."""

    def __init__(self, state: str, most: int, size: int) -> None:
        self._folder = Location.of(child(state, FOLDER), {}).folder
        self._local = local_path(self._folder.uri)
        self._most = most
        self._size = size

    def path(self, name: str) -> str:
        """The path or URI of a dump."""
        return child(self._folder.uri, name)

    def local(self, name: str) -> Path | None:
        """The folder of a dump, if it is a local one."""
        return None if self._local is None else self._local / name

    def there(self, name: str) -> bool:
        """Whether there is a dump of this name."""
        with suppress(OSError):
            return self._folder.has(f"{name}/{ABOUT}")
        return False

    def write(self, name: str, about: dict[str, Any], stacks: str) -> None:
        """Write a dump, and delete older ones to make room for it; `about` has its time, `at`, s since 1970."""
        content = stacks.encode("utf-8", "replace")
        self.make_room(len(content), new=1)
        if self._local is not None:
            # As private as a heap is: stacks have paths and names, and a mask knows only the secrets it was given.
            self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._local / name).mkdir(mode=0o700, exist_ok=True)
        self._folder.write(f"{name}/{ABOUT}", json.dumps({**about, "bytes": len(content)}))
        self._folder.write(f"{name}/{STACKS}", content)

    def make_room(self, size: int, besides: str = "", *, new: int = 0) -> None:
        """Delete the oldest dumps, but not the one `besides`, to make room for `size` bytes and `new` dumps."""
        kept = self.kept()
        own = [one for one in kept if one.name == besides]
        others = [one for one in kept if one.name != besides]
        for name in excess(others, self._most - new - len(own), self._size - size - sum(one.size for one in own)):
            self._folder.delete_tree(name)

    def kept(self) -> list[KeptDump]:
        """The dumps that are there."""
        files: dict[str, list[str]] = defaultdict(list)
        for name in self._folder.files():
            folder, slash, _ = name.partition("/")
            if slash:  # a file that somebody else has put there is none of ours
                files[folder].append(name)
        return [self._one(name, own) for name, own in files.items()]

    def _one(self, name: str, files: list[str]) -> KeptDump:
        at, size = 0.0, 0
        # A driver that was killed may have left a dump without it: the first one to go.
        with suppress(OSError, ValueError, KeyError, TypeError):
            about = json.loads(self._folder.read(f"{name}/{ABOUT}"))
            at, size = float(about["at"]), int(about["bytes"])
        if self._local is not None:
            size = 0
            for file in files:
                with suppress(OSError):
                    size += (self._local / file).stat().st_size
        return KeptDump(name, at, size)
