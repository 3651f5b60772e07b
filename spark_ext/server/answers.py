"""The answers of the server, as models from which its description is made."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of these models. Later releases may add members."""

    model_config = ConfigDict(extra="allow")


class QuerySummary(Answer):
    """What a query is made of."""

    uid: str
    sources: list[str]
    sinks: list[str]
    finished: bool


class JobSummary(Answer):
    """A job."""

    job: str
    job_id: str
    incarnation: int
    lineage: int
    running: bool | None = Field(description="Whether its driver runs; null if unknown.")
    finished: bool
    queries: list[QuerySummary]


class JobList(Answer):
    """All jobs of this server that were started."""

    jobs: list[JobSummary]


class HopAnswer(Answer):
    """A query on the way of a latency marker."""

    query: str
    ms: int = Field(description="From the source to the commit of this query.")


class LatencyAnswer(Answer):
    """The latency from a source to the commits of a query; with the setting `latency`."""

    source: str
    ms: int = Field(description="Time of the newest marker.")
    at: datetime
    hops: list[HopAnswer]
    way: list[str] = Field(description="Uids of the sources by which exchanges were read.")
    markers: int
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None


class ExchangeAnswer(Answer):
    """How full an exchange is."""

    name: str
    rows: int = Field(description="Rows that its slowest consumer has not committed.")
    bytes: int = Field(description="Their size as stored.")
    stored_bytes: int = Field(description="Bytes on disk, with rows that all have committed and that are kept.")


class InboxAnswer(Answer):
    """What the gateways of an inbox have done, over all their starts."""

    name: str
    gateways: dict[str, int] = Field(description="How many are accepting, unavailable, silent, stopped and sealed.")
    accepted: int = Field(description="Events that were taken.")
    acknowledged: int = Field(description="Events that are kept, as the inbox promises.")
    repeats: int = Field(description="Events that were left out because they had been delivered before.")
    conflicts: int = Field(description="Events that were left out because their identity is that of another event.")
    old: int = Field(description="Events that are older than the window, by their own time: repeats of them may pass.")
    rejected: dict[str, int] = Field(description="Requests that were answered with a refusal, by its status.")
    ack_p50_ms: int | None = Field(
        description="Within which time half of the requests of the last minute were acknowledged, ms, rounded up to a "
        "power of two; null if none was."
    )
    ack_p99_ms: int | None = Field(description="The same of 99 % of them.")
    bytes: int = Field(description="Held: of events that no job has read and committed.")
    max_bytes: int = Field(description="How much they may hold.")
    oldest_s: float | None = Field(description="Age of the oldest event that is held, s; null if none is.")


class QueryStatus(Answer):
    """A query's status."""

    uid: str
    state: str
    since: datetime | None
    reason: str
    finished: bool
    last_epoch: int | None
    committed_at: datetime | None
    epochs: int
    rows: int
    bad_rows: int = Field(description="Rows that did not parse or fit, and are in the table of bad rows.")
    rule_failures: dict[str, int] = Field(description="Rows that fail each rule of `expect`.")
    late_rows: int = Field(description="At least how many rows were dropped because the watermark had passed them.")
    state_rows: int | None = Field(description="Rows in its state, such as open windows; null if unknown.")
    lag_rows: int | None = Field(description="Rows still to be read; null if unknown.")
    lag_at: datetime | None = Field(description="Time of that figure.")
    watermark: datetime | None
    newest_row: datetime | None = Field(description="The greatest event time of its rows.")
    channels_finished: dict[str, int]
    latencies: list[LatencyAnswer]
    exchange: ExchangeAnswer | None = Field(description="That it writes, as of the last heartbeat; null if unknown.")
    inboxes: list[InboxAnswer] = Field(description="That it reads, as of the last heartbeat.")


class JobStatusAnswer(Answer):
    """A job's status, as `spark-ext status --json` prints it."""

    job: str
    state_directory: str
    state: str
    incarnation: int
    lineage: int
    driver: str
    alive: bool | None
    lost: bool
    heartbeat: datetime | None = Field(
        description="Last heartbeat of its driver; null after its end, or without heartbeats."
    )
    silent: bool = Field(
        description="Whether the last heartbeat is older than a minute: a driver on another machine may be lost."
    )
    queries: list[QueryStatus]
    incidents: list[dict[str, Any]]
    timeline: Any


class Rows(Answer):
    """Rows of a table of the ledger, newest first."""

    rows: list[dict[str, Any]] = Field(description="Columns as on the page about the ledger; times are ISO 8601, UTC.")
    cursor: str | None = Field(description="Where the next page begins; null for the last page.")


class LifecycleEventAnswer(Answer):
    """A message of the stream of lifecycle events."""

    event_id: str = Field(description="Of the fact: a message that is repeated has the same.")
    kind: str
    at: datetime
    query: str = Field(description="Uid of the query; empty: the whole job.")
    source: str
    old: str | None
    new: str
    cause: str
    incident: str | None
    incarnation: int
    details: dict[str, Any]


class TimelineAnswer(Answer):
    """All starts of a job, and the time in each state, s."""

    wall_s: float = Field(description="From the first start to the end of the last one, or to now.")
    states_s: dict[str, float] = Field(description="Of the job; they add up to the wall time.")
    queries_s: dict[str, dict[str, float]] = Field(description="By query and state, while a driver ran.")
    incidents_s: dict[str, dict[str, float]] = Field(description="By id of the incident that cost time, and state.")
    since: datetime = Field(
        description="Where the period of the availability begins, no earlier than the first start; it ends now."
    )
    availability: float | None = Field(description="Null for a job that has read its input to the end.")
    incarnations: list[dict[str, Any]] = Field(description="Each start with its intervals, epochs and rows.")


class AvailabilityAnswer(Answer):
    """How much of a period a job was not down."""

    since: datetime
    until: datetime
    seconds: float = Field(description="How long the job existed in the period.")
    availability: float = Field(description="The share in which it was not down: 0 to 1.")
    down_s: float
    by: str
    causes_s: dict[str, float] = Field(
        description="Downtime by class or id of the incident it belongs to, UNKNOWN for none; adds up to down_s."
    )


class PageAnswer(Answer):
    """What the web page shows of a job. For the page: its members may change with each release."""

    version: int
    at: int = Field(description="Creation time, ms since 1970 UTC, as are all times in it.")
    job: dict[str, Any]
    queries: list[dict[str, Any]]


class SeriesAnswer(Answer):
    """A series of epochs, by column: each point stands for one epoch or more. -1: unknown."""

    at: list[int] = Field(description="When the first of its epochs was committed, ms since 1970, UTC.")
    epochs: list[int]
    rows: list[int]
    least: list[int] = Field(description="The shortest duration, ms.")
    greatest: list[int] = Field(description="The longest duration, ms.")
    mean: list[int] = Field(description="The mean duration, ms.")
    lag: list[int] = Field(description="The greatest lag, rows; empty if none is known, or of all queries.")
    before: list[int] = Field(description="How long before `at` the first of its epochs began, ms.")
    after: list[int] = Field(description="How long after `at` the last of its epochs was committed, ms.")


class IncidentAnswer(Answer):
    """The details of an incident that the list of incidents leaves out."""

    id: str
    what: str = Field(description="What happened when it happened last.")
    first: str = Field(description="What happened when it happened first.")
    stack: str
    evidence: Any
    changes: list[dict[str, Any]]


class StepAnswer(Answer):
    """One transition of an event."""

    status: str
    query: str
    epoch: int | None
    at: datetime
    reason: str
    result: Any


class EventAnswer(Answer):
    """A control event, and what has become of it."""

    id: str
    sequence: int
    kind: str
    target: str
    value: Any
    status: str
    final: bool
    reason: str
    result: Any
    delivery: str
    requested_by: str
    origin: str
    idempotency_key: str | None
    lineage: int
    incarnation: int
    accepted_at: datetime
    expires_at: datetime | None
    final_at: datetime | None
    applied_ms: float | None
    acknowledged_ms: float | None
    applied: dict[str, int | None]
    steps: list[StepAnswer]


class AcceptedAnswer(EventAnswer):
    """An event that is in the ledger: from here on it survives any crash."""

    repeated: bool = Field(description="Whether it had been accepted before, under the same idempotency key.")
    note: str = Field(description="What its sender may have overlooked, such as a key that no query reads.")


class EventPage(Answer):
    """Control events."""

    events: list[EventAnswer]
    cursor: str | None = Field(
        description="Where the next page begins; null for the last page. Never null in ascending order."
    )


class ConfigAnswer(Answer):
    """The configuration of an epoch."""

    query: str
    epoch: int
    committed: bool
    sequence: int = Field(description="Sequence of the last control event that is included.")
    config: dict[str, Any] = Field(description="The user's keys, as sx.control.config() returns them.")
    standing: dict[str, Any] = Field(description="All standing events in force, by kind, target and slot.")
    aligned: dict[str, Any] = Field(description="Aligned events that are not in force yet, by sequence.")


class KindAnswer(Answer):
    """A kind of control event."""

    name: str
    about: str
    targets: list[str]
    where: str
    standing: bool
    confirmed: bool
    while_running: bool
    aligned: bool
    example: Any
    value_schema: Any


class KindList(Answer):
    """All kinds that may be requested."""

    kinds: list[KindAnswer]


class Health(Answer):
    """The server runs."""

    status: str


class Ready(Answer):
    """The server can read all of its state directories."""

    status: str
    jobs: list[str]
