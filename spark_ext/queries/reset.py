"""Discarding a query's history on request: it gets a new lineage, and its old checkpoint is moved aside."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.errors import StateError
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.spark.spark_log import SparkLog, local_path

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


def reset_query(ledger: Ledger, job: str, state: str, uid: str, reason: str, former: Iterable[str] = ()) -> int:
    """Begin a new lineage for a query.

    Flags, epochs and sink identities of the old lineage stay in the tables and no longer count, so the next start reads
    all input again and writes it again, beside the earlier output.

    Args:
        ledger: the job's.
        job: its name.
        state: its state directory.
        uid: the query.
        reason: who requested it, and why.
        former: names that the query had, and that no other query has now: its checkpoint may still be there.

    Returns:
        The new lineage.

    Raises:
        StateError: the job runs, or the checkpoint cannot be moved aside.
    """
    checkpoints = [f"{state.rstrip('/')}/queries/{name}/checkpoint" for name in (uid, *former)]
    for place in checkpoints:
        _refuse_remote(place, f"job '{job}', query '{uid}'")
    incarnation = start_incarnation(ledger, job)
    writer = LedgerWriter(ledger, incarnation)
    try:
        # In this order: after a crash in between, the next start is refused, with the advice to reset again.
        for place in checkpoints:
            _move_aside(place, datetime.now(timezone.utc))
        return writer.new_lineage(uid, reason or "reset on request")
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
