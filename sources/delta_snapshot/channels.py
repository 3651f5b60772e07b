"""The data files of a snapshot as channels: their ids, what is remembered of them, and the names in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from spark_ext.schemas.arrow import arrow_schema, arrow_type
from spark_ext.schemas.columns import fits
from spark_ext.sources.contract import Channel
from spark_ext.sources.delta_snapshot.following import COLUMNS
from spark_ext.sources.delta_snapshot.version import DataFile, TableVersion
from spark_ext.sources.files.parquet import ParquetFormat

_ID = re.compile(r"v(\d+)/")


def id_of(version: int, path: str) -> str:
    """The id of the channel of a data file: its version is part of it."""
    return f"v{version}/{path}"


def version_in(id: str) -> int | None:
    """The version in a channel's id; None: it is not of a data file."""
    found = _ID.match(id)
    return None if found is None else int(found[1])


def version_read(channel: Channel) -> int:
    """The version that the data file of a channel belongs to."""
    version = version_in(channel.id)
    assert version is not None, channel.id
    return version


def path_in(id: str) -> str:
    """The path of the data file, as the log has it."""
    return id.partition("/")[2]


def data_of(file: DataFile, names: Mapping[str, str], mapped: bool, widths: Mapping[str, int]) -> dict[str, Any]:
    """What a channel remembers of its data file, without what a plain table does not need.

    Args:
        mapped: whether they differ.
    """
    data: dict[str, Any] = {"size": file.size}
    if file.rows_deleted:
        data["deleted"] = True
    if mapped:
        data["mapped"] = True
    if file.partition:
        data["partition"] = {names[name]: text for name, text in file.partition.items()}
    if widths:
        data["char"] = dict(widths)
    return data


def padded(batch: pa.RecordBatch, widths: Mapping[str, int]) -> pa.RecordBatch:
    """A batch with spaces at the end of texts that are shorter than their columns, whose widths are in characters."""
    for name, width in widths.items():
        number = batch.schema.get_field_index(name)
        if number >= 0:
            texts = pc.utf8_rpad(batch.column(number), width)
            batch = batch.set_column(number, batch.schema.field(number), texts)
    return batch


def in_table(declared: StructType, *tables: TableVersion) -> StructType:
    """The declared columns with the types that they have in a table."""
    return StructType([held for held, _ in _fields(declared, tables)])


def format_for(declared: StructType, *tables: TableVersion) -> ParquetFormat:
    """Reads the declared columns, under the names in data files; same types, so that a batch can be renamed.

    Args:
        tables: versions whose names they are, as in `in_table`; none: a table without column mapping.
    """
    if not tables:
        return ParquetFormat(arrow_schema(declared), grown=True)
    wanted = StructType([physical for _, physical in _fields(declared, tables)])
    return ParquetFormat(arrow_schema(wanted), grown=True)


def _fields(declared: StructType, tables: Sequence[TableVersion]) -> list[tuple[StructField, StructField]]:
    """Each declared column as it is in a table, and as it is in its data files."""
    found = []
    for field in declared:
        held = [
            (one, physical)
            for table in tables
            for one, physical in zip([*table.schema, *COLUMNS], [*table.physical, *COLUMNS], strict=True)
            if one.name == field.name
        ]
        found.append(next((pair for pair in held if _holds(pair[0], field)), held[0]))
    return found


def has_all(declared: StructType, table: TableVersion) -> bool:
    """Whether a table has the declared columns, in types that fit."""
    held = {field.name: field for field in (*table.schema, *COLUMNS)}
    return all(field.name in held and _holds(held[field.name], field) for field in declared)


def _holds(held: StructField, declared: StructField) -> bool:
    return fits(arrow_type(held.dataType), arrow_type(declared.dataType), grown=True)
