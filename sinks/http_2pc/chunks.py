"""How an epoch's rows are divided into requests. Pure functions.

A task gathers its lines into pieces; the driver joins the pieces of all tasks, in their order, into the requests of the
epoch. Both use the same `ChunkRule`, which is recorded with the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat

from spark_ext.model.commits import Epoch


@dataclass(frozen=True)
class ChunkRule:
    """How an epoch is divided into requests. Recorded with it: later changes of the options do not affect it."""

    rows: int
    """Maximum number of rows of a request."""
    bytes: int
    """Maximum size of its lines, bytes; a longer line is a request of its own."""
    body: str
    """`lines`, `array`, or `object`: one row."""

    def to_json(self, url: str | None = None) -> str:
        """The stored form; with the address, if rows have addresses of their own."""
        return json.dumps(asdict(self) | ({} if url is None else {"url": url}))

    @classmethod
    def from_json(cls, text: str) -> ChunkRule:
        """Parse the stored form."""
        found = json.loads(text)
        found.pop("url", None)
        return cls(**found)


def recorded_url(cut: str) -> str | None:
    """The address in the stored form of a cut; None: that of the sink."""
    found: str | None = json.loads(cut).get("url")
    return found


@dataclass(frozen=True)
class ChunkPart:
    """Some rows of one task."""

    rows: int
    lines: str
    """JSON, one row per line, each line terminated."""
    url: str | None = None
    """Where they are sent; None: to the address of the sink."""

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
    """What its key says of the job; "" outside a job. Jobs that were restored from one savepoint share all else."""
    content: str = "application/x-ndjson"
    """The type of the body."""
    url: str | None = None
    """Where it is sent; None: to the address of the sink."""

    def lines(self) -> list[str]:
        """The rows, each as JSON."""
        text = self.body.decode()
        if self.body[:1] != b"[":
            return text.removesuffix("\n").split("\n")
        return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in json.loads(text)]

    def key(self, epoch: Epoch) -> str:
        """The idempotency key of the request: the same whenever, and by whomever, it is sent."""
        job = f":{self.job}" if self.job else ""
        return f"{epoch.sink}{job}:{epoch.lineage}:{epoch.query_id}:{epoch.number}:{self.number}"


def pieces(
    lines: Iterator[str], cut: ChunkRule, addresses: Iterator[str] | Iterator[None] | None = None
) -> Iterator[ChunkPart]:
    """Gather a task's lines into pieces within the limits of a request.

    Args:
        addresses: of each row; None: they have none of their own. A piece has one address.
    """
    held: list[str] = []
    size, at = 0, None
    for line, url in zip(lines, repeat(None) if addresses is None else addresses, strict=False):
        length = (len(line) if line.isascii() else len(line.encode())) + 1
        if held and (len(held) >= cut.rows or size + length > cut.bytes or url != at):
            yield ChunkPart(len(held), "\n".join(held) + "\n", at)
            held, size = [], 0
        held.append(line)
        size, at = size + length, url
    if held:
        yield ChunkPart(len(held), "\n".join(held) + "\n", at)


def chunks(found: Iterator[ChunkPart], cut: ChunkRule, job: str = "") -> Iterator[Chunk]:
    """Join the pieces of an epoch's tasks into requests: many small tasks do not make many small requests."""
    held: list[ChunkPart] = []
    rows = size = number = 0
    for piece in found:
        if held and (rows + piece.rows > cut.rows or size + piece.size > cut.bytes or piece.url != held[0].url):
            yield _chunk(number, held, cut, job, last=False)
            number, held, rows, size = number + 1, [], 0, 0
        held.append(piece)
        rows += piece.rows
        size += piece.size
    if held:
        yield _chunk(number, held, cut, job, last=True)


def _chunk(number: int, held: Sequence[ChunkPart], cut: ChunkRule, job: str, *, last: bool) -> Chunk:
    lines = "".join(piece.lines for piece in held)
    content = "application/x-ndjson" if cut.body == "lines" else "application/json"
    body = {"lines": lines, "object": lines[:-1]}.get(cut.body)
    if body is None:
        body = "[" + lines[:-1].replace("\n", ",") + "]"
    return Chunk(number, sum(piece.rows for piece in held), body.encode(), last, job, content, held[0].url)
