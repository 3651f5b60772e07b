"""The one commit by which an epoch of upserts becomes visible: a MERGE by delta-rs, in the committing process.

Tasks write the epoch's rows as Parquet files that never become a part of the table. The committer reads them, keeps one
row of each key, and merges these into the table through the handle that was looked at. The merge's commit carries what
an append would carry, and has to be the very next version: whatever was committed in between could be rows of the same
keys, or files that the merge has read. It is then repeated on the newest version.

delta-rs skips files of the table by partition and by the bounds of the key columns, except where those cannot be
trusted, and rewrites only files in which a row is replaced or deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from deltalake import CommitProperties, DeltaTable, WriterProperties
from deltalake.exceptions import DeltaError

from spark_ext.delta.fenced_log import NO_HOOKS
from spark_ext.delta.rewritten import bounds_hold, statistics
from spark_ext.delta.upsert import Upsert, quoted
from spark_ext.errors import ConfigurationError
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.parquet_types import from_delta

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_ext.datafiles.writer import DataFile
    from spark_ext.storage import Location

_OLD: Final = "t"
_NEW: Final = "s"

_EXHAUSTED: Final = ("Resources exhausted", "max_temp_directory_size")
"""What delta-rs says when it would exceed a limit that it was given."""

_LONGEST_BOUND: Final = 1024
"""Bytes of a text above which it is no bound of a merge."""

_Codec = Literal["UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"]

_COMPRESSIONS: Final[dict[str, _Codec]] = {"snappy": "SNAPPY", "zstd": "ZSTD", "gzip": "GZIP", "none": "UNCOMPRESSED"}


@dataclass(frozen=True)
class Merge:
    """How the epochs of one sink are merged."""

    upsert: Upsert
    compression: str = "snappy"
    row_group_rows: int = 1_000_000
    memory: int | None = None
    """Most memory that the merge itself may use, bytes, before it writes to disk what can be written there; None: no
    limit. The epoch's rows come on top."""
    disk: int | None = None
    """Most disk space that it may use for that, bytes; None: delta-rs's own limit, 100 GB."""

    def rows(self, location: Location, schema: StructType, files: Sequence[DataFile], who: str) -> pa.Table:
        """The rows of an epoch that count, one of each key, with all columns of the query."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        wanted = arrow_schema(schema, nullable=True)
        found = []
        for file in files:
            with location.folder.open_input(file.path) as stream, pq.ParquetFile(stream) as parquet:
                found.append(parquet.read().cast(wanted))
        return self.upsert.winners(pa.concat_tables(found) if found else wanted.empty_table(), who)

    def write(self, table: DeltaTable, rows: pa.Table, commit: CommitProperties | None, who: str) -> bool:
        """Merge rows, in one commit through this handle, which then is at the commit's version.

        Returns:
            Whether there was anything to commit: delta-rs makes no commit when no row changes.
        """
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
    """Columns by whose bounds no file may be passed over, whoever wrote it; those of a partition are values."""
    return frozenset(
        field.name for field in schema.fields if field.name not in partition_by and not bounds_hold(field.dataType)
    )


def _long_keys(rows: pa.Table, key: Sequence[str]) -> frozenset[str]:
    """Columns with a value that is too long to be a bound: it would be in the commit, in the log, in full."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [name for name in key if pa.types.is_string(rows.schema.field(name).type)]
    return frozenset(name for name in texts if (pc.max(pc.binary_length(rows[name])).as_py() or 0) > _LONGEST_BOUND)


def _both(one: str, other: str | None) -> str:
    return one if other is None else f"{one} AND {other}"
