"""CSV and JSON, parsed by Arrow with the declared columns instead of inferred ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import csv, json, types

from spark_ext.datafiles.input_file import InputFile
from spark_ext.errors import refused
from spark_ext.schemas.columns import instants, match
from spark_ext.sources.files.lines import BLOCK, LinesFormat, filled_lines, first_line


@dataclass(frozen=True)
class Dialect:
    """The dialect of a CSV file."""

    header: bool = False
    sep: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null_value: str = ""
    timestamp_format: str | None = None


class CsvFormat(LinesFormat):
    """CSV: columns by name if there is a header, else by position."""

    def __init__(self, wanted: pa.Schema, dialect: Dialect, *, multiline: bool, operator: str) -> None:
        super().__init__(wanted, whole=multiline)
        self._dialect = dialect
        self._multiline = multiline
        self._names: dict[str, list[str]] = {}
        _refuse_types(wanted, operator, "csv", lambda kind: types.is_nested(kind) or types.is_duration(kind))

    def head(self, file: InputFile) -> int:
        """1 with a header, else 0."""
        return int(self._dialect.header)

    def check(self, file: InputFile) -> None:
        """Refuse a file with a header in which a declared column is missing."""
        if self._dialect.header:
            self._file_names(file)
            self._names.pop(file.path, None)

    def parse(self, file: InputFile, block: pa.Buffer) -> pa.Table:
        """Parse lines into columns."""
        names = self._file_names(file)
        table = csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(use_threads=False, block_size=block.size + 1, column_names=names),
            parse_options=self._parse_options(),
            convert_options=self._convert_options(file, names),
        )
        self._refuse_open_quotes(block, table.num_rows)
        return self._shaped(file, table)

    def _refuse_open_quotes(self, block: pa.Buffer, rows: int) -> None:
        """Refuse quoted values over several lines everywhere, because a range may begin or end inside of one.

        Arrow itself silently closes a quote at the end of its input.
        """
        if self._dialect.quote is None or self._dialect.quote.encode() not in bytes(block):
            return
        last = bytes(block).rstrip(b"\r\n").rpartition(b"\n")[2]
        twice = (last + b"\n") * 2
        again = csv.read_csv(
            pa.BufferReader(twice),
            read_options=csv.ReadOptions(autogenerate_column_names=True, block_size=len(twice) + 1),
            parse_options=self._parse_options(),
            convert_options=csv.ConvertOptions(check_utf8=False),
        )
        if again.num_rows != 2 or rows != filled_lines(block):
            raise pa.ArrowInvalid("a quoted value continues after the end of a line; set the option 'multiline'")

    def stream(self, file: InputFile, raw: pa.NativeFile) -> Iterator[pa.RecordBatch]:
        """Parse a file in which quoted values may contain line breaks."""
        names = self._file_names(file)
        try:
            reader = csv.open_csv(
                raw,
                read_options=csv.ReadOptions(
                    use_threads=False, block_size=BLOCK, column_names=names, skip_rows=self.head(file)
                ),
                parse_options=self._parse_options(),
                convert_options=self._convert_options(file, names),
            )
        except pa.ArrowInvalid as problem:
            if "Empty CSV file" in str(problem):
                return
            raise
        for batch in reader:
            yield from self._shaped(file, pa.Table.from_batches([batch])).combine_chunks().to_batches()

    def _held(self, file: InputFile) -> pa.Schema:
        return pa.schema([field for field in self._wanted if field.name not in file.constants])

    def _file_names(self, file: InputFile) -> list[str]:
        """The names of the file's columns, with the declared spelling of declared columns."""
        wanted = self._held(file).names
        if not self._dialect.header:
            return list(wanted)
        if file.path not in self._names:
            line = first_line(file)
            with file.faults():
                row = csv.read_csv(
                    pa.BufferReader(line + b"\n"),
                    read_options=csv.ReadOptions(autogenerate_column_names=True, block_size=len(line) + 2),
                    parse_options=self._parse_options(),
                    convert_options=csv.ConvertOptions(null_values=[]),
                )
            found = [str(column[0].as_py()) for column in row.columns]
            for name in wanted:
                theirs = match(name, found)
                if theirs is None or found.count(theirs) > 1:
                    how = f"has the column '{name}' twice" if theirs else f"does not have the column '{name}'"
                    raise file.refusal(
                        f"its header {how}; it has: {', '.join(found)}",
                        "declare the columns that all files have, or read this file with a source of its own",
                    )
                found[found.index(theirs)] = name
            self._names = {file.path: found}
        return self._names[file.path]

    def _parse_options(self) -> csv.ParseOptions:
        dialect = self._dialect
        return csv.ParseOptions(
            delimiter=dialect.sep,
            quote_char=dialect.quote or False,
            double_quote=dialect.escape is None,
            escape_char=dialect.escape or False,
            newlines_in_values=self._multiline,
        )

    def _convert_options(self, file: InputFile, names: list[str]) -> csv.ConvertOptions:
        held = self._held(file)
        return csv.ConvertOptions(
            column_types={field.name: pa.string() if types.is_timestamp(field.type) else field.type for field in held},
            include_columns=held.names if len(names) > len(held) else None,
            null_values=sorted({"", self._dialect.null_value}),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def _shaped(self, file: InputFile, table: pa.Table) -> pa.Table:
        return _as_declared(table, self._held(file), self._dialect.timestamp_format)


class JsonFormat(LinesFormat):
    """JSON: one object per line, or with `multiline` objects over several lines, one after the other."""

    blank = b" \t\r\n"

    def __init__(self, wanted: pa.Schema, timestamp_format: str | None, *, multiline: bool, operator: str) -> None:
        super().__init__(wanted, whole=multiline)
        self._multiline = multiline
        self._timestamp_format = timestamp_format
        _refuse_types(
            wanted,
            operator,
            "json",
            lambda kind: types.is_map(kind) or types.is_duration(kind) or types.is_binary(kind),
        )

    def parse(self, file: InputFile, block: pa.Buffer) -> pa.Table:
        """Parse lines into columns; a missing key is null, an undeclared key is ignored."""
        table = json.read_json(
            pa.BufferReader(block),
            read_options=json.ReadOptions(use_threads=False, block_size=block.size + 1),
            parse_options=self._parse_options(file),
        )
        return _as_declared(table, self._held(file), self._timestamp_format)

    def stream(self, file: InputFile, raw: pa.NativeFile) -> Iterator[pa.RecordBatch]:
        """Parse a file in which an object may span lines."""
        try:
            reader = json.open_json(
                raw,
                read_options=json.ReadOptions(use_threads=False, block_size=BLOCK),
                parse_options=self._parse_options(file),
            )
        except pa.ArrowInvalid as problem:
            if "Empty JSON stream" in str(problem):
                return
            raise
        for batch in reader:
            table = _as_declared(pa.Table.from_batches([batch]), self._held(file), self._timestamp_format)
            yield from table.combine_chunks().to_batches()

    def _held(self, file: InputFile) -> pa.Schema:
        return pa.schema([field for field in self._wanted if field.name not in file.constants])

    def _parse_options(self, file: InputFile) -> json.ParseOptions:
        explicit = [field.with_type(pa.string()) if _as_text(field.type) else field for field in self._held(file)]
        return json.ParseOptions(
            explicit_schema=pa.schema([field.with_nullable(True) for field in explicit]),
            unexpected_field_behavior="ignore",
            newlines_in_values=self._multiline,
        )


def _as_text(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind))


def _as_declared(table: pa.Table, held: pa.Schema, pattern: str | None) -> pa.Table:
    """Convert the columns that were read as text to their declared types."""
    table = table.select(held.names).combine_chunks()
    for index, field in enumerate(held):
        column = table.column(index)
        if column.type != field.type:
            try:
                chunks = [
                    instants(chunk, field.type, pattern) if types.is_timestamp(field.type) else chunk.cast(field.type)
                    for chunk in column.chunks
                ]
            except pa.ArrowInvalid as problem:
                raise pa.ArrowInvalid(f"column '{field.name}': {problem}") from None
            table = table.set_column(index, field.name, pa.chunked_array(chunks, field.type))
    return table


def _refuse_types(wanted: pa.Schema, operator: str, name: str, unsupported: Callable[[pa.DataType], bool]) -> None:
    for field in wanted:
        kinds = [field.type]
        while kinds:
            kind = kinds.pop()
            if unsupported(kind):
                raise refused(
                    f"column '{field.name}': {name} files do not support the type {field.type}",
                    operator,
                    "declare the column as string and convert it in the query",
                )
            kinds += [kind.field(index).type for index in range(kind.num_fields)]
