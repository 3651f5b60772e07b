"""Discarding the history of queries on request: each gets a new lineage, and its old checkpoint is moved aside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.bad_rows.restored import BadRowsOfJob
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.queries.context import checkpoint_of
from spark_ext.spark.logs.rescaled import discard
from spark_ext.storage import Location, link, local_path, move

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


def reset_queries(
    ledger: Ledger, job: str, state: str, former: Mapping[str, Iterable[str]], reason: str
) -> dict[str, int]:
    """Begin a new lineage for some queries, all of them or none.

    Flags, epochs and sink identities of the old lineage stay in the tables and no longer count, so the next start reads
    all input again and writes it again, beside the earlier output.
    """
    checkpoints = [checkpoint_of(state, name) for query, names in former.items() for name in (query, *names)]
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


def _move_aside(location: str, now: datetime) -> None:
    checkpoint = local_path(location)
    name = f"checkpoint.until-{now:%Y%m%dT%H%M%S%f}"
    if checkpoint is None:
        _copy_aside(location, f"{location.rpartition('/')[0]}/{name}")
    elif checkpoint.exists():
        move(checkpoint, checkpoint.with_name(name))
    # What a rescale that was interrupted has left is older: no start may take it for the checkpoint.
    discard(location)


def _copy_aside(location: str, aside: str) -> None:
    """In an object store: copies by the store, then the originals are deleted.

    After a crash in between, a part of the originals or all of them are there, and the reset is repeated: with another
    copy, as the first one may lack objects.
    """
    names = sorted(Location.of(location, {}).folder.files())
    for file in names:
        link(f"{location}/{file}", f"{aside}/{file}")
    if names:
        Location.of(location, {}).folder.delete_tree()
