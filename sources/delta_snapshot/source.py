"""`delta_snapshot`: one version of a Delta table, once, and with `follow` what later versions add; or all changes.

    spark.readStream.format("delta_snapshot").option("uid", "orders").option("path", "tables/orders").load()

A data file of the version is a channel. The version is chosen once, when the first epoch is planned: it is part of each
channel's id, so that a restart continues with it, however many commits the table has had since. With `follow` there is
a second stage, of one channel: the commits that come after the version. It begins when the files have finished.

Deletion vectors, column mapping by name, partition values, columns added later and widened types are supported; any
other feature that a table needs is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ext.datafiles.input_file import InputFile, resolve
from spark_ext.errors import NEW_QUERY, ConfigurationError, refused
from spark_ext.model.offsets import Json, Position, Range
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.columns import conform
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit
from spark_ext.sources.delta_snapshot.channels import (
    ColumnNames,
    check_begun,
    check_declared,
    data_of,
    format_for,
    in_table,
    padded,
    path_in,
    version_in,
    version_read,
)
from spark_ext.sources.delta_snapshot.commits import INSERT, ChangedFile, Commit
from spark_ext.sources.delta_snapshot.follow import ChangedFiles, LogPosition, unknown_partition
from spark_ext.sources.delta_snapshot.following import (
    CHANGE,
    CHANNEL,
    COLUMNS,
    TIME,
    VERSION,
    Following,
    instant_of,
    require_feed,
)
from spark_ext.sources.delta_snapshot.log import Log
from spark_ext.sources.delta_snapshot.options import DeltaSnapshotOptions
from spark_ext.sources.delta_snapshot.version import TableVersion, keep_masks, mask_of, renamed, version_of
from spark_ext.sources.files.parquet import ParquetFormat
from spark_ext.sources.staged import StagedSource


class DeltaSnapshot(StagedSource, ChannelSource):
    """A version of a Delta table, and what comes after it.

    Positions are row numbers of a data file, counting deleted rows; of the channel of later versions see `follow.py`.
    """

    options_type = DeltaSnapshotOptions
    options: DeltaSnapshotOptions
    may_be_stage = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._place = resolve(self.options.path, self._operator)
        self._pinned: int | None = None
        self._begun: dict[str, Any] = {}
        self._rows: dict[str, int | None] = {}  # by channel, of those discovered
        self._formats: dict[int | None, ParquetFormat] = {}
        self._table = ""  # id, once the version is chosen
        self._mark = ""  # hash of the commit of that version, if what comes after it is read; "": unknown
        self._stage: dict[str, Any] | None = None  # what is remembered of the stage, in the planner
        self._resumed = False
        self._known: Channel | None = None  # the channel of later versions, if it has begun
        self._following: Following | None = None
        self._last: int | None = None  # the last version that a run reads which ends with what is there

    def __getstate__(self) -> dict[str, Any]:
        """Sent to executors without what only planning needs."""
        left = ("_following", "_names", "_pieces")
        return {name: value for name, value in self.__dict__.items() if name not in left} | {"_following": None}

    @classmethod
    def name(cls) -> str:
        """`delta_snapshot`."""
        return "delta_snapshot"

    @property
    def _operator(self) -> str:
        return f"source '{self.options.uid}'"

    @property
    def table_id(self) -> str:
        """The id of the table, once its version is chosen: one that is created again has another."""
        return self._table

    @cached_property
    def _uri(self) -> str:
        filesystem, inner = self._place
        return inner if filesystem.type_name == "local" else self.options.path

    def schema(self) -> StructType:
        """The columns of the version, or with `follow` of the current one; with `changes` those of the feed as well."""
        if not self.options.follow:
            return self._load(self.options.version, self.options.timestamp).schema
        if self.options.version is not None or self.options.timestamp is not None:
            self._load(self.options.version, self.options.timestamp)  # a wrong one is refused at once
        table = self._load(None)
        if not self.options.changes:
            return table.schema
        require_feed(table, self._operator)
        return StructType([*table.schema, *COLUMNS])

    def open(self) -> None:
        """Look at the table before the query starts."""
        if self.options.follow:
            self.schema()

    def _load(self, version: int | None, timestamp: str | None = None, pinned: bool = False) -> TableVersion:
        return TableVersion(self._uri, version, timestamp, self._operator, pinned=pinned, followed=self.options.follow)

    @property
    def _is_following(self) -> bool:
        """Whether what is read now are the versions that come later, not a snapshot."""
        if not self.options.follow:
            return False
        return not self.options.begins_with_snapshot or (self._stage is not None and self._stage["number"] == 1)

    @property
    def bounded(self) -> bool:
        """Whether what is read now has an end: a version has, those that come later have not."""
        return not self._is_following

    @property
    def last_stage(self) -> bool:
        """Whether nothing comes after what is read now."""
        return self._is_following or not self.options.follow

    @property
    def ends(self) -> bool:
        """Whether the source has an end."""
        return not self.options.follow

    def planned(self, stage: Json, pieces: Sequence[Range]) -> Json:
        """The version of the snapshot, once it is chosen."""
        return self._stage_of(0)

    def next_stage(self, stage: Json) -> Json:
        """The versions that come after the one of the snapshot."""
        return self._stage_of(1)

    def here(self) -> Mapping[str, Json]:
        """The newest version: the snapshot is not of a later one, and no later one is read."""
        return {"version": self._followed.newest} if self.options.follow else {}

    def end_with(self, here: Mapping[str, Json]) -> None:
        """Read up to the version that was the newest one."""
        self._last = here.get("version")

    def _stage_of(self, number: int) -> Json:
        return {"number": number, "version": self._pinned, "table": self._table, "mark": self._mark}

    def enter(self, stage: Json) -> None:
        """Continue with the snapshot, or with what comes after it."""
        if not self.options.follow or not self.options.begins_with_snapshot:
            raise self._begun_otherwise(
                f"this source has begun with version {stage['version']} of the table and follows it, which the options "
                "no longer say",
                f"set follow=true, without a start, as when it was begun; or read the table {NEW_QUERY}",
            )
        self._stage, self._pinned, self._table = stage, stage["version"], stage["table"]
        self._mark = stage["mark"]

    def _begun_otherwise(self, what: str, do: str) -> ConfigurationError:
        return refused(what, self._operator, do, kept="everything read so far; nothing new was read")

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Continue with the version that the first epoch chose, or with the versions after it."""
        self._resumed = True
        self._known = next((one for one in known if one.id == CHANNEL), None)
        chosen = {
            version for name in [*(one.id for one in known), *finished] if (version := version_in(name)) is not None
        }
        if self._pinned is None:
            self._pinned = min(chosen, default=None)
        self._begun = {**dict.fromkeys(finished), **{one.id: one.data for one in known}}
        if self._pinned is not None and self.options.version not in (None, self._pinned):
            raise self._begun_otherwise(
                f"the option 'version' is {self.options.version}, but this source has begun with {self._pinned}",
                f"set version to {self._pinned} or remove it; or read another version {NEW_QUERY}",
            )
        other = self._known is not None and not self._is_following
        if other or (chosen and not self.options.begins_with_snapshot):
            raise self._begun_otherwise(
                "this source has begun with other options follow, snapshot or starting_version",
                f"set the options as they were; or read the table in another way {NEW_QUERY}",
            )
        if self.options.follow:
            # The table as it is when the run begins: an AvailableNow run ends with that version.
            _ = self._followed

    def discover(self) -> Iterable[Channel]:
        """The data files of the version, from the log alone; or the channel of what comes after it."""
        if self._is_following:
            # An AvailableNow run asks before it knows where it is.
            if not self._resumed:
                return [_UNKNOWN]
            return [self._followed.channel(self._known, self._pinned, self._declared, self._table, self._mark)]
        options = self.options
        if self._pinned is None:
            newest = self._followed.newest if options.follow and options.timestamp is None else None
            table = self._load(newest if options.version is None else options.version, options.timestamp)
        else:
            table = self._load(self._pinned, pinned=True)
        if self._table not in ("", table.metadata.id):
            raise self._log.replaced()
        if self.options.changes:
            require_feed(table, self._operator)
        self._pinned, self._table = table.version, table.metadata.id
        if options.follow:
            self._mark = self._log.same(table.version, self._mark)
        self._check_columns(table.schema)
        names = dict(zip(table.schema.names, table.physical.names, strict=True))
        at = self._log.at(table.version) if self.options.changes else None
        channels = []
        for file in table.files():
            data = data_of(file, names, table.mapped, table.widths) | ({"at": at} if self.options.changes else {})
            channels.append(Channel(f"v{table.version}/{file.path}", 0, data))
            self._rows[channels[-1].id] = file.rows
        check_begun(self._begun, table.version, channels, options.path, self._operator)
        for channel in channels[:1]:
            self._format(channel).footers.announce(self._file(one) for one in channels)
        return channels

    @property
    def _followed(self) -> Following:
        if self._following is None:
            self._following = Following(
                self.options, self._log, self._load, self._pieces, self._operator, last=self._last
            )
            self._check_columns(self._following.schema)
        return self._following

    def latest(self, channel: Channel) -> Position:
        """Behind the version that was the newest one when the run began that ends with it, or when its planner did."""
        return self._followed.latest() if channel.id == CHANNEL else None

    def _check_columns(self, held: StructType) -> None:
        readable = StructType([*held, *COLUMNS]) if self.options.changes else held
        check_declared(self.declared, readable, self._operator)

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Advance by the footers of data files; deleted rows count against a row limit."""
        if channel.id == CHANNEL:
            return self._followed.reading.advance(start, limit)
        return self._format(channel).advance(self._file(channel), start, limit)

    def lag(self, channel: Channel, at: Position) -> int | None:
        """Rows of the data file, or of the versions that are there, deleted ones included, as the log has them."""
        if channel.id == CHANNEL:
            return self._followed.reading.lag(at)
        rows = self._rows.get(channel.id)
        return None if rows is None else max(0, rows - at)

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """The number of a row of the data file, deleted ones included; of later versions see `Reading.seek`."""
        if channel.id == CHANNEL:
            newest = self._load(None).version
            return self._followed.reading.seek(position, newest, f"{self._operator}, channel '{CHANNEL}'")
        return self._format(channel).seek(self._file(channel), position)

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """Split at row groups, and with `split=true` what comes later at its files."""
        if start == end or self.options.split is False:
            return [(start, end)]
        if channel.id == CHANNEL:
            # In order, unless somebody has asked for speed.
            return self._pieces.split(start, end, parts) if self.options.split else [(start, end)]
        return self._format(channel).split(self._file(channel), start, end, parts)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range that exist in the version, or that later versions have added or changed."""
        if channel.id == CHANNEL:
            batches = self._pieces.read(LogPosition(*start), LogPosition(*end))
            tables = self._names.of(LogPosition(*end).names) if channel.data["mapping"] == "name" else ()
            widths: Mapping[str, int] = self._names.now.widths
        else:
            version, file = version_read(channel), self._file(channel)
            keep = self._keep(version, file) if channel.data.get("deleted") else None
            batches = self._format(channel).read(file, start, end, keep)
            tables = (version_of(self._uri, version),) if channel.data.get("mapped") else ()
            widths = channel.data.get("char", {})
        if tables:
            wanted = arrow_schema(self._declared)
            held = arrow_schema(in_table(self._declared, *tables))
            batches = (conform(renamed(batch, held), wanted, {}) for batch in batches)
        yield from (padded(batch, widths) for batch in batches if batch.num_rows)

    def _keep(self, version: int, file: InputFile) -> pa.Array:
        mask = mask_of(keep_masks(self._uri, version), file.path)
        if mask is None:
            raise file.refusal(f"its deletion vector in version {version} no longer exists", file.if_gone)
        return mask

    def _file(self, channel: Channel) -> InputFile:
        version = version_read(channel)
        data = channel.data
        constants = dict(data.get("partition", {}))
        if self.options.changes:
            constants |= {CHANGE: INSERT, VERSION: str(version), TIME: instant_of(data["at"])}
        return self._input(path_in(channel.id), data["size"], constants, f"it belongs to version {version}")

    def _input(self, name: str, size: int, constants: Mapping[str, str | None], belongs: str) -> InputFile:
        filesystem, root = self._place
        path = f"{root}/{name}"
        if "://" in name or name.startswith("/"):
            filesystem, path = resolve(name, self._operator)
        return InputFile(
            filesystem,
            path,
            name,
            size,
            None,
            self.options.uid,
            constants,
            f"{belongs} of the table and was probably deleted by a vacuum; restore it, or read the current version "
            f"{NEW_QUERY}; set the retention longer than a run",
        )

    def _format(self, channel: Channel) -> ParquetFormat:
        version = version_read(channel) if channel.data.get("mapped") else None
        if version not in self._formats:
            tables = () if version is None else (version_of(self._uri, version),)
            self._formats[version] = format_for(self._declared, *tables)
        return self._formats[version]

    @property
    def _declared(self) -> StructType:
        return self.declared if self.declared is not None else self.schema()

    @cached_property
    def _log(self) -> Log:
        return Log(*self._place, self.options.path, self._operator)

    @cached_property
    def _names(self) -> ColumnNames:
        return ColumnNames(
            lambda version, pinned: self._load(version, pinned=pinned), self._log, lambda: self._declared
        )

    @cached_property
    def _pieces(self) -> ChangedFiles:
        def format_(names: int | None) -> ParquetFormat:
            # The names in data files do not change, whatever a column is called later.
            known = names is not None or self._names.now.mapped
            return format_for(self._declared, *(self._names.of(names) if known else ()))

        return ChangedFiles(self._log, self.options.changes, self._piece, format_, self._keep)

    def _piece(self, commit: Commit, piece: ChangedFile) -> InputFile:
        """A file whose rows a commit has added, deleted or changed."""
        constants: dict[str, str | None] = dict(piece.file.partition or {})
        if self.options.changes:
            at = commit.at if commit.at is not None else self._log.at(commit.version)
            constants |= {VERSION: str(commit.version), TIME: instant_of(at)}
            constants |= {CHANGE: piece.change} if piece.change is not None else {}
        belongs = f"it is of version {commit.version}"
        file = self._input(piece.file.path, piece.file.size or 0, constants, belongs)
        if piece.file.partition is None and self._names.now.partitioned:
            raise unknown_partition(file, commit.version)
        return file if piece.file.size is not None else file.as_it_is()


_UNKNOWN = Channel(CHANNEL)
