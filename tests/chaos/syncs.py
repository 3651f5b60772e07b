"""What is left of a folder when the power fails: a model of files, and of what was synced. Pure.

`recorder.c` records the calls; `Disk` carries them out. A file's data counts up to the last sync that began after it
was written, and a name once its folder was synced after it.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

_HEAD: Final = struct.Struct("<qqIIIc")
Tree: TypeAlias = Mapping[str, bytes | None]
"""The files and folders below a folder; a folder has no content."""


@dataclass(frozen=True)
class Call:
    op: str  # (C)reate, (T)runcate, (W)rite, (R)ename, (L)ink, (U)nlink, (M)ake a folder; X: what is not followed
    # Syncs: one of a file or folder, or of the whole (f)ile system, begins, and has (S)ucceeded.
    path: str
    at: int = 0  # when it had returned, ns of the monotonic clock
    other: str = ""  # the new name
    offset: int = 0  # of what is written; the size of what is truncated; when the sync began
    data: bytes = b""


def calls(recorded: bytes) -> Iterator[Call]:
    """Read what the recorder has written."""
    place = 0
    while place < len(recorded):
        at, offset, path, other, data, op = _HEAD.unpack_from(recorded, place)
        place += _HEAD.size
        parts = []
        for length in (path, other, data):
            parts.append(recorded[place : place + length])
            place += length
        yield Call(op.decode(), parts[0].decode(), at, parts[1].decode(), offset, parts[2])


@dataclass(eq=False)
class File:
    seen: bytearray = field(default_factory=bytearray)  # what processes read
    kept: bytes = b""  # what was synced
    changes: int = 0
    kept_changes: int = 0  # how many of them were synced

    def now(self) -> bytes:
        return bytes(self.seen)


@dataclass(eq=False)
class Folder:
    seen: dict[str, "Node"] = field(default_factory=dict)
    kept: dict[str, "Node"] = field(default_factory=dict)
    changes: int = 0
    kept_changes: int = 0

    def now(self) -> dict[str, "Node"]:
        return dict(self.seen)


Node: TypeAlias = File | Folder


class Disk:
    """The folder `root`, which is there and empty, and what happens in it."""

    def __init__(self, root: str) -> None:
        self._root = PurePosixPath(root)
        self._top = Folder()
        self._syncs: dict[int, list[tuple[Node, int, Any]]] = {}  # what was there when each began

    def apply(self, call: Call) -> None:
        """Carry out a call.

        Raises:
            ValueError: it is of a kind that is not followed, or of a file that is not there.
        """
        folder, name = self._place(call.path)
        node = folder.seen.get(name) if name else self._top
        if call.op == "C":
            folder.seen.setdefault(name, File())
        elif call.op == "T":
            node = folder.seen.setdefault(name, File())
            assert isinstance(node, File)
            del node.seen[call.offset :]
            node.seen.extend(bytes(call.offset - len(node.seen)))
        elif call.op == "M":
            folder.seen[name] = Folder()
        elif call.op == "U":
            folder.seen.pop(name, None)
        elif node is None:
            raise ValueError(f"it is not there: {call.op} {call.path}")
        elif call.op == "W" and isinstance(node, File):
            node.seen.extend(bytes(max(0, call.offset - len(node.seen))))
            node.seen[call.offset : call.offset + len(call.data)] = call.data
        elif call.op in ("R", "L"):
            target, new = self._place(call.other)
            if target.seen.get(new) is not node:  # renaming a file to a link of itself does nothing
                target.seen[new] = node
                target.changes += 1
                if call.op == "R":
                    del folder.seen[name]
        elif call.op in ("s", "f"):
            nodes = [node] if call.op == "s" else [one for one in _all(self._top) if one.changes > one.kept_changes]
            self._syncs[call.at] = [(one, one.changes, one.now()) for one in nodes]
            return
        elif call.op == "S":
            for one, changes, then in self._syncs.pop(call.offset):
                if one.kept_changes < changes:
                    one.kept, one.kept_changes = then, changes
            return
        else:
            raise ValueError(f"this is not followed: {call.op} {call.path} {call.other}")
        folder.changes += 1
        if isinstance(node, File):
            node.changes += 1

    def _place(self, path: str) -> tuple[Folder, str]:
        parts = PurePosixPath(path).relative_to(self._root).parts
        folder = self._top
        for part in parts[:-1]:
            below = folder.seen.get(part)
            if not isinstance(below, Folder):
                raise ValueError(f"no folder {part}: {path}")
            folder = below
        return folder, parts[-1] if parts else ""

    def seen(self) -> Tree:
        """What processes see."""
        return dict(_walk(self._top, "", lambda: True))

    def left(self, lucky: Callable[[], bool] = lambda: False) -> Tree:
        """What is there after a power failure: of each file and folder what was synced, or, if it is lucky, all."""
        return dict(_walk(self._top, "", lucky))


def _all(folder: Folder) -> Iterator[Node]:
    yield folder
    for node in folder.seen.values():
        yield from _all(node) if isinstance(node, Folder) else (node,)


def _walk(folder: Folder, path: str, whole: Callable[[], bool]) -> Iterator[tuple[str, bytes | None]]:
    for name, node in sorted((folder.seen if whole() else folder.kept).items()):
        if isinstance(node, Folder):
            yield f"{path}{name}", None
            yield from _walk(node, f"{path}{name}/", whole)
        else:
            yield f"{path}{name}", bytes(node.seen) if whole() else node.kept
