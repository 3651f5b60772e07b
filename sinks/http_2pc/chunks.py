"""How an epoch's rows are divided into requests. Pure functions.

A task gathers its lines into pieces; the driver joins the pieces of all tasks, in their order, into the requests of the
epoch. Both use the same `Cut`, which is recorded with the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Cut:
    """How an epoch is divided into requests. Recorded with it: later changes of the options do not affect it."""

    rows: int
    """Maximum number of rows of a request."""
    bytes: int
    """Maximum size of its lines, bytes; a longer line is a request of its own."""
    body: str
    """`lines` or `array`."""

    def to_json(self) -> str:
        """The stored form."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cut:
        """Parse the stored form."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Piece:
    """Some rows of one task."""

    rows: int
    lines: str
    """JSON, one row per line, each line terminated."""

    @property
    def size(self) -> int:
        """Size of the lines, bytes."""
        return len(self.lines) if self.lines.isascii() else len(self.lines.encode())


@dataclass(frozen=True)
class Chunk:
    """The content of one request."""

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
