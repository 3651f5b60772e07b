"""The ledger's tables: one frozen dataclass per table, from which the Arrow and Delta schemas and the docs are derived.

Rows are facts: they are only ever added. The same row may occur twice, if a process was killed or the storage failed
while it was written: readers treat both as one. All times are UTC, microseconds. A column of JSON contains text; the
row object has the value.

A column that is added in a later version must be optional: existing tables get it with their next append.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

from spark_ext.ledger.kinds import (
    CheckpointKind,
    CheckpointMode,
    CheckpointStatus,
    ControlStatus,
    ExchangeEvent,
    FinishedKind,
    JobEvent,
)

JSON: Final = "json"  # Marks a column of JSON.
Json = Annotated[Any, JSON]  # A value that JSON can represent; stored as text, null if it is None.


@dataclass(frozen=True, kw_only=True)
class Row:
    """Base of all rows."""

    table: ClassVar[str]  # Name of the table and of its folder.


@dataclass(frozen=True, kw_only=True)
class JobRow(Row):
    """One event in the life of the job: a start or an end, a step of a restore, a query that was reset or changed."""

    table: ClassVar[str] = "jobs"

    job: str  # The job's name; a state directory belongs to one job.
    job_id: str  # Generated at the job's first start; distinguishes jobs of the same name.
    incarnation: int  # Number of the start, from 1; older ones are fenced off.
    lineage: int
    # Newest lineage of the job, from 1; for a reset or a restore, the new one; for a renamed query, the one that it
    # keeps.
    query: str
    # For a reset, the query with a new lineage, "" for all; the new name of a query that was renamed; the query that
    # was removed or left out; "" otherwise.
    event: Annotated[str, JobEvent]
    # `started`, `ended` (in order, whatever its outcome), `reset`, `renamed`, `removed` or `rescaled`; of a restore
    # each step is `restoring`, the last one `restored`, and each query that it does not put back is `left_out`.
    at: datetime  # When.
    host: str  # Host name of the driver.
    driver_pid: int  # Process id of the driver's Python process.
    driver_started: float  # Start of that process, s since 1970 UTC: process ids are reused, the pair is unique.
    jvm_pid: int | None  # Process id of the driver's JVM; null if unknown.
    application_id: str  # Spark's application id; "" if unknown.
    reason: str  # For an end its outcome, for a new lineage who requested it, for a restore the step; "" if none.
    start_id: int | None = None
    # Drawn at random at the incarnation's start. Two starts from two copies of the state have one number and two ids.
    renamed_from: str | None = None  # For a renamed query, the name that it had; null otherwise.
    parent: int | None = None
    # For a new lineage that continues an older one, that lineage; null if it starts from scratch.
    cut: Json = None
    # Where it continues the older one: per source, the last finish sequence that counts; null without a parent.
    savepoint: str | None = None  # For a restore, the folder of the savepoint; null otherwise.
    kind: str | None = None
    # `observer` if this is no job, but an Observer, which watches queries that others start; null for a job.


@dataclass(frozen=True, kw_only=True)
class DefinitionRow(Row):
    """What a query was made of when it was started. Written at its first start, and when that has changed."""

    table: ClassVar[str] = "definitions"

    query: str  # The query's uid.
    lineage: int  # Of the query.
    incarnation: int  # The start from which on it is so.
    at: datetime  # When that was.
    definition: Json
    # Operators with format, options and what they read from or write to, and the columns of the result; versioned.
    # Secrets are masked.


@dataclass(frozen=True, kw_only=True)
class CheckpointRow(Row):
    """One step of one checkpoint."""

    table: ClassVar[str] = "checkpoints"

    checkpoint_id: int  # Number of the checkpoint, increasing within the job.
    kind: Annotated[str, CheckpointKind]
    # `periodic`, `final` (the one after a query's last row) or `savepoint` (a user's).
    query: str = ""  # The query's uid; "" for a checkpoint of the whole job.
    epoch: int | None = None  # The query's last epoch in it; null for the whole job, whose metadata has one per query.
    status: Annotated[str, CheckpointStatus]
    # `COMPLETED` (the fact), then for a final one `FLAGGED`, `ACKNOWLEDGED`, `CLOSED`; or `FAILED`. An aligned one is
    # `TRIGGERED` before, and again when queries have finished meanwhile; a retained one that is deleted is `RELEASED`.
    lineage: int  # Of the query, or of the job.
    incarnation: int  # The incarnation that wrote the row.
    metadata: Json = None
    # With `COMPLETED` what is needed to restore it, versioned; with `TRIGGERED` the sources that begin it.
    at: datetime  # When.
    reason: str = ""  # Why it failed; "" otherwise.
    mode: Annotated[str | None, CheckpointMode] = None
    # `unaligned` or `aligned`, of a checkpoint of the whole job; null for one query and in `RELEASED` rows.
    triggered_at: datetime | None = None  # When it was begun; null where `mode` is.
    rows_in_flight: int | None = None
    # Rows between its queries, in the exchanges, over all that read them; null where `mode` is, or if unknown.
    path: str | None = None
    # Where it is kept, if it is a savepoint or retained; null otherwise, and in `RELEASED` rows.


@dataclass(frozen=True, kw_only=True)
class FinishedRow(Row):
    """A finished flag: a channel, source or query has finished in an epoch that is committed."""

    table: ClassVar[str] = "finished"

    kind: Annotated[str, FinishedKind]
    # `channel`, `source` or `query`; `closed` for a source that was acknowledged and closed while its query ran on.
    query: str  # The query's uid.
    source: str  # The source's uid; "" for a query.
    channel: str  # The channel's id; "" for other kinds.
    sequence: int  # Number of the finish within its source, from 1, without gaps; 0 for other kinds.
    epoch: int  # The committed epoch by which it had finished.
    lineage: int  # Of the query: a flag counts in its lineage only.
    incarnation: int  # The incarnation that wrote the row.
    position: Json  # The channel's last position, in its source's own form; null for other kinds.
    drained: bool  # Whether it ended on request, before the end of its input.
    at: datetime  # When the flag was written.
    data: Json = None  # What the source knew of the channel, such as a file's size; null for other kinds.


@dataclass(frozen=True, kw_only=True)
class EpochRow(Row):
    """A committed epoch: one micro-batch of one query."""

    table: ClassVar[str] = "epochs"

    query: str  # The query's uid.
    query_id: str  # Spark's id of the query, from its checkpoint directory.
    epoch: int  # Spark's batch id.
    lineage: int  # Of the query.
    incarnation: int  # The incarnation that wrote the row.
    input_rows: int | None
    # Rows read, each once where the source counts what it plans; null if Spark's event was not received.
    committed_at: datetime  # When Spark recorded the commit.
    duration_ms: int | None  # Duration of the whole epoch, ms; null if Spark's event was not received.
    offsets: Json  # Offsets of the query's sources at its end, in the plan's order; null if Spark has deleted them.
    spent_ms: Json = None
    # Where its time went, ms: `planning` by its sources and Spark, `execution` of its tasks with the sink's commit,
    # `log` of Spark's own log; null if Spark's event was not received.
    parts_ms: Json = None
    # The same time by what was done, ms: `planning`, `reading`, `user_code`, `state`, `commit` and `other`, in
    # proportion to what tasks measured. Null without the setting `epoch_parts`, and where Spark did not say.
    lag_rows: int | None = None
    # Rows that its sources had still to read when it was planned, without its own; null where one of them does not
    # know.
    late_rows: int | None = None
    # At least how many rows were dropped because the watermark had passed them; null if Spark's event was not received.
    state_rows: int | None = None
    # Rows in the query's state after it, such as open windows; null if Spark has not counted them, or has counted
    # those of repeated tasks again.


@dataclass(frozen=True, kw_only=True)
class ControlEventRow(Row):
    """A control event that was accepted. Rows are added by compare-and-swap: sequences follow the order of commits."""

    table: ClassVar[str] = "control_events"

    event_id: str  # Identifies the event.
    sequence: int  # Order of the events within the job, increasing; offsets contain the highest one in effect.
    kind: str  # What is requested: `rate_limit`, `drain`, ...; see the page on control events.
    target: str  # `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL` or `sink:UID`.
    value: Json  # The argument; null if none.
    status: Annotated[str, ControlStatus]  # `accepted`; `acknowledged` in the row of a restore, which no query obeys.
    lineage: int
    # Newest lineage of the job at that time; queries with a newer lineage obey the event only if it is standing.
    incarnation: int  # The incarnation that made the request, or the newest one at that time if it came from outside.
    at: datetime  # When it was accepted.
    reason: str  # Why the job has requested it: what was wrong with the event whose value it takes back. "" otherwise.
    delivery: str  # `immediate` or `aligned`.
    idempotency_key: str | None = None
    # Given by who made the request; a request with the same key is the same request.
    fingerprint: str | None = None
    # SHA-256 of kind, target, value, delivery and expiry, by which a key that is used for another request is noticed.
    expires_at: datetime | None = None  # When it is not to be obeyed any more if that has not begun; null: never.
    requested_by: str | None = None
    # Who asked: the name of a token, a user of the machine, or `query:UID` for what a function has emitted.
    origin: str | None = None
    # From where: `rest ADDRESS`, `cli`, `python`, `emit`, or `job` for what the job has requested itself.


@dataclass(frozen=True, kw_only=True)
class ControlTransitionRow(Row):
    """A step in the life of a control event after it was accepted."""

    table: ClassVar[str] = "control_transitions"

    event_id: str  # The event.
    sequence: int  # Its sequence.
    status: Annotated[str, ControlStatus]  # `applied`, `acknowledged`, `rejected`, `failed` or `expired`.
    query: str
    # For `applied`, `rejected` and `expired`: the query; "" for the job, and for what the event has come to.
    epoch: int | None  # For `applied`: the query's first epoch with the event; null if it is not obeyed by an epoch.
    lineage: int  # Of the query, or of the job.
    incarnation: int  # The incarnation that wrote the row.
    at: datetime  # When.
    reason: str  # Why it was rejected, has failed or expired; "" otherwise.
    result: Json = None
    # What it has brought, such as the number of a checkpoint, or what a seek has skipped; null if nothing.


@dataclass(frozen=True, kw_only=True)
class ControlRequestRow(Row):
    """A request to the REST server that changes something, or was refused: who asked for what, and the answer."""

    table: ClassVar[str] = "control_requests"

    at: datetime  # When.
    requested_by: str  # Name of the token; "" without a valid one.
    origin: str  # Address of the client.
    method: str  # Of the HTTP request.
    path: str  # Of the HTTP request, without its query.
    status: int  # Of the HTTP response.
    event_id: str | None  # The event that was accepted, or had been under the same key, if any.
    reason: str  # Why it was refused; "" otherwise.


@dataclass(frozen=True, kw_only=True)
class ExecutionStateRow(Row):
    """A query, or the job, has entered a state, which lasts until its next row."""

    table: ClassVar[str] = "execution_states"

    operator: str  # The query's uid; "" for the job.
    state: str  # CREATED, DEPLOYING, RUNNING, FINISHED, ...; see the page on operations.
    since: datetime  # When it was entered.
    incarnation: int  # The incarnation that wrote the row.
    reason: str  # Why; "" if there is nothing to say. "requested by ..." if somebody asked for it.
    incident: str | None = None  # The incident that its time belongs to; null if none was recorded with it.


@dataclass(frozen=True, kw_only=True)
class LatencyRow(Row):
    """The latency from a source to the commits of a query, as measured by then; with the setting `latency`."""

    table: ClassVar[str] = "latencies"

    query: str  # The query whose commits are measured.
    source: str  # Uid of the source; that of another query, if exchanges are between them.
    way: Json  # Uids of the sources by which exchanges were read on the way; a list.
    at: datetime  # When the newest marker was committed.
    incarnation: int  # The incarnation that wrote the row.
    latency_ms: int  # From the moment at which the source took up the rows of the newest marker to that commit, ms.
    hops: Json
    # The queries on the way, ending with this one, each with the time from the source to its commit, ms; a list of
    # lists.
    markers: int  # How many have arrived in this incarnation.
    p50_ms: int | None  # Percentiles of the newest markers; null unless the setting is `histogram`.
    p95_ms: int | None  # See `p50_ms`.
    p99_ms: int | None  # See `p50_ms`.


@dataclass(frozen=True, kw_only=True)
class ExchangeRow(Row):
    """One event in the life of an exchange. History: what the exchange contains is in its own log."""

    table: ClassVar[str] = "exchanges"

    exchange: str  # Its name.
    event: Annotated[str, ExchangeEvent]  # `registered`, `sealed`, `released`, `held`, `cut` or `forgotten`.
    query: str = ""
    # For `registered` and `forgotten` the query that reads it, "" if it is not built yet; for `sealed` the one that
    # writes it; "" otherwise.
    lineage: int  # Newest lineage of the job at that time; for `cut`, the new one.
    epoch: int | None = None
    # For `held` and `cut`, the last epoch of the query that writes it; null otherwise, or if there was none.
    position: int | None = None
    # Number of an entry: the seal; the first one that stays, is held, or is abandoned; null otherwise.
    checkpoint_id: int | None = None  # For `held` and `cut`, the checkpoint; null otherwise.
    incarnation: int  # The incarnation that wrote the row.
    at: datetime  # When.


@dataclass(frozen=True, kw_only=True)
class IncidentRow(Row):
    """One notable event: a failure, a stall, a failed checkpoint.

    An incident that happens again has a further row with its id if there is more to say than a greater count.
    """

    table: ClassVar[str] = "incidents"

    incident_id: str  # Identifies the incident.
    at: datetime  # When it was noticed.
    job: str  # The job's name.
    incarnation: int  # The incarnation in which it happened.
    operator: str  # Where it happened.
    type: str  # The type of incident: `failure`, `driver_lost`, `close`, ..., or one of the user's.
    labels: Json  # Labels by name; an object. Failures have `type` and `origin`, and those of rules and plugins.
    what: str  # What happened, as text.
    evidence: Json
    # Further facts; null if there is only the text. Of failures the stack, the verdict and the exceptions.
    action: str  # What was done about it.
    severity: str  # INFO, WARNING, ERROR or CRITICAL.
    parent: str | None = None  # The incident during whose recovery it happened; null: none.
    fingerprint: str  # Equal for incidents of one type and operator that are the same.


@dataclass(frozen=True, kw_only=True)
class IncidentChangeRow(Row):
    """A step in the life of an incident: its last row says whether it is open."""

    table: ClassVar[str] = "incident_changes"

    incident_id: str  # The incident.
    at: datetime  # When.
    old: str  # The state before: OPEN or RESOLVED; "" for a new incident.
    new: str  # The state after; the same if it has only been counted.
    cause: str  # What has resolved it, or opened it again; "" otherwise.
    incarnation: int  # The incarnation that wrote the row.
    count: int  # How often it had happened by then.
    what: str | None = None  # What happened when it happened last; null for a new incident, whose row says it.


@dataclass(frozen=True, kw_only=True)
class BadRowsRow(Row):
    """Bad rows of a source or sink that were moved into their table: those of one committed epoch.

    For display: the table of bad rows says what there is. A driver that is killed between the two leaves no row here.
    """

    table: ClassVar[str] = "bad_rows"

    query: str  # The query's uid.
    source: str  # The uid of the source, or of the sink.
    epoch: int  # In which they were read or refused.
    rows: int  # How many.
    path: str  # Path or URI of the table.
    lineage: int  # Of the query.
    incarnation: int  # The incarnation that wrote the row.
    at: datetime  # When they were moved.
    role: str  # `source` or `sink`.
    rules: Json = None  # Of a sink: rows that fail rules, by rule, also those that are not in the table; null: none.


ROWS: tuple[type[Row], ...] = (  # All tables of the ledger.
    JobRow,
    DefinitionRow,
    CheckpointRow,
    FinishedRow,
    EpochRow,
    ControlEventRow,
    ControlTransitionRow,
    ControlRequestRow,
    ExecutionStateRow,
    LatencyRow,
    ExchangeRow,
    IncidentRow,
    IncidentChangeRow,
    BadRowsRow,
)
