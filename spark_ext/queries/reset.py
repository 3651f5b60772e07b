"""Discarding the history of queries on request: each gets a new lineage, and its old checkpoint is moved aside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.bad_rows.restored import BadRowsOfJob
from spark_ext.errors import StateError
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.spark.rescaled import discard
from spark_ext.spark.spark_log import SparkLog, local_path

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


def reset_queries(
    ledger: Ledger, job: str, state: str, former: Mapping[str, Iterable[str]], reason: str
) -> dict[str, int]:
    """Begin a new lineage for some queries, all of them or none.

    Flags, epochs and sink identities of the old lineage stay in the tables and no longer count, so the next start reads
    all input again and writes it again, beside the earlier output.

    Args:
        ledger: the job's.
        job: its name.
        state: its state directory.
        former: the queries, those that read what others of them write first; of each the names that it had, and that no
            other query has now: its checkpoint may still be there.
        reason: who requested it, and why.

    Returns:
        The new lineages.

    Raises:
        StateError: the job runs, or a checkpoint cannot be moved aside.
    """
    checkpoints = [
        f"{state.rstrip('/')}/queries/{name}/checkpoint" for query, names in former.items() for name in (query, *names)
    ]
    for place in checkpoints:
        _refuse_remote(place, f"job '{job}', query '{Path(place).parent.name}'")
    incarnation = start_incarnation(ledger, job)
    writer = LedgerWriter(ledger, incarnation)
    try:
        # What was committed in the old lineage has been read, and its output stays.
        bad_rows = BadRowsOfJob(job, incarnation.job_id, state, ledger.storage_options)
        for place in checkpoints:
            bad_rows.settle(Path(place).parent.name, place)
        # In this order: after a crash in between, the next start is refused, with the advice to reset again.
        for place in checkpoints:
            _move_aside(place, datetime.now(timezone.utc))
        return writer.new_lineages(tuple(former), reason or "reset on request")
    finally:
        writer.end("reset")


def _refuse_remote(checkpoint: str, who: str) -> None:
    """An object store cannot rename a folder: the user moves it, and then resets."""
    if local_path(checkpoint) is None and SparkLog(checkpoint).exists():
        raise StateError(
            "a checkpoint directory on an object store cannot be moved aside by the job",
            operator=who,
            kept="nothing was changed",
            do=f"move everything below {checkpoint} elsewhere with the tools of the store, then reset again",
        )


def _move_aside(location: str, now: datetime) -> None:
    checkpoint = local_path(location)
    if checkpoint is not None and checkpoint.exists():
        checkpoint.rename(checkpoint.with_name(f"checkpoint.until-{now:%Y%m%dT%H%M%S%f}"))
    # What a rescale that was interrupted has left is older: no start may take it for the checkpoint.
    discard(location)
