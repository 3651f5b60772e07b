"""Whether a Delta table takes the rows of a sink: the features that it demands, its columns and its partitions.

An old writer version alone is not a demand: it implies features that hardly any table uses, so what counts is what the
table's metadata really uses. A listed feature that is unknown here is always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_ext.delta.row_rules import RowRules
from spark_ext.errors import ConfigurationError, UnsupportedTableError, refused
from spark_ext.schemas import parquet_types
from spark_ext.schemas.parquet_types import field_notes

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True)
class TableFacts:
    """What a table's log says that concerns writers."""

    writer_version: int
    writer_features: frozenset[str]  # The features listed; empty below writer version 7
    configuration: Mapping[str, str]
    schema: StructType

    def is_on(self, setting: str) -> bool:
        """Whether a table property is true."""
        return self.configuration.get(setting, "").lower() == "true"

    def has_note(self, prefix: str) -> bool:
        """Whether any column has metadata under a key with this prefix."""
        return any(key.startswith(prefix) for _, key, _ in field_notes(self.schema))


# Features that require nothing of a writer that only appends files with statistics, and of a MERGE by delta-rs nothing
# that it does not do.
_NOTHING_TO_DO = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # appended files are their own change data
        "deletionVectors",  # requires numRecords, which the sink writes
        "timestampNtz",
        "v2Checkpoint",  # allows such checkpoints, but demands none
    }
)
# Features of the old writer versions 2 to 6, which imply them for any table: what the metadata uses counts.
_IF_USED: Mapping[str, Callable[[TableFacts], bool]] = {
    "checkConstraints": lambda table: any(key.startswith("delta.constraints.") for key in table.configuration),
    "columnMapping": lambda table: table.configuration.get("delta.columnMapping.mode", "none") != "none",
    "generatedColumns": lambda table: table.has_note("delta.generationExpression"),
    "identityColumns": lambda table: table.has_note("delta.identity."),
    "invariants": lambda table: table.has_note("delta.invariants"),
}
# The old features with which `deltalake` refuses to commit as soon as the table may use them.
_NOT_COMMITTED_BY_THE_LIBRARY = frozenset({"identityColumns"})
_NEWEST_VERSION = 7


def demands(table: TableFacts, *, replaces: bool = False) -> tuple[str, ...]:
    """The features that this sink would have to write but does not, by Delta's names, sorted.

    A sink that `replaces` rows merges by delta-rs, which writes change data and reads deletion vectors by itself.
    """
    found = {name for name, used in _IF_USED.items() if used(table)}
    if replaces and table.is_on("delta.appendOnly"):
        found.add("delta.appendOnly, and with mode=upsert rows are replaced,")
    found |= table.writer_features - _NOTHING_TO_DO - (_IF_USED.keys() - _NOT_COMMITTED_BY_THE_LIBRARY)
    if table.writer_version == 6:
        found |= _NOT_COMMITTED_BY_THE_LIBRARY
    if table.writer_version > _NEWEST_VERSION:
        found.add(f"writer version {table.writer_version}")
    if "delta.setTransactionRetentionDuration" in table.configuration:
        # It would let the log forget which epochs are committed, and the fence.
        found.add("delta.setTransactionRetentionDuration")
    return tuple(sorted(found))


def refuse(missing: Iterable[str], who: str, path: str, writer: str = "delta_2pc") -> None:
    """Raise when the table demands anything that the writer does not write."""
    names = ", ".join(missing)
    if names:
        raise UnsupportedTableError(
            f"the table at {path} uses {names}, which {writer} does not write",
            operator=who,
            kept="the table is unchanged",
            do="write to another table, or drop the features that the table does not need "
            "(ALTER TABLE ... DROP FEATURE or UNSET TBLPROPERTIES)",
        )


_OF_THE_FEED: Final = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


def facts_of(table: DeltaTable) -> TableFacts:
    """What the log says of the table."""
    protocol = table.protocol()
    return TableFacts(
        protocol.min_writer_version,
        frozenset(protocol.writer_features or ()),
        table.metadata().configuration,
        parquet_types.from_delta(table.schema().to_json()),
    )


def check_fit(
    table: DeltaTable,
    schema: StructType,
    *,
    partition_by: Sequence[str],
    adds_columns: bool,
    who: str,
    uri: str,
    without_nulls: Collection[str] = (),
    replaces: bool = False,
) -> tuple[Any, ...]:
    """Refuse a table that the rows do not fit, or that demands too much; returns the columns to add."""
    facts = facts_of(table)
    refuse(demands(facts, replaces=replaces), who, uri)
    check_reserved(schema, facts.configuration, who)
    inside = RowRules.of(facts.schema).inside
    if inside is not None:
        refuse((f"char(n) or varchar(n) inside of the column '{inside}'",), who, uri)
    found = list(table.metadata().partition_columns)
    if found != list(partition_by):
        raise ConfigurationError(
            f"the table is partitioned by ({', '.join(found)}), the option 'partition_by' says "
            f"({', '.join(partition_by)})",
            operator=who,
            kept="the table is unchanged",
            do=f'set .option("partition_by", "{",".join(found)}"), or write to another table',
        )
    fit = parquet_types.fit(schema, facts.schema, without_nulls)
    misfit = fit.misfit
    if fit.new and not adds_columns:
        first = fit.new[0]
        misfit = f"column '{first.name}' ({first.dataType.simpleString()}) is not in the table"
    missing = _missing_field(schema, facts.schema) if replaces and not misfit else None
    if missing is not None:
        misfit = f"field '{missing}' of the table is not in the query, and a merge replaces a column as a whole"
    if misfit:
        raise ConfigurationError(
            misfit,
            operator=who,
            kept="the table is unchanged",
            do="if the column was renamed, keep its old name in the output (withColumnRenamed); if it is new, add "
            '.option("schema_evolution", "add_columns"), or drop it in the query'
            if fit.new
            else "change the query to match the table (cast, rename), or write to another table",
        )
    if any(parquet_types.has_local_times(field.dataType) for field in fit.new):
        refuse(() if "timestampNtz" in facts.writer_features else ("timestampNtz for a new column",), who, uri)
    return fit.new


def check_reserved(schema: StructType, configuration: Mapping[str, str], who: str) -> None:
    """Refuse columns that a table with a change data feed, by its properties, has for itself."""
    taken = next((name for name in schema.names if name.lower() in _OF_THE_FEED), None)
    if taken is not None and configuration.get("delta.enableChangeDataFeed", "").lower() == "true":
        what = f"column '{taken}' has the name of a column of the change data feed, which the table records"
        do = "rename the column in the query, for example with .alias(), or unset delta.enableChangeDataFeed"
        raise refused(what, who, do)


def _missing_field(given: DataType, there: DataType, path: str = "") -> str | None:
    """A field inside a column of the table that the rows do not have, with its full name; None: they have all."""
    if isinstance(given, StructType) and isinstance(there, StructType):
        for field in there.fields:
            name = f"{path}.{field.name}" if path else field.name
            if field.name in given.names:
                if found := _missing_field(given[field.name].dataType, field.dataType, name):
                    return found
            elif path:
                return name
    if isinstance(given, ArrayType) and isinstance(there, ArrayType):
        return _missing_field(given.elementType, there.elementType, f"{path}.element")
    if isinstance(given, MapType) and isinstance(there, MapType):
        key = _missing_field(given.keyType, there.keyType, f"{path}.key")
        return key or _missing_field(given.valueType, there.valueType, f"{path}.value")
    return None
