"""Discarding a query's history on request: it gets a new lineage, and its old checkpoint is moved aside."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
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
    incarnation = start_incarnation(ledger, job)
    writer = LedgerWriter(ledger, incarnation)
    try:
        # In this order: after a crash in between, the next start is refused, with the advice to reset again.
        for name in (uid, *former):
            _move_aside(state, name, datetime.now(timezone.utc))
        return writer.new_lineage(uid, reason or "reset on request")
    finally:
        writer.end("reset")


def _move_aside(state: str, uid: str, now: datetime) -> None:
    place = local_path(f"{state.rstrip('/')}/queries/{uid}/checkpoint")
    if place is None:
        if not SparkLog(f"{state.rstrip('/')}/queries/{uid}/checkpoint").exists():
            return
        raise StateError(
            "a checkpoint on an object store cannot be moved aside by the job",
            operator=f"query '{uid}'",
            kept="nothing was changed",
            do=f"move {state}/queries/{uid}/checkpoint away yourself, then reset again",
        )
    checkpoint = Path(place)
    if checkpoint.exists():
        checkpoint.rename(checkpoint.with_name(f"checkpoint.until-{now:%Y%m%dT%H%M%S%f}"))
