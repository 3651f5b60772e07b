"""`delta_snapshot`: one version of a Delta table, once; a data file is a channel.

    spark.readStream.format("delta_snapshot").option("uid", "orders").option("path", "tables/orders").load()

The version is chosen once, when the first epoch is planned: it is part of each channel's id, so that a restart
continues with it, however many commits the table has had since. Deletion vectors, column mapping by name, partition
values, columns added later and widened types are supported; any other feature that a table needs is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, model_validator
from pyspark.sql.types import StructType

from spark_ext.datafiles.input_file import KEPT, InputFile, resolve
from spark_ext.datafiles.uri import shown
from spark_ext.errors import DataError, refused
from spark_ext.model.offsets import Json, Position
from spark_ext.schemas.arrow import arrow_schema, arrow_type
from spark_ext.schemas.columns import conform, fits
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.sources.delta_snapshot.version import DataFile, TableVersion, keep_masks, mask_of, renamed, version_of
from spark_ext.sources.files.parquet import ParquetFormat

_ID = re.compile(r"v(\d+)/")


class DeltaSnapshotOptions(SourceOptions):
    """Options of `delta_snapshot`."""

    identity_fields: ClassVar[frozenset[str]] = frozenset({"path", "timestamp"})

    path: str
    """The table: a local path, or a URI supported by delta-rs and pyarrow.fs; credentials come from the environment."""
    version: int | None = Field(default=None, ge=0)
    """Version of the table; default: the current one when the source is first planned."""
    timestamp: str | None = None
    """Read the version that was current at this time: ISO 8601, UTC if no zone is given."""
    split: bool = True
    """Whether several tasks may read one data file; its rows are then not in order within an epoch."""

    @model_validator(mode="after")
    def _one(self) -> DeltaSnapshotOptions:
        if self.version is not None and self.timestamp is not None:
            raise ValueError("version and timestamp exclude each other")
        return self


class DeltaSnapshot(ChannelSource):
    """A version of a Delta table. Positions are row numbers of a data file, counting deleted rows."""

    options_type = DeltaSnapshotOptions
    options: DeltaSnapshotOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._place = resolve(self.options.path, self._operator)
        self._pinned: int | None = None
        self._begun: dict[str, Any] = {}
        self._rows: dict[str, int | None] = {}
        """By channel, as far as they were discovered."""
        self._formats: dict[int | None, ParquetFormat] = {}

    @classmethod
    def name(cls) -> str:
        """`delta_snapshot`."""
        return "delta_snapshot"

    @property
    def _operator(self) -> str:
        return f"source '{self.options.uid}'"

    @cached_property
    def _uri(self) -> str:
        filesystem, inner = self._place
        return inner if filesystem.type_name == "local" else self.options.path

    def schema(self) -> StructType:
        """The columns of the version.

        Raises:
            ConfigurationError: there is no such table or version.
            UnsupportedTableError: the table needs a feature that this source does not support; names it.
        """
        return self._load(self.options.version, self.options.timestamp).schema

    def _load(self, version: int | None, timestamp: str | None = None, pinned: bool = False) -> TableVersion:
        return TableVersion(self._uri, version, timestamp, self._operator, pinned=pinned)

    # -- planning -------------------------------------------------------------------------------------------

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Continue with the version that the first epoch chose.

        Raises:
            ConfigurationError: the option `version` now names another one.
        """
        chosen = {int(found[1]) for name in [*(one.id for one in known), *finished] if (found := _ID.match(name))}
        self._pinned = min(chosen, default=None)
        self._begun = {**dict.fromkeys(finished), **{one.id: one.data for one in known}}
        if self._pinned is not None and self.options.version not in (None, self._pinned):
            raise refused(
                f"the option 'version' is {self.options.version}, but this source has begun with {self._pinned}",
                self._operator,
                f"set version to {self._pinned} or remove it; use a source with a new uid to read another version",
                kept="everything read so far; nothing new was read",
            )

    def discover(self) -> Iterable[Channel]:
        """The data files of the version; only the log is read.

        Raises:
            DataError: the source's version is no longer in the log, or is that of another table.
        """
        if self._pinned is None:
            table = self._load(self.options.version, self.options.timestamp)
        else:
            table = self._load(self._pinned, pinned=True)
        self._pinned = table.version
        self._check_columns(table.schema)
        names = dict(zip(table.schema.names, table.physical.names, strict=True))
        channels = []
        for file in table.files():
            channels.append(Channel(f"v{table.version}/{file.path}", 0, _data(file, names, table.mapped)))
            self._rows[channels[-1].id] = file.rows
        self._check_begun(table.version, channels)
        for channel in channels[:1]:
            self._format(channel).footers.announce(self._file(one) for one in channels)
        return channels

    def _check_begun(self, version: int, channels: Sequence[Channel]) -> None:
        """Refuse another table under the same path: its version has other files than those that were read."""
        held = {channel.id: channel.data for channel in channels}
        for name, data in self._begun.items():
            if name not in held or (data is not None and data["size"] != held[name]["size"]):
                raise DataError(
                    f"version {version} of '{shown(self.options.path)}' is not the one that this source has begun: it "
                    f"does not have the file '{name.partition('/')[2]}'; the table was replaced by another one",
                    operator=self._operator,
                    kept=KEPT,
                    do="restore the table, or start the source with a new uid to read the table that is there now",
                )

    def _check_columns(self, held: StructType) -> None:
        """Refuse a declared schema that does not match the table."""
        for field in self.declared or ():
            there = held[field.name] if field.name in held.names else None
            if there is None or not fits(arrow_type(there.dataType), arrow_type(field.dataType)):
                found = f"has the type {there.dataType.simpleString()}" if there is not None else "is not in the table"
                raise refused(
                    f"column '{field.name}' is declared as {field.dataType.simpleString()}, but {found}",
                    self._operator,
                    f"remove .schema(...), or declare columns of the table: {held.simpleString()}",
                )

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Advance by the data file's footer; deleted rows count against a row limit."""
        return self._format(channel).advance(self._file(channel), start, limit)

    def lag(self, channel: Channel, at: Position) -> int | None:
        """Rows of the data file, deleted ones included, as the table's log has them."""
        rows = self._rows.get(channel.id)
        return None if rows is None else max(0, rows - at)

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """The number of a row of the data file, deleted ones included.

        Raises:
            ConfigurationError: there is no such row.
            DataError: the data file was deleted, or is damaged.
        """
        return self._format(channel).seek(self._file(channel), position)

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """Split at row groups."""
        if not self.options.split or start == end:
            return [(start, end)]
        return self._format(channel).split(self._file(channel), start, end, parts)

    # -- reading --------------------------------------------------------------------------------------------

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range that exist in the version.

        Raises:
            DataError: the data file was deleted by a vacuum, or is damaged.
        """
        version, file = _version(channel), self._file(channel)
        keep = self._keep(version, file) if channel.data.get("deleted") else None
        batches = self._format(channel).read(file, start, end, keep)
        if channel.data.get("mapped"):
            wanted = arrow_schema(self._declared)
            held = arrow_schema(_in_table(self._uri, version, self._declared))
            batches = (conform(renamed(batch, held), wanted, {}) for batch in batches)
        yield from (batch for batch in batches if batch.num_rows)

    def _keep(self, version: int, file: InputFile) -> pa.Array:
        mask = mask_of(keep_masks(self._uri, version), file.path)
        if mask is None:
            raise file.refusal(f"its deletion vector in version {version} no longer exists", file.if_gone)
        return mask

    def _file(self, channel: Channel) -> InputFile:
        filesystem, root = self._place
        version = _version(channel)
        name = channel.id.partition("/")[2]
        path = f"{root}/{name}"
        if "://" in name or name.startswith("/"):
            filesystem, path = resolve(name, self._operator)
        return InputFile(
            filesystem,
            path,
            name,
            channel.data["size"],
            None,
            self.options.uid,
            channel.data.get("partition", {}),
            f"it belongs to version {version} of the table and was probably deleted by a vacuum; restore it, or start "
            "the source with a new uid to read the current version; set the retention longer than a run",
        )

    def _format(self, channel: Channel) -> ParquetFormat:
        version = _version(channel) if channel.data.get("mapped") else None
        if version not in self._formats:
            wanted = self._declared if version is None else _in_files(self._uri, version, self._declared)
            self._formats[version] = ParquetFormat(arrow_schema(wanted), grown=True)
        return self._formats[version]

    @property
    def _declared(self) -> StructType:
        return self.declared if self.declared is not None else self.schema()


def _data(file: DataFile, names: Mapping[str, str], mapped: bool) -> dict[str, Any]:
    """The data of a channel, without what a plain table does not need."""
    data: dict[str, Any] = {"size": file.size}
    if file.rows_deleted:
        data["deleted"] = True
    if mapped:
        data["mapped"] = True
    if file.partition:
        data["partition"] = {names[name]: text for name, text in file.partition.items()}
    return data


def _version(channel: Channel) -> int:
    found = _ID.match(channel.id)
    assert found is not None, channel.id
    return int(found[1])


def _in_table(path: str, version: int, declared: StructType) -> StructType:
    """The declared columns with the names in a table with column mapping."""
    table = version_of(path, version).schema
    return StructType([table[field.name] for field in declared])


def _in_files(path: str, version: int, declared: StructType) -> StructType:
    """The declared columns with the names in its data files; same types, so that a batch can be renamed."""
    table = version_of(path, version)
    physical, names = table.physical, table.schema.names
    return StructType([physical[names.index(field.name)] for field in declared])
