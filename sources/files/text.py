"""CSV and JSON, parsed by Arrow with the declared columns instead of inferred ones."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv, json, types
from pydantic_core import from_json

from spark_ext.datafiles.input_file import InputFile
from spark_ext.schemas.columns import folder_values, match
from spark_ext.schemas.text_types import ODD_NUMBER, json_objects, parsed_in_csv, parsed_in_json, refuse_types
from spark_ext.sources.files.inferred import zeros_kept
from spark_ext.sources.files.line_ends import BOM, SCAN, ends_of, filled_lines, first_line, leading_lines, without_lines
from spark_ext.sources.files.lines import LARGEST, LinesFormat
from spark_ext.sources.files.options import FilesOptions
from spark_ext.sources.files.row_groups import DECLARE_OTHERS

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ODD_INTEGERS = (b"+", b"0x", b"0X")  # what is in integers that Arrow does not parse, or parses wrongly
_OPEN, _CLOSE = b"{}"
_END = "\0end of the file\0"
_NOT_CLOSED = "a quoted value is not closed before its end"
_KEPT_HEADERS = 1_000  # of files that were inspected and are planned next
_UNEXPECTED = "JSON parse error: unexpected field"


class Header(NamedTuple):
    """The first line of a CSV file."""

    names: list[str]
    end: int


class CsvFormat(LinesFormat):
    """CSV: columns by name if there is a header, else by position."""

    def __init__(self, wanted: pa.Schema, options: FilesOptions, optional: Collection[str] = ()) -> None:
        super().__init__(wanted, options, optional)
        self._headers: dict[tuple[str, int, int | None], Header] = {}
        refuse_types(wanted, options.uid, "csv", (types.is_nested, types.is_duration))

    def head(self, file: InputFile) -> int:
        """The byte after the header; 0 without one."""
        return self._header(file).end

    def check(self, file: InputFile) -> None:
        """Refuse a file with a header in which a declared column is missing, or one is that is not kept."""
        self._checked_header(file)

    def _checked_header(self, file: InputFile) -> Header:
        header = self._header(file)
        self._refuse_new(file, [*header.names, *folder_values(file.name)])
        return header

    def only_rows(self, block: pa.Buffer) -> pa.Buffer:
        """Whole lines without comments."""
        return block if self._options.comment is None else without_lines(block, ord(self._options.comment))

    def parse(self, file: InputFile, block: pa.Buffer) -> pa.Table:
        """Parse lines into columns."""
        names, text = self._checked_header(file).names, bytes(block)
        table = csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(use_threads=False, block_size=block.size + 1, column_names=names),
            parse_options=self._parse_options(),
            convert_options=self._convert_options(file, names, any(one in text for one in _ODD_INTEGERS)),
        )
        self._refuse_open_lines(block, table.num_rows)
        return self._shaped(file, table)

    def infer(self, file: InputFile) -> pa.Schema:
        """The columns of the header; lines that do not parse are left out."""
        names = self._header(file).names
        if not all(names) or len(set(names)) < len(names):
            raise file.refusal(
                f"its header does not name each column once: {', '.join(names)}",
                "declare the columns that are needed with .schema(...) instead of infer=true",
            )
        if set(names) <= set(self._wanted.names):
            return pa.schema([])
        block = self._sample(file)
        if not bytes(block).strip(self.blank):
            return pa.schema([(name, pa.null()) for name in names])
        parse = self._parse_options()
        parse.invalid_row_handler = lambda _: "skip"
        pattern = self._options.timestamp_format

        def read(kinds: dict[str, pa.DataType]) -> pa.Table:
            return csv.read_csv(
                pa.BufferReader(block),
                read_options=csv.ReadOptions(use_threads=False, block_size=block.size + 1, column_names=names),
                parse_options=parse,
                convert_options=csv.ConvertOptions(
                    column_types=kinds,
                    check_utf8=False,
                    null_values=sorted({"", self._options.null_value}),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    timestamp_parsers=[csv.ISO8601 if pattern is None else pattern],
                ),
            )

        with file.faults():
            return zeros_kept(read({}).schema, read(dict.fromkeys(names, pa.string())))

    def _refuse_open_lines(self, block: pa.Buffer, rows: int) -> None:
        """Refuse values over several lines everywhere, because a range may begin or end inside of one."""
        # They are in quotes, or have a line end behind an escape. Arrow itself silently closes a quote at the end of
        # its input.
        if not self._may_be_open(bytes(block)):
            return
        text = bytes(block).rstrip(b"\r\n")
        ends = ends_of(text)
        if not self._closed(text[ends[-1] if len(ends) else 0 :]) or rows != filled_lines(block, b"\r\n"):
            raise pa.ArrowInvalid("a quoted value continues after the end of a line; set the option 'multiline'")

    def _may_be_open(self, text: bytes) -> bool:
        """Whether a text has a quote or an escape, without which each line is a row."""
        return any(one and one.encode() in text for one in (self._options.quote, self._options.escape))

    def _closed(self, line: bytes) -> bool:
        """Whether no quote is open at the end of a line: twice the line is then two rows."""
        if not self._may_be_open(line):
            return True
        twice = (line + b"\n") * 2
        try:
            again = csv.read_csv(
                pa.BufferReader(twice),
                read_options=csv.ReadOptions(autogenerate_column_names=True, block_size=len(twice) + 1),
                parse_options=self._parse_options(),
                convert_options=csv.ConvertOptions(check_utf8=False),
            )
        except pa.ArrowInvalid:
            return False
        return bool(again.num_rows == 2)

    def stream(self, file: InputFile, raw: pa.NativeFile, block: int) -> Iterator[pa.RecordBatch]:
        """Parse a file in which quoted values may contain line breaks."""
        names, end = self._checked_header(file)
        raw.read(end)
        ended = Ended(raw, self._options.sep.encode() * len(names))
        options = self._parse_options()
        options.invalid_row_handler = ended.odd_row
        try:
            reader = csv.open_csv(
                pa.PythonFile(ended, "r"),
                read_options=csv.ReadOptions(use_threads=False, block_size=block, column_names=names),
                parse_options=options,
                convert_options=self._convert_options(file, names),
            )
            for batch in reader:
                yield from self._shaped(file, pa.Table.from_batches([batch])).combine_chunks().to_batches()
        except pa.ArrowInvalid as problem:
            if "Empty CSV file" in str(problem):
                return
            if _END in str(problem):
                raise pa.ArrowInvalid(_NOT_CLOSED) from None
            raise
        if not ended.found:
            raise pa.ArrowInvalid(_NOT_CLOSED)

    def _header(self, file: InputFile) -> Header:
        """The names of the file's columns, with the declared spelling of declared columns, and where they end."""
        wanted = self._held(file).names
        if not (self._options.header or self._options.skip_rows):
            return Header(list(wanted), 0)
        key = (file.path, file.size, file.modified)
        if key not in self._headers:
            begin = self._after_skipped(file)
            if len(self._headers) >= _KEPT_HEADERS:
                self._headers.clear()
            self._headers[key] = self._found(file, wanted, begin) if self._options.header else Header(wanted, begin)
        return self._headers[key]

    def _after_skipped(self, file: InputFile) -> int:
        wanted = self._options.skip_rows
        if not wanted:
            return 0
        with file.faults(), self.opened(file) as raw:
            end, lines = leading_lines(raw, wanted)
        if 0 < lines < wanted:
            raise file.refusal(
                f"the option 'skip_rows' is {wanted}, and it has {lines} lines",
                "correct the option, or replace the file by a complete one",
            )
        return end

    def _found(self, file: InputFile, wanted: list[str], begin: int) -> Header:
        with file.faults(), self.opened(file) as raw:
            raw.read(begin)
            # A line of another encoding is decoded when it is known.
            line, end = first_line(raw, self._closed if self._whole else lambda _: True, self._is_comment)
            line = line if self.whole(file) else bytes(self._encoding.to_utf8(line))
        if not self._closed(line):
            raise file.refusal(
                "a quoted value of its header continues after the end of a line", "set the option 'multiline'"
            )
        # A file of empty lines has no rows, and needs no header.
        return Header(self._matched(file, self._split(file, line), wanted) if line else list(wanted), begin + end)

    def _is_comment(self, line: bytes) -> bool:
        return self._options.comment is not None and line.startswith(self._options.comment.encode())

    def _split(self, file: InputFile, line: bytes) -> list[str]:
        with file.faults():
            row = csv.read_csv(
                pa.BufferReader(line + b"\n"),
                read_options=csv.ReadOptions(autogenerate_column_names=True, block_size=len(line) + 2),
                parse_options=self._parse_options(),
                convert_options=csv.ConvertOptions(null_values=[]),
            )
        return [str(column[0].as_py()) for column in row.columns]

    def _matched(self, file: InputFile, header: list[str], wanted: list[str]) -> list[str]:
        normal = _normal if self._options.header == "normalize" else str
        names = [normal(name) for name in header]
        found = list(names)
        for theirs, ours in self._options.columns.items():
            found[_index(file, normal(theirs), names, header)] = ours
        for name in wanted:
            if name not in self._optional or match(name, found) is not None:
                found[_index(file, name, found, header)] = name
        return found

    def _parse_options(self) -> csv.ParseOptions:
        given = self._options
        return csv.ParseOptions(
            delimiter=given.sep,
            quote_char=given.quote or False,
            double_quote=given.escape is None,
            escape_char=given.escape or False,
            newlines_in_values=given.multiline,
        )

    def _convert_options(self, file: InputFile, names: list[str], odd_integers: bool = True) -> csv.ConvertOptions:
        held = self._held(file)
        return csv.ConvertOptions(
            column_types={field.name: parsed_in_csv(field.type, odd_integers) for field in held},
            include_columns=None if sorted(names) == sorted(held.names) else held.names,
            include_missing_columns=True,
            null_values=sorted({"", self._options.null_value}),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )


def _normal(name: str) -> str:
    """The name of a column in lower case, with an underscore for blanks between its words."""
    return "_".join(name.lower().split())


def _index(file: InputFile, name: str, names: list[str], header: list[str]) -> int:
    """Where a column is among the names that a header gives."""
    theirs = match(name, names)
    if theirs is None or names.count(theirs) > 1:
        twice = [f"'{one}'" for one, other in zip(header, names, strict=True) if other == theirs]
        how = f"has the column '{name}' twice, as {' and '.join(twice)}" if theirs else f"has no column '{name}'"
        raise file.refusal(f"its header {how}; it has: {', '.join(names)}", DECLARE_OTHERS)
    return names.index(theirs)


class JsonFormat(LinesFormat):
    """JSON: one object per line, or with `multiline` objects over several lines, one after the other."""

    blank = b" \t\r\n"

    def __init__(self, wanted: pa.Schema, options: FilesOptions, optional: Collection[str] = ()) -> None:
        super().__init__(wanted, options, optional)
        refuse_types(wanted, options.uid, "json", (types.is_map, types.is_duration, types.is_binary))

    def parse(self, file: InputFile, block: pa.Buffer) -> pa.Table:
        """Parse lines into columns; a missing key is null, an undeclared key is ignored."""
        # A line `null` is a row of nulls.
        table = self._objects(file, block)
        ends = ends_of(block)
        rows_fit = table.num_rows == filled_lines(block, self.blank)
        # Their number alone says nothing: a line with two objects makes up for an object over two lines.
        if not rows_fit or not _lines_are_whole(block, ends, self.blank):
            raise pa.ArrowInvalid(
                "a line is not one object: it has several, or an object continues after its end; set the option "
                "'multiline'"
            )
        return self._shaped(file, table)

    def infer(self, file: InputFile) -> pa.Schema:
        """The keys of all objects of the sample that are not wanted; of its lines, if one of them is no object."""
        sample = bytes(self._sample(file))
        with file.faults():
            try:
                return self._keys(sample)
            except pa.ArrowInvalid:
                found = [] if self._whole else [keys for line in sample.splitlines() if (keys := self._try_keys(line))]
                if not found:
                    raise
                return pa.unify_schemas(found, promote_options="permissive")

    def _try_keys(self, line: bytes) -> pa.Schema | None:
        try:
            return self._keys(line)
        except pa.ArrowInvalid:
            return None

    def _keys(self, text: bytes) -> pa.Schema:
        # Arrow ends the process if the first value of a block is null.
        data = b"{}\n" + text
        found = json.read_json(
            pa.BufferReader(data),
            read_options=json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=json.ParseOptions(newlines_in_values=self._whole),
        ).schema
        return pa.schema([one for one in found if one.name not in self._wanted.names])

    def _objects(self, file: InputFile, block: pa.Buffer) -> pa.Table:
        """All objects of a block."""
        return json_objects(block, self._parsed_as(file), self._whole, undeclared=self._undeclared)

    @property
    def _undeclared(self) -> Literal["ignore", "error"]:
        return "error" if self._refuses_new else "ignore"

    def new_in(self, problem: Exception, line: bytes) -> list[str] | None:
        """By their names; none if it is within a struct."""
        try:
            found = from_json(line) if str(problem).startswith(_UNEXPECTED) else None
        except ValueError:
            return None
        return [name for name in found if name not in self._wanted.names] if isinstance(found, dict) else None

    def stream(self, file: InputFile, raw: pa.NativeFile, block: int) -> Iterator[pa.RecordBatch]:
        """Parse a file in which an object may span lines."""
        if self._may_be_odd(file):
            data = raw.read().removeprefix(BOM)
            if len(data) >= LARGEST:
                raise pa.ArrowInvalid(
                    "it has a null between its objects or an odd number, and 2 GiB or more: remove them"
                )
            yield from self._shaped(file, self._objects(file, pa.py_buffer(data))).combine_chunks().to_batches()
            return
        try:
            reader = json.open_json(
                raw,
                read_options=json.ReadOptions(use_threads=False, block_size=block),
                parse_options=json.ParseOptions(
                    explicit_schema=self._parsed_as(file),
                    unexpected_field_behavior=self._undeclared,
                    newlines_in_values=self._whole,
                ),
            )
        except pa.ArrowInvalid as problem:
            if "Empty JSON stream" in str(problem):
                return
            raise
        for batch in reader:
            batch.validate(full=True)  # UTF-8
            yield from self._shaped(file, pa.Table.from_batches([batch])).combine_chunks().to_batches()

    def _may_be_odd(self, file: InputFile) -> bool:
        """Whether a file may have a null between its objects (after a brace, or at its beginning) or an odd number."""
        with self.text(file) as raw:
            before = b"}"
            while data := raw.read(SCAN):
                text = before + data.translate(None, self.blank).removeprefix(BOM)
                if b"}null" in text or ODD_NUMBER.search(text):
                    return True
                before = text[-5:]
        return False

    def _parsed_as(self, file: InputFile) -> pa.Schema:
        held = self._held(file)
        return pa.schema([field.with_type(parsed_in_json(field.type)).with_nullable(True) for field in held])


def _lines_are_whole(block: pa.Buffer, ends: NDArray[np.int64], blank: bytes) -> bool:
    """Whether no object continues after the end of a line: each line begins and ends with a brace, or is a null."""
    data = np.frombuffer(block, np.uint8)
    starts = np.concatenate([[0], ends])
    starts = starts[starts < len(data)]
    stops = np.append(starts[1:], len(data))
    last = stops - 1
    for end in b"\n\r":
        last -= data[last] == end
    odd = np.flatnonzero((data[starts] != _OPEN) | (data[last] != _CLOSE))
    for begin, stop in zip(starts[odd].tolist(), stops[odd].tolist(), strict=True):
        line = bytes(block[begin:stop]).strip(blank)
        if line not in (b"", b"null") and not (line.startswith(b"{") and line.endswith(b"}")):
            return False
    return True


class Ended(io.RawIOBase):
    """A stream with a line of its own behind the end of a text, by which an open quote at the end is found.

    Arrow silently closes such a quote. It also passes over an LF at the beginning of a piece behind a CR, even in
    quotes, so that no piece ends with a CR here.

    The line has one column more than the others, so that Arrow asks what to do about it. It is part of a value, and
    Arrow does not ask, if a quote is open.
    """

    def __init__(self, raw: pa.NativeFile, separators: bytes) -> None:
        self._raw = raw
        self._line = _END.encode() + separators
        self._held = b""
        self._rest: bytes | None = None
        self.found = False

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        if self._rest is None:
            data = self._held + (more := bytes(self._raw.read(size - len(self._held))))
            self._held = b"\r" if data.endswith(b"\r") and more and len(data) > 1 else b""
            if data:
                return data[: len(data) - len(self._held)]
            self._rest = b"\n" + self._line + b"\n"
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def odd_row(self, row: csv.InvalidRow) -> str:
        """What is done about a row with another number of columns."""
        if row.text is None or row.text.encode() != self._line:
            return "error"
        self.found = True
        return "skip"
