"""How an epoch's rows are cut into requests. Pure functions.

A task gathers its lines into pieces; the driver joins the pieces of all tasks, in their order, into the requests of the
epoch. Both follow one `Cut`, which is recorded with the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Cut:
    """How an epoch is cut into requests. Recorded with it: options that were changed since do not move its cuts."""

    rows: int
    """Most rows of a request."""
    bytes: int
    """Most bytes of its lines; a longer line is a request of its own."""
    body: str
    """`lines` or `array`."""

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cut:
        """Read it back."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Piece:
    """Some rows of one task."""

    rows: int
    lines: str
    """JSON, one row per line, each with its line end."""

    @property
    def size(self) -> int:
        """Bytes of the lines."""
        return len(self.lines) if self.lines.isascii() else len(self.lines.encode())


@dataclass(frozen=True)
class Chunk:
    """What one request carries."""

    number: int
    """From 0, within the epoch."""
    rows: int
    body: bytes
    last: bool


def pieces(lines: Iterator[str], cut: Cut) -> Iterator[Piece]:
    """Gather a task's lines into pieces within the limits of a request."""
    held: list[str] = []
    size = 0
    for line in lines:
        length = (len(line) if line.isascii() else len(line.encode())) + 1
        if held and (len(held) >= cut.rows or size + length > cut.bytes):
            yield Piece(len(held), "\n".join(held) + "\n")
            held, size = [], 0
        held.append(line)
        size += length
    if held:
        yield Piece(len(held), "\n".join(held) + "\n")


def chunks(found: Iterator[Piece], cut: Cut) -> Iterator[Chunk]:
    """Join the pieces of an epoch's tasks into requests: many small tasks do not make many small requests."""
    held: list[Piece] = []
    rows = size = number = 0
    for piece in found:
        if held and (rows + piece.rows > cut.rows or size + piece.size > cut.bytes):
            yield _chunk(number, held, cut, last=False)
            number, held, rows, size = number + 1, [], 0, 0
        held.append(piece)
        rows += piece.rows
        size += piece.size
    if held:
        yield _chunk(number, held, cut, last=True)


def _chunk(number: int, held: Sequence[Piece], cut: Cut, *, last: bool) -> Chunk:
    lines = "".join(piece.lines for piece in held)
    body = lines if cut.body == "lines" else "[" + lines[:-1].replace("\n", ",") + "]"
    return Chunk(number, sum(piece.rows for piece in held), body.encode(), last)
