"""The data files of a snapshot as channels: their ids, what is remembered of them, and the names in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructType

from spark_ext.schemas.arrow import arrow_schema
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


def data_of(file: DataFile, names: Mapping[str, str], mapped: bool) -> dict[str, Any]:
    """What a channel remembers of its data file, without what a plain table does not need.

    Args:
        file: the data file.
        names: of the table's columns, by those in data files.
        mapped: whether they differ.
    """
    data: dict[str, Any] = {"size": file.size}
    if file.rows_deleted:
        data["deleted"] = True
    if mapped:
        data["mapped"] = True
    if file.partition:
        data["partition"] = {names[name]: text for name, text in file.partition.items()}
    return data


def in_table(table: TableVersion, declared: StructType) -> StructType:
    """The declared columns with the types that they have in a table."""
    held = StructType([*table.schema, *COLUMNS])
    return StructType([held[field.name] for field in declared])


def format_for(table: TableVersion | None, declared: StructType) -> ParquetFormat:
    """Reads the declared columns, under the names in data files; same types, so that a batch can be renamed.

    Args:
        table: whose names they are; None: a table without column mapping.
        declared: the columns.
    """
    if table is None:
        return ParquetFormat(arrow_schema(declared), grown=True)
    physical, names = [*table.physical, *COLUMNS], [*table.schema.names, *COLUMNS.names]
    wanted = StructType([physical[names.index(field.name)] for field in declared])
    return ParquetFormat(arrow_schema(wanted), grown=True)
