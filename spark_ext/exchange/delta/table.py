"""The Delta table of an exchange: its columns, its properties, and what its log says of its files.

The table has the columns of the rows, and four partition columns:

__spark_ext_entry    number of the entry that a file belongs to
__spark_ext_segment  number of the file in its entry, from 0
__spark_ext_body     the entry in its stored form; of file 0, else null
__spark_ext_state    the state of the log after the entry; of file 0 of a release and of some other entries, else null

So one commit makes an entry and its rows visible together. The values are in the table's log, not in the files, which
are written before their entry has a number. Log checkpoints keep them when old log files are deleted. Each file is a
Delta partition of its own, so that compaction finds nothing to merge.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import Schema
from pyspark.sql import types as spark

from spark_ext.delta.failures import TableRef
from spark_ext.delta.features import TableFacts, demands, refuse
from spark_ext.errors import CommitError, SparkExtError, StateError, refused
from spark_ext.exchange.place import ABOUT as ABOUT_FILE
from spark_ext.schemas import parquet_types

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from spark_ext.storage import Location

ENTRY: Final = "__spark_ext_entry"
SEGMENT: Final = "__spark_ext_segment"
BODY: Final = "__spark_ext_body"
STATE: Final = "__spark_ext_state"
PARTITION_BY: Final = (ENTRY, SEGMENT, BODY, STATE)
ABOUT: Final = "spark_ext.exchange"  # the table property that holds the description of the exchange

PROPERTIES: Final[dict[str, str | None]] = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}  # how long old log files stay, for readers that have not looked for a while, and the names of deleted files

_HARMFUL: Final = frozenset({"changeDataFeed", "deletionVectors"})
"""Features that `delta_2pc` can write, and that change what is in a file, or what is to be written when one goes."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of the table, by its log."""

    path: str  # relative to the table's root
    entry: int
    body: str | None
    state: str | None


@dataclass(frozen=True)
class ExchangeErrors(TableRef):
    """The errors of an exchange's table."""

    kept: str = "everything that is in the exchange"

    def contended(self, doing: str, attempts: int) -> SparkExtError:
        """The error for a commit that gave way to other writers in each of its attempts."""
        what = f"{doing} failed: other writers committed to the exchange first, {attempts} times in a row"
        do = "find out what else writes to this exchange: it has one producer"
        return CommitError(what, operator=self.operator, kept="everything that was committed", do=do)


def table_schema(rows: spark.StructType, who: str) -> Schema:
    """The schema of the table for rows of an exchange."""
    if not rows.fields:
        raise refused("the rows have no columns", who, "select at least one column")
    parquet_types.check_input(rows, (), who)
    for name in rows.fieldNames():
        if name.lower() in PARTITION_BY:
            raise refused(f"the rows have a column '{name}', which the exchange uses", who, "rename it")
    own = [
        spark.StructField(ENTRY, spark.LongType()),
        spark.StructField(SEGMENT, spark.IntegerType()),
        spark.StructField(BODY, spark.StringType()),
        spark.StructField(STATE, spark.StringType()),
    ]
    return Schema.from_json(spark.StructType([*parquet_types.table_schema(rows).fields, *own]).json())


def rows_schema(table: DeltaTable) -> spark.StructType:
    """The columns of the rows."""
    schema = parquet_types.from_delta(table.schema().to_json())
    return spark.StructType([field for field in schema.fields if field.name not in PARTITION_BY])


def description(table: DeltaTable, uri: str, who: str) -> str:
    """The stored description of the exchange that a table is."""
    metadata, protocol = table.metadata(), table.protocol()
    text = metadata.configuration.get(ABOUT)
    if text is None or tuple(metadata.partition_columns) != PARTITION_BY:
        what = f"there is a Delta table at {uri}, and it is not an exchange"
        do = "use an exchange of another name, or move the table"
        raise StateError(what, operator=who, kept="the table is unchanged; nothing was started", do=do)
    facts = TableFacts(
        protocol.min_writer_version,
        frozenset(protocol.writer_features or ()),
        metadata.configuration,
        parquet_types.from_delta(table.schema().to_json()),
    )
    found = {*demands(facts), *(facts.writer_features & _HARMFUL)}
    for setting in ("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableDeletionVectors"):
        if facts.is_on(setting):
            found.add(setting)
    refuse(sorted(found), who, uri, "an exchange")
    return text


def refuse_other(location: Location, who: str) -> None:
    """Refuse a place that has no table, and files of something else."""
    for name in location.folder.files(data_only=True):
        if name.startswith(("data/", ".")):
            continue  # an epoch outside a job may be written before there is a table
        arrow = name == ABOUT_FILE or name.startswith("log/")
        raise StateError(
            f"its folder {location.uri} has '{name}' and no table: "
            + ("it is an exchange of another kind" if arrow else "something else has written it"),
            operator=who,
            kept="the folder is unchanged; nothing was started",
            do="use the kind with which the exchange was made, or an exchange of another name",
        )


def files_of(table: DeltaTable) -> list[TableFile]:
    """All files of the table as it was loaded."""
    found = pa.table(table.get_add_actions(flatten=True))
    columns = [found["path"], *(found[f"partition.{name}"] for name in (ENTRY, BODY, STATE))]
    return [TableFile(*values) for values in zip(*(column.to_pylist() for column in columns), strict=True)]


def read_commit(commit: bytes, who: str) -> tuple[list[TableFile], bool]:
    """The files that one commit adds, and whether it changes the table's properties, columns or features."""
    files, changed = [], False
    try:
        for line in commit.splitlines():
            action: Any = json.loads(line)
            changed = changed or "metaData" in action or "protocol" in action
            added = action.get("add")
            if added is not None:
                values = added["partitionValues"]
                files.append(TableFile(added["path"], int(values[ENTRY]), values.get(BODY), values.get(STATE)))
        return files, changed
    except (ValueError, KeyError, TypeError, AttributeError):
        what = "a commit of its table is damaged, or was written by something else"
        do = "restore the exchange's folder from a backup; nothing else may write to its table"
        raise StateError(what, operator=who, kept="nothing was read or written", do=do) from None
