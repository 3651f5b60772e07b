"""The files that a table's log refers to, and the deletion of files of dead incarnations that it does not refer to.

Live files stay, and so do removed ones that the log still remembers: these are left to vacuum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.datafiles.orphans import delete_orphans
from spark_ext.errors import StorageError

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from spark_ext.model.commits import Claim
    from spark_ext.storage import Location


def committed_names(table: DeltaTable) -> frozenset[str]:
    """Names of the files that the log refers to: live ones, and removed ones that it still remembers."""
    import pyarrow as pa

    paths = pa.table(table.get_add_actions().select(["path"])).column("path").to_pylist()
    # A dry run without a retention time lists exactly what the log remembers as removed.
    removed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=False)
    return frozenset(path.rpartition("/")[2] for path in (*paths, *removed))


def clean(location: Location, table: DeltaTable, claim: Claim, who: str) -> int:
    """Delete what dead incarnations have left; returns how many files."""
    try:
        return delete_orphans(location, claim, lambda: committed_names(table))
    except OSError as problem:
        raise StorageError(
            f"files that an earlier incarnation left could not be deleted: {problem}",
            operator=who,
            kept="everything that was committed",
            do=f"check the permissions of {location.uri}",
        ) from problem
