"""CSV and JSON files of a task, in the form that Spark reads back unchanged; see `read_options`.

CSV: strings in quotes, with quotes doubled; null is empty, the empty string is `""`; timestamps as
`2013-01-31 05:15:00.123456Z`.
JSON: see `json`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as spark

from spark_ext.datafiles.partition_values import NULL_FOLDER
from spark_ext.datafiles.writer import DataFile, DataFileWriter
from spark_ext.sinks.files_2pc.json import json_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.datafiles.writer import Layout, OpenFile
    from spark_ext.sinks.contract import Task
    from spark_ext.storage import Location

ROWS_AT_ONCE: Final = 20_000
"""Rows of JSON that are converted at a time."""


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
    """`csv` or `json`."""

    def __init__(self, place: Location, path: str) -> None:
        import pyarrow as pa

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
    import pyarrow as pa
    import pyarrow.compute as pc

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


_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(32)))
"""What Hive and Spark escape in the folder of a partition."""


def hive_folder(name: str, value: str | None) -> str:
    """The folder of a partition, `day=2013-01-31`, as Spark spells it and reads it back."""
    spelled = NULL_FOLDER if value is None else _escaped(value)
    return f"{_escaped(name)}={spelled}"


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)
