"""Cleaning after dead incarnations: files that their tasks wrote and that no commit refers to.

Only after the fence. Before it, an older incarnation could still commit a file that is about to be deleted, and leave a
table that cannot be read. After it, none of its files can ever be committed, so those that are not are garbage. A task
of a dead incarnation that is still running may write more: the next start finds it.

Not touched are: files of the claiming incarnation; of sinks outside a job (incarnation 0), which nothing fences off; of
other uids; live files; and removed ones that the log still remembers, which are vacuum's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_ext.errors import StorageError
from spark_ext.sinks._delta.files import owner_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from spark_ext.sinks._delta.store import Place
    from spark_ext.sinks.contract import Claim


def is_orphan(path: str, claim: Claim, committed: frozenset[str]) -> bool:
    """Whether a file is garbage.

    Args:
        path: relative to the table's root.
        claim: the incarnation that cleans, after its fence.
        committed: names, without folders, of all files that the log refers to.
    """
    owner = owner_of(path)
    if owner is None:
        return False
    uid, incarnation = owner
    # Names are drawn at random, so a name alone identifies a file; folders are spelled differently by each library.
    return uid == claim.sink and 0 < incarnation < claim.incarnation and path.rpartition("/")[2] not in committed


def committed_names(table: DeltaTable) -> frozenset[str]:
    """Names of the files that the log refers to: live ones, and removed ones that it still remembers."""
    import pyarrow as pa

    paths = pa.table(table.get_add_actions().select(["path"])).column("path").to_pylist()
    # A dry run without a retention time lists exactly what the log remembers as removed.
    removed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=False)
    return frozenset(path.rpartition("/")[2] for path in (*paths, *removed))


def delete_orphans(place: Place, claim: Claim, committed: Callable[[], frozenset[str]]) -> int:
    """Delete what dead incarnations have left; returns how many files.

    Args:
        place: the root.
        claim: the incarnation that cleans, after its fence.
        committed: names, without folders, of files that are in use; asked for only when there is something to delete.

    Raises:
        OSError: the folder cannot be listed, or a file not deleted.
    """
    candidates = [path for path in place.files() if is_orphan(path, claim, frozenset())]
    if not candidates:
        return 0
    kept = committed()
    orphans = [path for path in candidates if is_orphan(path, claim, kept)]
    for path in orphans:
        place.delete(path)
    return len(orphans)


def clean(place: Place, table: DeltaTable, claim: Claim, who: str) -> int:
    """Delete what dead incarnations have left; returns how many files.

    Args:
        place: the table's root.
        table: loaded after the fence was committed.
        claim: the incarnation that cleans.
        who: for messages.

    Raises:
        StorageError: the folder cannot be listed, or a file not deleted.
    """
    try:
        return delete_orphans(place, claim, lambda: committed_names(table))
    except OSError as problem:
        raise StorageError(
            f"files that an earlier incarnation left could not be deleted: {problem}",
            operator=who,
            kept="all that was committed",
            do=f"see to the permissions of {place.uri}",
        ) from problem
