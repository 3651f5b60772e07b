"""How rows become requests: pieces of one task, in files that no commit refers to yet, joined into chunks.

The driver joins the pieces of all tasks, in their order. Both use the same `ChunkRule`, which is recorded with the
epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat, tee
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark.sql import types as spark

from spark_ext.bad_rows.sift import Bad, behind, sift
from spark_ext.datafiles.writer import DataFile, DataFileWriter, Layout
from spark_ext.errors import DataError, StorageError
from spark_ext.sinks.contract import Epoch, Task
from spark_ext.sinks.http_2pc.addresses import Addresses
from spark_ext.sinks.json_rows import JsonRows
from spark_ext.storage import Location

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction


@dataclass(frozen=True)
class ChunkRule:
    """How an epoch is divided into requests. Recorded with it: later changes of the options do not affect it."""

    rows: int  # Maximum number of rows of a request
    bytes: int  # Maximum size of its lines, bytes; a longer line is a request of its own
    body: str  # `lines`, `array`, or `object`: one row

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
    lines: str  # JSON, one row per line, each line terminated
    url: str | None = None  # Where they are sent; None: to the address of the sink

    @property
    def size(self) -> int:
        """Size of the lines, bytes."""
        return len(self.lines) if self.lines.isascii() else len(self.lines.encode())


@dataclass(frozen=True)
class Chunk:
    """The content of one request."""

    number: int  # From 0, within the epoch
    rows: int
    body: bytes
    last: bool
    job: str = ""  # In its key; "" outside a job. Jobs restored from one savepoint share all else
    content: str = "application/x-ndjson"
    url: str | None = None  # Where it is sent; None: to the address of the sink

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
    """Gather a task's lines into pieces within the limits of a request. A piece has one address, or none of its own."""
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


# A row of the table is a piece: some rows of one task, as JSON lines.
SCHEMA = spark.StructType(
    [
        spark.StructField("epoch", spark.StringType()),
        spark.StructField("cut", spark.StringType()),
        spark.StructField("rows", spark.IntegerType()),
        spark.StructField("lines", spark.StringType()),
    ]
)
_LAYOUT = Layout(
    partition_by=("epoch",),
    compression="zstd",
    row_group_bytes=16 * 1024**2,
    # One file per task, so that the order of a task's pieces is fixed.
    file_bytes=2**62,
    statistics_columns=0,
)


def stage(
    location: Location,
    schema: spark.StructType,
    batches: Iterator[pa.RecordBatch],
    task: Task,
    cut: ChunkRule,
    who: str,
    addresses: Addresses | None = None,
    bad: Bad | None = None,
) -> tuple[DataFile, ...] | None:
    """Write the rows as pieces, with their own addresses if any. `bad` takes rows without JSON form or address."""
    files = DataFileWriter(location, SCHEMA, _LAYOUT, task)
    epoch = label(task.lineage, task.query_id, task.epoch)
    try:
        return files.write(_batch(epoch, cut, piece) for piece in _pieces(schema, batches, cut, who, addresses, bad))
    except OSError as problem:
        raise StorageError(
            f"the outbox could not be written: {problem}",
            operator=who,
            kept="nothing of this epoch was sent",
            do="check the storage (space, permissions); the epoch will be retried",
        ) from problem


Sent = TypeVar("Sent")


def _each(
    batches: Iterator[pa.RecordBatch], convert: Callable[[pa.RecordBatch], Iterable[Sent]], bad: Bad | None
) -> Iterator[Sent]:
    """What the rows become, without those that are bad."""
    first = 0
    for batch in batches:
        if bad is None:
            yield from convert(batch)
            continue
        try:
            yield from list(convert(batch))
        except DataError:
            for found in sift(batch, lambda part: list(convert(part)), DataError, behind(bad, first)):
                yield from found
        first += batch.num_rows


def _pieces(
    schema: spark.StructType,
    batches: Iterator[pa.RecordBatch],
    cut: ChunkRule,
    who: str,
    addresses: Addresses | None,
    bad: Bad | None,
) -> Iterator[ChunkPart]:
    if addresses is None:
        yield from pieces(_each(batches, JsonRows(schema, who).lines, bad), cut)
        return
    body = addresses.body(schema)
    rows = JsonRows(body, who)

    def addressed(batch: pa.RecordBatch) -> Iterable[tuple[str, str]]:
        return zip(addresses.of(batch), rows.lines(batch.select(body.names)), strict=True)

    # One iterator for both: a row's line comes with its address.
    urls, lines = tee(_each(batches, addressed, bad))
    yield from pieces((line for _, line in lines), cut, (url for url, _ in urls))


def _batch(epoch: str, cut: ChunkRule, piece: ChunkPart) -> pa.RecordBatch:
    from spark_ext.schemas.arrow import arrow_schema

    columns = [[epoch], [cut.to_json(piece.url)], [piece.rows], [piece.lines]]
    schema = arrow_schema(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


# -- what the table records of an epoch -------------------------------------------------------------------------------


_TASK: Final = re.compile(r"-p(\d+)-a\d+-[0-9a-f]{16}\.")


def label(lineage: int, query_id: str, number: int) -> str:
    """The epoch's value in the outbox's partition column."""
    return f"{lineage}-{query_id}-{number}"


def sent_id(epoch: Epoch) -> str:
    """The id under which the table records the last epoch acknowledged by the receiver."""
    return f"sent:{epoch.application}"


def decided_mark_id(epoch: Epoch) -> str:
    """The id under which a decision keeps the mark of the rows that tasks have put aside; 0 means no rows."""
    return f"decided_bad_rows:{epoch.application}"


def marked(epoch: Epoch, mark: int | None) -> list[Transaction]:
    """The transaction that keeps the mark of an epoch's bad rows."""
    if mark is None:
        return []
    from deltalake import Transaction

    from spark_ext.delta.transactions import bad_rows_name

    return [Transaction(bad_rows_name(epoch), mark)]


def is_sent(table: DeltaTable, epoch: Epoch) -> bool:
    """Whether the receiver is known to have all of an epoch."""
    sent = table.transaction_version(sent_id(epoch))
    return sent is not None and sent >= epoch.number


def files_of(table: DeltaTable, epoch: Epoch) -> list[str]:
    """The files of a decided epoch, in the order of their tasks' numbers: the same in any process."""
    files = pa.table(table.get_add_actions(flatten=True).select(["path", "partition.epoch"]))
    wanted = label(epoch.lineage, epoch.query_id, epoch.number)
    names = [file["path"] for file in files.to_pylist() if file["partition.epoch"] == wanted]
    return sorted(names, key=lambda name: (_task(name), name))


def _task(name: str) -> int:
    found = _TASK.search(name)
    return int(found[1]) if found else -1
