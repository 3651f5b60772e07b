"""Which types the formats of `files_2pc` support, and CSV and JSON files that Spark reads back unchanged.

CSV: strings in quotes, with quotes doubled; null is empty, the empty string is `""`; timestamps as `2013-01-31
05:15:00.123456Z`. JSON: see `json_rows`; Arrow turns simple columns into text, all rows at once, and Python nested
ones.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from spark_ext.datafiles.partition_values import NULL_FOLDER
from spark_ext.datafiles.writer import DataFile, DataFileWriter
from spark_ext.errors import refused
from spark_ext.schemas.parquet_types import SIMPLE, check_names, check_partitions
from spark_ext.sinks.json_rows import converted, converter

if TYPE_CHECKING:
    from spark_ext.datafiles.writer import Layout, OpenFile
    from spark_ext.sinks.contract import Task
    from spark_ext.storage import Location


_BAD_IN_PARQUET: Final = frozenset(" ,;{}()\n\t=")  # Characters in column names that older Parquet readers refuse
_DIGITS: Final = frozenset("0123456789-")

# The characters that values of a type may have in CSV, where only strings are in quotes.
_WITHOUT_QUOTES: Final[tuple[tuple[type[spark.DataType], frozenset[str]], ...]] = (
    (spark.BooleanType, frozenset("truefals")),
    (spark.DateType, _DIGITS),
    (spark.TimestampType, _DIGITS | frozenset(" :.Z")),
    (spark.TimestampNTZType, _DIGITS | frozenset(" :.")),
    (spark.NumericType, _DIGITS | frozenset("+.eEinfa")),
)


def check(schema: spark.StructType, kind: str, partition_by: Sequence[str], who: str, sep: str = ",") -> None:
    """Refuse a schema that files of a kind, `parquet`, `csv` or `json`, do not support."""
    check_names(schema, who)
    check_partitions(schema, partition_by, who)
    kept = [field for field in schema.fields if field.name not in partition_by]
    for field in kept:
        found = _misfit(field.name, field.dataType, kind)
        if found:
            raise refused(found, who, "cast it, drop it in the query, or choose another format")
    if kind == "csv" and len(kept) == 1 and kept[0].nullable:
        what = f"column '{kept[0].name}' is the only one in its files and may be null: CSV readers skip empty lines"
        raise refused(what, who, "add a column, make it not nullable (coalesce), or choose another format")
    inside = next((field for field in kept if kind == "csv" and sep in _characters(field.dataType)), None)
    if inside is not None:
        what = (
            f"option 'sep': {sep!r} may be part of a value of column '{inside.name}' ({inside.dataType.simpleString()})"
        )
        raise refused(f"{what}, and only strings are in quotes", who, "choose another separator")


def _characters(kind: spark.DataType) -> frozenset[str]:
    """What values of a type may consist of outside of quotes."""
    return next((found for one, found in _WITHOUT_QUOTES if isinstance(kind, one)), frozenset())


def _misfit(path: str, kind: spark.DataType, form: str) -> str | None:
    """What is wrong with a column, nested ones included."""
    unsupported = f"column '{path}' has the type {kind.simpleString()}, which {form} does not support"
    if form == "parquet" and _BAD_IN_PARQUET.intersection(path):
        return f"column name '{path}' has a character that Parquet readers reject (one of ' ,;{{}}()=' or a tab)"
    if isinstance(kind, (*SIMPLE, spark.NullType)):
        return None
    if isinstance(kind, spark.BinaryType):
        return unsupported if form == "csv" else None
    if form == "csv":
        return unsupported
    if isinstance(kind, spark.ArrayType):
        return _misfit(f"{path}.element", kind.elementType, form)
    if isinstance(kind, spark.MapType):
        if form == "json" and not isinstance(kind.keyType, spark.StringType):
            return f"{unsupported}: its keys have to be strings"
        return _misfit(f"{path}.key", kind.keyType, form) or _misfit(f"{path}.value", kind.valueType, form)
    if isinstance(kind, spark.StructType):
        if not kind.fields:
            return unsupported
        wrong = (_misfit(f"{path}.{field.name}", field.dataType, form) for field in kind.fields)
        return next(filter(None, wrong), None)
    return unsupported


_TO_ESCAPE: Final = r'[\x00-\x1f"\\]'

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_lines(table: pa.Table, schema: spark.StructType) -> bytes:
    """The rows, one object per line with all fields."""
    pieces: list[pa.Array | pa.Scalar] = []
    for number, field in enumerate(schema.fields):
        name = _encode(field.name)
        pieces.append(_scalar(f"{'{' if number == 0 else ','}{name}:"))
        column = table.column(field.name).combine_chunks()
        pieces.append(pc.fill_null(_texts(column, field.dataType), _scalar("null")))
    lines = pc.binary_join_element_wise(*pieces, _scalar("}\n"), _scalar(""))
    offsets, data = lines.buffers()[1:]
    first, last = (memoryview(offsets).cast("q")[lines.offset + at] for at in (0, len(lines)))
    return memoryview(data)[first:last].tobytes() if data is not None else b""


def _texts(column: pa.Array, kind: spark.DataType) -> pa.Array:
    """A column as JSON values; null stays null."""
    text = pa.large_string()
    if isinstance(kind, (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType, spark.BooleanType)):
        return column.cast(text)
    if isinstance(kind, (spark.FloatType, spark.DoubleType)) and pc.all(pc.is_finite(column)).as_py() is not False:
        texts = column.cast(text)
        # Readers take -0 for a whole number, which has no sign.
        return pc.if_else(pc.equal(texts, _scalar("-0")), _scalar("-0.0"), texts)
    if isinstance(kind, (spark.DecimalType, spark.DateType)):
        # Arrow writes small decimals with an exponent, which Spark's readers accept.
        return _quoted(column.cast(text))
    if isinstance(kind, spark.TimestampType):
        return _quoted(pc.strftime(column.cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%SZ").cast(text))
    if isinstance(kind, spark.TimestampNTZType):
        return _quoted(pc.strftime(column, "%Y-%m-%dT%H:%M:%S").cast(text))
    if (
        isinstance(kind, (spark.StringType, spark.CharType, spark.VarcharType))
        and pc.any(pc.match_substring_regex(column, _TO_ESCAPE)).as_py() is not True
    ):
        return _quoted(column.cast(text))
    convert = converter(kind, "", "")
    return pa.array(
        [None if value is None else _encode(converted(convert, value)) for value in column.to_pylist()], text
    )


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_scalar('"'), texts, _scalar('"'), _scalar(""))


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


ROWS_AT_ONCE: Final = 20_000  # Rows of JSON that are converted at a time


class HivePathWriter(DataFileWriter):
    """Writes files into folders `day=2013-01-31`, from which readers take the partition's value."""

    def _folder(self, name: str, value: str | None) -> str:
        return hive_folder(name, value)


class TextFileWriter(HivePathWriter):
    """Writes the rows of one task as CSV or JSON files."""

    def __init__(
        self,
        place: Location,
        schema: spark.StructType,
        layout: Layout,
        task: Task,
        form: str,
        header: bool,
        separator: str,
    ) -> None:
        super().__init__(place, schema, layout, task)
        self._form, self._header, self._separator = form, header, separator
        self._columns = spark.StructType([field for field in schema.fields if field.name not in layout.partition_by])

    @property
    def _suffix(self) -> str:
        return f".{self._form}" + (".gz" if self._layout.compression == "gzip" else "")

    def _open(self, path: str) -> OpenFile:
        if self._form == "csv":
            return CsvFile(self._place, path, self._file_schema, self._header, self._separator)
        return JsonFile(self._place, path, self._columns)


class _TextFile:
    """What CSV and JSON files share."""

    form = ""

    def __init__(self, place: Location, path: str) -> None:
        self.path, self._place, self._rows = path, place, 0
        self._raw = place.folder.open_output(path)
        self._out = pa.CompressedOutputStream(self._raw, "gzip") if path.endswith(".gz") else self._raw

    def write(self, table: pa.Table) -> int:
        """Write some rows; returns the file's size so far."""
        for batch in table.to_batches():
            refuse_unreadable(batch, self.form)
        self._rows += table.num_rows
        self._write(table)
        return int(self._raw.tell())

    def _write(self, table: pa.Table) -> None:
        raise NotImplementedError

    def close(self, partition: Mapping[str, str | None]) -> DataFile:
        """Finish the file."""
        self._out.close()
        self._raw.close()
        with self._place.folder.open_input(self.path) as written:
            size = int(written.size())
        return DataFile(self.path, size, self._rows, partition, time.time_ns() // 1_000_000, "{}")

    def drop(self) -> None:
        """Close the open handles, whatever state they are in."""
        for stream in (self._out, self._raw):
            with contextlib.suppress(OSError, ValueError):
                stream.close()


def refuse_unreadable(batch: pa.RecordBatch, form: str) -> None:
    """Refuse values that readers of files of a form, `csv` or `json`, would not get back."""
    from spark_ext.schemas.values import refuse_far_times

    refuse_far_times(batch)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if form == "csv" and text and pc.any(pc.match_substring(column, "\0")).as_py():
            # Spark's parser takes it for an escape in a value that has quotes, and leaves it out.
            raise ValueError(f"column '{name}' has a text with the character NUL, which readers of CSV leave out")


class CsvFile(_TextFile):
    """One CSV file."""

    form = "csv"

    def __init__(self, place: Location, path: str, schema: pa.Schema, header: bool, separator: str) -> None:
        from pyarrow import csv

        super().__init__(place, path)
        options = csv.WriteOptions(include_header=header, delimiter=separator)
        self._writer = csv.CSVWriter(self._out, schema, write_options=options)

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self, partition: Mapping[str, str | None]) -> DataFile:
        """Finish the file."""
        self._writer.close()
        return super().close(partition)


class JsonFile(_TextFile):
    """One file of JSON lines."""

    form = "json"

    def __init__(self, place: Location, path: str, schema: spark.StructType) -> None:
        super().__init__(place, path)
        self._schema = schema

    def _write(self, table: pa.Table) -> None:
        for start in range(0, table.num_rows, ROWS_AT_ONCE):
            self._out.write(json_lines(table.slice(start, ROWS_AT_ONCE), self._schema))


def read_options(form: str, header: bool, separator: str) -> dict[str, str]:
    """Options with which Spark reads back what was written."""
    if form == "csv":
        return {
            "header": str(header).lower(),
            "enforceSchema": "true",
            "sep": separator,
            "quote": '"',
            "escape": '"',
            "multiLine": "true",
            # Otherwise Spark reads a quoted empty string as null too. This value for null never occurs in a file.
            "nullValue": "\x00null\x00",
            "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSX",
            "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
            "nanValue": "nan",
            "positiveInf": "inf",
            "negativeInf": "-inf",
            "mode": "FAILFAST",
        }
    if form == "json":
        return {
            "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX",
            "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
            "mode": "FAILFAST",
        }
    return {}


# What Hive and Spark escape in the folder of a partition.
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(32)))


def hive_folder(name: str, value: str | None) -> str:
    """The folder of a partition, `day=2013-01-31`, as Spark spells it and reads it back."""
    spelled = NULL_FOLDER if value is None else _escaped(value)
    return f"{_escaped(name)}={spelled}"


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)
