"""Whether the rows of a sink fit a Delta table: its columns, its partitions and the features that it demands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_ext.delta.features import TableFacts, demands, refuse
from spark_ext.delta.row_rules import RowRules
from spark_ext.errors import ConfigurationError, refused
from spark_ext.schemas import parquet_types

if TYPE_CHECKING:
    from deltalake import DeltaTable

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
    merge_schema: bool,
    who: str,
    uri: str,
    without_nulls: Collection[str] = (),
    replaces: bool = False,
) -> tuple[Any, ...]:
    """Refuse a table that the rows do not fit, or that demands a feature that the sink does not write.

    Args:
        merge_schema: whether columns that the table lacks are added to it.
        replaces: whether rows of the table are replaced or deleted.
    """
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
    if fit.new and not merge_schema:
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
            do='add .option("merge_schema", "true") to add new columns, or drop them in the query'
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
        raise refused(
            f"column '{taken}' has the name of a column of the change data feed, which the table records",
            who,
            "rename the column in the query, for example with .alias(), or unset delta.enableChangeDataFeed",
        )


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
