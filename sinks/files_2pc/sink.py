"""The sink `files_2pc`: Parquet, CSV or JSON files in a folder; each epoch becomes visible atomically, exactly once.

    frame.writeStream.format("files_2pc").option("uid", "daily").option("path", "out/daily").start()

Tasks write files that readers ignore; the driver commits an epoch by one entry in a log (`epoch_log`) that names them.
`read(spark, path)` and `committed_files(path)` read by the log. See `docs/files_2pc.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator
from pyspark.sql.types import StructType

from spark_ext.bad_rows.sift import Numbered
from spark_ext.datafiles.writer import DataFile, Layout
from spark_ext.errors import NOTHING_VISIBLE, DataError, SparkExtError, StorageError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.options import Bytes, Names
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.sinks.runtime.aside import Aside
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_ext.datafiles.writer import DataFileWriter
    from spark_ext.sinks.files_2pc.epoch_log import Entry, LogState
    from spark_ext.sinks.files_2pc.folder import About, Folder


class FilesSinkOptions(SinkOptions):
    """Options of `files_2pc`."""

    path: str = Field(min_length=1)  # A path that driver and executors share, or a URI; created
    format: Literal["parquet", "csv", "json"] = "parquet"
    compression: Literal["snappy", "zstd", "gzip", "none"] | None = None  # Default: snappy, or none
    partition_by: Names = ()  # Comma-separated; their values are in the names of folders. Fixed by the first epoch
    header: bool = False  # Whether each CSV file begins with the column names
    sep: str = Field(default=",", min_length=1, max_length=1)  # CSV: separator of values
    # Whether committed files are linked into the folder; default: yes, in an object store no.
    publish: bool | None = None
    target_file_size: Bytes = Field(default=256 * 1024**2, gt=0)  # Size at which a new file is started, bytes
    row_group_rows: int = Field(default=1_000_000, gt=0)  # Rows that a task buffers before it writes
    row_group_size: Bytes = Field(default=128 * 1024**2, gt=0)  # Memory that a task buffers before it writes, bytes

    @model_validator(mode="after")
    def _together(self) -> FilesSinkOptions:
        if self.format != "parquet" and self.compression not in (None, "gzip", "none"):
            raise ValueError(f"compression '{self.compression}' is for parquet; {self.format} supports gzip and none")
        if self.format != "csv" and (self.header or self.sep != ","):
            raise ValueError("header and sep require format=csv")
        if self.sep in '"\\\r\n':
            raise ValueError(f"sep cannot be {self.sep!r}, which has a meaning of its own in CSV")
        return self


class FilesTwoPhaseCommit(TwoPhaseCommitSink):
    """Exactly-once files in a folder that all machines share, one log entry per epoch."""

    options_type = FilesSinkOptions
    options: FilesSinkOptions
    quarantines = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._schema: StructType | None = None
        # Made absolute here, because executors may have another working directory.
        self._place = Location.of(self.options.path, {})
        remote = self._place.local is None
        where, who = f"'{self.options.path}' is in an object store", f"sink '{self.options.uid}' (files_2pc)"
        if remote and self.options.publish:
            do = "leave it out, and read with spark_ext.sinks.files_2pc.read or committed_uris; or use delta_2pc"
            raise refused(f"option 'publish': {where}, which has no links", who, do)
        if remote and self.options.partition_by:
            raise refused(
                f"option 'partition_by': {where}, and stores differ in how they spell the special characters of a "
                "folder's name",
                who,
                "leave it out, or use delta_2pc, whose readers do not depend on such names",
            )
        self._publishes = not remote and self.options.publish is not False

    @classmethod
    def name(cls) -> str:
        """`files_2pc`."""
        return "files_2pc"

    @property
    def _who(self) -> str:
        return f"sink '{self.options.uid}' (files_2pc {self._place.uri})"

    def __getstate__(self) -> dict[str, Any]:
        """Executors receive the sink without the opened folder."""
        return {key: value for key, value in self.__dict__.items() if key != "_folder"}

    @cached_property
    def _folder(self) -> Folder:
        from spark_ext.sinks.files_2pc.folder import Folder

        return Folder(self._place, self._who)

    def _about(self, schema: StructType) -> About:
        from spark_ext.schemas.parquet_types import table_schema
        from spark_ext.sinks.files_2pc.folder import About

        options = self.options
        columns = table_schema(schema).jsonValue()
        return About(options.format, columns, options.partition_by, options.header, options.sep)

    def validate(self, schema: StructType) -> None:
        """Refuse types that the format does not support, and folders with other content or other files."""
        from spark_ext.sinks.files_2pc.formats import check

        check(schema, self.options.format, self.options.partition_by, self._who, self.options.sep)
        try:
            found = self._folder.about()
            if found is not None:
                self._folder.check(found, self._about(schema))
        except OSError as problem:
            raise self._storage("could not be read", problem) from problem
        self._schema = schema

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> tuple[DataFile, ...] | None:
        """Write files that readers ignore."""
        from spark_ext.sinks.files_2pc.formats import check

        who = f"{self._who}, epoch {task.epoch}, partition {task.partition}"
        check(schema, self.options.format, self.options.partition_by, who, self.options.sep)
        files = self._writer(schema, task)
        if self.collects_bad_rows:
            aside = Aside(self, task)
            files.bad = aside.rows
            batches = Numbered(self._readable(schema), ValueError, aside.row).good(batches)
        try:
            return files.write(batches)
        except OSError as problem:
            raise self._storage("could not be written", problem, who) from problem
        except (ValueError, OverflowError) as problem:
            raise DataError(
                f"a value cannot be written as {self.options.format}: {problem}",
                operator=who,
                kept=NOTHING_VISIBLE,
                do="filter such rows out, or choose another format",
            ) from problem

    def _readable(self, schema: StructType) -> Callable[[pa.RecordBatch], None]:
        """What refuses rows before a file is written that readers would not get back from it."""
        from spark_ext.sinks.files_2pc.formats import refuse_unreadable

        form, kept = self.options.format, [name for name in schema.names if name not in self.options.partition_by]

        def check(batch: pa.RecordBatch) -> None:
            if form != "parquet":
                refuse_unreadable(batch.select(kept), form)

        return check

    def _writer(self, schema: StructType, task: Task) -> DataFileWriter:
        from spark_ext.sinks.files_2pc.formats import HivePathWriter, TextFileWriter

        options, place = self.options, self._folder.files
        layout = Layout(
            partition_by=options.partition_by,
            compression=options.compression or ("snappy" if options.format == "parquet" else "none"),
            row_group_rows=options.row_group_rows,
            row_group_bytes=options.row_group_size,
            file_bytes=options.target_file_size,
            statistics_columns=0,
        )
        if options.format == "parquet":
            return HivePathWriter(place, schema, layout, task)
        return TextFileWriter(place, schema, layout, task, options.format, options.header, options.sep)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[tuple[DataFile, ...]]) -> CommitOutcome:
        """Write one log entry with all files of the epoch."""
        files = [file for of_task in prepared for file in of_task]

        def decide(state: LogState) -> Entry | None:
            self._check(state, epoch)
            if state.epochs.get(epoch.application, -1) >= epoch.number:
                return None
            mark = self.keep_bad_rows()
            reach(FailPoint.FILES_BEFORE_COMMIT)
            return {
                "kind": "epoch",
                "application": epoch.application,
                "epoch": epoch.number,
                "incarnation": epoch.incarnation,
                "files": [_record(file) for file in files],
                **({} if mark is None else {"bad_rows": mark}),
                **({"links": False} if self.options.publish is False else {}),
            }

        try:
            log = self._folder.log(epoch.sink)
            if epoch.start:
                # Before the description of a new folder is written: the claim has written that of the right one.
                self._check(log.state(), epoch)
            self._folder.ensure(self._about(schema))
            if log.append(decide, str(epoch.incarnation)) is None:
                self._settle(epoch, files)
                return CommitOutcome.ALREADY_COMMITTED
            reach(FailPoint.FILES_COMMITTED)
            self._publish(file.path for file in files)
            reach(FailPoint.FILES_PUBLISHED)
        except OSError as problem:
            kept = "the epoch's files; the next attempt finds out whether they are committed"
            raise self._storage("could not be written", problem, kept=kept) from problem
        return CommitOutcome.COMMITTED

    def check(self, epoch: Epoch) -> None:
        """Read the log's newest state."""
        try:
            self._check(self._folder.log(epoch.sink).state(), epoch)
        except OSError as problem:
            raise self._storage("could not be read", problem) from problem

    def _check(self, state: LogState, epoch: Epoch) -> None:
        epoch.check_target(state.mark if state.incarnation else None, state.epochs.get(epoch.application), self._who)

    def _settle(self, epoch: Epoch, files: Sequence[DataFile]) -> None:
        """After a retry: create the links that a crash may have prevented, and delete the files prepared again."""
        entry = self._entry(epoch)
        if entry is not None:
            committed = {file["path"] for file in entry["files"]}
            self._publish(committed)
            for file in files:
                if file.path not in committed:
                    self._folder.files.folder.delete(file.path)

    def _entry(self, epoch: Epoch) -> Entry | None:
        for entry in reversed(self._folder.log(epoch.sink).entries()):
            if entry.get("application") == epoch.application and entry.get("epoch") == epoch.number:
                return entry
        return None

    def kept_bad_rows(self, epoch: Epoch) -> int | None:
        """The mark in the epoch's entry."""
        try:
            entry = self._entry(epoch)
        except OSError as problem:
            raise self._storage("could not be read", problem) from problem
        return None if entry is None else entry.get("bad_rows")

    def _publish(self, paths: Any) -> None:
        if self._publishes:
            self._folder.publish(paths)

    def check_claim(self, claim: Claim) -> None:
        """By the state of the log."""
        try:
            self._refuse(self._folder.log(claim.sink).state(), claim)
        except OSError as problem:
            raise self._storage("could not be read", problem) from problem

    def _refuse(self, state: LogState, claim: Claim) -> None:
        if state.owner not in (None, claim.job_id):
            raise refused(
                f"the folder holds epochs that another job wrote under the sink uid '{claim.sink}', "
                f"or this job '{claim.job}' before its state was deleted",
                self._who,
                "give this sink another uid; or, if the state was deleted, restore it, "
                f"or delete the output at {self._place.uri} to write it again",
                kept="the folder is unchanged; nothing was started",
            )
        claim.mark.check(state.mark, self._who)
        claim.check_state(claim.known(state.epochs), state.mark, self._who)

    def claim(self, claim: Claim) -> None:
        """Set the fence, as an entry of the log, then clean up what dead incarnations have left."""

        def decide(state: LogState) -> Entry | None:
            self._refuse(state, claim)
            if state.mark.covers(claim.mark):
                return None
            reach(FailPoint.FILES_BEFORE_CLAIM)
            return {
                "kind": "claim",
                "incarnation": claim.incarnation,
                "start": claim.start,
                "job": claim.job,
                "job_id": claim.job_id,
                **({"links": True} if self._publishes else {}),
            }

        try:
            log = self._folder.log(claim.sink)
            self._refuse(log.state(), claim)
            if self._schema is not None:
                self._folder.ensure(self._about(self._schema))
            # Of epochs from before the option 'publish' was set. The claim says that their links are there.
            late = self._publishes and self._folder.link_earlier(claim)
            log.append(decide, str(claim.incarnation))
            if late:
                self._folder.link_earlier(claim)  # and of what an older start has committed meanwhile
            reach(FailPoint.FILES_CLAIMED)
            self._folder.clean(claim)
            reach(FailPoint.FILES_CLEANED)
        except OSError as problem:
            raise self._storage("could not be written", problem) from problem

    def _storage(self, what: str, problem: OSError, who: str | None = None, kept: str | None = None) -> SparkExtError:
        local, who = self._place.local, who or self._who
        if local is not None and any(folder.is_file() for folder in (local, *local.parents)):
            return refused(f"the folder {what}: {problem}", who, "let 'path' name a folder", NOTHING_VISIBLE)
        return StorageError(
            f"the folder {what}: {problem}",
            operator=who,
            kept=kept or NOTHING_VISIBLE,
            do="check the storage (space, permissions, hard links); the epoch will be retried",
        )


def _record(file: DataFile) -> dict[str, Any]:
    return {"path": file.path, "size": file.size, "rows": file.rows, "partition": dict(file.partition)}


def committed_files(path: str | Path) -> list[Path]:
    """The committed files of a folder that `files_2pc` writes: either all files of an epoch, or none.

    For any reader: `pyarrow.dataset.dataset(committed_files("out"))`, DuckDB, pandas. Files are never moved.
    """
    folder = _opened(path)[0]
    if folder.location.local is None:
        raise refused(
            f"'{path}' is in an object store, where files have no paths", f"reader of {path}", "use committed_uris"
        )
    return [Path(folder.place_of(file["path"])) for file in folder.committed()]


def committed_uris(path: str) -> list[str]:
    """As `committed_files`, also in an object store: the URIs of the files, or their paths on a file system."""
    folder = _opened(path)[0]
    return [folder.place_of(file["path"]) for file in folder.committed()]


def read(spark: SparkSession, path: str | Path) -> DataFrame:
    """The rows that are committed now in a folder that `files_2pc` writes, with the columns as they were written."""
    from spark_ext.sinks.files_2pc.formats import read_options

    folder, about = _opened(path)
    names = [folder.place_of(file["path"]) for file in folder.committed()]
    if not names:
        return spark.createDataFrame([], about.schema)
    reader = spark.read.format(about.format).schema(about.schema)
    # Spark's own switch: the names of files are no patterns.
    reader = reader.option("__globPaths__", "false").options(
        basePath=folder.files.uri, **read_options(about.format, about.header, about.separator)
    )
    return reader.load(names).select(about.schema.fieldNames())


def _opened(path: str | Path) -> tuple[Folder, About]:
    from spark_ext.sinks.files_2pc.folder import Folder

    folder = Folder(Location.of(str(path), {}), f"reader of {path}")
    about = folder.about()
    if about is None:
        raise refused(
            f"'{path}' contains no output of files_2pc",
            f"reader of {path}",
            "correct the path, or wait for the query's first epoch",
        )
    return folder, about
