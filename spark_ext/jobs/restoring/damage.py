"""The restore of a job whose state is damaged from its newest retained checkpoint, if the settings want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from spark_ext.errors import RESET, JobFailedError, SparkExtError
from spark_ext.failures.labels import Response
from spark_ext.jobs.checkpointing.retained import complete, retained_folder
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.masking import logger
from spark_ext.model.damage import Restored, checkpoint_to_restore
from spark_ext.model.lifecycle import State

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.queries.run import QueryRun
    from spark_ext.settings import JobSettings

log = logger("spark_ext.job")


def restore_after(
    job: str,
    settings: JobSettings,
    ledger: Ledger,
    runs: Callable[[], Sequence[QueryRun]],
    restore: Callable[[int], object],
    failure: JobFailedError,
) -> None:
    """Restore a job that has failed, if its settings say so and its state is damaged."""
    responses = [run.response for run in runs() if run.state is State.FAILED]
    damaged = bool(responses) and all(response is Response.RESTORE for response in responses)
    if settings.on_damage != "restore" or not damaged:
        raise failure
    number, why_not = remedy(ledger.uri, ledger)
    if number is None:
        raise JobFailedError(
            f"{failure.what}; the job does not restore itself: {why_not}",
            operator=failure.operator,
            kept=failure.kept,
            do="restore it from an older checkpoint or a savepoint with Job.restore(); without one, discard the "
            f"query's history with {RESET}",
            cause_text=str(failure),
        ) from failure
    log.warning("job '%s': %s; it is restored from checkpoint %d", job, failure.what, number)
    try:
        restore(number)
    except SparkExtError as problem:
        raise JobFailedError(
            f"{failure.what}; the restore from checkpoint {number} failed: {problem.what}",
            operator=failure.operator,
            kept=problem.kept,
            do=problem.do,
            cause_text=f"{failure}\n\n{problem}",
        ) from problem


def remedy(state: str, ledger: Ledger) -> tuple[int | None, str]:
    """The checkpoint from which a job whose state is damaged can be restored.

    Returns:
        Its number; or None, and why not.
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
