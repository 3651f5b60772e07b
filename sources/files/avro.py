"""Avro files by block: a position is the byte at which a block begins, so that blocks are never divided."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast

import pyarrow as pa

from spark_ext.bad_rows.sift import sift, text_of
from spark_ext.clients.library import load
from spark_ext.datafiles.input_file import InputFile
from spark_ext.errors import NOTHING_DONE, EnvironmentProblem
from spark_ext.model.offsets import Json
from spark_ext.schemas.avro import Target, Unsupported, Walk
from spark_ext.schemas.avro_decoder import decoder
from spark_ext.schemas.columns import conform, match, misfit
from spark_ext.sources.contract import Advance, BadRow, Limit
from spark_ext.sources.files.avro_container import Header, begins_at, blocks, made_header, next_begin, read_header
from spark_ext.sources.files.row_groups import OnBadRow, even_cuts, no_columns, parts_between, refuse_misfit
from spark_ext.sources.positions import no_position, number_in

if TYPE_CHECKING:
    from fastavro import block_reader


BATCH_ROWS = 16_384  # rows of a batch; each is a Python object for a moment
LEAST_PART = 1024 * 1024  # minimum size of the parts of a split range, bytes
_AHEAD = 4 * 1024  # bytes
_CODECS: dict[str, tuple[str, ...]] = {  # codecs, with the modules that each needs one of
    "null": (),
    "deflate": (),
    "bzip2": (),
    "xz": (),
    "snappy": ("cramjam",),
    "zstandard": ("compression.zstd", "backports.zstd", "zstandard"),
}


class AvroFormat:
    """Plans and reads Avro files."""

    by_row = False

    def __init__(self, wanted: pa.Schema, operator: str) -> None:
        load("fastavro", "avro", operator)
        self._wanted = wanted
        self._operator = operator
        self._headers: dict[tuple[str, int, int | None], Header] = {}

    def _header(self, file: InputFile, raw: pa.NativeFile) -> Header:
        """The header of a file, whose columns fit and whose codec is there."""
        key = (file.path, file.size, file.modified)
        if key not in self._headers:
            header = read_header(raw, file.size)
            self._refuse_misfit(file, columns_of(header.schema))
            self._refuse_codec(file, header.codec)
            self._headers = {key: header}
        return self._headers[key]

    def _refuse_misfit(self, file: InputFile, found: Columns) -> None:
        for name in self._wanted.names:
            other = match(name, list(found.others))
            if name not in file.constants and other is not None:
                raise file.refusal(
                    f"its column '{other}' is not supported: {found.others[other]}",
                    "declare the other columns alone, or write the file with another type",
                )
        refuse_misfit(file, misfit(found.schema, self._wanted, file.constants))

    def _refuse_codec(self, file: InputFile, codec: str) -> None:
        if codec not in _CODECS:
            raise file.refusal(
                f"its codec '{codec}' is not supported", f"write it with one of: {', '.join(sorted(_CODECS))}"
            )
        needed = _CODECS[codec]
        if needed and not any(_there(module) for module in needed):
            raise EnvironmentProblem(
                f"file '{file.name}' is compressed with {codec}, and none of the libraries for it is installed: "
                f"{', '.join(needed)}",
                operator=self._operator,
                kept=NOTHING_DONE,
                do="pip install 'spark-ext[avro]', for the Python of the driver and of the executors",
            )

    def advance(self, file: InputFile, start: int, limit: Limit) -> Advance:
        """The end of the next step: as many blocks as the limits allow, and at least one."""
        file.verify()
        with file.faults(), file.open() as raw:
            header = self._header(file, raw)
            if limit.rows is None and limit.bytes is None:
                return Advance(file.size, True, bytes=file.size - start)
            end, rows, over = max(start, header.end), 0, False
            for block in blocks(raw, header, end, file.size):
                over = (limit.rows is not None and rows + block.rows > limit.rows) or (
                    limit.bytes is not None and block.end - start > limit.bytes
                )
                if over and rows:
                    over = False
                    break
                end, rows = block.end, rows + block.rows
                if over:
                    break
        return Advance(end, end == file.size, rows=rows, bytes=end - start, whole=over)

    def inspect(self, file: InputFile) -> None:
        """Refuse a file whose header cannot be read, or whose columns do not fit."""
        self.advance(file, 0, Limit())

    def seek(self, file: InputFile, position: Json) -> int:
        """The byte at which a block begins, 0, or the end of the file."""
        file.verify()
        at = number_in(position, 0, file.size, "the byte at which a block begins", file.operator)
        with file.faults(), file.open() as raw:
            header = self._header(file, raw)
            if at and not begins_at(raw, header, at, file.size):
                near = next_begin(raw, header, at, file.size, file.size)
                what = f"the byte at which a block begins; the next one begins at {near}"
                raise no_position(position, what, file.operator)
        return at

    def split(self, file: InputFile, start: int, end: int, parts: int) -> Sequence[tuple[int, int]]:
        """Split between blocks, into parts of about equal size."""
        parts = min(parts, (end - start) // LEAST_PART)
        if parts < 2:
            return [(start, end)]
        with file.faults(), file.open() as raw:
            header = self._header(file, raw)
            ideals = even_cuts(start, end, parts)
            return parts_between(start, end, _cuts(file, raw, header, ideals, start, end))

    def read(self, file: InputFile, start: int, end: int | None, bad: OnBadRow = None) -> Iterator[pa.RecordBatch]:
        """The rows of the blocks in [start, end); `end` None: all."""
        with file.unchanged():
            if file.size:
                with file.faults(), file.open() as raw:
                    header = self._header(file, raw)
                    first = max(start, header.end)
                    last = file.size if end is None else end
                    if first < last:
                        yield from self._rows(file, header, raw, first, last, bad)

    def _rows(
        self, file: InputFile, header: Header, raw: pa.NativeFile, first: int, last: int, bad: OnBadRow
    ) -> Iterator[pa.RecordBatch]:
        from fastavro import block_reader

        found = columns_of(header.schema).schema
        names = [match(name, found.names) for name in self._wanted.names if name not in file.constants]
        held = pa.schema([found.field(name) for name in names if name is not None])
        stream = _Joined(made_header(header, decoding(header.schema)), raw, first, last)
        for block in _blocks(stream, block_reader):
            at = stream.begin
            rows: list[dict[str, Any]] = []
            number = 0
            for row in block:
                rows.append(row)
                if len(rows) == BATCH_ROWS:
                    yield from self._batch(file, held, rows, at, number, bad)
                    number, rows = number + len(rows), []
            if rows:
                yield from self._batch(file, held, rows, at, number, bad)
        if stream.tell() != stream.end:
            raise ValueError(f"it ends before byte {last}, up to which it was planned")

    def _batch(
        self, file: InputFile, held: pa.Schema, rows: list[dict[str, Any]], block: int, number: int, bad: OnBadRow
    ) -> Iterator[pa.RecordBatch]:
        if not held:
            yield conform(no_columns(len(rows)), self._wanted, file.constants)
            return
        try:
            batch = pa.RecordBatch.from_pylist(rows, schema=held)
        except (pa.ArrowInvalid, UnicodeError) as problem:  # a decimal has more digits than its type
            reason = "a text is not UTF-8" if isinstance(problem, UnicodeError) else str(problem)
            if bad is None:
                raise pa.ArrowInvalid(reason) from None
            middle = len(rows) // 2
            if middle == 0:
                position = {"file": file.name, "block": block, "row": number}
                bad(BadRow(position, reason, json.dumps(rows[0], default=str)))
                return
            yield from self._batch(file, held, rows[:middle], block, number, bad)
            yield from self._batch(file, held, rows[middle:], block, number + middle, bad)
            return
        if bad is None:
            yield conform(batch, self._wanted, file.constants)
            return

        def collect(row: int, one: pa.RecordBatch, problem: Exception) -> None:
            position = {"file": file.name, "block": block, "row": number + row}
            bad(BadRow(position, str(problem), text_of(one)))

        conform(batch.slice(0, 0), self._wanted, file.constants)  # what is wrong with all rows is no matter of one
        yield from sift(batch, lambda part: conform(part, self._wanted, file.constants), pa.ArrowInvalid, collect)


def _cuts(
    file: InputFile, raw: pa.NativeFile, header: Header, ideals: list[int], start: int, end: int
) -> Iterator[int]:
    """Beginnings of blocks near these bytes."""
    if not file.local:
        # To pass from block to block would take a request for each. A marker within a row is taken for one behind a
        # block only if a block seems to follow; the task that reads up to there would then be refused.
        yield from (next_begin(raw, header, ideal, end, file.size) for ideal in ideals)
        return
    left = iter(ideals)
    ideal = next(left)
    for block in blocks(raw, header, max(start, header.end), end):
        if block.end >= ideal:
            yield block.end
            while ideal <= block.end:
                ideal = next(left, end + 1)


def _blocks(stream: _Joined, reader: type[block_reader]) -> Iterator[Any]:
    """The blocks of a stream; whatever the decoder raises about a damaged one names its place."""
    try:
        found = reader(cast("IO[bytes]", stream))
        # What is no UTF-8 is refused with its row: Arrow takes no surrogates.
        decode = decoder(found.writer_schema, found.writer_schema, "surrogateescape")
        while True:
            stream.begin_block()
            block = next(found, None)
            if block is None:
                return
            yield _decoded(block, stream, decode)
    except Exception as why:
        # Whatever the decoder and its codecs raise, but what the storage has.
        if stream.failure is not None:
            raise stream.failure from None
        raise _damaged(stream, why) from None


def _decoded(block: Any, stream: _Joined, decode: Callable[[bytes, int], tuple[Any, int]]) -> Iterator[Any]:
    """The rows of a block."""
    data, at = block.bytes_.getvalue(), 0
    for _ in range(block.num_records):
        try:
            row, at = decode(data, at)
        except (EOFError, ValueError, OverflowError, RecursionError) as why:
            raise _damaged(stream, why) from None
        yield row
    if at != len(data):
        raise _damaged(stream, ValueError(f"{len(data) - at} bytes are left behind its rows"))


def _damaged(stream: _Joined, why: Exception) -> ValueError:
    text = str(why) or type(why).__name__
    return ValueError(f"the block at byte {stream.begin} cannot be decoded: {text}")


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class _Joined:
    """A range of a file behind a header, as the decoder wants it: to the decoder it is a whole file."""

    def __init__(self, header: bytes, raw: pa.NativeFile, first: int, last: int) -> None:
        self._header, self._raw = header, raw
        self._first, self._at = first, 0
        self._ahead, self._ahead_at = b"", 0
        self.end = len(header) + last - first
        self.begin = first  # first byte of the current block in the file
        self.failure: Exception | None = None  # what the storage has raised

    def begin_block(self) -> None:
        """Note that the next block is about to be read."""
        self.begin = self._first + max(0, self._at - len(self._header))

    def tell(self) -> int:
        """How much was read."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        left = self.end - self._at
        size = left if size < 0 else min(size, left)
        if self._at < len(self._header):
            data = self._header[self._at : self._at + size]
        else:
            try:
                data = self._of_file(self._first + self._at - len(self._header), size, left)
            except Exception as failure:
                self.failure = failure
                raise
        self._at += len(data)
        return data

    def _of_file(self, at: int, size: int, left: int) -> bytes:
        """Bytes of the file; the numbers before a block, which are read one by one, are read ahead."""
        if size > _AHEAD:
            self._raw.seek(at)
            return bytes(self._raw.read(size))
        begin = at - self._ahead_at
        if not 0 <= begin <= len(self._ahead) - size:
            self._raw.seek(at)
            self._ahead, self._ahead_at, begin = bytes(self._raw.read(min(_AHEAD, left))), at, 0
        return self._ahead[begin : begin + size]


def schema_of(file: InputFile) -> pa.Schema:
    """The columns of a file, for the source's schema."""
    file.verify()
    with file.faults(), file.open() as raw:
        found = columns_of(read_header(raw, file.size).schema)
    for name, problem in found.others.items():
        raise file.refusal(
            f"its column '{name}' is not supported: {problem}", "declare the other columns with .schema(...)"
        )
    return found.schema


# Logical types are taken out of the schema with which rows are decoded, but for decimals: numbers of days and of
# milliseconds become Arrow's dates and timestamps without a Python object, which has no years beyond 9999.
_ARROW: Final = Target[pa.DataType](
    {
        "null": pa.null(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "string": pa.string(),
    },
    {
        ("int", "date"): pa.date32(),
        ("int", "time-millis"): pa.time32("ms"),
        ("long", "time-micros"): pa.time64("us"),
        ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
        ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
        ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
        ("long", "local-timestamp-millis"): pa.timestamp("ms"),
        ("long", "local-timestamp-micros"): pa.timestamp("us"),
        ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    },
    pa.decimal128,
    lambda element, _: pa.list_(pa.field("element", element)),
    lambda value, _: pa.map_(pa.string(), value),
    lambda fields, _: pa.struct([pa.field(name, kind) for name, kind, _ in fields]),
)


class Columns(NamedTuple):
    """The columns of a file."""

    schema: pa.Schema
    others: dict[str, str]  # why the other columns cannot be read


def columns_of(schema: Any) -> Columns:
    """The columns of an Avro schema."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        kind = schema.get("type") if isinstance(schema, dict) else schema
        raise ValueError(f"its rows are not records but of the type {kind!r}")
    found = list(Walk(_ARROW).columns(schema))
    fields = [pa.field(name, kind) for name, kind in found if not isinstance(kind, Unsupported)]
    return Columns(pa.schema(fields), {name: str(why) for name, why in found if isinstance(why, Unsupported)})


def decoding(schema: Any) -> Any:
    """The schema with which rows are decoded: as numbers, text and bytes, and decimals as such."""
    if isinstance(schema, list):
        return [decoding(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: value for name, value in schema.items() if name != "logicalType" or value == "decimal"}
    for name in ("type", "items", "values"):
        if name in out:
            out[name] = decoding(out[name])
    if isinstance(out.get("fields"), list):
        # Defaults are for readers with another schema.
        out["fields"] = [
            {name: decoding(value) if name == "type" else value for name, value in field.items() if name != "default"}
            for field in out["fields"]
        ]
    return out
