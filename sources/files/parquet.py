"""Parquet files by row number: footers for planning, row groups for splitting, batches for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from spark_ext.datafiles.input_file import InputFile
from spark_ext.schemas.casts import leaves
from spark_ext.schemas.columns import match, misfit
from spark_ext.sources.files.legacy_calendar import Calendar, UnknownZoneError
from spark_ext.sources.files.row_groups import EMPTY, Footer, OnBadRow, RowGroupsFormat, refuse_misfit

BATCH_ROWS = 65_536
BATCH_BYTES = 16 * 1024 * 1024  # target size of a batch, by the footer's uncompressed sizes; rows are never divided


def read_footer(file: InputFile) -> Footer:
    """Read a footer."""
    file.verify()
    if not file.size:
        return EMPTY
    with file.faults(), file.open() as raw, _parquet(file, raw) as parquet:
        metadata = parquet.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        rows, sizes = [group.num_rows for group in groups], [group.total_byte_size for group in groups]
        if min([*rows, *sizes], default=0) < 0:
            raise ValueError("its footer has a row group of a negative size")
        # Not the sizes of its columns: to ask for those ends the process if they are encrypted, or not in the footer.
        return Footer.of(rows, sizes, file.size, columns_in(parquet).schema)


def _parquet(file: InputFile, raw: pa.NativeFile, int96_unit: str = "us") -> pq.ParquetFile:
    return pq.ParquetFile(
        raw, pre_buffer=not file.local, coerce_int96_timestamp_unit=int96_unit, page_checksum_verification=True
    )


class ParquetFormat(RowGroupsFormat):
    """Parquet files by row groups."""

    read_footer = staticmethod(read_footer)

    def _rows(
        self, file: InputFile, start: int, end: int | None, keep: pa.Array | None, bad: OnBadRow
    ) -> Iterator[pa.RecordBatch]:
        with file.faults(), file.open() as raw, _parquet(file, raw) as parquet:
            found, int96 = columns_in(parquet)
            calendar = Calendar.of(parquet.metadata.metadata)
            absent = [name for name in self._wanted.names if self._grown and match(name, found.names) is None]
            constants = {**dict.fromkeys(absent), **file.constants}
            refuse_misfit(file, misfit(found, self._wanted, constants, self._grown))
            names = [match(name, found.names) or "" for name in self._wanted.names if name not in constants]
            # Microseconds overflow without an error, seconds do not: times that differ in them are out of range.
            odd = [name for name in names if any(int96[name])]
            int96 |= {_SECONDS + name: int96[name] for name in odd}
            seconds = _parquet(file, raw, "s") if odd else None
            first = 0
            for index in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(index)
                if start < first + group.num_rows and (end is None or end > first):
                    row = first
                    size = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
                    batches = parquet.iter_batches(size, [index], names, use_threads=False)
                    for batch in _beside(batches, seconds and seconds.read_row_group(index, odd, use_threads=False)):
                        low = max(start - row, 0)
                        high = batch.num_rows if end is None else min(end - row, batch.num_rows)
                        if low < high:
                            if calendar:
                                batch = _in_new_calendar(file, batch, calendar, int96)
                            piece = batch.slice(low, high - low)
                            if keep is not None:
                                piece = _kept(piece, keep, row + low)
                            yield from self._converted(file, piece, constants, row + low, bad)
                        row += batch.num_rows
                        if end is not None and row >= end:
                            break
                    if row < first + group.num_rows and (end is None or row < end):
                        raise file.refusal(
                            f"it is damaged: row group {index} has {row - first} of {group.num_rows} rows",
                            "replace it with an undamaged copy, and start again with changed_files=accept",
                        )
                first += group.num_rows

    def _convert(self, rows: pa.RecordBatch, constants: Mapping[str, str | None]) -> pa.RecordBatch:
        for name in filter(_is_seconds, rows.schema.names):
            for micros, seconds in leaves(rows[name.removeprefix(_SECONDS)], rows[name]):
                whole = pc.floor_temporal(micros, unit="second").cast(seconds.type)
                if pc.any(pc.not_equal(whole, seconds)).as_py():
                    raise pa.ArrowInvalid(f"column '{name.removeprefix(_SECONDS)}': an INT96 time is out of range")
        return super()._convert(rows, constants)

    def _shown(self, row: pa.RecordBatch) -> str:
        return super()._shown(row.select([name for name in row.schema.names if not _is_seconds(name)]))


_SECONDS = "\0seconds of "  # before the names of columns of type INT96, in columns of their seconds


def _is_seconds(name: str) -> bool:
    return name.startswith(_SECONDS)


def _beside(batches: Iterator[pa.RecordBatch], seconds: pa.Table | None) -> Iterator[pa.RecordBatch]:
    """Batches with columns that another reading of their rows has."""
    row = 0
    for batch in batches:
        if seconds is not None and batch.num_rows:
            (more,) = seconds.slice(row, batch.num_rows).combine_chunks().to_batches()
            for name, column in zip(more.schema.names, more.columns, strict=True):
                batch = batch.append_column(_SECONDS + name, column)
        row += batch.num_rows
        yield batch


def _in_new_calendar(
    file: InputFile, batch: pa.RecordBatch, calendar: Calendar, int96: Mapping[str, Sequence[bool]]
) -> pa.RecordBatch:
    try:
        return calendar.rebased(batch, int96)
    except UnknownZoneError as problem:
        raise file.refusal(
            str(problem),
            "write the file again with Spark 3 or later, with spark.sql.parquet.datetimeRebaseModeInWrite and "
            "int96RebaseModeInWrite set to CORRECTED, and start again with changed_files=accept",
        ) from None


def _kept(batch: pa.RecordBatch, keep: pa.Array, row: int) -> pa.RecordBatch:
    mask = keep.slice(row, batch.num_rows)
    missing = batch.num_rows - len(mask)
    return batch.filter(pa.concat_arrays([mask, pa.repeat(True, missing)]) if missing else mask)


class Columns(NamedTuple):
    """The columns of a file."""

    schema: pa.Schema
    int96: dict[str, list[bool]]  # for each column, for each of its leaves in order, whether it is of the type INT96


def columns_in(parquet: pq.ParquetFile) -> Columns:
    """The file's columns; INT96 is a timestamp in UTC and ENUM is text, at any depth, as in Spark and Hive."""
    leaves = [parquet.schema.column(index) for index in range(len(parquet.schema))]
    rest = iter(leaves)
    fields, int96, first = [], {}, 0
    for field in parquet.schema_arrow:
        fields.append(field.with_type(_typed(field.type, rest)).remove_metadata())
        last = len(leaves) - length_hint(rest)
        int96[field.name] = [leaf.physical_type == "INT96" for leaf in leaves[first:last]]
        first = last
    if first != len(leaves):
        raise ValueError("its footer has columns that no type was found for")
    return Columns(pa.schema(fields), int96)


def _typed(kind: pa.DataType, leaves: Iterator[Any]) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        _typed(kind.storage_type, leaves)
        return kind
    if types.is_struct(kind):
        return pa.struct([child.with_type(_typed(child.type, leaves)) for child in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(_typed(kind.key_type, leaves))
        return pa.map_(key, kind.item_field.with_type(_typed(kind.item_type, leaves)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_typed(kind.value_type, leaves)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_typed(kind.value_type, leaves)), kind.list_size)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_typed(kind.value_type, leaves)))
    leaf = next(leaves, None)
    if leaf is None:
        raise ValueError("its footer has fewer columns than types were found for")
    if leaf.physical_type == "INT96":
        return pa.timestamp("us", "UTC")
    if leaf.logical_type.type == "ENUM":
        return pa.string()
    return kind
