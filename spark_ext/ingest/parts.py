"""The files in which decisions are: what is in one, and which are merged into one. Pure.

00000000000000000042-00000000000000000043.part   decision 42
00000000000000000000-00000000000000000064.part   decisions 0 to 63, merged

A merged file is of 8, 64, 512, ... decisions, and begins at a multiple of that. Where the whole would be too large, it
is of a half, a quarter or an eighth of them. So of two files whose decisions overlap, the one holds all that the other
does, however many planners merge at the same time. The wider one is read, and the other can be deleted.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from spark_ext.errors import StateError
from spark_ext.ingest.seen import Identities

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import NativeFile

VERSION: Final = 1
FAN: Final = 8
MOST: Final = 1 << 20  # identities of a merged file; merging them takes 85 MB and a second

_MAGIC: Final = b"decision"
_HEAD: Final = struct.Struct("<8sIIIIQ")
"""What it is, version, checksums of what describes it and of its columns, lengths of the former and of the whole."""
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.part")
_COLUMNS: Final = {"high": "<u8", "low": "<u8", "words": "<u8", "bodies": "<u4", "times": "<u4"}
_TOLD: Final = ("producers", "floors", "newest")  # fields that are stored as they are


class Span(NamedTuple):
    """Decisions from one number up to another, which is not among them."""

    begin: int
    end: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.begin:020}-{self.end:020}.part"

    def holds(self, other: Span) -> bool:
        """Whether all decisions of another one are among these."""
        return self.begin <= other.begin and other.end <= self.end


class Skips(NamedTuple):
    """The rows of an entry that are not read, by their position in it."""

    repeats: tuple[int, ...] = ()
    conflicts: tuple[int, ...] = ()  # the identity of another event whose body is not the same


class Found(NamedTuple):
    """How many events of an inbox were found to be something, also in deleted entries."""

    repeats: int = 0
    conflicts: int = 0
    old: int = 0  # read, but repeats of them may be, too: their own time is before the window


NONE_FOUND: Final = Found()


@dataclass(frozen=True)
class Part:
    """What a file holds."""

    span: Span
    identities: Identities
    skips: Mapping[tuple[str, int], Skips]  # of each entry of a gateway that is covered
    producers: Mapping[str, Sequence[int]] = field(default_factory=dict)  # `SeenNumbers` of those that have sent
    floors: Mapping[str, int] = field(default_factory=dict)  # entries of a gateway below that are deleted
    newest: int = 0  # when the last of its events was received, s; repeats too
    found: Found = NONE_FOUND  # up to its end, also in earlier decisions

    def encode(self) -> bytes:
        """The form that is stored."""
        columns = {name: getattr(self.identities, name) for name in _COLUMNS}
        about = json.dumps(
            {
                "span": self.span,
                "columns": [len(column) for column in columns.values()],
                "found": self.found,
                "skips": [(*key, *skips) for key, skips in self.skips.items()],
                **{name: getattr(self, name) for name in _TOLD},
            },
            separators=(",", ":"),
        ).encode()
        about += b" " * (-len(about) % 8)
        blocks = [np.ascontiguousarray(column, _COLUMNS[name]).data.cast("B") for name, column in columns.items()]
        checksum = 0
        for block in blocks:
            checksum = zlib.crc32(block, checksum)
        length = _HEAD.size + len(about) + sum(map(len, blocks))
        head = _HEAD.pack(_MAGIC, VERSION, zlib.crc32(about), checksum, len(about), length)
        return b"".join([head, about, *blocks])

    @classmethod
    def begin(cls, file: NativeFile, span: Span, operator: str) -> tuple[Part, list[int], int]:
        """A part without its identities, which are not read; also the lengths of its columns, and their checksum.

        Raises:
            StateError: it is damaged, or of another version.
        """
        head = file.read(_HEAD.size)
        empty = (b"", 0, 0, 0, 0, 0)
        magic, version, sound, checksum, size, length = _HEAD.unpack(head) if len(head) == _HEAD.size else empty
        if magic == _MAGIC and version != VERSION:
            raise _unusable(f"has version {version}; this release reads version {VERSION}", span, operator)
        content = file.read(size)
        if magic != _MAGIC or length != file.size() or sound != zlib.crc32(content):
            raise _unusable("is damaged", span, operator)
        about: dict[str, Any] = json.loads(content)
        if about["span"] != [*span]:
            raise _unusable("holds other decisions than its name says", span, operator)
        skips = {(name, number): Skips(tuple(a), tuple(b)) for name, number, a, b in about["skips"]}
        told = {name: about[name] for name in _TOLD}
        return cls(span, Identities.none(), skips, found=Found(*about["found"]), **told), about["columns"], checksum

    @classmethod
    def decode(cls, content: pa.Buffer, span: Span, operator: str, *, checked: bool = False) -> Part:
        """Read a stored form as a whole; its columns stay where they are, and are not touched if they were checked.

        Raises:
            StateError: it is damaged, or of another version.
        """
        import pyarrow as pa

        file = pa.BufferReader(content)
        part, counts, checksum = cls.begin(file, span, operator)
        view, end = memoryview(content), file.tell()
        if not checked and checksum != zlib.crc32(view[end:]):
            raise _unusable("is damaged", span, operator)
        columns = {}
        for (name, kind), count in zip(_COLUMNS.items(), counts, strict=True):
            columns[name] = np.frombuffer(view, kind, count, end)
            end += columns[name].nbytes
        return replace(part, identities=Identities(**columns))


def _unusable(what: str, span: Span, operator: str) -> StateError:
    return StateError(
        f"the file {span.name} of its decisions {what}",
        operator=operator,
        kept="the inbox and its decisions are unchanged; nothing was read",
        do="restore the file from a backup, or use the release of spark-ext that wrote it; without it events would be"
        " read twice",
    )


def outermost(names: Iterable[str]) -> tuple[list[Span], list[str]]:
    """The files to read, in the order of their ranges, and the names of those that wider ones replace."""
    found = [Span(int(match[1]), int(match[2])) for name in names if (match := _NAME.fullmatch(name))]
    read: list[Span] = []
    replaced: list[str] = []
    for one in sorted(found, key=lambda one: (one.begin, -one.end)):
        if read and read[-1].holds(one):
            replaced.append(one.name)
        else:
            read.append(one)
    return read, replaced


def missing(ranges: Sequence[Span], end: int) -> int | None:
    """The first decision below `end`, and below the last one that is there, that no file holds."""
    ends = [0, *(one.end for one in ranges)]
    gap = next((before for before, one in zip(ends, ranges, strict=False) if one.begin != before), ends[-1])
    return gap if gap < max(end, ends[-1]) else None


def mergeable(parts: Sequence[tuple[Span, int]]) -> Span | None:
    """The widest range that is to be one file instead of several, by the ranges and the numbers of identities."""
    end = parts[-1][0].end if parts else 0
    width = FAN
    while width * FAN <= end:
        width *= FAN
    while width >= FAN:
        for block, members in groupby(parts, lambda part: part[0].begin // width):  # noqa: B023 - used at once
            if (block + 1) * width <= end and (found := _fitting([*members], block * width, width)):
                return found
        width //= FAN
    return None


def _fitting(parts: Sequence[tuple[Span, int]], begin: int, width: int) -> Span | None:
    if len(parts) < 2:
        return None
    if sum(count for _, count in parts) <= MOST:
        return Span(begin, begin + width)
    half = width // 2
    first = [part for part in parts if part[0].begin < begin + half]
    return _fitting(first, begin, half) or _fitting(parts[len(first) :], begin + half, half)


def merged(parts: Sequence[Part], floors: Mapping[str, int], since: int) -> Part:
    """One part for several, without what nobody asks for any more."""
    return Part(
        Span(parts[0].span.begin, parts[-1].span.end),
        Identities.merged([part.identities for part in parts], since),
        {key: skips for part in parts for key, skips in part.skips.items() if key[1] >= floors.get(key[0], 0)},
        {name: seen for part in parts if part.newest >= since for name, seen in part.producers.items()},
        dict(floors),
        max(part.newest for part in parts),
        parts[-1].found,
    )
