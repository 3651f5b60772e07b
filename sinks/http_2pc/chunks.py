"""How an epoch's rows are divided into requests. Pure functions.

A task gathers its lines into pieces; the driver joins the pieces of all tasks, in their order, into the requests of the
epoch. Both use the same `Cut`, which is recorded with the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from spark_ext.model.commits import Epoch

KEYS: Final = 2
"""The version of the keys under which requests are sent.

* 1: keys do not name the job. Two jobs that were restored from one savepoint have the same ones.
* 2: keys name the job.
"""


@dataclass(frozen=True)
class Cut:
    """How an epoch is divided into requests. Recorded with it: later changes of the options do not affect it."""

    rows: int
    """Maximum number of rows of a request."""
    bytes: int
    """Maximum size of its lines, bytes; a longer line is a request of its own."""
    body: str
    """`lines` or `array`."""
    keys: int = KEYS
    """The version of the keys. A request that may have been sent is repeated under the key that it had."""

    def to_json(self) -> str:
        """The stored form."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cut:
        """Parse the stored form."""
        return cls(**{"keys": 1, **json.loads(text)})


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
    job: str = ""
    """What its key says of the job; "" if the key does not name one: outside a job, and in version 1."""

    def lines(self) -> list[str]:
        """The rows, each as JSON."""
        text = self.body.decode()
        if self.body[:1] != b"[":
            return text.split("\n")[:-1]
        return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in json.loads(text)]

    def key(self, epoch: Epoch) -> str:
        """The idempotency key of the request: the same whenever, and by whomever, it is sent."""
        job = f":{self.job}" if self.job else ""
        return f"{epoch.sink}{job}:{epoch.lineage}:{epoch.query_id}:{epoch.number}:{self.number}"


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


def chunks(found: Iterator[Piece], cut: Cut, job: str = "") -> Iterator[Chunk]:
    """Join the pieces of an epoch's tasks into requests: many small tasks do not make many small requests.

    Args:
        found: the pieces.
        cut: recorded with the epoch.
        job: what tells the job from all others; "" outside a job.
    """
    job = job if cut.keys > 1 else ""
    held: list[Piece] = []
    rows = size = number = 0
    for piece in found:
        if held and (rows + piece.rows > cut.rows or size + piece.size > cut.bytes):
            yield _chunk(number, held, cut, job, last=False)
            number, held, rows, size = number + 1, [], 0, 0
        held.append(piece)
        rows += piece.rows
        size += piece.size
    if held:
        yield _chunk(number, held, cut, job, last=True)


def _chunk(number: int, held: Sequence[Piece], cut: Cut, job: str, *, last: bool) -> Chunk:
    lines = "".join(piece.lines for piece in held)
    body = lines if cut.body == "lines" else "[" + lines[:-1].replace("\n", ",") + "]"
    return Chunk(number, sum(piece.rows for piece in held), body.encode(), last, job)
