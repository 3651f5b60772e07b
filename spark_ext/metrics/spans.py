"""What of a job is worth a span: each epoch, each checkpoint, each recovery. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spark_ext.ledger.schema import CheckpointRow, EpochRow
from spark_ext.masking import mask
from spark_ext.metrics.job_metrics import Moment
from spark_ext.metrics.recoveries import Recovery

Value = str | int


@dataclass(frozen=True)
class Span:
    """Something that took time, and is over."""

    name: str
    since: datetime
    until: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""  # why it has failed; empty: it has not
    follows: Span | None = None  # what led to it


def spans(job: str, moment: Moment) -> list[Span]:
    """The spans that are complete with a moment, in the order in which they are to be made."""
    found = [_recovery(job, one) for one in moment.recoveries]
    row = moment.row
    if isinstance(row, EpochRow):
        found.append(_epoch(job, row, found[-1] if found else None))
    elif isinstance(row, CheckpointRow) and moment.changes:
        found.append(_checkpoint(job, row))
    return found


def _epoch(job: str, row: EpochRow, recovery: Span | None) -> Span:
    attributes = _named(job, row.query, row.epoch, row.incarnation) | {
        "spark_ext.lineage": row.lineage,
        "spark_ext.query_id": row.query_id,
    }
    if row.input_rows is not None:
        attributes["spark_ext.input_rows"] = row.input_rows
    since = row.committed_at - timedelta(milliseconds=row.duration_ms or 0)
    return Span("spark_ext.epoch", since, row.committed_at, attributes, follows=recovery)


def _checkpoint(job: str, row: CheckpointRow) -> Span:
    attributes = _named(job, row.query, row.epoch, row.incarnation) | {
        "spark_ext.checkpoint_id": row.checkpoint_id,
        "spark_ext.checkpoint_kind": str(row.kind),
    }
    if row.mode:
        attributes["spark_ext.checkpoint_mode"] = str(row.mode)
    failed = row.status == "FAILED"
    since = min(row.at, row.triggered_at or row.at)
    return Span("spark_ext.checkpoint", since, row.at, attributes, mask(row.reason or "failed") if failed else "")


def _recovery(job: str, one: Recovery) -> Span:
    attributes = _named(job, one.of, one.epoch, one.incarnation) | {
        "spark_ext.incident_id": one.incident_id,
        "spark_ext.class": one.kind,
        "spark_ext.failures": one.failures,
    }
    return Span("spark_ext.recovery", one.since, one.until, attributes)


def _named(job: str, query: str, epoch: int | None, incarnation: int) -> dict[str, Value]:
    found: dict[str, Value] = {"spark_ext.job": job, "spark_ext.incarnation": incarnation}
    if query:
        found["spark_ext.query"] = query
    if epoch is not None:
        found["spark_ext.epoch"] = epoch
    return found
