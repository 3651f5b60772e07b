"""The sink `delta_2pc`: each epoch is one commit to a Delta table, exactly once, by `deltalake` instead of the JVM.

Its rows are appended, or replace those of the same key (`mode=upsert`; see `delta.upsert` and `delta.merge`).

    frame.writeStream.format("delta_2pc").option("uid", "daily").option("path", "out/daily").start()

Tasks write Parquet with statistics (`datafiles.writer`); the driver commits the files (`delta.sink_table`).
See `docs/delta_2pc.md` for the guarantee and its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator
from pyspark.sql.types import StructType

from spark_ext.bad_rows.sift import Numbered
from spark_ext.datafiles.writer import LONGEST_NAME, DataFile, DataFileWriter, Layout
from spark_ext.errors import DataError, StorageError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.options import Bytes, Names, Pairs
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.sinks.delta_options import OptimizeOptions, UpsertOptions
from spark_ext.sinks.runtime.aside import Aside
from spark_ext.storage import Location, check_for_delta

if TYPE_CHECKING:
    from deltalake import Transaction

    from spark_ext.delta.merge import Merge
    from spark_ext.delta.optimize import Optimize
    from spark_ext.delta.rollback import RollBack
    from spark_ext.delta.row_rules import RowRules
    from spark_ext.delta.sink_table import Target
    from spark_ext.delta.upsert import Upsert


class DeltaOptions(UpsertOptions, OptimizeOptions, SinkOptions):
    """Options of `delta_2pc`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"storage_options"})
    foreign_names: ClassVar[Mapping[str, str]] = {
        "maxrecordsperfile": "target_file_size",
        "mergeschema": "set schema_evolution=add_columns",
        "overwriteschema": "remove the option: a table is not replaced; write to another one",
        "partitionby": "partition_by",
    }

    by_name: ClassVar[str | None] = "table"

    path: str = Field(min_length=1)  # The table's root: a local path, or a URI of an object store. Created when absent
    table: str | None = Field(default=None, min_length=1)  # Instead of `path`, in jobs: its name
    partition_by: Names = ()  # Partition columns, comma-separated; fixed when the table is created
    schema_evolution: Literal["refuse", "add_columns"] = "refuse"  # What is done about columns that the table lacks
    compression: Literal["snappy", "zstd", "gzip", "none"] = "snappy"  # Compression of the Parquet files
    target_file_size: Bytes = 256 * 1024**2  # Size at which a file is closed and a new one is started
    row_group_rows: int = Field(default=1_000_000, gt=0)  # Maximum rows in a row group
    row_group_size: Bytes = 128 * 1024**2  # Maximum memory that a task uses before it writes a row group
    indexed_columns: int = Field(default=32, ge=-1)  # Leading columns with statistics for data skipping; -1: all
    log_checkpoint_interval: int = Field(default=100, gt=0)  # Commits between two checkpoints of the table's log
    table_properties: Pairs = Field(default_factory=dict)  # As a JSON object; used when the table is created
    storage_options: Pairs = Field(default_factory=dict, repr=False)  # As a JSON object; never shown

    @model_validator(mode="before")
    @classmethod
    def _named_in_jobs(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("table") is not None:
            raise ValueError(
                "'table' is looked up in the session's catalogues when a job adds the query; without a job give the "
                "table's location as 'path', by spark_ext.table_path(spark, name)"
            )
        return given

    @model_validator(mode="after")
    def _bad_rows_of_appends(self) -> DeltaOptions:
        if self.on_bad_row == "quarantine" and self.mode == "upsert":
            raise ValueError("on_bad_row=quarantine requires mode=append: rows of an upsert are checked by the merge")
        return self


class DeltaTwoPhaseCommit(TwoPhaseCommitSink):
    """Exactly-once appends or upserts to a Delta table, one commit per epoch."""

    options_type = DeltaOptions
    options: DeltaOptions
    rolls_back = True
    quarantines = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.location = Location.of(self.options.path, self.options.storage_options)
        check_for_delta(self.location, f"sink '{self.options.uid}' (delta_2pc)")
        self._schema: StructType | None = None
        self._rules: RowRules | None = None  # What the columns demand of rows; None: not looked up

    @classmethod
    def name(cls) -> str:
        """`delta_2pc`."""
        return "delta_2pc"

    @cached_property
    def _target(self) -> Target:
        from spark_ext.delta.sink_table import Target

        properties = dict(self.options.table_properties)
        if self.options.indexed_columns != 32:
            # So that compaction and other writers of the table use the same settings.
            properties.setdefault("delta.dataSkippingNumIndexedCols", str(self.options.indexed_columns))
        if self._upsert is not None and "target_file_size" in self.options.model_fields_set:
            # A merge's files are written by delta-rs, which asks the table.
            properties.setdefault("delta.targetFileSize", str(self.options.target_file_size))
        return Target(
            self.location,
            self.options.uid,
            partition_by=self.options.partition_by,
            adds_columns=self.options.schema_evolution == "add_columns",
            properties=properties,
            without_nulls=self._rules.not_null if self._rules else (),
            merge=self._merge,
        )

    @property
    def _upsert(self) -> Upsert | None:
        return self.options.upsert()

    @property
    def _merge(self) -> Merge | None:
        from spark_ext.delta.merge import Merge

        options, upsert = self.options, self._upsert
        if upsert is None:
            return None
        return Merge(upsert, options.compression, options.row_group_rows, options.merge_memory, options.merge_disk)

    @property
    def _optimize(self) -> Optimize | None:
        from spark_ext.delta.optimize import Optimize

        options = self.options
        if options.optimize_interval is None:
            return None
        return Optimize(
            options.optimize_interval, options.optimize_target_size, options.z_order_by, options.vacuum_after
        )

    def _check_input(self, schema: StructType, who: str) -> None:
        """Refuse columns that the table cannot have, or that an upsert cannot use."""
        from spark_ext.schemas.parquet_types import check_input

        if self._upsert is None:
            check_input(schema, self.options.partition_by, who)
            return
        check_input(schema, (), who)
        self._upsert.check_columns(schema, who)
        check_input(self._upsert.stored(schema), self.options.partition_by, who)

    def __getstate__(self) -> dict[str, Any]:
        """Executors receive the sink without the table, and with what it demands of rows."""
        if self.options.on_bad_row == "quarantine" and self._rules is None:
            self._rules = self._row_rules()
            self.__dict__.pop("_target", None)
        return {key: value for key, value in self.__dict__.items() if key != "_target"}

    def _row_rules(self) -> RowRules:
        from spark_ext.delta.row_rules import row_rules
        from spark_ext.delta.sink_table import TargetErrors

        return row_rules(self.location, TargetErrors(self._target.who))

    def _mark(self, epoch: Epoch) -> Sequence[Transaction]:
        from deltalake import Transaction

        from spark_ext.delta.transactions import bad_rows_name

        mark = self.keep_bad_rows()
        return () if mark is None else (Transaction(bad_rows_name(epoch), mark),)

    def kept_bad_rows(self, epoch: Epoch) -> int | None:
        """The mark in the table's transactions."""
        return self._target.mark(epoch)

    def early_key(self) -> tuple[str, ...] | None:
        """With mode=upsert its key, where the row of the later epoch always counts."""
        options, upsert = self.options, self._upsert
        name = "newest_by" if options.newest_by else "deleted_if"
        if options.newest_by or options.deleted_if:
            what = f"emit='early': with '{name}' a later row need not replace one that was shown before"
            raise refused(what, f"sink '{options.uid}' (delta_2pc)", f"remove '{name}', or leave emit='early' out")
        return None if upsert is None else upsert.key

    def validate(self, schema: StructType) -> None:
        """Raise an error for types and tables that cannot be written."""
        self._check_input(schema, self._target.who)
        if self.options.on_bad_row == "quarantine":
            self._rules = self._row_rules()
            self.__dict__.pop("_target", None)
        table = self._target.load()
        if table is not None:
            self._target.check(table, schema)
        if self._optimize is not None:
            found = self.options.table_properties if table is None else table.metadata().configuration
            self._optimize.check(schema, self.options.partition_by, found, self._target.who)
        self._schema = schema

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> tuple[DataFile, ...] | None:
        """Write Parquet files that no reader sees before the commit."""
        who = f"sink '{task.sink}' (delta_2pc {self.location.uri}), epoch {task.epoch}, partition {task.partition}"
        self._check_input(schema, who)
        files = DataFileWriter(self.location, schema, self._layout, task)
        aside = Aside(self, task) if self.collects_bad_rows else None
        if aside is not None:
            files.bad = aside.rows
        checked = Numbered(self._check_rows(schema, who), DataError, aside.row if aside else _raised).good(batches)
        try:
            return files.write(checked if self._upsert is None else self._with_keys(checked, self._upsert, who))
        except OSError as problem:
            raise StorageError(
                f"a data file could not be written: {problem}",
                operator=who,
                kept="nothing of this epoch is visible; what was committed before is untouched",
                do="check the storage (space, permissions); the epoch will be retried",
            ) from problem

    def _check_rows(self, schema: StructType, who: str) -> Callable[[pa.RecordBatch], None]:
        """What refuses rows by the table's rules, by their partitions, and by what a compaction would make of them."""
        from spark_ext.datafiles.partitions import check_rewritten, check_values

        keys = [schema[name] for name in self.options.partition_by]
        longest = LONGEST_NAME if self.location.local is not None else None

        def check(batch: pa.RecordBatch) -> None:
            if self._rules is not None:
                self._rules.check(batch, who)
            if self._optimize is not None:
                check_rewritten(batch, keys, longest, who)
            elif self._upsert is not None:
                check_values(batch, keys, who)  # an append's are checked when they are written

        return check

    def _with_keys(self, batches: Iterator[pa.RecordBatch], upsert: Upsert, who: str) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            upsert.check_values(batch, rows, who)
            rows += batch.num_rows
            yield batch

    @property
    def _layout(self) -> Layout:
        options = self.options
        if options.mode == "upsert":
            # Staged, and never a part of the table.
            return Layout(
                row_group_rows=options.row_group_rows, row_group_bytes=options.row_group_size, statistics_columns=0
            )
        return Layout(
            partition_by=options.partition_by,
            compression=options.compression,
            row_group_rows=options.row_group_rows,
            row_group_bytes=options.row_group_size,
            file_bytes=options.target_file_size,
            statistics_columns=options.indexed_columns,
        )

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[tuple[DataFile, ...]]) -> CommitOutcome:
        """One commit with all files of the epoch, or with the merge of their rows; see `delta.sink_table`."""
        files = [file for of_task in prepared for file in of_task]
        outcome, version = self._target.commit(schema, epoch, files, lambda: self._mark(epoch))
        if self._upsert is not None:
            from spark_ext.delta.merge import discard

            discard(self.location, files)
        if outcome is CommitOutcome.COMMITTED:
            from spark_ext.delta.upkeep import checkpoint_if_due

            checkpoint_if_due(self.location, version, self.options.log_checkpoint_interval)
            if self._optimize is not None:
                from spark_ext.delta.optimize import optimize_if_due

                optimize_if_due(self.location, self._optimize)
        return outcome

    def check(self, epoch: Epoch) -> None:
        """Look at the table's fence, on a local path by one `stat` if nothing was committed since the last look."""
        self._target.check_epoch(epoch)

    def check_claim(self, claim: Claim) -> None:
        """By the numbers in the table's log."""
        self._target.check_claim(claim)

    def claim(self, claim: Claim) -> None:
        """Fence off older incarnations, then delete the files that they left; see `delta.orphans`.

        The fence needs a table, which is created here if `validate` was called with the schema. Otherwise nothing is
        deleted either, because an older incarnation could still create the table with its files.
        """
        from spark_ext.delta.upkeep import clean

        table = self._target.claim(claim, self._schema)
        reach(FailPoint.DELTA_FENCED)
        # Files of older versions that the log has forgotten look like orphans, and a roll back may need them.
        if table is not None and not claim.restoring:
            clean(self.location, table, claim, self._target.who)
            reach(FailPoint.DELTA_CLEANED)

    @property
    def _roll_back(self) -> RollBack:
        from spark_ext.delta.rollback import RollBack

        return RollBack(self._target)

    def position(self, epoch: Epoch) -> dict[str, Any] | None:
        """The newest version without later epochs, the table's id, and the epoch that it holds: `delta.rollback`."""
        return self._roll_back.position(epoch)

    def check_roll_back(self, claim: Claim, position: Any) -> None:
        """Refuse a table that is another one, lacks files of the version, or was changed by others since."""
        self._roll_back.check(claim, position)

    def roll_back(self, claim: Claim, position: Any) -> None:
        """One fenced commit, a RESTORE of the version; none when the sink has committed nothing since."""
        self._roll_back.apply(claim, position)


def _raised(number: int, row: pa.RecordBatch, problem: Exception) -> None:
    raise problem
