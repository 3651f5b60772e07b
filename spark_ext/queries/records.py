"""What others need to know of a query: its finished flags, its part of a checkpoint, its registrations. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_ext.exchange.contract import kind_options
from spark_ext.ledger.kinds import FinishedKind
from spark_ext.ledger.schema import FinishedRow
from spark_ext.model import query_offsets
from spark_ext.model.checkpoint_metadata import QueryMetadata, SinkMetadata, SourceMetadata, finish_of
from spark_ext.model.end_of_input import STAYS
from spark_ext.model.offsets import Finished, LoggedOffsets
from spark_ext.queries.spec import QuerySpec
from spark_ext.spark.session.registry import Registration

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext


def channel_flags(
    logged: LoggedOffsets, flagged: Mapping[str, int], row: Mapping[str, Any], at: datetime
) -> list[FinishedRow]:
    """Flags of the channels that have finished by an epoch, in the order of their finish.

    `flagged` has, per source, the last finish whose flag exists; `row` the fields that all flags of the query share.
    """
    return [
        _flag("channel", row, at, source=uid, finish=finish)
        for uid, offset in query_offsets.source_offsets(logged).items()
        for finish in query_offsets.new_finishes(offset, flagged.get(uid, 0))
    ]


def final_flags(logged: LoggedOffsets | None, row: Mapping[str, Any], at: datetime) -> list[FinishedRow]:
    """Flags of the sources and of the query, which follow from its final checkpoint."""
    offsets = {} if logged is None else query_offsets.source_offsets(logged)
    sources = [] if logged is None else [source_flag("source", uid, logged, row, at) for uid in offsets]
    return [*sources, _flag("query", row, at, drained=any(offset.drained for offset in offsets.values()))]


def source_flag(kind: str, uid: str, logged: LoggedOffsets, row: Mapping[str, Any], at: datetime) -> FinishedRow:
    """A flag of a source: it has finished, or was closed."""
    return _flag(kind, row, at, source=uid, drained=query_offsets.source_offsets(logged)[uid].drained)


class FinishedSources:
    """What the ledger has of a query's end and of the ends of its sources: flags of other kinds than channels'.

    Replaced whole, so that any thread may read it.
    """

    def __init__(self, flags: Iterable[tuple[str, str]] = ()) -> None:
        self.flags = frozenset(flags)  # kind, and the source's uid

    def add(self, kind: str, uid: str) -> None:
        """A flag is in the ledger."""
        self.flags |= {(kind, uid)}

    def of(self, kind: FinishedKind) -> frozenset[str]:
        """The sources with a flag of a kind."""
        return frozenset(uid for given, uid in self.flags if given == kind.value)


def _flag(
    kind: str,
    row: Mapping[str, Any],
    at: datetime,
    *,
    source: str = "",
    finish: Finished | None = None,
    drained: bool = False,
) -> FinishedRow:
    return FinishedRow(
        kind=kind,
        source=source,
        channel=finish.channel if finish else "",
        sequence=finish.sequence if finish else 0,
        position=finish.at if finish else None,
        data=finish.data if finish else None,
        drained=drained,
        at=at,
        **row,
    )


def query_metadata(
    spec: QuerySpec,
    query_id: str | None,
    epoch: int | None,
    logged: LoggedOffsets | None,
    *,
    finished: bool,
    restored: Collection[str],
) -> QueryMetadata:
    """A query's part of a checkpoint. The epoch is that of the cut; None: before the first one.

    `restored` are the sources that had ended before this start.
    """
    offsets = query_offsets.source_offsets(logged) if logged else {}
    passed = query_offsets.end_offsets(logged) if logged else {}
    sources = {}
    for source in spec.sources:
        offset = offsets.get(source.uid)
        sources[source.uid] = SourceMetadata(
            source.format,
            source.public_options(),
            offset,
            finish_of(offset, started=source.uid not in restored),
            0 if offset is None else offset.sequence,
        )
    sinks = {spec.sink.uid: SinkMetadata(spec.sink.format, spec.sink.public_options())} if spec.sink else {}
    ends = {end.uid: passed[end.uid] for end in spec.ends if end.uid in passed}
    return QueryMetadata(query_id, epoch, finished, sources, sinks, ends)


def registrations(
    spec: QuerySpec,
    context: JobContext,
    checkpoint: str,
    lineage: int,
    passed: int,
    closed: Collection[str],
    claims_after: int | None,
) -> list[Registration]:
    """What the workers of a query's operators need to know of its job.

    `closed` are the sources for which nothing is left to be done, `claims_after` is the newest planned epoch, if the
    target is still to be claimed.
    """
    roles = [(source.uid, "source") for source in spec.sources]
    roles += [(end.uid, "end_of_input") for end in spec.ends]
    if spec.sink is not None:
        roles.append((spec.sink.uid, "sink"))
    writes = _writes(spec, context)
    taken_over = {uid for end in spec.ends if end.options.get(STAYS) for uid in end.options["watches"].split(",")}
    return [
        Registration(
            uid=uid,
            role=role,
            job=context.job,
            job_id=context.job_id,
            query=spec.uid,
            state=context.state,
            checkpoint=checkpoint,
            incarnation=context.incarnation.number,
            lineage=lineage,
            start=context.incarnation.start,
            interval_ms=context.settings.interval,
            target_ms=context.settings.target_epoch or 0,
            hold=context.hold,
            first_checkpoint=context.first_checkpoint,
            drain=context.drain >= lineage,
            begun=context.begun.get(spec.uid, context.incarnation.number),
            passed=passed,
            rebuild=spec.rebuild,
            until_now=context.until is not None,
            available_now=context.until is not None or spec.available_now,
            samples=context.settings.monitor_interval > 0,
            lag_ms=context.settings.lag_interval if role == "source" else 0,
            writes=writes if role != "sink" else (),
            passes=uid in taken_over,
            claims_after=claims_after,
            closed=role == "source" and uid in closed,
        )
        for uid, role in roles
    ]


def _writes(spec: QuerySpec, context: JobContext) -> list[Any]:
    if spec.sink is None or not spec.feeds_exchange:
        return []
    options = {name.lower(): value for name, value in spec.sink.options.items()}
    waits_for = [[one.uid, one.checkpoint, one.query] for one in context.consumers.get(spec.sink.uid, ())]
    return [[options.get("kind", "arrow"), options.get("path", ""), kind_options(options), waits_for]]
