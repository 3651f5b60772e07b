"""A row that does not parse or fit, and the file in which such rows are kept: compressed as they come. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_ext.masking import mask
from spark_ext.model.offsets import Json

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

MOST_RAW: Final = 64 * 1024  # bytes of a bad row that are kept; the rest is cut off
MOST_REASON: Final = 4 * 1024  # characters of a reason that are kept
BAD_FILE: Final = "//bad-"  # between a file's name and its state, in the id of the channel of a bad file
ROWS: Final = 1_000  # rows that are kept as objects until they are compressed
METADATA: Final = b"spark_ext.table"  # under this key a file says in which table its rows belong; see `table_in_file`


@dataclass(frozen=True)
class BadRow:
    """A row that does not parse, or does not fit the declared schema or the target."""

    position: Json
    """Where it is, in the operator's own form, as JSON: a file and a byte, a partition and an offset, a key."""
    reason: str  # What is wrong with it. Secrets that the process knows are masked in it.
    raw: str | bytes | None = None  # the first `MOST_RAW` bytes of the row as it was found; None: it cannot be shown
    rules: tuple[str, ...] = ()  # the rules of `spark_ext.expect` that it fails


def passed_over(row: BadRow) -> None:
    """Take a bad row and do nothing: while planning, where none is collected."""


COLLECTED: Final = pa.schema(  # the columns of what a task has collected
    [
        pa.field("channel", pa.string()),
        pa.field("position", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("raw", pa.string()),
        pa.field("raw_bytes", pa.binary()),
        pa.field("rules", pa.list_(pa.string())),
    ]
)


SCHEMA: Final = pa.schema(
    [
        pa.field("job", pa.string()),
        pa.field("query", pa.string()),
        pa.field("uid", pa.string()),
        *COLLECTED,
        pa.field("epoch", pa.int64()),
        pa.field("lineage", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("job_id", pa.string()),
        pa.field("replaced_in", pa.int64()),
        pa.field("role", pa.string()),
    ]
)
"""The columns of the table of bad rows. `replaced_in` is null for rows that count; else it is the lineage of the
restore that took them back, or in which a bad file was read after all. `role` is `source` or `sink`."""


def completed(found: pa.Table, constants: Mapping[str, object]) -> pa.Table:
    """Collected rows with all columns of the table of bad rows; what is not given is null."""
    columns = [
        found.column(field.name)
        if field.name in found.column_names
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), found.num_rows)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def table_of(channel: str | None, rows: Iterable[BadRow]) -> pa.Table:
    """Bad rows of a channel as columns; None for those of a sink."""
    given = list(rows)
    raws = [_kept(row.raw) for row in given]
    return pa.table(
        [
            [channel] * len(given),
            [json.dumps(row.position, sort_keys=True) for row in given],
            [mask(row.reason)[:MOST_REASON] for row in given],
            [text for text, _ in raws],
            [content for _, content in raws],
            [list(row.rules) or None for row in given],
        ],
        schema=COLLECTED,
    )


def _kept(raw: str | bytes | None) -> tuple[str | None, bytes | None]:
    """A row as text, or as bytes if it is none; cut to the limit."""
    if raw is None:
        return None, None
    content = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else bytes(raw)
    # The cut may fall into a character of up to four bytes.
    for end in range(min(len(content), MOST_RAW), max(0, min(len(content), MOST_RAW) - 4), -1):
        try:
            return content[:end].decode(), None
        except UnicodeDecodeError:
            if len(content) <= MOST_RAW:
                break
    return ("", None) if not content else (None, content[:MOST_RAW])


class Buffer:
    """A file of Parquet in memory, begun with the first row; without a channel for rows of a sink."""

    def __init__(self, table: str, channel: str | None = None) -> None:
        self._table, self._channel = table, channel
        self._rows: list[BadRow] = []
        self._out = BytesIO()
        self._writer: ParquetWriter | None = None

    def add(self, row: BadRow) -> None:
        """Take a row."""
        self._rows.append(row)
        if len(self._rows) >= ROWS:
            self._compress()

    def copy(self, rows: pa.Table) -> None:
        """Take the rows of another file, behind those that were added before."""
        self._compress()
        self._into().write_table(rows.select(COLLECTED.names).cast(COLLECTED))

    def _compress(self) -> None:
        if self._rows:
            self._into().write_table(table_of(self._channel, self._rows))
            self._rows.clear()

    def _into(self) -> ParquetWriter:
        if self._writer is None:
            from pyarrow.parquet import ParquetWriter  # half of what it takes to import all of this

            about = {METADATA: self._table.encode()}
            self._writer = ParquetWriter(self._out, COLLECTED.with_metadata(about), compression="zstd")
        return self._writer

    def content(self) -> bytes:
        """The file with all rows; nothing can be added any more."""
        self._compress()
        self._into().close()
        return self._out.getvalue()


def rows_in(content: bytes) -> pa.Table:
    """The rows of a file.

    Not by a file of Python's: Arrow's threads would still release it when the interpreter ends, and hang or abort.
    """
    from pyarrow.parquet import ParquetFile

    return ParquetFile(pa.BufferReader(content)).read()
