"""What is counted of a query's epochs: for display, and for the ledger's history. Never decides anything."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from spark_ext.ledger.schema import EpochRow
from spark_ext.model.epoch_parts import Sample, divided
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.pressure import Level
from spark_ext.spark.watching.query_events import Hint, Lag, SourceReport, event_time, newest, total_at, total_lag
from spark_ext.views.snapshot import InboxSnapshot

RECENT = 256  # epochs whose execution times are remembered
ASK_AFTER, ASK_EVERY = 1.0, 0.5
"""Age at which an epoch's figures, which come by events, are asked for; and how often then, s."""

PARTS_WITHIN = 3.0  # s for which an epoch's history waits for a sample of its tasks; an older one is used then, or none

FIGURES_WITHIN = 10.0  # how long an epoch's history waits for Spark's figures, s; it is then written without them


@dataclass
class Figures:
    """What Spark has reported of a query in this run."""

    epochs: int = 0  # committed in this run
    input_rows: int = 0
    late_rows: int = 0  # dropped, because the watermark had passed them
    state_rows: int | None = None  # after the newest epoch; None: unknown
    emits: bool = True  # whether rows can come out of that state
    state_changes: int = 0  # by the newest epoch
    last_epoch_ms: int = 0
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=20))  # number, ms
    recent_rows: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=20))  # number, rows
    run_id: str = ""  # Spark's, of the run of the query that has reported last
    watermark: str = ""  # as Spark has reported it, ISO 8601; "" without one
    newest_row: str = ""  # the greatest event time that Spark has seen, ISO 8601; "" without a watermark
    reported: Mapping[str, SourceReport] = field(default_factory=dict)  # what its sources said for the newest epoch
    noted: Callable[[], Mapping[str, SourceReport]] = dict  # said between epochs; any thread
    in_function: bool = False  # whether its epochs are given to a function of the user's, by `foreachBatch`
    parts_ms: Mapping[str, int] | None = None  # of the newest epoch in the history, by `epoch_parts.PARTS`
    others: bool = False  # whether it has sources that say nothing between epochs: Spark's own

    def __post_init__(self) -> None:
        self.sample: Sample | None = None  # how the time of the newest epoch that was sampled is shared out
        self.exchange: tuple[str, Level] | None = None  # that it writes: its name, and how full it was a second ago
        self.inboxes: Mapping[str, InboxSnapshot] = {}  # that it reads, by name, as they were some seconds ago

    def sampled(self, sample: Sample) -> None:
        """Take how the time of an epoch is shared out; for any thread."""
        self.sample = sample

    def filled(self, exchange: str, level: Level) -> None:
        """Take how full the exchange is that it writes; for any thread."""
        self.exchange = exchange, level

    def arrived(self, inbox: InboxSnapshot) -> None:
        """Take what has come into an inbox that it reads; for any thread."""
        self.inboxes = {**self.inboxes, inbox.name: inbox}

    def committed(self) -> None:
        """Count an epoch."""
        self.epochs += 1

    def divided(self, parts: Mapping[str, int] | None) -> None:
        """Take where the time of an epoch went that comes into the history; None: unknown."""
        self.parts_ms = parts or self.parts_ms

    def take(self, epoch: int, hint: Hint) -> None:
        """Take Spark's report of an epoch."""
        self.input_rows += hint.input_rows or 0
        self.late_rows += hint.late_rows or 0
        self.state_rows, self.state_changes, self.emits = hint.state_rows, hint.state_changes, hint.emits
        self.last_epoch_ms = hint.duration_ms or 0
        self.recent.append((epoch, hint.duration_ms or 0))
        self.recent_rows.append((epoch, hint.input_rows or 0))
        self.run_id, self.watermark = hint.run_id, hint.watermark
        self.newest_row = hint.newest_row or self.newest_row
        self.reported, self.in_function = hint.sources, hint.in_function

    @property
    def lag(self) -> Lag:
        """How far it is behind, as its sources have said last."""
        sources = newest(self.reported, self.noted())
        if self.others and not self.reported:
            return Lag(sources=sources)
        return Lag(total_lag(sources), total_at(sources), sources)


@dataclass(frozen=True)
class CommittedEpoch:
    """An epoch that Spark has committed, with what is known of it."""

    number: int
    offsets: LoggedOffsets | None = None
    input_rows: int | None = None
    duration_ms: int | None = None
    spent_ms: Mapping[str, int] | None = None  # where its time went; see `query_events.STAGES`
    parts_ms: Mapping[str, int] | None = None  # the same by `epoch_parts.PARTS`; None: unknown, or not wanted
    lag_rows: int | None = None  # rows still to be read when it was planned; None: a source does not know
    late_rows: int | None = None  # rows that were dropped, because the watermark had passed them
    state_rows: int | None = None  # in the query's state after it

    def row(self, committed_at: datetime, shared: Mapping[str, Any]) -> EpochRow:
        """Its row in the ledger."""
        return EpochRow(
            epoch=self.number,
            input_rows=self.input_rows,
            committed_at=committed_at,
            duration_ms=self.duration_ms,
            spent_ms=self.spent_ms,
            parts_ms=self.parts_ms,
            lag_rows=self.lag_rows,
            late_rows=self.late_rows,
            state_rows=self.state_rows,
            offsets=None if self.offsets is None else list(self.offsets.sources),
            **shared,
        )


@dataclass
class EpochHistory:
    """Brings together commits, which are facts, and figures, which come by events."""

    clock: Callable[[], float] = time.monotonic  # s; never goes back
    divides: bool = False  # whether the parts of epochs are wanted; samples come from somebody else
    figures: Figures = field(default_factory=Figures)
    counts_state: bool = True  # whether Spark counts the rows in the state
    reported_upto: int = -1  # the newest epoch whose figures are known
    _began: int = -1
    _reports: int = 0
    _rows: Counter[str] = field(default_factory=Counter)  # rows that sources have returned in this run, by uid
    _executions: dict[int, int] = field(default_factory=dict)  # how long the execution of recent epochs took, ms
    _by_epoch: dict[int, CommittedEpoch] = field(default_factory=dict)  # reports of epochs still to be written
    _waiting: deque[tuple[int, LoggedOffsets | None, float]] = field(default_factory=deque)
    _asked_at: float = float("-inf")

    def begin_after(self, epoch: int) -> None:
        """Epochs up to this one belong to earlier runs."""
        self.reported_upto = self._began = epoch

    def rows_of(self, source: str, epoch: int) -> int | None:
        """Rows that a source has returned in this run, up to an epoch at least; None: figures are missing."""
        complete = self._reports == self.reported_upto - self._began
        return self._rows[source] if complete and epoch <= self.reported_upto else None

    def state_after(self, epoch: int) -> tuple[int | None, int] | None:
        """Rows in the state (None: not counted) after an epoch or a later one, and its changes; None: not known yet."""
        found, recent = self.figures, list(self.figures.recent)
        return (found.state_rows, found.state_changes) if recent and recent[-1][0] >= epoch else None

    def report(self, hint: Hint) -> None:
        """Take figures; the first report of an epoch counts. Called from Spark's listener thread too."""
        if hint.epoch is None or hint.epoch <= self.reported_upto:
            return
        self.reported_upto = hint.epoch
        self._reports += 1
        self._rows.update(hint.source_rows)
        self._by_epoch[hint.epoch] = CommittedEpoch(
            hint.epoch,
            input_rows=hint.input_rows,
            duration_ms=hint.duration_ms,
            spent_ms=hint.spent_ms or None,
            lag_rows=total_lag(hint.sources),
            late_rows=hint.late_rows,
            state_rows=hint.state_rows if self.counts_state else None,
        )
        self.figures.take(hint.epoch, hint if self.counts_state else replace(hint, state_rows=None))
        if self.divides:
            self._executions[hint.epoch] = hint.spent_ms.get("execution", 0)
            while len(self._executions) > RECENT:
                self._executions.pop(next(iter(self._executions)))

    def committed(self, epoch: int, offsets: LoggedOffsets | None, *, in_this_run: bool = True) -> None:
        """Take a commit; for one of an earlier run no figures will come."""
        self._waiting.append((epoch, offsets, self.clock() if in_this_run else float("-inf")))
        if in_this_run:
            self.figures.committed()

    def overdue(self) -> bool:
        """Whether an epoch's figures should be asked for: events come late on a busy machine, and may be dropped."""
        now = self.clock()
        if not self._waiting or self._waiting[0][0] <= self.reported_upto:
            return False
        if now - self._waiting[0][2] < ASK_AFTER or now - self._asked_at < ASK_EVERY:
            return False
        self._asked_at = now
        return True

    def ready(self, *, everything: bool = False) -> Iterator[CommittedEpoch]:
        """Epochs whose figures have come, or that have waited long enough for them; in order, each once.

        An epoch is done with when the next one is asked for: a reader that fails in between gets it again.
        """
        while self._waiting:
            epoch, offsets, since = self._waiting[0]
            if not (everything or epoch <= self.reported_upto or self.clock() - since > FIGURES_WITHIN):
                return
            reported = self._by_epoch.get(epoch, CommittedEpoch(epoch))
            spent = reported.spent_ms
            if spent and not everything and self._is_to_be_sampled(epoch, since):
                return
            parts = self._parts(spent)
            self.figures.divided(parts)
            yield replace(reported, offsets=offsets, parts_ms=parts)
            self._waiting.popleft()
            self._by_epoch.pop(epoch, None)

    def _is_to_be_sampled(self, epoch: int, since: float) -> bool:
        sample = self.figures.sample
        known = sample is not None and sample.epoch >= epoch
        return self.divides and not known and self.clock() - since <= PARTS_WITHIN

    def _parts(self, spent: Mapping[str, int] | None) -> dict[str, int] | None:
        sample = self.figures.sample
        if not self.divides or spent is None or sample is None:
            return None
        return divided(spent, sample, self._executions.get(sample.epoch))


def vitals(queries: Iterable[tuple[str, Figures]]) -> dict[str, dict[str, Any]]:
    """What a driver says of its queries with each heartbeat, by uid: `lag`, `watermark`, `newest_row` and more.

    These change while no epoch is committed. The page, the report and `top` read them beside the ledger, whose newest
    row is as old as the newest epoch. A lag is `[rows, at]` by source, and `complete` says whether these are all
    sources of the query. Times are ms since 1970 UTC. The `exchange` that it writes is its name, the rows and bytes
    that the slowest consumer has not committed, and the bytes on disk; the `inboxes` that it reads are as their
    snapshots have them.
    """
    return {uid: found for uid, figures in queries if (found := _of(figures))}


def _of(figures: Figures) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lag = figures.lag
    known = {
        uid: [one.lag_rows, round(one.at * 1000)]
        for uid, one in lag.sources.items()
        if one.lag_rows is not None and one.at is not None
    }
    if known:
        found |= {"lag": known, "complete": lag.rows is not None}
    for name, text in (("watermark", figures.watermark), ("newest_row", figures.newest_row)):
        at = event_time(text)
        if at is not None:
            found[name] = round(at.timestamp() * 1000)
    if figures.exchange is not None:
        name, level = figures.exchange
        found["exchange"] = [name, level.rows, level.bytes, level.stored]
    if figures.inboxes:
        found["inboxes"] = [one.to_json() for _, one in sorted(figures.inboxes.items())]
    return found
