"""What a job looks like at one moment: what the live line, the notebook display, results and `status` all show.

A running job takes a snapshot of its queries; `read_status` makes one from the ledger. Pure values: no clock, no Spark,
no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from spark_ext.model.lifecycle import State


@dataclass(frozen=True, kw_only=True)
class SourceSnapshot:
    """A source of a query."""

    uid: str
    finished: bool
    """Whether it will deliver no more rows."""
    channels_finished: int
    """Over all runs."""
    channels_running: int | None
    """None: unknown. The ledger does not record it."""
    lag_rows: int | None = None
    """Rows that exist and are in no epoch yet, as the source has said last; None: it does not know."""
    lag_at: datetime | None = None
    """When it has said so; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class LatencySnapshot:
    """The latency from a source to the commits of a query: of the marker that has arrived last, and of those before."""

    source: str
    """Uid of the source; it may be another query's, behind exchanges."""
    ms: int
    """From the moment at which the rows were taken up to the commit."""
    at: datetime
    """When that was committed."""
    hops: tuple[tuple[str, int], ...]
    """The queries on the way, this one last, each with the time from the source to its commit, ms."""
    way: tuple[str, ...]
    """Uids of the sources by which exchanges were read on the way."""
    markers: int
    """How many have arrived in this run."""
    p50_ms: int | None = None
    """Percentiles of the newest markers; None unless the setting is `histogram`."""
    p95_ms: int | None = None
    p99_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, the time as ISO 8601 in UTC."""
        return {
            "source": self.source,
            "ms": self.ms,
            "at": self.at.isoformat(),
            "hops": [{"query": query, "ms": ms} for query, ms in self.hops],
            "way": list(self.way),
            "markers": self.markers,
            "p50_ms": self.p50_ms,
            "p95_ms": self.p95_ms,
            "p99_ms": self.p99_ms,
        }


@dataclass(frozen=True, kw_only=True)
class ExchangeSnapshot:
    """How full an exchange was some seconds ago."""

    name: str
    rows: int
    """Rows that its slowest consumer has not committed."""
    bytes: int
    """Their size as stored."""
    stored_bytes: int
    """Bytes on disk: also of rows that all have committed, and that are kept."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "rows": self.rows, "bytes": self.bytes, "stored_bytes": self.stored_bytes}


GATEWAY_STATES: Final = ("accepting", "unavailable", "silent", "stopped", "sealed")
"""What a gateway may be found to be: one that is silent writes its lease no more, or keeps a drain from ending."""


@dataclass(frozen=True, kw_only=True)
class InboxSnapshot:
    """What the gateways of an inbox had done some seconds ago, over all their starts."""

    name: str
    gateways: Mapping[str, int]
    """How many are in which of `GATEWAY_STATES`."""
    accepted: int
    """Events that were taken."""
    acknowledged: int
    """Events that are kept, as the inbox promises."""
    repeats: int
    """Events that were left out because they had been delivered before."""
    conflicts: int
    """Events that were left out because their identity is that of another event: they are bad rows."""
    old: int
    """Events that say they are older than the window: a repeat of them may be in the table."""
    rejected: Mapping[str, int]
    """Requests that were answered with a refusal, by its status."""
    ack_p50_ms: int | None
    """Within which time half of the requests of the last minute were acknowledged, ms, rounded up to a power of two;
    None: none was."""
    ack_p99_ms: int | None
    """The same of 99 % of them."""
    bytes: int
    """Held: of events that no job has read and committed."""
    max_bytes: int
    """How much they may hold."""
    oldest_s: float | None
    """Age of the oldest event that is held, s; None: none is."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "gateways": dict(self.gateways), "rejected": dict(self.rejected)}


@dataclass(frozen=True, kw_only=True)
class QuerySnapshot:
    """A query of a job."""

    uid: str
    state: State
    reason: str = ""
    """Why it entered this state; may be empty."""
    since: datetime | None = None
    """When it entered this state; None: unknown."""
    finished: bool = False
    """Whether its final checkpoint is complete: a further run starts nothing of it and reads nothing."""
    finished_before: bool = False
    """Whether it had finished in an earlier run."""
    epochs: int = 0
    """Committed in this run; read from a ledger: in all runs whose history it still keeps."""
    last_epoch: int | None = None
    """Number of the newest committed epoch, over all runs; None before the first one."""
    last_epoch_ms: int | None = None
    """Duration of the newest epoch, ms; None: unknown."""
    parts_ms: Mapping[str, int] | None = None
    """Where the time of one of the newest epochs went, ms by `model.epoch_parts.PARTS`; None: unknown, or not wanted,
    see the setting `epoch_parts`."""
    committed_at: datetime | None = None
    """When the newest epoch was committed; None: unknown."""
    rows: int = 0
    """Rows read, in the same runs as `epochs`. Those of a task that Spark has repeated count once where the source
    counts what it plans; where it does not, such as with lines of text, each time."""
    bad_rows: int = 0
    """Rows that did not parse or fit and were moved into the table of bad rows, in the same runs as `epochs`. Read from
    a ledger: those that a restore has taken back are among them."""
    bad_files: tuple[str, ...] = ()
    """Files that were put aside as a whole in this run; each counts in `bad_rows` as one. Read from a ledger: none."""
    rule_failures: Mapping[str, int] = field(default_factory=dict)
    """By rule, rows that were found to fail it (see `spark_ext.expect`), in the same runs as `epochs`; only rules that
    any row fails."""
    late_rows: int = 0
    """At least how many rows were dropped because the watermark had passed them, in the same runs as `epochs`. Spark
    counts them behind partial aggregations, where late rows of one group may be one."""
    early_rows: int | None = None
    """Rows of open windows that were shown at the end of this run, with `emit="early"`; None: none were. Read from a
    ledger: None; the reason of its state says it."""
    state_rows: int | None
    """Rows in the state stores after the newest epoch, such as open windows; None: unknown, as before the first epoch
    of a run, or where Spark does not count them."""
    emits: bool = True
    """Whether rows can come out of that state, such as open windows; those of `dropDuplicates` cannot."""
    lag_rows: int | None = None
    """Rows that it has still to read; None: one of its sources does not know. As `SourceSnapshot.lag_rows`. Read from a
    ledger: as of the driver's newest heartbeat or the newest epoch."""
    lag_at: datetime | None = None
    """When that was so: the time of the oldest figure in it; None: unknown."""
    watermark: datetime | None = None
    """Watermark of the newest epoch; None without one, and at the end of time."""
    newest_row: datetime | None = None
    """The greatest event time among its rows, as Spark reports it; None without a watermark."""
    phase: str = ""
    """What Spark is busy with before the first epoch of this run: `starting workers`, `planning`; "" afterwards. Also
    `paused`, at the request of a control event."""
    sources: tuple[SourceSnapshot, ...] = ()
    """Its channel sources. Read from a ledger: those with a finished channel."""
    latencies: tuple[LatencySnapshot, ...] = ()
    """From sources to its commits, if the setting `latency` has them measured. A ledger has those of some
    seconds ago."""
    exchange: ExchangeSnapshot | None = None
    """That it writes; None: it writes none, or nothing is known yet. Read from a ledger: as of the newest heartbeat."""
    inboxes: tuple[InboxSnapshot, ...] = ()
    """That it reads, by name, those whose gateways have been looked at. Read from a ledger: as of the newest
    heartbeat."""

    @property
    def channels_finished(self) -> dict[str, int]:
        """Finished channels by source, over all runs."""
        return {source.uid: source.channels_finished for source in self.sources}


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    """A job."""

    job: str
    state_directory: str
    state: State
    reason: str = ""
    """Why it is in this state; may be empty. One that is degraded names the queries that do not run."""
    incarnation: int
    """Number of the start, from 1; 0: it has not been started."""
    lineage: int
    started: datetime | None
    """When this incarnation was started; None: it has not been."""
    ended: datetime | None
    """When this incarnation ended; None: it has not, or the end is not recorded."""
    at: datetime
    """When the snapshot was taken."""
    queries: tuple[QuerySnapshot, ...]
    error: str = ""
    """Why the job failed, or what failed after it had ended; empty otherwise."""

    @property
    def finished(self) -> bool:
        """Whether all queries have finished."""
        return self.state is State.FINISHED

    @property
    def caught_up(self) -> bool:
        """Whether a run that ends with what is there has read all of it: the next run continues."""
        return self.state is State.SUSPENDED

    @property
    def rows(self) -> int:
        """Rows read by all queries; see `QuerySnapshot.rows`."""
        return sum(query.rows for query in self.queries)

    @property
    def epochs(self) -> int:
        """Epochs committed by all queries; see `QuerySnapshot.epochs`."""
        return sum(query.epochs for query in self.queries)

    @property
    def seconds(self) -> float:
        """How long this incarnation has run, s."""
        return 0.0 if self.started is None else ((self.ended or self.at) - self.started).total_seconds()

    def query(self, uid: str) -> QuerySnapshot:
        """One query.

        Raises:
            KeyError: the job has no such query.
        """
        for query in self.queries:
            if query.uid == uid:
                return query
        raise KeyError(f"job '{self.job}' has no query '{uid}'; it has {[query.uid for query in self.queries]}")
