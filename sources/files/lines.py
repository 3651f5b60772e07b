"""CSV and JSON files by byte: ranges of whole lines, in blocks of bounded size; or, if not divisible, in one step."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from spark_ext.bad_rows.row import passed_over
from spark_ext.datafiles.input_file import KEPT, InputFile
from spark_ext.errors import DataError
from spark_ext.model.offsets import Json
from spark_ext.schemas.columns import conform, constant, folder_values
from spark_ext.schemas.text_types import as_declared, refuse_lost_zones
from spark_ext.sources.contract import Advance, BadRow, Limit
from spark_ext.sources.files.encodings import MARK, Encoding
from spark_ext.sources.files.line_ends import BOM, after_lines, count_lines, ends_of, last_end, line_end
from spark_ext.sources.files.options import FilesOptions
from spark_ext.sources.files.row_groups import OnBadRow, even_cuts, parts_between
from spark_ext.sources.positions import no_position, number_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 8 * 1024 * 1024  # bytes parsed at a time; a longer line makes a longer block
LARGEST = 2**31 - 16  # bytes that Arrow parses at a time
SIFTED = 256 * 1024  # bytes of the pieces in which bad lines are looked for
SAMPLED_BYTES = 1024 * 1024  # bytes of a file from which its columns are inferred
LEAST_PART = 1024 * 1024  # minimum size of the parts of a split range, bytes
BATCH_ROWS = 65_536


class NewColumns(DataError):
    """A file has columns that are not among those that were inferred and kept."""


class LinesFormat(ABC):
    """Plans and reads files of lines. Positions are the bytes at which lines begin."""

    by_row = False
    blank: ClassVar[bytes] = b"\r\n"

    def __init__(self, wanted: pa.Schema, options: FilesOptions, optional: Collection[str] = ()) -> None:
        self._wanted = wanted
        self._optional = optional  # columns that a file may lack
        self._refuses_new = options.infer and options.schema_evolution != "ignore"
        self._options = options
        self._whole = options.multiline  # rows may span lines, so that a file is one step
        self._encoding = Encoding.of(options.encoding)
        # Planning leaves bad lines out as well, or refuses them.
        self._skipping: OnBadRow = passed_over if options.on_bad_row == "quarantine" else None
        refuse_lost_zones(wanted, options.timestamp_format, options.uid)

    def _held(self, file: InputFile) -> pa.Schema:
        """The declared columns that are in the file."""
        return pa.schema([field for field in self._wanted if field.name not in file.constants])

    def _shaped(self, file: InputFile, table: pa.Table) -> pa.Table:
        return as_declared(table, self._held(file), self._options.timestamp_format)

    @abstractmethod
    def infer(self, file: InputFile) -> pa.Schema:
        """The columns of a file as Arrow infers them from its beginning; none if it has no others than are wanted."""

    def _sample(self, file: InputFile) -> pa.Buffer:
        """Rows at the beginning of a file, in UTF-8; all of them if they may span lines."""
        begin = self.head(file)
        with file.faults(), self.opened(file) as raw:
            raw.read(begin)
            data = raw.read(LARGEST if self._whole else SAMPLED_BYTES)
            cut = last_end(data) if raw.read(1) else len(data)
        data = data[: cut or len(data)].removeprefix(BOM)
        with file.faults():
            return self.only_rows(pa.py_buffer(data) if self.whole(file) else self._encoding.to_utf8(data))

    def head(self, file: InputFile) -> int:
        """The byte after what is at the beginning of the file and not a row: a header."""
        return 0

    def check(self, file: InputFile) -> None:
        """Refuse a file whose header does not match the declared columns, or that has others than the kept ones."""
        self._refuse_new(file, folder_values(file.name))

    def _refuse_new(self, file: InputFile, names: Collection[str]) -> None:
        new = [name for name in names if name not in self._wanted.names] if self._refuses_new else []
        if new:
            raise self._new_columns(file, new)

    def _new_columns(self, file: InputFile, names: Sequence[str]) -> NewColumns:
        do = "start again: the columns are then added; touch the file if it is older than the former start"
        if self._options.schema_evolution == "refuse":
            do = "set schema_evolution=add_columns, so that the next start adds them, or schema_evolution=ignore"
        which = f"its columns {', '.join(names)} are" if names else "it has fields that are"
        what = f"file '{file.name}': {which} not among those that were inferred and kept"
        return NewColumns(what, operator=file.operator, kept=KEPT, do=do)

    def new_in(self, problem: Exception, line: bytes) -> list[str] | None:
        """The columns of a line that does not fit because it has others than the kept ones; None: it is not that."""
        return None

    @abstractmethod
    def parse(self, file: InputFile, block: pa.Buffer) -> pa.Table:
        """Parse whole lines into columns; raises Arrow's errors."""

    def only_rows(self, block: pa.Buffer) -> pa.Buffer:
        """Whole lines without those that are no rows, such as comments."""
        return block

    @abstractmethod
    def stream(self, file: InputFile, raw: pa.NativeFile, block: int) -> Iterator[pa.RecordBatch]:
        """A whole file, from its beginning, whose rows may span lines, by blocks of this size."""

    def whole(self, file: InputFile) -> bool:
        """Whether this file is one step."""
        return self._whole or file.compression is not None or not self._encoding.by_line

    def text(self, file: InputFile) -> pa.NativeFile:
        """A file from its beginning, unpacked and in UTF-8."""
        return self._encoding.stream(file.unpacked())

    def opened(self, file: InputFile) -> pa.NativeFile:
        """A file from its beginning, in whose bytes positions are: as it is, or if it is one step its text."""
        return self.text(file) if self.whole(file) else file.open()

    def _check_mark(self, file: InputFile) -> None:
        """Refuse a file with the mark of another encoding."""
        if not self._encoding.is_utf8:
            with file.faults(), file.unpacked() as raw:
                self._encoding.check(bytes(raw.read(MARK)))

    def advance(self, file: InputFile, start: int, limit: Limit) -> Advance:
        """The end of the next step: limits are exact to the line; a row is a line, including blank ones."""
        file.verify()
        if start == 0 and file.size:
            self._check_mark(file)
            self.check(file)
        if self.whole(file):
            if start:
                raise file.refusal(
                    f"it was read up to byte {start}, and can only be read in one step now",
                    "put the options 'encoding' and 'multiline' back as they were when it was begun",
                )
            # Under a limit of rows it is read twice: rows that nobody has counted would not count.
            rows = None
            if limit.rows is not None:
                rows = sum(batch.num_rows for batch in self._whole_rows(file, self._skipping))
            return Advance(file.size, True, rows=rows, bytes=file.size - start, whole=True)
        if limit.rows is None and limit.bytes is None:
            return Advance(file.size, True, bytes=file.size - start)
        end, rows = file.size, None
        with file.faults(), file.open() as raw:
            if limit.bytes is not None and start + limit.bytes < end:
                end = line_end(raw, start + max(0, limit.bytes - 1), end)
            if limit.rows is not None:
                first = max(start, self.head(file))
                end, rows = after_lines(raw, first, end, limit.rows) if first < end else (end, 0)
        return Advance(end, end == file.size, rows=rows, bytes=end - start)

    def inspect(self, file: InputFile) -> None:
        """Refuse a file that cannot be read as a whole; one that is one step is read to its end."""
        self.advance(file, 0, Limit())
        if self._whole:
            for _ in self._whole_rows(file, None):
                pass
        elif self.whole(file):
            with file.faults(), self.text(file) as raw:
                while raw.read(BLOCK):
                    pass

    def seek(self, file: InputFile, position: Json) -> int:
        """The byte at which a line begins, or the end of the file."""
        file.verify()
        if self.whole(file):
            if position not in (0, file.size) or isinstance(position, bool):
                raise no_position(position, f"0 or {file.size}, as the file is read in one step", file.operator)
            return int(position)
        at = number_in(position, 0, file.size, "the byte at which a line begins", file.operator)
        if 0 < at < file.size:
            with file.faults(), file.open() as raw:
                begins, after = line_end(raw, at - 1, file.size), line_end(raw, at, file.size)
            if begins != at:
                what = f"the byte at which a line begins; the next one begins at {min(begins, after)}"
                raise no_position(position, what, file.operator)
        return at

    def split(self, file: InputFile, start: int, end: int, parts: int) -> Sequence[tuple[int, int]]:
        """Split at lines, into parts of about equal size."""
        parts = min(parts, (end - start) // LEAST_PART)
        if parts < 2 or self.whole(file):
            return [(start, end)]
        with file.faults(), file.open() as raw:
            ideals = even_cuts(start, end, parts)
            return parts_between(start, end, (line_end(raw, ideal, end) for ideal in ideals))

    def read(self, file: InputFile, start: int, end: int | None, bad: OnBadRow = None) -> Iterator[pa.RecordBatch]:
        """The rows of the lines in [start, end); `end` None: all. Rows over several lines are refused, not bad."""
        with file.unchanged():
            end = file.size if end is None else min(end, file.size)
            if start < end:
                yield from self._whole_rows(file, bad) if self.whole(file) else self._rows(file, start, end, bad)

    def _whole_rows(self, file: InputFile, bad: OnBadRow) -> Iterator[pa.RecordBatch]:
        if not self._whole:
            yield from self._unpacked_rows(file, bad)
            return
        with file.faults():
            for batch in self._streamed(file):
                yield from self._pieces(file, pa.Table.from_batches([batch]))

    def _streamed(self, file: InputFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file in which they may span lines; it is read again by larger blocks if a row spans several."""
        rows, block = 0, BLOCK
        while True:
            known = rows
            try:
                with self.text(file) as raw:
                    for batch in self.stream(file, raw, block):
                        new = batch.slice(min(known, batch.num_rows))
                        known -= batch.num_rows - new.num_rows
                        rows += new.num_rows
                        yield new
                return
            except pa.ArrowInvalid as problem:
                if self.new_in(problem, b"{}") is not None:
                    raise self._new_columns(file, []) from problem
                if "straddling object straddles" not in str(problem) or block == LARGEST:
                    raise
                block = min(8 * block, LARGEST)

    def _unpacked_rows(self, file: InputFile, bad: OnBadRow) -> Iterator[pa.RecordBatch]:
        """The rows of a file that is one step, in blocks of lines. Bytes are those of the text in it, in UTF-8."""
        head, at, rest, more = self.head(file), 0, b"", True
        with file.faults(), self.text(file) as raw:
            while more:
                piece = raw.read(BLOCK)
                more, rest = bool(piece), rest + piece
                if at == 0:
                    first = max(len(BOM) if rest.startswith(BOM) else 0, head)
                    if more and len(rest) <= max(first, len(BOM)):
                        continue
                    at, rest = first, rest[first:]
                cut = last_end(rest) if more else len(rest)
                if cut:
                    block = pa.py_buffer(rest[:cut])
                    try:
                        yield from self._parsed(file, block)
                    except pa.ArrowException as problem:
                        if bad is None:
                            raise self._at_line(file, block, at, problem) from problem
                        self._check_constants(file)
                        yield from self._sifted(file, block, at, bad)
                    at, rest = at + cut, rest[cut:]

    def _rows(self, file: InputFile, start: int, end: int, bad: OnBadRow) -> Iterator[pa.RecordBatch]:
        with file.open() as raw:
            for at, block in self._blocks(file, raw, start, end):
                try:
                    pieces = self._parsed(file, block)
                except pa.ArrowException as problem:
                    if bad is None:
                        raise self._at_line(file, block, at, problem) from problem
                    self._check_constants(file)
                    pieces = self._sifted(file, block, at, bad)
                yield from pieces

    def _check_constants(self, file: InputFile) -> None:
        """Refuse a value in the name of a folder that does not fit: no row is to blame for it."""
        for name, text in file.constants.items():
            with file.faults():
                constant(text, self._wanted.field(name).type, 0)

    def _sifted(
        self, file: InputFile, block: pa.Buffer, at: int, bad: Callable[[BadRow], object]
    ) -> list[pa.RecordBatch]:
        """The rows of the lines that fit; the others are found by pieces, and in these by what Arrow says of them."""
        ends = _all_ends(block)
        starts = np.concatenate([[0], ends[:-1]])
        good: list[pa.RecordBatch] = []
        # In pieces first: by halves alone the good lines would be parsed as often as there are levels.
        bounds = [*np.unique(np.searchsorted(starts, np.arange(0, block.size, SIFTED))).tolist(), len(ends)]
        left = [(low, high) for low, high in pairwise(bounds) if low < high][::-1]
        while left:
            low, high = left.pop()
            begin, end = int(starts[low]), int(ends[high - 1])
            try:
                good += self._parsed(file, block.slice(begin, end - begin))
            except pa.ArrowException as problem:
                if high - low > 1:
                    left += _parts(low, high, problem)
                    continue
                line = bytes(block.slice(begin, end - begin)).rstrip(b"\r\n")
                if (new := self.new_in(problem, line)) is not None:
                    error = self._new_columns(file, new)
                    if self._options.schema_evolution == "add_columns":
                        raise error
                    problem = error
                bad(BadRow({"file": file.name, "byte": at + begin}, _reason(problem), line))
        schema = good[0].schema if good else None
        return pa.Table.from_batches(good, schema=schema).combine_chunks().to_batches(BATCH_ROWS) if good else []

    def _blocks(self, file: InputFile, raw: pa.NativeFile, start: int, end: int) -> Iterator[tuple[int, pa.Buffer]]:
        # A range may begin before the header, between comments.
        at = max(start, self._first(file, raw))
        while at < end:
            with file.faults():
                raw.seek(at)
                data = raw.read(min(BLOCK, end - at))
                cut = len(data) if at + len(data) == end else last_end(data)
                if not cut:
                    stop = line_end(raw, at + len(data), end)
                    raw.seek(at)
                    data = raw.read(stop - at)
                    cut = len(data)
            if not data:
                raise file.refusal(f"it ends before byte {end}, up to which it was planned", "restore the file")
            yield at, pa.py_buffer(memoryview(data)[:cut])
            at += cut

    def _first(self, file: InputFile, raw: pa.NativeFile) -> int:
        with file.faults():
            raw.seek(0)
            return max(len(BOM) if raw.read(len(BOM)) == BOM else 0, self.head(file))

    def _parsed(self, file: InputFile, block: pa.Buffer) -> list[pa.RecordBatch]:
        if not self.whole(file):
            block = self._encoding.to_utf8(block)
        block = self.only_rows(block)
        if not bytes(block).strip(self.blank):
            return []
        # Convert the rows here as well: a null or a timestamp may be what does not fit.
        return list(self._pieces(file, self.parse(file, block)))

    def _pieces(self, file: InputFile, table: pa.Table) -> Iterator[pa.RecordBatch]:
        for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
            if batch.num_rows:
                yield conform(batch, self._wanted, file.constants)

    def _at_line(self, file: InputFile, block: pa.Buffer, at: int, problem: Exception) -> Exception:
        """Find the first line that does not fit, by binary search."""
        ends = _all_ends(block)
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) // 2
            first = int(ends[low - 1]) if low else 0
            try:
                self._parsed(file, block.slice(first, int(ends[middle]) - first))
                low = middle + 1
            except pa.ArrowException as nearer:
                problem, high = nearer, middle
        begin = int(ends[low - 1]) if low else 0
        byte, line = at + begin, bytes(block.slice(begin, int(ends[low]) - begin))
        if (new := self.new_in(problem, line)) is not None:
            return self._new_columns(file, new)
        with file.faults(), self.opened(file) as raw:
            number = count_lines(raw, byte) + 1
        return file.refusal(
            f"line {number} (byte {byte}) does not fit the declared columns: {problem}",
            "correct the line, or the schema or the format options ('multiline' if rows span lines), and start again "
            "with the option changed_files=accept if the file was changed; or load with on_bad_row=quarantine",
        )


def _all_ends(block: pa.Buffer) -> NDArray[np.int64]:
    """Where lines end, the last one included, which may have no line end."""
    ends = ends_of(block)
    return ends if len(ends) and ends[-1] == block.size else np.append(ends, block.size)


def _parts(low: int, high: int, problem: Exception) -> list[tuple[int, int]]:
    """Where to look for the bad lines of [low, high), last part first: around the row Arrow names, or by halves."""
    # Arrow does not count blank lines, so the one that it names may be before the bad one.
    named = re.search(r"Row #(\d+): | in row (\d+)$", str(problem))
    at = low + int(named[1] or named[2]) - 1 if named else -1
    if not low <= at < high:
        middle = (low + high) // 2
        return [(middle, high), (low, middle)]
    parts = [(at + 1, high), (at, at + 1), (low, at)]
    return [(begin, end) for begin, end in parts if begin < end]


def _reason(problem: Exception) -> str:
    """Why a line is bad. Arrow shows a line that it cannot parse, which is kept as such, and names a row of its own."""
    text = re.sub(r"^(CSV|JSON) parse error: ", r"\1: ", str(problem))
    return re.sub(r"Row #\d+: | in row \d+$", "", text)
