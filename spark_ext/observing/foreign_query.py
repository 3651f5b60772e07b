"""A query that somebody else has started, as it is watched: its runs, its epochs, what it does, and how a run ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.ledger.schema import DefinitionRow
from spark_ext.masking import mask
from spark_ext.model.definitions import QueryDefinition
from spark_ext.model.execution import Shown
from spark_ext.model.lifecycle import State
from spark_ext.observing.epochs import ObservedEpochs
from spark_ext.queries.describe_failure import QueryFailures, SparkFailure
from spark_ext.queries.watched import WatchedQuery
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.watching.query_events import hints_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.history import Figures
    from spark_ext.spark.watching.query_events import Hint

ASK_EVERY: Final = 1.0
"""How often Spark is asked for reports where nothing else says what a query has committed, s."""

NOTHING_IS_DONE: Final = "none: an Observer only watches"


@dataclass(frozen=True)
class Run:
    """One run of a query in Spark."""

    query: StreamingQuery
    query_id: str
    run_id: str
    name: str
    """That it was given; "" without one."""
    checkpoint: str
    """As Spark has resolved it."""
    began: float
    """When, s since 1970; when it was found, if it ran before."""
    found: bool = False
    """Whether it ran before it was noticed."""


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

    Args:
        before: the newest epoch that the ledger has in that lineage; None: none.
        clock: s; never goes back.
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
        self.who = context.operator(uid)
        self.watched = WatchedQuery(uid, self.who, context)
        self._context = context
        self._failures = QueryFailures(uid, self.who, context)
        self._clock = clock
        self._epochs = ObservedEpochs(clock, divides=context.settings.epoch_parts)
        self._before = before
        self._state = State.CREATED
        self._reason = ""
        self._asked_at = float("-inf")
        self._made_of: QueryDefinition | None = None
        self._defined = False

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> str:
        """Nothing: it is left alone."""
        return ""

    @property
    def in_spark(self) -> StreamingQuery | None:
        """See `Watchable`."""
        return None if self.run is None else self.run.query

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
    def state(self) -> State:
        """Its state: RUNNING, or how its last run ended."""
        return self._state

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
        self.watched.take(running=self._state is State.RUNNING, paused=False)
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
        """Its run has ended.

        Args:
            failure: as Spark raised it; None: it was stopped, or has ended by itself.
            gone: why nobody knows how; "" if that is known.
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
        if self.live:
            self.ask()
            self._take_in(everything=True)
            self.live = False
            self._become(State.CANCELED, f"not observed any more: {why}")

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
        self._state, self._reason = state, reason
        self.watched.attribute(incident)
        self._show()

    def _show(self) -> None:
        self.watched.show(self._state, self._reason, starting=False)
