"""What a table may demand of its writers, and which of it this sink does not do. Pure functions over the table's log.

An old writer version is not yet a demand: it implies features that hardly any table uses, so what the table's metadata
really uses decides. A listed feature that is not known here is always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from spark_ext.errors import UnsupportedTableError
from spark_ext.schemas.parquet_types import field_notes


@dataclass(frozen=True)
class TableFacts:
    """What the log says of a table, as far as writers are concerned."""

    writer_version: int
    writer_features: frozenset[str]
    """Listed ones; empty below writer version 7."""
    configuration: Mapping[str, str]
    schema: StructType

    def is_on(self, setting: str) -> bool:
        """Whether a table property is true."""
        return self.configuration.get(setting, "").lower() == "true"

    def has_note(self, prefix: str) -> bool:
        """Whether any column carries a note of that name."""
        return any(key.startswith(prefix) for _, key, _ in field_notes(self.schema))


_NOTHING_TO_DO = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # appended files are their own change data
        "deletionVectors",  # asks for numRecords, which the sink writes
        "timestampNtz",
        "v2Checkpoint",  # allows such checkpoints, and demands none
    }
)
"""Features that ask nothing of a writer that only appends files with statistics."""

_IF_USED: Mapping[str, Callable[[TableFacts], bool]] = {
    "checkConstraints": lambda table: any(key.startswith("delta.constraints.") for key in table.configuration),
    "columnMapping": lambda table: table.configuration.get("delta.columnMapping.mode", "none") != "none",
    "generatedColumns": lambda table: table.has_note("delta.generationExpression"),
    "identityColumns": lambda table: table.has_note("delta.identity."),
    "invariants": lambda table: table.has_note("delta.invariants"),
}
"""Features of the old writer versions 2 to 6, which stand there for any table: what the metadata uses decides."""

_NOT_COMMITTED_BY_THE_LIBRARY = frozenset({"identityColumns"})
"""Those of the old features that `deltalake` refuses to commit to once the table may use them."""

_NEWEST_VERSION = 7


def demands(table: TableFacts) -> tuple[str, ...]:
    """The features that this sink would have to write and does not, by Delta's names, sorted."""
    found = {name for name, used in _IF_USED.items() if used(table)}
    found |= table.writer_features - _NOTHING_TO_DO - (_IF_USED.keys() - _NOT_COMMITTED_BY_THE_LIBRARY)
    if table.writer_version == 6:
        found |= _NOT_COMMITTED_BY_THE_LIBRARY
    if table.writer_version > _NEWEST_VERSION:
        found.add(f"writer version {table.writer_version}")
    if "delta.setTransactionRetentionDuration" in table.configuration:
        # It lets the log forget which epochs are committed, and the fence.
        found.add("delta.setTransactionRetentionDuration")
    return tuple(sorted(found))


def refuse(missing: Iterable[str], who: str, path: str) -> None:
    """Raise when anything is demanded that the sink does not write.

    Raises:
        UnsupportedTableError: names the features.
    """
    names = ", ".join(missing)
    if names:
        raise UnsupportedTableError(
            f"the table at {path} uses {names}, which delta_2pc does not write",
            operator=who,
            kept="the table is as it was",
            do="write to another table, or drop what the table does not need "
            "(ALTER TABLE ... DROP FEATURE or UNSET TBLPROPERTIES)",
        )
