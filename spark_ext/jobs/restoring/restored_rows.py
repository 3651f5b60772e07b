"""The rows by which the ledger knows, under a new lineage, what a savepoint contains."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from spark_ext.control import stamps
from spark_ext.jobs.checkpointing.retained import unused_number
from spark_ext.ledger.schema import (
    CheckpointRow,
    ControlEventRow,
    ControlTransitionRow,
    DefinitionRow,
    EpochRow,
    ExchangeRow,
    FinishedRow,
    Row,
)
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.lifecycle import FinalStep

if TYPE_CHECKING:
    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.ledger import Incarnation, Ledger
    from spark_ext.model.checkpoint_metadata import QueryMetadata

RESTORED = "restored"
"""The kind of a control event that stands for those of the job that a savepoint was taken of."""


def restored_rows(comparison: Comparison, ledger: Ledger, incarnation: Incarnation, lineage: int) -> list[Row]:
    """All rows; a restore that is repeated writes them again under a further lineage.

    * `finished`: the flags of the cut. Planners honour those of their own lineage alone.
    * `definitions`: what the queries are made of now, with which later starts compare.
    * `epochs`: the epoch of each query, so that the loss of its checkpoint is noticed.
    * `checkpoints`: the savepoint itself, whose number later ones exceed, as offsets may carry the barriers of earlier
      ones; and the final checkpoints of queries that had finished.
    * `control_events`: in another state directory, the number of the last event that an offset contains, and what
      stands behind it.
    """
    rows: list[Row] = []
    at = datetime.now(timezone.utc)
    number = incarnation.number
    names = {name: query for query, name in comparison.names.items()}
    rows += [
        replace(flag, query=names[flag.query], lineage=lineage, incarnation=number)
        for flag in _flags(comparison)
        if flag.query in names
    ]
    for query in names.values():
        definition = comparison.given.get(query) or comparison.definition(query)
        part = comparison.saved_query(query)
        assert part is not None
        if definition is None or (part.epoch is None and not part.finished):
            continue
        rows.append(
            DefinitionRow(query=query, lineage=lineage, incarnation=number, at=at, definition=definition.to_json())
        )
        if part.epoch is not None and part.query_id is not None:
            rows.append(
                EpochRow(
                    query=query,
                    query_id=part.query_id,
                    epoch=part.epoch,
                    lineage=lineage,
                    incarnation=number,
                    input_rows=None,
                    committed_at=comparison.saved.about.taken_at,
                    duration_ms=None,
                    offsets=None,
                )
            )
    for name in sorted(comparison.declared.removed & comparison.saved.definitions.keys()):
        # So that the next start knows whom `remove` means.
        one = comparison.saved.definitions[name].to_json()
        rows.append(DefinitionRow(query=name, lineage=lineage, incarnation=number, at=at, definition=one))
    rows += _cuts(comparison, lineage, number, at)
    rows += _control(comparison, ledger, lineage, number, at)
    rows += _checkpoints(comparison, ledger, lineage, number, at)
    return rows


def _cuts(comparison: Comparison, lineage: int, number: int, at: datetime) -> list[ExchangeRow]:
    saved = comparison.saved
    return [
        ExchangeRow(
            exchange=name,
            event="cut",
            query="",
            lineage=lineage,
            epoch=_epoch_of_producer(comparison, name),
            position=part.end,
            checkpoint_id=saved.about.checkpoint_id,
            incarnation=number,
            at=at,
        )
        for name, part in saved.metadata.exchanges.items()
    ]


def _epoch_of_producer(comparison: Comparison, exchange: str) -> int | None:
    if exchange not in comparison.graph.exchanges:
        return None
    part = comparison.saved_query(comparison.graph.producer(exchange))
    return None if part is None else part.epoch


def _flags(comparison: Comparison) -> list[FinishedRow]:
    """The savepoint's flags, each under the name that its query had when the savepoint was taken.

    A flag that was written before a rename has an older name of the query.
    """
    owners = {uid: name for name, definition in comparison.saved.definitions.items() for uid in definition.uids}
    found = []
    for flag in comparison.saved.flags:
        name = flag.query
        if name not in comparison.saved.metadata.queries or (flag.source and flag.source in owners):
            name = owners.get(flag.source, name)
        found.append(replace(flag, query=name))
    return found


def _control(comparison: Comparison, ledger: Ledger, lineage: int, number: int, at: datetime) -> list[Row]:
    """A source passes over events up to the one that its offset names: those of this job have to come after it.

    What stood in the newest of the epochs stands in this job, too: also for what is no source of the savepoint.
    """
    newest = max(
        (
            (source.offset.control, source.offset.stamp, name)
            for name, part in comparison.saved.metadata.queries.items()
            for source in part.sources.values()
            if source.offset is not None
        ),
        default=(0, "", ""),
    )
    control, stamp, query = newest
    if control <= ledger.newest_control_sequence():
        return []
    restored = ControlEventRow(
        event_id=f"{RESTORED}-{lineage}",
        sequence=control,
        kind=RESTORED,
        target="job",
        value=None,
        status="acknowledged",
        lineage=lineage,
        incarnation=number,
        at=at,
        delivery="immediate",
        reason=comparison.saved.folder,
    )
    rows: list[Row] = [restored]
    if stamp:
        place = f"{comparison.saved.folder.rstrip('/')}/queries/{query}/checkpoint"
        standing = stamps.read(place, stamp).configuration.standing
        names = {f"query:{name}": f"query:{now}" for now, name in comparison.names.items()}
        slots = [
            (kind, names.get(target, target), value)
            for kind, targets in sorted(standing.items())
            for target, values in sorted(targets.items())
            for _, value in sorted(values.items())
        ]
        for offset, (kind, target, value) in enumerate(slots, 1):
            event_id, sequence = f"{RESTORED}-{lineage}-{offset}", control + offset
            rows.append(
                replace(
                    restored,
                    event_id=event_id,
                    sequence=sequence,
                    kind=kind,
                    target=target,
                    value=value,
                    status="accepted",
                    delivery="immediate",
                    origin="restore",
                )
            )
            rows.append(
                ControlTransitionRow(
                    event_id=event_id,
                    sequence=sequence,
                    status="acknowledged",
                    query="",
                    epoch=None,
                    lineage=lineage,
                    incarnation=number,
                    at=at,
                    reason="it stood in the savepoint",
                )
            )
    return rows


def _checkpoints(
    comparison: Comparison, ledger: Ledger, lineage: int, number: int, at: datetime
) -> list[CheckpointRow]:
    saved = comparison.saved
    ids = ledger.table(CheckpointRow).read(["checkpoint_id"])["checkpoint_id"]
    known = pc.max(ids).as_py() if len(ids) else 0
    taken = unused_number(ledger.uri, max(known, saved.about.checkpoint_id) + 1)
    queries = {query: saved.metadata.queries[name] for query, name in comparison.names.items()}
    rows = [
        CheckpointRow(
            checkpoint_id=taken,
            kind="savepoint",
            query="",
            epoch=None,
            status="COMPLETED",
            lineage=lineage,
            incarnation=number,
            metadata=_metadata(comparison, lineage, number, queries),
            at=at,
            reason="",
            mode=saved.about.mode,
            triggered_at=saved.about.taken_at,
            rows_in_flight=saved.about.rows_in_flight,
            path=saved.folder,
        )
    ]
    for query, part in queries.items():
        if not part.finished:
            continue
        taken += 1
        for step in FinalStep:
            completed = step is FinalStep.COMPLETED
            rows.append(
                CheckpointRow(
                    checkpoint_id=taken,
                    kind="final",
                    query=query,
                    epoch=part.epoch,
                    status=step.value,
                    lineage=lineage,
                    incarnation=number,
                    metadata=_metadata(comparison, lineage, number, {query: part}) if completed else None,
                    at=at,
                    reason="",
                )
            )
    return rows


def _metadata(comparison: Comparison, lineage: int, number: int, queries: dict[str, QueryMetadata]) -> object:
    exchanges = comparison.saved.metadata.exchanges
    return CheckpointMetadata(comparison.job, lineage, number, queries, exchanges).to_json()
