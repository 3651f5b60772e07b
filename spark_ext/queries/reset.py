"""Discarding a query's history on request: it gets a new lineage, and its old checkpoint is moved aside."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.errors import ConfigurationError, StateError
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.spark.spark_log import local_path

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


def reset_query(
    ledger: Ledger, job: str, state: str, uid: str, reason: str, declared: Collection[str] = ()
) -> int:
    """Begin a new lineage for a query.

    Flags, epochs and sink identities of the old lineage stay in the tables and no longer count, so the next start reads
    all input again and writes it again, beside the earlier output.

    Args:
        ledger: the job's.
        job: its name.
        state: its state directory.
        uid: the query's.
        reason: for the ledger; may be empty.
        declared: uids of queries that have been added to the job, whether they ever ran or not.

    Returns:
        The new lineage.

    Raises:
        ConfigurationError: the job has no such query.
        StateError: the job runs, or the checkpoint cannot be moved aside.
    """
    _refuse_unknown(ledger, job, state, uid, declared)
    incarnation = start_incarnation(ledger, job)
    writer = LedgerWriter(ledger, incarnation)
    try:
        # In this order: after a crash in between, the next start is refused, with the advice to reset again.
        _move_aside(state, uid, datetime.now(timezone.utc))
        return writer.new_lineage(uid, reason or "reset on request")
    finally:
        writer.end("reset")


def _refuse_unknown(ledger: Ledger, job: str, state: str, uid: str, declared: Collection[str]) -> None:
    known = {*declared, *ledger.last_epochs(), *ledger.finished_queries(), *_folders(state)}
    if uid not in known:
        names = ", ".join(f"'{name}'" for name in sorted(known))
        raise ConfigurationError(
            f"the job has no query '{uid}'",
            operator=f"job '{job}'",
            kept="nothing was changed",
            do=f"use one of: {names}" if names else "nothing: the job has never run, so there is nothing to reset",
        )


def _folders(state: str) -> list[str]:
    """Queries that were started and have not committed an epoch; unknown on an object store."""
    place = local_path(f"{state.rstrip('/')}/queries")
    return [folder.name for folder in Path(place).iterdir()] if place is not None and Path(place).is_dir() else []


def _move_aside(state: str, uid: str, now: datetime) -> None:
    place = local_path(f"{state.rstrip('/')}/queries/{uid}/checkpoint")
    if place is None:
        raise StateError(
            "a checkpoint on an object store cannot be moved aside by the job",
            operator=f"query '{uid}'",
            kept="nothing was changed",
            do=f"move {state}/queries/{uid}/checkpoint away yourself, then reset again",
        )
    checkpoint = Path(place)
    if checkpoint.exists():
        checkpoint.rename(checkpoint.with_name(f"checkpoint.until-{now:%Y%m%dT%H%M%S%f}"))
