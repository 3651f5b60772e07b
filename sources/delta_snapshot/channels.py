"""The data files of a snapshot as channels: their ids, what is remembered of them, and the names in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from spark_ext.datafiles.input_file import KEPT
from spark_ext.datafiles.uri import shown
from spark_ext.errors import NEW_QUERY, DataError, refused
from spark_ext.schemas.arrow import arrow_schema, arrow_type
from spark_ext.schemas.columns import fits
from spark_ext.sources.contract import Channel
from spark_ext.sources.delta_snapshot.following import COLUMNS
from spark_ext.sources.delta_snapshot.log import Log
from spark_ext.sources.delta_snapshot.version import DataFile, TableVersion
from spark_ext.sources.files.parquet import ParquetFormat

_ID = re.compile(r"v(\d+)/")


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
    """What a channel remembers of its data file, without what a plain table does not need."""
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
    """Reads the declared columns, under the names in data files; same types, so that a batch can be renamed."""
    # Without versions, whose names they are as in `in_table`, a table has no column mapping.
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


def _holds(held: StructField, declared: StructField) -> bool:
    return fits(arrow_type(held.dataType), arrow_type(declared.dataType), grown=True)


def check_begun(
    begun: Mapping[str, Mapping[str, Any] | None], version: int, channels: Sequence[Channel], path: str, who: str
) -> None:
    """Refuse another table under the same path: its version has other files than those that were `begun`."""
    # Those are data by channel id; None: it has finished.
    held = {channel.id: channel.data for channel in channels}
    for name, data in begun.items():
        if name not in held or (data is not None and data["size"] != held[name]["size"]):
            raise DataError(
                f"version {version} of '{shown(path)}' is not the one that this source has begun: it does not have the "
                f"file '{path_in(name)}'; the table was replaced by another one",
                operator=who,
                kept=KEPT,
                do=f"restore the table, or read the table that is there now {NEW_QUERY}",
            )


def check_declared(declared: StructType | None, held: StructType, who: str) -> None:
    """Refuse a schema that the user has declared and that does not match the table."""
    for field in declared or ():
        there = held[field.name] if field.name in held.names else None
        if there is None or not fits(arrow_type(there.dataType), arrow_type(field.dataType)):
            found = f"has the type {there.dataType.simpleString()}" if there is not None else "is not in the table"
            raise refused(
                f"column '{field.name}' is declared as {field.dataType.simpleString()}, but {found}",
                who,
                f"remove .schema(...), or declare columns of the table: {held.simpleString()}",
            )


class ColumnNames:
    """The versions whose column names hold, looked up when a range is read.

    `load` gives a version of the table, or the newest one (None); a pinned one must be there.
    """

    def __init__(
        self, load: Callable[[int | None, bool], TableVersion], log: Log, declared: Callable[[], StructType]
    ) -> None:
        self._load, self._log, self._declared = load, log, declared
        self._planned: dict[int, TableVersion] = {}

    @cached_property
    def now(self) -> TableVersion:
        """The table as it is when this process first needs to know."""
        return self._load(None, False)

    def of(self, version: int | None) -> tuple[TableVersion, ...]:
        """The versions whose column names hold for a range: that of its plan, then the newest one."""
        # The plan may be older than the query's columns: a new start repeats it, and the query has what was added
        # since.
        if version is None:
            return (self.now,)
        if version not in self._planned:
            self._planned[version] = self._in_force(version)
        found = self._planned[version]
        held = {field.name: field for field in (*found.schema, *COLUMNS)}
        has_all = all(field.name in held and _holds(held[field.name], field) for field in self._declared())
        return (found,) if has_all else (found, self.now)

    def _in_force(self, version: int) -> TableVersion:
        try:
            return self._load(version, True)
        except DataError:
            # The log was cleaned up so far that it has no checkpoint before the version: later commits may say no less.
            for later in range(version + 1, self.now.version + 1):
                commit = self._log.commit(later)
                if commit is None or commit.metadata is not None:
                    raise
            return self.now
