"""The retained checkpoints of a job: a folder each, `checkpoints/<number>` in the state directory, and a savepoint."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.checkpoints.savepoint import MANIFEST, retained_folder
from spark_ext.errors import StateError
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.masking import logger
from spark_ext.storage import Folder, Location

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_ext.ledger import Incarnation

log = logger("spark_ext.job")


def complete(state: str) -> list[int]:
    """The numbers of the retained checkpoints, ascending."""
    return sorted(number for number, whole in _folders(state).items() if whole)


def retained(job: str, state: str, number: int) -> str:
    """The folder of a retained checkpoint."""
    there = complete(state)
    if number not in there:
        raise StateError(
            f"checkpoint {number} is not retained; retained are: {', '.join(map(str, there)) or 'none'}",
            operator=f"job '{job}'",
            kept="the job's state and all output are unchanged",
            do="name one that is retained, or the folder of a savepoint; the setting retained_checkpoints is how many "
            "are kept",
        )
    return f"{retained_folder(state)}/{number}"


def unused_number(state: str, least: int) -> int:
    """A checkpoint's number that is not less than `least`, and greater than any with a folder of its own.

    A driver that dies while it writes a checkpoint leaves a folder of whose number the ledger knows nothing.
    """
    return max(least, *(number + 1 for number in _folders(state)), 0)


def release_old(state: str, keep: int, incarnation: Incarnation, record: Callable[[list[CheckpointRow]], None]) -> None:
    """Delete all but the `keep` (at least one) newest retained checkpoints, and what dead drivers left unfinished."""
    root = Location.of(retained_folder(state), {}).folder
    folders = _folders(state)
    whole = sorted(number for number, whole in folders.items() if whole)
    for number in whole[:-keep]:
        row = CheckpointRow(
            checkpoint_id=number,
            kind="periodic",
            status="RELEASED",
            lineage=incarnation.lineage,
            incarnation=incarnation.number,
            at=datetime.now(timezone.utc),
            reason="newer ones are retained",
        )
        record([row])
        # First what makes it one: a restore never begins from a folder that is being deleted.
        root.delete(f"{number}/{MANIFEST}")
        _delete(root, str(number))
    for number in folders.keys() - whole:
        _delete(root, str(number))


def _folders(state: str) -> dict[int, bool]:
    """The numbers of the checkpoints that have a folder, and whether each of them is complete."""
    found: dict[int, bool] = {}
    for name in Location.of(retained_folder(state), {}).folder.files():
        number, _, file = name.partition("/")
        if number.isdigit():
            found[int(number)] = found.get(int(number), False) or file == MANIFEST
    return found


def _delete(root: Folder, number: str) -> None:
    """Delete a folder; what cannot be deleted stays, and is logged."""
    try:
        root.delete_tree(number)
    except OSError as problem:
        log.warning("%s/%s could not be deleted: %s", root.uri, number, problem)
