"""A job in this process at one moment, from its queries under supervision: for display, and for its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.jobs.result import QueryResult, SourceResult
from spark_ext.metrics.gauges import Live, QueryFacts
from spark_ext.model.lifecycle import State
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.watching.query_events import event_time, known_lags, lags_at
from spark_ext.views.snapshot import ExchangeSnapshot, JobSnapshot, LatencySnapshot, QuerySnapshot

if TYPE_CHECKING:
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.model.pressure import Level
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun


def job_snapshot(state_directory: str, started: datetime, context: JobContext, coordinator: Coordinator) -> JobSnapshot:
    """A started job, as it is now."""
    # Before the queries, whose states lead to the job's: they are then never behind it.
    shown, failure, parts = coordinator.shown, coordinator.failure or coordinator.late, coordinator.parts
    return JobSnapshot(
        job=context.job,
        state_directory=state_directory,
        state=shown.state,
        reason=shown.reason,
        incarnation=context.incarnation.number,
        lineage=context.incarnation.lineage,
        started=started,
        ended=None,
        at=datetime.now(timezone.utc),
        queries=tuple(
            query_result(run, paused=parts.controller.paused(run), latencies=parts.latency.of(run.spec.uid))
            for run in coordinator.runs
        ),
        error="" if failure is None else str(failure),
    )


def unstarted_snapshot(job: str, state_directory: str, uids: Iterable[str]) -> JobSnapshot:
    """A job that has not been started; its state directory is not read."""
    return JobSnapshot(
        job=job,
        state_directory=state_directory,
        state=State.CREATED,
        incarnation=0,
        lineage=0,
        started=None,
        ended=None,
        at=datetime.now(timezone.utc),
        queries=tuple(QuerySnapshot(uid=uid, state=State.CREATED, state_rows=None) for uid in uids),
    )


def query_result(run: QueryRun, *, paused: bool = False, latencies: tuple[LatencySnapshot, ...] = ()) -> QueryResult:
    """A query under supervision, as it is now; `paused`: a control event keeps it from reading."""
    # Read once: the coordinator's thread may replace them at any time.
    state, logged, shown, written = run.state, run.offsets, run.shown, run.figures.exchange
    lag = run.figures.lag
    offsets = {} if logged is None else source_offsets(logged)
    return QueryResult(
        uid=run.spec.uid,
        state=shown.state,
        reason=shown.reason,
        finished=state is State.FINISHED,
        finished_before=run.had_finished,
        epochs=run.figures.epochs,
        last_epoch=run.committed if run.committed >= 0 else None,
        last_epoch_ms=run.figures.last_epoch_ms or None,
        parts_ms=run.figures.parts_ms,
        rows=run.figures.input_rows,
        bad_rows=run.bad_rows.total,
        bad_files=run.bad_rows.files,
        rule_failures=dict(run.bad_rows.failures),
        late_rows=run.figures.late_rows,
        early_rows=run.early_rows,
        state_rows=run.figures.state_rows,
        emits=run.figures.emits,
        lag_rows=0 if state is State.FINISHED else lag.rows,
        lag_at=None if state is State.FINISHED else _moment(lag.at),
        watermark=event_time(run.figures.watermark),
        newest_row=event_time(run.figures.newest_row),
        phase="paused" if paused and not state.ended else "" if run.figures.epochs else run.phase,
        sources=tuple(
            SourceResult(
                uid=uid,
                finished=offset.ended,
                channels_finished=offset.sequence,
                channels_running=len(offset.running),
                lag_rows=0 if offset.ended else lag.sources[uid].lag_rows if uid in lag.sources else None,
                lag_at=None if offset.ended or uid not in lag.sources else _moment(lag.sources[uid].at),
            )
            for uid, offset in offsets.items()
        ),
        latencies=latencies,
        exchange=None if written is None else _exchange(*written),
        inboxes=tuple(one for _, one in sorted(run.figures.inboxes.items())),
    )


def _exchange(name: str, level: Level) -> ExchangeSnapshot:
    return ExchangeSnapshot(name=name, rows=level.rows, bytes=level.bytes, stored_bytes=level.stored)


def live_job(
    state_directory: str, started: datetime, application_id: str, context: JobContext, coordinator: Coordinator
) -> Live:
    """A started job, as its metrics show it."""
    cut = coordinator.parts.exchanges.newest
    return Live(
        snapshot=job_snapshot(state_directory, started, context, coordinator),
        facts={
            run.spec.uid: QueryFacts(
                query_id=run.query_id or "",
                run_id=run.figures.run_id,
                name=f"{context.job}/{run.spec.uid}",
                watermark=run.figures.watermark,
                newest_row=run.figures.newest_row,
                lags=known_lags(lag.sources),
                lags_at=lags_at(lag.sources),
                held_s=run.watched.pressure.seconds if run.spec.feeds_exchange else None,
            )
            for run, lag in [(run, run.figures.lag) for run in coordinator.runs]
        },
        application_id=application_id,
        rows_in_flight=None if cut is None else cut.rows_in_flight,
        ledger_waiting=context.write_behind.waiting,
    )


def _moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, timezone.utc)
