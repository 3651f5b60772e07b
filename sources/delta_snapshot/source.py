"""`delta_snapshot`: one version of a Delta table, once; a data file is a channel.

    spark.readStream.format("delta_snapshot").option("uid", "orders").option("path", "tables/orders").load()

The version is chosen when the first epoch is planned and never again: it is part of each channel's id, so that a
restart goes on with it, however many commits the table has seen since. Deletion vectors, column mapping by name,
partition values, columns added later and widened types are honoured; what else a table may need is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pydantic import Field, model_validator
from pyspark.sql.types import StructType

from spark_ext.datafiles.input_file import InputFile, resolve
from spark_ext.errors import ConfigurationError
from spark_ext.model.offsets import Position
from spark_ext.schemas.columns import arrow_schema, conform, fits
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.sources.delta_snapshot.version import DataFile, TableVersion, keep_masks, renamed, version_of
from spark_ext.sources.files.parquet import ParquetFormat

_ID = re.compile(r"v(\d+)/")


class DeltaSnapshotOptions(SourceOptions):
    """Options of `delta_snapshot`."""

    path: str
    """The table: a local path, or a URI that delta-rs and pyarrow.fs know; credentials come from the environment."""
    version: int | None = Field(default=None, ge=0)
    """Default: the one that is current when the source is first planned."""
    timestamp: str | None = None
    """ISO 8601; the version that was current then. Without a zone it is UTC."""
    split: bool = True
    """Whether several tasks may read one data file, which gives up the order of its rows within an epoch."""

    @model_validator(mode="after")
    def _one(self) -> DeltaSnapshotOptions:
        if self.version is not None and self.timestamp is not None:
            raise ValueError("version and timestamp exclude each other")
        return self


class DeltaSnapshot(ChannelSource):
    """A version of a Delta table. Positions are row numbers of a data file, deleted rows counted."""

    options_type = DeltaSnapshotOptions
    options: DeltaSnapshotOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._place = resolve(self.options.path, self._operator)
        self._pinned: int | None = None
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
            ConfigurationError: no table, or no such version.
            UnsupportedTableError: the table needs what this source does not read; names it.
        """
        return self._load(self.options.version, self.options.timestamp).schema

    def _load(self, version: int | None, timestamp: str | None = None, pinned: bool = False) -> TableVersion:
        return TableVersion(self._uri, version, timestamp, self._operator, pinned=pinned)

    # -- planning -------------------------------------------------------------------------------------------

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Go on with the version that the first epoch chose.

        Raises:
            ConfigurationError: the option `version` now says another one.
        """
        chosen = {int(found[1]) for name in [*(one.id for one in known), *finished] if (found := _ID.match(name))}
        self._pinned = min(chosen, default=None)
        if self._pinned is not None and self.options.version not in (None, self._pinned):
            raise ConfigurationError(
                f"the option 'version' says {self.options.version}, but this source has begun with {self._pinned}",
                operator=self._operator,
                kept="what was read so far stays; nothing new was read",
                do=f"set version to {self._pinned} or leave it out; a source with a new uid reads another version",
            )

    def discover(self) -> Iterable[Channel]:
        """The data files of the version; only the log is read.

        Raises:
            DataError: the version that the source has begun with is no longer in the log.
        """
        if self._pinned is None:
            table = self._load(self.options.version, self.options.timestamp)
        else:
            table = self._load(self._pinned, pinned=True)
        self._pinned = table.version
        self._check_columns(table.schema)
        names = dict(zip(table.schema.names, table.physical.names, strict=True))
        channels = [
            Channel(f"v{table.version}/{file.path}", 0, _data(file, names, table.mapped)) for file in table.files()
        ]
        for channel in channels[:1]:
            self._format(channel).footers.announce(self._file(one) for one in channels)
        return channels

    def _check_columns(self, held: StructType) -> None:
        """A schema that the user gave must be columns of the table."""
        for field in self.declared or ():
            there = held[field.name] if field.name in held.names else None
            if there is None or not fits(*(arrow_schema(StructType([one])).field(0).type for one in (there, field))):
                found = f"type {there.dataType.simpleString()}" if there is not None else "not in the table"
                raise ConfigurationError(
                    f"column '{field.name}' is declared as {field.dataType.simpleString()} and is {found}",
                    operator=self._operator,
                    kept="nothing was read",
                    do=f"leave .schema(...) out, or declare columns of the table: {held.simpleString()}",
                )

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """By the data file's footer; deleted rows count against a row limit."""
        return self._format(channel).advance(self._file(channel), start, limit)

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """At row groups."""
        if not self.options.split or start == end:
            return [(start, end)]
        return self._format(channel).split(self._file(channel), start, end, parts)

    # -- reading --------------------------------------------------------------------------------------------

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range that the version has.

        Raises:
            DataError: the data file has been vacuumed away, or is damaged.
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
        masks = keep_masks(self._uri, version)
        # The shortest that ends so: a table inside a table's folder has longer ones.
        found = sorted((uri for uri in masks if uri.endswith("/" + file.path.lstrip("/"))), key=len)
        if not found:
            raise file.refusal(f"the deletion vector that version {version} has for it has gone", file.if_gone)
        return masks[found[0]]

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
            f"it belongs to version {version} of the table and was probably vacuumed; restore it, or start the "
            "source under a new uid to read the current version; let vacuum keep files for longer than a run",
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
    """What is kept with a channel; what a plain table does not need is left out."""
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
    """The declared columns as a table with column mapping has them."""
    table = version_of(path, version).schema
    return StructType([table[field.name] for field in declared])


def _in_files(path: str, version: int, declared: StructType) -> StructType:
    """The same as its data files call them; same types, so that a batch can be renamed."""
    table = version_of(path, version)
    physical, names = table.physical, table.schema.names
    return StructType([physical[names.index(field.name)] for field in declared])
