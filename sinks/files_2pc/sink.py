"""The sink `files_2pc`: Parquet, csv or json files in a folder, each epoch visible at once and once.

    frame.writeStream.format("files_2pc").option("uid", "daily").option("path", "out/daily").start()

Tasks write files that no reader looks for; the driver commits an epoch by one entry in a log (`_epoch_log`), which
names them. `read(spark, path)` and `committed_files(path)` read by the log. See `docs/files_2pc.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pyspark.sql.types import StructType

from spark_ext.datafiles.location import Location
from spark_ext.datafiles.writer import DataFile, Layout
from spark_ext.errors import ConfigurationError, DataError, FencedError, StorageError
from spark_ext.failpoints import reach
from spark_ext.options import Bytes
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spark_ext.datafiles.writer import TaskFiles
    from spark_ext.sinks.files_2pc.epoch_log import Entry, State
    from spark_ext.sinks.files_2pc.folder import About, Folder


def _names(value: object) -> object:
    """`"day, carrier"` as a tuple."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


class FilesSinkOptions(SinkOptions):
    """Options of `files_2pc`."""

    path: str = Field(min_length=1)
    """The folder: a path that driver and executors share. Created when absent."""

    format: Literal["parquet", "csv", "json"] = "parquet"
    """Of the files."""

    compression: Literal["snappy", "zstd", "gzip", "none"] | None = None
    """Of the files; csv and json know `gzip` and `none`. None: snappy for parquet, none for the others."""

    partition_by: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """Partition columns, comma-separated: their values are in the names of folders. Fixed with the first epoch."""

    header: bool = False
    """Whether each csv file begins with the columns' names."""

    sep: str = Field(default=",", min_length=1, max_length=1)
    """What separates the values of a csv line."""

    publish: bool = True
    """Whether committed files are linked into the folder itself, for readers that do not know the log."""

    target_file_size: Bytes = Field(default=256 * 1024**2, gt=0)
    """A file that has reached this size is closed and another begun."""

    row_group_rows: int = Field(default=1_000_000, gt=0)
    """Most rows that a task collects before it writes them; in parquet a row group."""

    row_group_size: Bytes = Field(default=128 * 1024**2, gt=0)
    """Most memory that a task collects before it writes."""

    @model_validator(mode="after")
    def _together(self) -> FilesSinkOptions:
        if self.format != "parquet" and self.compression not in (None, "gzip", "none"):
            raise ValueError(f"compression '{self.compression}' is for parquet; {self.format} knows gzip and none")
        if self.format != "csv" and (self.header or self.sep != ","):
            raise ValueError("header and sep are for format=csv")
        return self


class FilesTwoPhaseCommit(TwoPhaseCommitSink):
    """Exactly-once files in a folder that all machines share, one log entry per epoch."""

    options_type = FilesSinkOptions
    options: FilesSinkOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._schema: StructType | None = None
        # Made absolute at once, because executors may have another working directory.
        place = Location.of(self.options.path, {})
        if place.local is None:
            raise ConfigurationError(
                f"'{self.options.path}' is not a path that this machine has mounted",
                operator=f"sink '{self.options.uid}' (files_2pc)",
                kept="nothing was written",
                do="give a path on a shared file system; on object stores use delta_2pc",
            )
        self._path = place.local

    @classmethod
    def name(cls) -> str:
        """`files_2pc`."""
        return "files_2pc"

    @property
    def _who(self) -> str:
        return f"sink '{self.options.uid}' (files_2pc {self._path})"

    @cached_property
    def _folder(self) -> Folder:
        from spark_ext.sinks.files_2pc.folder import Folder

        return Folder(self._path, self._who)

    def _about(self, schema: StructType) -> About:
        from spark_ext.schemas.parquet_types import table_schema
        from spark_ext.sinks.files_2pc.folder import About

        options = self.options
        columns = table_schema(schema).jsonValue()
        return About(options.format, columns, options.partition_by, options.header, options.sep)

    def validate(self, schema: StructType) -> None:
        """Refuse types that the format does not hold, and folders that are another's or have other files.

        Raises:
            ConfigurationError: names the column, the type or what differs.
            StorageError: the folder cannot be read or written.
        """
        from spark_ext.sinks.files_2pc.types import check

        check(schema, self.options.format, self.options.partition_by, self._who)
        try:
            found = self._folder.about()
            if found is not None:
                self._folder.check(found, self._about(schema))
        except OSError as problem:
            raise self._storage("could not be read", problem) from problem
        self._schema = schema

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> tuple[DataFile, ...] | None:
        """Files that no reader looks for.

        Raises:
            ConfigurationError: a type cannot be stored.
            DataError: a value cannot be written in this format.
            StorageError: a file cannot be written.
        """
        from spark_ext.sinks.files_2pc.types import check

        who = f"{self._who}, epoch {task.epoch}, partition {task.partition}"
        check(schema, self.options.format, self.options.partition_by, who)
        files = self._task_files(schema, task)
        try:
            return files.write(batches)
        except OSError as problem:
            raise self._storage("could not be written", problem, who) from problem
        except (ValueError, OverflowError) as problem:
            raise DataError(
                f"a value cannot be written as {self.options.format}: {problem}",
                operator=who,
                kept="nothing of this epoch is visible; what was committed before is untouched",
                do="filter such rows out, or choose another format",
            ) from problem

    def _task_files(self, schema: StructType, task: Task) -> TaskFiles:
        from spark_ext.sinks.files_2pc.text import HivePaths, TextFiles

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
            return HivePaths(place, schema, layout, task)
        return TextFiles(place, schema, layout, task, options.format, options.header, options.sep)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[tuple[DataFile, ...]]) -> CommitOutcome:
        """One log entry with all files of the epoch.

        Raises:
            FencedError: a newer incarnation has claimed the folder.
            ConfigurationError: the folder is another's, or has other files.
            StorageError: the folder cannot be read or written.
            CommitError: others were faster, again and again.
        """
        files = [file for of_task in prepared for file in of_task]

        def decide(state: State) -> Entry | None:
            self._refuse_newer(state, epoch.incarnation)
            if state.epochs.get(epoch.application, -1) >= epoch.number:
                return None
            return {
                "kind": "epoch",
                "application": epoch.application,
                "epoch": epoch.number,
                "incarnation": epoch.incarnation,
                "files": [_record(file) for file in files],
            }

        try:
            self._folder.ensure(self._about(schema))
            log = self._folder.log(epoch.sink)
            if log.append(decide, str(epoch.incarnation), "files.before_commit") is None:
                self._settle(epoch, files)
                return CommitOutcome.ALREADY_COMMITTED
            reach("files.committed")
            self._publish(file.path for file in files)
            reach("files.published")
        except OSError as problem:
            kept = "the epoch's files; whether they are committed is found out by the next attempt"
            raise self._storage("could not be written", problem, kept=kept) from problem
        return CommitOutcome.COMMITTED

    def _settle(self, epoch: Epoch, files: Sequence[DataFile]) -> None:
        """After a repeat: the links that a crash may have prevented are made, the rows prepared anew are not needed."""
        for entry in reversed(self._folder.log(epoch.sink).entries()):
            if entry.get("application") == epoch.application and entry.get("epoch") == epoch.number:
                committed = {file["path"] for file in entry["files"]}
                self._publish(committed)
                for file in files:
                    if file.path not in committed:
                        self._folder.files.delete(file.path)
                return

    def _publish(self, paths: Any) -> None:
        if self.options.publish:
            self._folder.publish(paths)

    def claim(self, claim: Claim) -> None:
        """The fence first, as an entry of the log, then what dead incarnations have left.

        Raises:
            FencedError: a newer incarnation has claimed the folder.
            ConfigurationError: another job owns the epochs under this uid.
            StorageError: the folder cannot be read or written.
        """

        def decide(state: State) -> Entry | None:
            self._refuse_newer(state, claim.incarnation)
            if state.owner not in (None, claim.job_id):
                raise ConfigurationError(
                    f"the folder holds epochs that another job wrote under the sink uid '{claim.sink}', "
                    f"or this job '{claim.job}' before its state was deleted",
                    operator=self._who,
                    kept="the folder is as it was; nothing was started",
                    do="give this sink another uid; or, if the state was deleted, bring it back, "
                    f"or delete the output at {self._path} to write it anew",
                )
            if state.incarnation == claim.incarnation:
                return None
            return {"kind": "claim", "incarnation": claim.incarnation, "job": claim.job, "job_id": claim.job_id}

        try:
            if self._schema is not None:
                self._folder.ensure(self._about(self._schema))
            self._folder.log(claim.sink).append(decide, str(claim.incarnation), "files.before_claim")
            reach("files.claimed")
            self._folder.clean(claim)
            reach("files.cleaned")
        except OSError as problem:
            raise self._storage("could not be written", problem) from problem

    def _refuse_newer(self, state: State, incarnation: int) -> None:
        if incarnation and state.incarnation > incarnation:
            raise FencedError(
                f"incarnation {state.incarnation} of the job has claimed the folder; this is incarnation {incarnation}",
                operator=self._who,
                kept="everything that was committed; nothing of this incarnation is added",
                do="nothing: the newer start of the job goes on; see that only one is started",
            )

    def _storage(self, what: str, problem: OSError, who: str | None = None, kept: str | None = None) -> StorageError:
        return StorageError(
            f"the folder {what}: {problem}",
            operator=who or self._who,
            kept=kept or "what was committed before; nothing of this epoch is visible",
            do="see to the storage (space, permissions, hard links); the epoch is repeated",
        )


def _record(file: DataFile) -> dict[str, Any]:
    return {"path": file.path, "size": file.size, "rows": file.rows, "partition": dict(file.partition)}


def committed_files(path: str | Path) -> list[Path]:
    """The committed files of a folder that `files_2pc` writes; an epoch's files are all in it, or none.

    For any reader: `pyarrow.dataset.dataset(committed_files("out"))`, DuckDB, pandas. Files stay where they are.

    Raises:
        ConfigurationError: it is not such a folder.
    """
    folder = _opened(path)[0]
    return [folder.path / "_files" / file["path"] for file in folder.committed()]


def read(spark: SparkSession, path: str | Path) -> DataFrame:
    """The committed rows of a folder that `files_2pc` writes, as of now, with the columns as they were written.

    Raises:
        ConfigurationError: it is not such a folder.
    """
    from spark_ext.sinks.files_2pc.text import read_options

    folder, about = _opened(path)
    names = [str(folder.path / "_files" / file["path"]) for file in folder.committed()]
    if not names:
        return spark.createDataFrame([], about.schema)
    reader = spark.read.format(about.format).schema(about.schema)
    reader = reader.options(
        basePath=str(folder.path / "_files"), **read_options(about.format, about.header, about.separator)
    )
    return reader.load(names).select(about.schema.fieldNames())


def _opened(path: str | Path) -> tuple[Folder, About]:
    from spark_ext.sinks.files_2pc.folder import Folder

    folder = Folder(Path(path).expanduser().absolute(), f"reader of {path}")
    about = folder.about()
    if about is None:
        raise ConfigurationError(
            f"there is no output of files_2pc at '{path}'",
            operator=f"reader of {path}",
            kept="nothing was read",
            do="correct the path, or wait for the query's first epoch",
        )
    return folder, about
