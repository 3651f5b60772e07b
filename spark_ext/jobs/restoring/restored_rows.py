"""The rows by which the ledger knows, under a new lineage, what a savepoint contains."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from spark_ext.control import stamps
from spark_ext.control.job_events import request
from spark_ext.jobs.checkpointing.retained import unused_number
from spark_ext.jobs.controlling.lookup_versions import versions_in
from spark_ext.jobs.lookup import KIND
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
from spark_ext.model.control import JOB
from spark_ext.model.lifecycle import FinalStep

if TYPE_CHECKING:
    from spark_ext.control.log import ControlLog
    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.ledger import Incarnation, Ledger
    from spark_ext.model.checkpoint_metadata import QueryMetadata
    from spark_ext.model.configuration import Configuration

RESTORED = "restored"  # the kind of a control event that stands for those of the job that a savepoint was taken of


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
    stamp: dict[str, Any] = {"lineage": lineage, "incarnation": incarnation.number, "at": datetime.now(timezone.utc)}
    names = {name: query for query, name in comparison.names.items()}
    rows: list[Row] = [
        replace(flag, query=names[flag.query], lineage=lineage, incarnation=incarnation.number)
        for flag in _flags(comparison)
        if flag.query in names
    ]
    for query in names.values():
        saved, definition = comparison.definition(query), comparison.given.get(query)
        if saved is not None:
            definition = saved if definition is None else replace(definition, early=saved.early)
        part = comparison.saved_query(query)
        assert part is not None
        if definition is None or (part.epoch is None and not part.finished):
            continue
        rows.append(DefinitionRow(query=query, definition=definition.to_json(), **stamp))
        if part.epoch is not None and part.query_id is not None:
            rows.append(
                EpochRow(
                    query=query,
                    query_id=part.query_id,
                    epoch=part.epoch,
                    lineage=lineage,
                    incarnation=incarnation.number,
                    input_rows=None,
                    committed_at=comparison.saved.about.taken_at,
                    duration_ms=None,
                    offsets=None,
                )
            )
    for name in sorted(comparison.declared.removed & comparison.saved.definitions.keys()):
        # So that the next start knows whom `remove` means.
        rows.append(DefinitionRow(query=name, definition=comparison.saved.definitions[name].to_json(), **stamp))
    return [
        *rows,
        *_cuts(comparison, stamp),
        *_control(comparison, ledger, stamp),
        *_checkpoints(comparison, ledger, stamp),
    ]


def _cuts(comparison: Comparison, stamp: dict[str, Any]) -> list[ExchangeRow]:
    about, graph, found = comparison.saved.about, comparison.graph, []
    for name, part in comparison.saved.metadata.exchanges.items():
        writer = comparison.saved_query(graph.producer(name)) if name in graph.exchanges else None
        epoch = None if writer is None else writer.epoch
        row = ExchangeRow(
            exchange=name, event="cut", epoch=epoch, position=part.end, checkpoint_id=about.checkpoint_id, **stamp
        )
        found.append(row)
    return found


def _flags(comparison: Comparison) -> list[FinishedRow]:
    """The savepoint's flags under the names that its queries had then; those before a rename have an older one."""
    owners = {uid: name for name, definition in comparison.saved.definitions.items() for uid in definition.uids}
    found = []
    for flag in comparison.saved.flags:
        name = flag.query
        if name not in comparison.saved.metadata.queries or (flag.source and flag.source in owners):
            name = owners.get(flag.source, name)
        found.append(replace(flag, query=name))
    return found


def _control(comparison: Comparison, ledger: Ledger, stamp: dict[str, Any]) -> list[Row]:
    """A source passes over events up to the one that its offset names: those of this job have to come after it.

    What stood in the newest of the epochs stands in this job, too: also for what is no source of the savepoint.
    """
    control, name, query = _newest(comparison)
    if control <= ledger.newest_control_sequence():
        return []
    first = f"{RESTORED}-{stamp['lineage']}"
    restored = ControlEventRow(
        event_id=first,
        sequence=control,
        kind=RESTORED,
        target="job",
        value=None,
        status="acknowledged",
        delivery="immediate",
        reason=comparison.saved.folder,
        **stamp,
    )
    rows: list[Row] = [restored]
    if not name:
        return rows
    standing = _saved(comparison, query, name).standing
    names = {f"query:{name}": f"query:{now}" for now, name in comparison.names.items()}
    slots = [
        {"kind": kind, "target": names.get(target, target), "value": value}
        for kind, targets in sorted(standing.items())
        for target, values in sorted(targets.items())
        for _, value in sorted(values.items())
    ]
    for offset, slot in enumerate(slots, 1):
        one: dict[str, Any] = {"event_id": f"{first}-{offset}", "sequence": control + offset}
        why = "it stood in the savepoint"
        rows.append(replace(restored, **one, **slot, status="accepted", origin="restore"))
        rows.append(ControlTransitionRow(**one, status="acknowledged", query="", epoch=None, reason=why, **stamp))
    return rows


def _newest(comparison: Comparison) -> tuple[int, str, str]:
    """The last event that an offset of the savepoint contains, the stamp that goes with it, and the query."""
    return max(
        (
            (source.offset.control, source.offset.stamp, name)
            for name, part in comparison.saved.metadata.queries.items()
            for source in part.sources.values()
            if source.offset is not None
        ),
        default=(0, "", ""),
    )


def _saved(comparison: Comparison, query: str, stamp: str) -> Configuration:
    return stamps.read(f"{comparison.saved.folder.rstrip('/')}/queries/{query}/checkpoint", stamp).configuration


def put_back_lookups(comparison: Comparison, control: ControlLog) -> None:
    """Lookups have the versions of the savepoint again: what is read again finds what it found the first time."""
    _, stamp, query = _newest(comparison)
    now = control.configuration().standing.get(KIND, {}).get(str(JOB), {})
    for value in versions_in(_saved(comparison, query, stamp)) if stamp else ():
        if now.get(value["lookup"]) != value:
            request(control, "job", KIND, {**value, "event_id": "", "sequence": 0})


def _checkpoints(comparison: Comparison, ledger: Ledger, stamp: dict[str, Any]) -> list[CheckpointRow]:
    saved = comparison.saved
    ids = ledger.table(CheckpointRow).read(["checkpoint_id"])["checkpoint_id"]
    known = pc.max(ids).as_py() if len(ids) else 0
    taken = unused_number(ledger.uri, max(known, saved.about.checkpoint_id) + 1)
    queries = {query: saved.metadata.queries[name] for query, name in comparison.names.items()}

    def metadata(of: dict[str, QueryMetadata]) -> object:
        exchanges = saved.metadata.exchanges
        return CheckpointMetadata(comparison.job, stamp["lineage"], stamp["incarnation"], of, exchanges).to_json()

    rows = [
        CheckpointRow(
            checkpoint_id=taken,
            kind="savepoint",
            status="COMPLETED",
            metadata=metadata(queries),
            mode=saved.about.mode,
            triggered_at=saved.about.taken_at,
            rows_in_flight=saved.about.rows_in_flight,
            path=saved.folder,
            **stamp,
        )
    ]
    for query, part in queries.items():
        if not part.finished:
            continue
        taken += 1
        for step in FinalStep:
            row = CheckpointRow(
                checkpoint_id=taken,
                kind="final",
                query=query,
                epoch=part.epoch,
                status=step.value,
                metadata=metadata({query: part}) if step is FinalStep.COMPLETED else None,
                **stamp,
            )
            rows.append(row)
    return rows
