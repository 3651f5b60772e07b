"""The one commit by which an epoch of upserts becomes visible: a MERGE by delta-rs, in the committing process.

The committer reads the Parquet files that tasks have staged, keeps one row of each key, and merges these through the
handle that was looked at. The commit carries what an append would, and has to be the very next version: anything in
between could be rows of the same keys, or files that were read. delta-rs skips files by partition and by the bounds of
keys, except where those cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import ColumnProperties, CommitProperties, DeltaTable, WriterProperties
from deltalake.exceptions import DeltaError
from pyspark.sql import types as spark

from spark_ext.delta.fenced_log import NO_HOOKS
from spark_ext.delta.upsert import Upsert, quoted
from spark_ext.errors import ConfigurationError, refused
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.parquet_types import from_delta

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ext.datafiles.writer import DataFile
    from spark_ext.storage import Location


_OLD: Final = "t"
_NEW: Final = "s"

# What delta-rs says when it would exceed a limit that it was given.
_EXHAUSTED: Final = ("Resources exhausted", "max_temp_directory_size")
_LONGEST_BOUND: Final = 1024  # Bytes of a text above which it is no bound of a merge
_Codec = Literal["UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"]

_COMPRESSIONS: Final[dict[str, _Codec]] = {"snappy": "SNAPPY", "zstd": "ZSTD", "gzip": "GZIP", "none": "UNCOMPRESSED"}


@dataclass(frozen=True)
class Merge:
    """How the epochs of one sink are merged."""

    upsert: Upsert
    compression: str = "snappy"
    row_group_rows: int = 1_000_000
    # Most memory that the merge itself may use, bytes, before it writes to disk what can be written there; None: no
    # limit. The epoch's rows come on top.
    memory: int | None = None
    disk: int | None = None  # Most disk space that it may use for that, bytes; None: delta-rs's own limit, 100 GB

    def rows(self, location: Location, schema: StructType, files: Sequence[DataFile], who: str) -> pa.Table:
        """The rows of an epoch that count, one of each key, with all columns of the query."""
        wanted = arrow_schema(schema, nullable=True)
        found = []
        for file in files:
            with location.folder.open_input(file.path) as stream, pq.ParquetFile(stream) as parquet:
                found.append(parquet.read().cast(wanted))
        return self.upsert.winners(pa.concat_tables(found) if found else wanted.empty_table(), who)

    def write(self, table: DeltaTable, rows: pa.Table, commit: CommitProperties | None, who: str) -> bool:
        """Merge rows in one commit; the handle then is at its version. False if no row changes: delta-rs makes none."""
        before = table.version()
        try:
            self._merger(table, rows, commit).execute()
        except DeltaError as problem:
            if any(sign in str(problem) for sign in _EXHAUSTED):
                raise self._exhausted(rows, str(problem), who) from problem
            raise
        return table.version() != before

    def _merger(self, table: DeltaTable, rows: pa.Table, commit: CommitProperties | None) -> Any:
        rule, schema = self.upsert, from_delta(table.schema().to_json())
        as_text = _without_bounds(schema, table.metadata().partition_columns) | _long_keys(rows, rule.key)
        merger = table.merge(
            rows,
            rule.matches(_OLD, _NEW, as_text),
            source_alias=_NEW,
            target_alias=_OLD,
            # Else the bounds of the rows' keys are not used to skip files of the table.
            streamed_exec=False,
            writer_properties=WriterProperties(
                compression=_COMPRESSIONS[self.compression],
                max_row_group_size=self.row_group_rows,
                # Else the log has the least and the greatest text of each file in full.
                statistics_truncate_length=64,
                **statistics(schema),
            ),
            max_spill_size=self.memory,
            max_temp_directory_size=self.disk,
            commit_properties=commit,
            post_commithook_properties=NO_HOOKS,
        )
        newer, flag = rule.replaces(_OLD, _NEW), rule.dropped
        if flag is None:
            return merger.when_matched_update_all(newer).when_not_matched_insert_all()
        deletes, left = f"{_NEW}.{quoted(flag)}", [flag]
        return (
            merger.when_matched_delete(_both(deletes, newer))
            .when_matched_update_all(_both(f"NOT {deletes}", newer), except_cols=left)
            .when_not_matched_insert_all(f"NOT {deletes}", except_cols=left)
        )

    def _exhausted(self, rows: pa.Table, problem: str, who: str) -> ConfigurationError:
        return ConfigurationError(
            f"the merge of {rows.num_rows:,} rows needs more than it may use: {problem}",
            operator=who,
            kept="the epoch's rows, staged and not yet visible; everything committed before",
            do="raise the options 'merge_memory' and 'merge_disk', or read fewer rows in an epoch "
            "(option 'max_rows_per_epoch' of the source)",
        )


def discard(location: Location, files: Sequence[DataFile]) -> None:
    """Delete staged files of an epoch that is committed. What cannot be deleted is left to the next claim."""
    for file in files:
        with suppress(OSError):
            location.folder.delete(file.path)


def _without_bounds(schema: StructType, partition_by: Sequence[str]) -> frozenset[str]:
    """Columns whose bounds may not be used to pass over a file of any writer; those of a partition are values."""
    return frozenset(
        field.name for field in schema.fields if field.name not in partition_by and not bounds_hold(field.dataType)
    )


def _long_keys(rows: pa.Table, key: Sequence[str]) -> frozenset[str]:
    """Columns with a value that is too long to be a bound: it would be in the commit, in the log, in full."""
    texts = [name for name in key if pa.types.is_string(rows.schema.field(name).type)]
    return frozenset(name for name in texts if (pc.max(pc.binary_length(rows[name])).as_py() or 0) > _LONGEST_BOUND)


def _both(one: str, other: str | None) -> str:
    return one if other is None else f"{one} AND {other}"


# -- what delta-rs notes wrongly of the files that it makes -----------------------------------------------------------
# It takes the bounds of a file from Parquet's statistics. A decimal becomes a double on the way, or an integer of 64
# bits that stops at its greatest value; a NaN is left out, where Spark takes it as greater than any number. Readers,
# and the next merge, then pass over files with rows that they look for.
#
# It spells the values of partitions itself. `-1.25` becomes `-1.-25`, with which delta-rs itself cannot open the table
# any more; a time loses its zone, and Spark takes it as one in the zone of its session. Where a merge meets such
# values, the sink writes its files itself, see `publish`.


_EXACT_DIGITS: Final = 15  # Digits of a decimal that come back from a double as they were
_NONE: Final = ColumnProperties(statistics_enabled="NONE")
_AS_EVER: Final = ColumnProperties(statistics_enabled="PAGE")


def bounds_hold(kind: spark.DataType) -> bool:
    """Whether delta-rs notes bounds that hold for all values of a type, or none; for a struct, of all its fields."""
    if isinstance(kind, spark.StructType):
        return all(bounds_hold(field.dataType) for field in kind.fields)
    if isinstance(kind, spark.DecimalType):
        return kind.precision <= _EXACT_DIGITS
    return not isinstance(kind, (spark.FloatType, spark.DoubleType))


def statistics(schema: spark.StructType) -> Mapping[str, Any]:
    """Arguments of `WriterProperties` for files of a table; none when the bounds of all columns hold.

    Columns in a struct cannot be named to delta-rs. So if those of one do not hold, only columns outside of structs are
    given any.
    """
    bad = [field for field in schema.fields if not bounds_hold(field.dataType)]
    if not bad:
        return {}
    if not any(isinstance(field.dataType, spark.StructType) for field in bad):
        return {"column_properties": {field.name: _NONE for field in bad}}
    good = [field for field in schema.fields if field not in bad and not isinstance(field.dataType, spark.StructType)]
    return {"default_column_properties": _NONE, "column_properties": {field.name: _AS_EVER for field in good}}


def check_partitions(schema: spark.StructType, partition_by: Sequence[str], who: str) -> None:
    """Refuse partition columns whose values a compaction would change."""
    for field in schema.fields:
        if field.name not in partition_by:
            continue
        kind = field.dataType
        if isinstance(kind, spark.TimestampType):
            why, do = "loses the zone of such a value", "a date, a text or timestamp_ntz"
        elif isinstance(kind, spark.DecimalType) and kind.scale:
            why, do = "makes -1.25 into -1.-25, which nobody reads", "a text or an integer"
        else:
            continue
        raise refused(
            f"partition column '{field.name}' has the type {kind.simpleString()}, and with 'optimize_interval' files "
            f"are rewritten by the library delta-rs, which {why}",
            who,
            f"partition by another column, for example '{field.name}' as {do}; or write without 'optimize_interval'",
        )
