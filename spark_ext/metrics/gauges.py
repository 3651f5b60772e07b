"""What a job looks like when its metrics are asked for, as samples of gauges. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from spark_ext.metrics import catalogue as m
from spark_ext.metrics.book import Sample
from spark_ext.model.lifecycle import State
from spark_ext.spark.watching.query_events import event_time
from spark_ext.views.snapshot import GATEWAY_STATES, InboxSnapshot, JobSnapshot, QuerySnapshot


@dataclass(frozen=True, kw_only=True)
class QueryFacts:
    """What Spark has said of a query, beside its snapshot."""

    query_id: str = ""  # Spark's id; empty before the first start
    run_id: str = ""  # Spark's id of the present run; empty before its first report
    name: str = ""  # under which Spark shows it
    watermark: str = ""  # as Spark reports it, ISO 8601; empty without one
    newest_row: str = ""  # the greatest event time of its rows, likewise
    lags: Mapping[str, int] = field(default_factory=dict)  # by source, if known: rows that it has still to read
    lags_at: Mapping[str, float] = field(default_factory=dict)  # when these lags held, s since 1970 UTC
    held_s: float | None = None  # for how long consumers of what it writes have held it back; None: it writes for none


@dataclass(frozen=True, kw_only=True)
class Live:
    """A running job at one moment."""

    snapshot: JobSnapshot
    facts: Mapping[str, QueryFacts] = field(default_factory=dict)  # by uid of the query
    application_id: str = ""  # Spark's
    rows_in_flight: int | None = None  # between the queries; None: unknown, or the job has no exchanges
    ledger_waiting: int = 0  # rows of the ledger that wait to be written


def gauges(live: Live, version: str, now: datetime) -> Iterator[Sample]:
    """All gauges of a job."""
    job, snapshot = live.snapshot.job, live.snapshot
    yield Sample(m.INFO, (job, version, live.application_id), 1)
    yield Sample(m.INCARNATION, (job,), snapshot.incarnation)
    if snapshot.started is not None:
        yield Sample(m.START_TIME, (job,), snapshot.started.timestamp())
    for state in State:
        yield Sample(m.JOB_STATE, (job, state.value), float(state is snapshot.state))
    if live.rows_in_flight is not None:
        yield Sample(m.LAG_ROWS, (job,), live.rows_in_flight)
    yield Sample(m.LEDGER_WAITING, (job,), live.ledger_waiting)
    for query in snapshot.queries:
        yield from _of_query(job, query, live.facts.get(query.uid, QueryFacts()), live.application_id, now)
    for inbox in {one.name: one for query in snapshot.queries for one in query.inboxes}.values():
        yield from _of_inbox((job, inbox.name), inbox)


def _of_inbox(where: tuple[str, str], inbox: InboxSnapshot) -> Iterator[Sample]:
    for state in GATEWAY_STATES:
        yield Sample(m.INBOX_GATEWAYS, (*where, state), inbox.gateways.get(state, 0))
    yield Sample(m.INBOX_ACCEPTED, where, inbox.accepted)
    yield Sample(m.INBOX_ACKNOWLEDGED, where, inbox.acknowledged)
    yield Sample(m.INBOX_REPEATS, where, inbox.repeats)
    yield Sample(m.INBOX_CONFLICTS, where, inbox.conflicts)
    yield Sample(m.INBOX_OLD, where, inbox.old)
    for status, number in inbox.rejected.items():
        yield Sample(m.INBOX_REJECTED, (*where, status), number)
    for quantile, within in (("0.5", inbox.ack_p50_ms), ("0.99", inbox.ack_p99_ms)):
        if within is not None:
            yield Sample(m.INBOX_ACKNOWLEDGEMENT, (*where, quantile), within / 1000)
    yield Sample(m.INBOX_HELD, where, inbox.bytes)
    yield Sample(m.INBOX_LIMIT, where, inbox.max_bytes)
    if inbox.oldest_s is not None:
        yield Sample(m.INBOX_OLDEST, where, inbox.oldest_s)


def _of_query(job: str, query: QuerySnapshot, facts: QueryFacts, application: str, now: datetime) -> Iterator[Sample]:
    labels = job, query.uid
    if facts.query_id:
        yield Sample(m.QUERY_INFO, (*labels, facts.query_id, facts.run_id, facts.name, application), 1)
    for state in State:
        yield Sample(m.QUERY_STATE, (*labels, state.value), float(state is query.state))
    if query.state_rows is not None:
        yield Sample(m.STATE_ROWS, labels, query.state_rows)
    delay = delay_of(facts.watermark, now)
    if delay is not None:
        yield Sample(m.WATERMARK_DELAY, labels, delay)
    newest = event_time(facts.newest_row)
    if newest is not None:
        yield Sample(m.NEWEST_ROW_AGE, labels, max(0.0, (now - newest).total_seconds()))
    for uid, lag in facts.lags.items():
        yield Sample(m.SOURCE_LAG, (*labels, uid), lag)
        if uid in facts.lags_at and not query.state.ended:
            yield Sample(m.SOURCE_LAG_AGE, (*labels, uid), max(0.0, now.timestamp() - facts.lags_at[uid]))
    if facts.held_s is not None:
        yield Sample(m.HELD_BACK, labels, facts.held_s)
    if query.exchange is not None:
        exchange = query.exchange
        where = job, exchange.name
        yield Sample(m.EXCHANGE_ROWS, where, exchange.rows)
        yield Sample(m.EXCHANGE_BYTES, where, exchange.bytes)
        yield Sample(m.EXCHANGE_STORED, where, exchange.stored_bytes)
    for latency in query.latencies:
        yield Sample(m.LATEST_LATENCY, (*labels, latency.source), latency.ms / 1000)
    for source in query.sources:
        if source.channels_running is not None:
            yield Sample(m.CHANNELS_RUNNING, (*labels, source.uid), source.channels_running)


def delay_of(watermark: str, now: datetime) -> float | None:
    """By how much a watermark is behind the clock, s; None before the first one."""
    if not watermark or watermark.startswith("1970-01-01T00:00:00"):
        return None
    try:
        at = datetime.fromisoformat(watermark.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return max(0.0, (now - at.replace(tzinfo=at.tzinfo or timezone.utc)).total_seconds())
