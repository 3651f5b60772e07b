"""Deletes what dead incarnations have left: files that their tasks wrote and that nothing refers to.

Only after the fence, behind which none of them can be committed any more. A task of a dead incarnation that is still
running may write more: the next start finds it. Nothing fences off sinks outside a job (incarnation 0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_ext.datafiles.writer import owner_of

if TYPE_CHECKING:
    from spark_ext.model.commits import Claim
    from spark_ext.storage import Location


def is_orphan(path: str, claim: Claim, committed: frozenset[str]) -> bool:
    """Whether a file is garbage; `committed` are the names, without folders, of all files that are in use."""
    owner = owner_of(path)
    if owner is None:
        return False
    uid, incarnation = owner
    # Names are drawn at random, so a name alone identifies a file; folders are spelled differently by each library.
    return uid == claim.sink and 0 < incarnation < claim.incarnation and path.rpartition("/")[2] not in committed


def delete_orphans(location: Location, claim: Claim, committed: Callable[[], frozenset[str]]) -> int:
    """Delete what dead incarnations have left; returns how many files."""
    # `committed` gives the names, without folders, of files that are in use; called only when there are candidates.
    candidates = [path for path in location.folder.files(data_only=True) if is_orphan(path, claim, frozenset())]
    if not candidates:
        return 0
    kept = committed()
    orphans = [path for path in candidates if is_orphan(path, claim, kept)]
    for path in orphans:
        location.folder.delete(path)
    return len(orphans)
