"""A snapshot of what an Observer watches, for metrics."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.metrics.gauges import Live, QueryFacts
from spark_ext.spark.watching.query_events import event_time, known_lags, lags_at
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot

if TYPE_CHECKING:
    from spark_ext.model.execution import Shown
    from spark_ext.observing.foreign_query import ForeignQuery
    from spark_ext.queries.context import WatchContext


def observed_snapshot(
    context: WatchContext, started: datetime, together: Shown, queries: Sequence[ForeignQuery]
) -> JobSnapshot:
    """The queries as they are now.

    Args:
        started: when this incarnation was started, UTC.
    """
    return JobSnapshot(
        job=context.job,
        state_directory=context.state,
        state=together.state,
        reason=together.reason,
        incarnation=context.incarnation.number,
        lineage=context.incarnation.lineage,
        started=started,
        ended=None,
        at=datetime.now(timezone.utc),
        queries=tuple(_query(query) for query in queries),
    )


def live(
    context: WatchContext, started: datetime, together: Shown, queries: Sequence[ForeignQuery], application: str
) -> Live:
    """What gauges are read from; see `observed_snapshot`."""
    return Live(
        snapshot=observed_snapshot(context, started, together, queries),
        facts={query.uid: _facts(query) for query in queries},
        application_id=application,
        ledger_waiting=context.write_behind.waiting,
    )


def _facts(query: ForeignQuery) -> QueryFacts:
    run = query.run
    if run is None:
        return QueryFacts()
    lag = query.figures.lag
    return QueryFacts(
        query_id=run.query_id,
        run_id=run.run_id,
        name=run.name,
        watermark=query.figures.watermark,
        newest_row=query.figures.newest_row,
        lags=known_lags(lag.sources),
        lags_at=lags_at(lag.sources),
    )


def _query(query: ForeignQuery) -> QuerySnapshot:
    shown, figures = query.shown, query.figures
    lag = figures.lag
    return QuerySnapshot(
        uid=query.uid,
        state=shown.state,
        reason=shown.reason,
        since=shown.since,
        epochs=figures.epochs,
        last_epoch=query.committed if query.committed >= 0 else None,
        last_epoch_ms=figures.last_epoch_ms or None,
        parts_ms=figures.parts_ms,
        rows=figures.input_rows,
        late_rows=figures.late_rows,
        state_rows=figures.state_rows,
        lag_rows=lag.rows,
        lag_at=None if lag.at is None else datetime.fromtimestamp(lag.at, timezone.utc),
        watermark=event_time(figures.watermark),
        newest_row=event_time(figures.newest_row),
    )
