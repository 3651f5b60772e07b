"""A query that somebody else has started, as it is watched: its runs, its epochs, what it does, and how a run ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.ledger.schema import DefinitionRow, EpochRow
from spark_ext.masking import logger, mask
from spark_ext.model.definitions import QueryDefinition
from spark_ext.model.execution import Shown
from spark_ext.model.lifecycle import State
from spark_ext.queries.describe_failure import QueryFailures, SparkFailure
from spark_ext.queries.history import EpochHistory
from spark_ext.queries.watched import WatchedQuery
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.watching.query_events import hints_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.history import Figures
    from spark_ext.spark.watching.query_events import Hint

log = logger("spark_ext.observing")

LIST_EVERY: Final = 1.0  # how often commits are listed, which finds those beyond a gap, s


def missed(commits: Iterable[tuple[int, float]], started: float, before: int | None, first: int | None) -> list[int]:
    """Which commits of a checkpoint that a run finds there, or has made since, are still to be recorded. Pure.

    `commits` has number and time (s since 1970) of those that Spark still has, `started` is when the run began,
    `before` the newest epoch that was recorded, `first` the first one that the run has reported. Of a query that was
    never seen (`before` is None) commits of earlier runs are not recorded.
    """
    if before is not None:
        return sorted(number for number, _ in commits if number > before)
    return sorted(number for number, at in commits if at >= started or (first is not None and number >= first))


def newest(before: int, reported: int, logged: int | None) -> int:
    """The newest epoch known to be committed, by reports (-1: none) and by a checkpoint (None: unreadable). Pure."""
    return max(before, reported, -1 if logged is None else logged)


class ObservedEpochs:
    """The epochs of one query in one lineage. For one thread. `divides`: the parts of epochs are wanted."""

    def __init__(self, clock: Callable[[], float], *, divides: bool = False) -> None:
        self.committed = -1  # the newest one that is known; -1: none
        self.history = EpochHistory(clock, divides)
        self._clock = clock
        self._log: SparkLog | None = None
        self._listed_at = 0.0
        self._unknown = True  # whether nothing says yet how far the query had come

    def begin(self, checkpoint: str, started: float, before: int | None, first: int | None) -> None:
        """A run has begun; see `missed` for the arguments."""
        self._log = opened(checkpoint)
        times = dict(self._commits())
        found = missed(times.items(), started, before, first)
        earlier = [number for number in times if number not in found]
        self.committed = max([-1 if before is None else before, self.committed, *earlier])
        self._unknown = before is None and self._log is None
        self.history.begin_after(max(self.history.reported_upto, self.committed))
        for number in found:
            if number > self.committed:
                # No figures come of what an earlier run has committed unobserved.
                own = times[number] >= started or (first is not None and number >= first)
                self._add(number, in_this_run=own)

    @property
    def readable(self) -> bool:
        """Whether the checkpoint directory can be read from here."""
        return self._log is not None

    def has_state(self) -> bool:
        """Whether an epoch that runs now continues from state."""
        with suppress(OSError):
            return self._log is not None and self.committed >= 0 and bool(self._log.names("state"))
        return False

    def settled(self) -> bool:
        """Whether every planned epoch is committed; False if that is unknown."""
        with suppress(OSError):
            planned = None if self._log is None else self._log.newest_offsets()
            return planned is None or planned <= self.committed
        return True

    def report(self, hint: Hint) -> None:
        """Take figures."""
        if self._unknown and hint.epoch is not None:
            self._unknown = False
            self.committed = max(self.committed, hint.epoch - 1)
            self.history.begin_after(max(self.history.reported_upto, self.committed))
        self.history.report(hint)

    def poll(self) -> bool:
        """Take in what has been committed since the last look; returns whether anything has."""
        found = newest(self.committed, self.history.reported_upto, self._newest_commit())
        if found <= self.committed:
            return False
        for epoch in range(self.committed + 1, found + 1):
            self._add(epoch)
        return True

    def rows(self, shared: Mapping[str, Any], *, everything: bool = False) -> list[EpochRow]:
        """Rows of committed epochs, each once, in order; with `everything`, also those without figures so far."""
        ready = self.history.ready(everything=everything)
        return [epoch.row(self._committed_at(epoch.number), shared) for epoch in ready]

    # -- within -------------------------------------------------------------------------------------------------------

    def _add(self, epoch: int, *, in_this_run: bool = True) -> None:
        offsets = None
        with suppress(Exception):  # removed since, or of a format that is not known
            offsets = None if self._log is None else self._log.offsets(epoch)
        self.history.committed(epoch, offsets, in_this_run=in_this_run)
        self.committed = epoch

    def _commits(self) -> list[tuple[int, float]]:
        with suppress(OSError):
            if self._log is not None:
                times = [(number, self._log.committed_at(number)) for number in self._log.commits()]
                return [(number, at) for number, at in times if at is not None]
        return []

    def _newest_commit(self) -> int | None:
        if self._log is None:
            return None
        try:
            found = self.committed
            while self._log.is_committed(found + 1):
                found += 1
            if self._clock() - self._listed_at >= LIST_EVERY:
                self._listed_at = self._clock()
                listed = self._log.newest_commit()
                found = found if listed is None else max(found, listed)
            return found
        except OSError:
            return None

    def _committed_at(self, epoch: int) -> datetime:
        at = None
        with suppress(OSError):
            at = None if self._log is None else self._log.committed_at(epoch)
        return datetime.now(timezone.utc) if at is None else datetime.fromtimestamp(at, tz=timezone.utc)


def opened(checkpoint: str) -> SparkLog | None:
    """A checkpoint directory for reading; None if it is somewhere that cannot be read from here."""
    try:
        found = SparkLog(checkpoint)
        found.names("commits")
        return found
    except Exception as problem:
        log.info("could not read checkpoint %s; using the reports of its query: %s", checkpoint, problem)
        return None


ASK_EVERY: Final = 1.0  # how often Spark is asked for reports where nothing else says what a query has committed, s
NOTHING_IS_DONE: Final = "none: an Observer only watches"


@dataclass(frozen=True)
class Run:
    """One run of a query in Spark."""

    query: StreamingQuery
    query_id: str
    run_id: str
    name: str  # that it was given; "" without one
    checkpoint: str  # as Spark has resolved it
    began: float  # when, s since 1970; when it was found, if it ran before
    found: bool = False  # whether it ran before it was noticed


def failure_of(query: StreamingQuery) -> BaseException | None:
    """Why a query that has ended failed, as Spark raises it to those who wait for it; None: it did not fail."""
    # `query.exception()` has the first exception alone.
    try:
        query.awaitTermination(1)
    except Exception as failure:
        return failure
    return None


def _recent(query: StreamingQuery, after: int) -> list[str]:
    """Spark's recent reports on epochs after the given one; none if Spark does not answer."""
    with suppress(Exception):
        return backend_of(query).recent_progress(query, after)
    return []


class ForeignQuery:
    """A query of somebody else. For the observing thread; its attributes may be read by others.

    `before` is the newest epoch that the ledger has in that lineage; None: none.
    """

    def __init__(
        self,
        uid: str,
        lineage: int,
        before: int | None,
        context: WatchContext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uid = uid
        self.lineage = lineage
        self.live = False
        self.run: Run | None = None
        self.operator = context.operator(uid)
        self.watched = WatchedQuery(uid, self.operator, context)
        self._context = context
        self._failures = QueryFailures(uid, self.operator, context)
        self._clock = clock
        self._epochs = ObservedEpochs(clock, divides=context.settings.epoch_parts)
        self._before = before
        self.state = State.CREATED  # RUNNING, or how its last run ended
        self.busy = ""  # it is left alone
        self._reason = ""
        self._asked_at = float("-inf")
        self._made_of: QueryDefinition | None = None
        self._defined = False

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def in_spark(self) -> StreamingQuery | None:
        """See `Watchable`."""
        return None if self.run is None else self.run.query

    @property
    def open_sources(self) -> frozenset[str]:
        """See `Watchable`."""
        return frozenset()

    @property
    def sampled_as(self) -> str:
        """See `Watchable`."""
        return "" if self.run is None else self.run.query_id

    @property
    def figures(self) -> Figures:
        """See `Watchable`."""
        return self._epochs.history.figures

    @property
    def committed(self) -> int:
        """See `Watchable`."""
        return self._epochs.committed

    @property
    def shown(self) -> Shown:
        """What it does, finer than its state."""
        return self.watched.shown

    # -- a run --------------------------------------------------------------------------------------------------------

    def begin(self, run: Run, *, lineage: int) -> None:
        """Spark has started it, or it was found running."""
        if lineage != self.lineage:
            self.lineage, self._before = lineage, None
            self._epochs = ObservedEpochs(self._clock, divides=self._context.settings.epoch_parts)
        elif self.run is not None:
            self._before = self.committed if self.committed >= 0 else self._before
        self.run, self.live, self._defined = run, True, False
        first = next(iter(hints_of(_recent(run.query, -1))), None) if run.found else None
        self._epochs.begin(run.checkpoint, run.began, self._before, None if first is None else first.epoch)
        # Of one that ran before nobody knows whether its state is loaded.
        self.watched.launched(stateful=not run.found and self._epochs.has_state())
        self._become(State.RUNNING)

    def report(self, hint: Hint) -> None:
        """Take the figures of an epoch."""
        if self.run is not None and hint.run_id == self.run.run_id:
            self._epochs.report(hint)

    def poll(self, now: float) -> None:
        """Take in what it has committed and what the monitor has seen."""
        if self._epochs.history.overdue() or (not self._epochs.readable and now - self._asked_at >= ASK_EVERY):
            self._asked_at = now
            self.ask()
        self._take_in()
        self.watched.take(running=self.state is State.RUNNING, paused=False, hold=None)
        self._show()

    def ask(self) -> None:
        """Ask Spark for reports whose events have not come."""
        if self.run is not None:
            for hint in hints_of(_recent(self.run.query, self._epochs.history.reported_upto)):
                self._epochs.report(hint)

    def _take_in(self, *, everything: bool = False) -> None:
        if self._epochs.poll():
            self._context.write_behind.committed(self.uid, self.committed)
            self.watched.committed()
        shared = {
            "query": self.uid,
            "query_id": "" if self.run is None else self.run.query_id,
            "lineage": self.lineage,
            "incarnation": self._context.incarnation.number,
        }
        for row in self._epochs.rows(shared, everything=everything):
            self._context.write_behind.put(row)

    def ended(self, failure: BaseException | None, *, gone: str = "") -> None:
        """Its run has ended: with a failure as Spark raised it, or stopped, or by itself.

        `gone`: why nobody knows how; "" if that is known.
        """
        if not self.live:
            return
        self.ask()
        self._take_in(everything=True)
        self.live = False
        if failure is not None:
            self._failed(failure)
        elif gone:
            self._become(State.CANCELED, gone)
        elif self._done():
            self._become(State.FINISHED, "its trigger has ended it")
        else:
            self._become(State.CANCELED, "stopped")

    def left(self, why: str) -> None:
        """The Observer ends: what the query does from now on is not known."""
        self.ended(None, gone=f"not observed any more: {why}")

    def _done(self) -> bool:
        with suppress(Exception):  # Spark may be ending
            query = None if self.run is None else self.run.query
            return query is not None and backend_of(query).ends_by_itself(query) and self._epochs.settled()
        return False

    def _failed(self, failure: BaseException) -> None:
        epoch = self.committed + 1
        judged = SparkFailure.of(failure, self._context.classifier, job=self._context.job, query=self.uid, epoch=epoch)
        found = self._failures.diagnosed(judged, self.committed)
        incident = self._failures.record(found.error.what, NOTHING_IS_DONE, found)
        self._become(State.FAILED, found.error.what, incident)

    # -- what is recorded ---------------------------------------------------------------------------------------------

    def define(self, report: str) -> None:
        """Record what it is made of, from the first report of a run, if that has changed."""
        if self._defined:
            return
        self._defined = True
        progress = json.loads(report)
        # As Spark describes them, with secrets.
        sources = tuple(mask(str(one.get("description", ""))) for one in progress["sources"])
        found = QueryDefinition((), sources, mask(str(progress.get("sink", {}).get("description", ""))))
        if found == self._made_of:
            return
        self._made_of = found
        self._context.write_behind.put(
            DefinitionRow(
                query=self.uid,
                lineage=self.lineage,
                incarnation=self._context.incarnation.number,
                at=datetime.now(timezone.utc),
                definition={**found.to_json(), "observed": {"name": str(progress.get("name") or "")}},
            )
        )

    def _become(self, state: State, reason: str = "", incident: str | None = None) -> None:
        self.state, self._reason = state, reason
        self.watched.attribute(incident)
        self._show()

    def _show(self) -> None:
        self.watched.show(self.state, self._reason, starting=False)
