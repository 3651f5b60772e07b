"""The features that a table demands of its writers, and those that this sink does not write. Pure functions.

An old writer version alone is not a demand: it implies features that hardly any table uses, so what counts is what the
table's metadata really uses. A listed feature that is unknown here is always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from spark_ext.errors import UnsupportedTableError
from spark_ext.schemas.parquet_types import field_notes


@dataclass(frozen=True)
class TableFacts:
    """What a table's log says that concerns writers."""

    writer_version: int
    writer_features: frozenset[str]
    """The features listed; empty below writer version 7."""
    configuration: Mapping[str, str]
    schema: StructType

    def is_on(self, setting: str) -> bool:
        """Whether a table property is true."""
        return self.configuration.get(setting, "").lower() == "true"

    def has_note(self, prefix: str) -> bool:
        """Whether any column has metadata under a key with this prefix."""
        return any(key.startswith(prefix) for _, key, _ in field_notes(self.schema))


_NOTHING_TO_DO = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # appended files are their own change data
        "deletionVectors",  # requires numRecords, which the sink writes
        "timestampNtz",
        "v2Checkpoint",  # allows such checkpoints, but demands none
    }
)
"""Features that require nothing of a writer that only appends files with statistics, and of a MERGE by delta-rs nothing
that it does not do."""

_IF_USED: Mapping[str, Callable[[TableFacts], bool]] = {
    "checkConstraints": lambda table: any(key.startswith("delta.constraints.") for key in table.configuration),
    "columnMapping": lambda table: table.configuration.get("delta.columnMapping.mode", "none") != "none",
    "generatedColumns": lambda table: table.has_note("delta.generationExpression"),
    "identityColumns": lambda table: table.has_note("delta.identity."),
    "invariants": lambda table: table.has_note("delta.invariants"),
}
"""Features of the old writer versions 2 to 6, which imply them for any table: what the metadata uses counts."""

_NOT_COMMITTED_BY_THE_LIBRARY = frozenset({"identityColumns"})
"""The old features with which `deltalake` refuses to commit as soon as the table may use them."""

_NEWEST_VERSION = 7


def demands(table: TableFacts, *, replaces: bool = False) -> tuple[str, ...]:
    """The features that this sink would have to write but does not, by Delta's names, sorted.

    Args:
        replaces: whether the sink also replaces and deletes rows; delta-rs then writes change data, and reads deletion
            vectors, by itself.
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
    """Raise when the table demands anything that the sink does not write.

    Args:
        writer: what does not write them, for messages.
    """
    names = ", ".join(missing)
    if names:
        raise UnsupportedTableError(
            f"the table at {path} uses {names}, which {writer} does not write",
            operator=who,
            kept="the table is unchanged",
            do="write to another table, or drop the features that the table does not need "
            "(ALTER TABLE ... DROP FEATURE or UNSET TBLPROPERTIES)",
        )
