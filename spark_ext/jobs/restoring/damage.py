"""Whether a job that has failed is restored by itself, and from which checkpoint: what the ledger and folders say."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from spark_ext.failures.labels import Response
from spark_ext.jobs.checkpointing.retained import complete, retained_folder
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.damage import Restored, checkpoint_to_restore
from spark_ext.model.lifecycle import State

if TYPE_CHECKING:
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.ledger import Ledger


def is_damaged(coordinator: Coordinator) -> bool:
    """Whether a job has failed for the sole reason that its state or a checkpoint is damaged."""
    responses = [run.response for run in coordinator.runs if run.state is State.FAILED]
    return bool(responses) and all(response is Response.RESTORE for response in responses)


def remedy(state: str, ledger: Ledger) -> tuple[int | None, str]:
    """The checkpoint from which a job whose state is damaged can be restored.

    Args:
        state: the job's state directory.
        ledger: the job's.

    Returns:
        Its number; or None, and why there is none.

    Raises:
        OSError, StateError, StorageError: folders or tables cannot be read.
    """
    kept = complete(state)
    # Without the metadata, which is large.
    rows = ledger.table(CheckpointRow).read(
        ["checkpoint_id", "lineage"], [("query", "=", ""), ("status", "=", "COMPLETED")]
    )
    lineages = {row["checkpoint_id"]: row["lineage"] for row in rows.to_pylist() if row["checkpoint_id"] in kept}
    jobs = ledger.jobs()
    root = PurePosixPath(retained_folder(state))
    restores = []
    for row in jobs:
        if row.event == "restored":
            folder = PurePosixPath(row.savepoint or "")
            number = int(folder.name) if folder.parent == root and folder.name.isdigit() else None
            restores.append(Restored(row.lineage, row.parent, number))
    return checkpoint_to_restore(lineages, max(row.lineage for row in jobs), restores)
