"""A query that can be stopped between two epochs and started again, as it was or built anew; see `boundary`."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spark_ext.control import holds
from spark_ext.delta.failures import child
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.lifecycle import State
from spark_ext.queries import plans
from spark_ext.queries.boundary import IDLE_WITHIN, BoundaryRestart, Phase
from spark_ext.queries.describe_failure import SparkFailure
from spark_ext.queries.observed import ObservedQuery
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.records import registrations
from spark_ext.queries.registered import Registered
from spark_ext.queries.spark_query import Launch, RunnableQuery, SparkQuery
from spark_ext.queries.worker import Commands, Outcome, Worker
from spark_ext.spark.logs import watermarks
from spark_ext.spark.session.lag_notes import LagNotes
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.spark.session.registry import Registration


class RestartableQuery(ObservedQuery):
    """The parts of a query that a start makes, and its restart at a boundary.

    Args:
        spec: the query.
        context: the job's.
        lineage: the query's: flags and sink identities of other lineages are not its own.
        flagged: per source, the last finish sequence whose flag is in the ledger.
        elsewhere: whether its sink writes to another target from this start on, on request.
        query: in Spark; None: made from the specification.
        worker: carries out commands; None: a thread.
        clock: s; never goes back.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        lineage: int,
        flagged: Mapping[str, int],
        *,
        elsewhere: bool = False,
        query: RunnableQuery | None = None,
        worker: Commands | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(spec, context, lineage, flagged, clock)
        self.operators = OperatorHooks(spec, context, lineage, self.checkpoint, elsewhere=elsewhere)
        self.passed = max(context.passed, spec.built.sequence if spec.built is not None else 0)
        """The last control event that needs no restart of the query any more."""
        self.since = -1
        """The first epoch with its present plan and configuration; -1: it has not been started."""
        self._clock = clock
        self._query = query or self._in_spark(spec)
        self._registered = Registered(self._entries(), context.registry)
        if context.settings.lag_interval and spec.sources:
            figures = self._observer.history.figures
            figures.others = bool(spec.natives)
            figures.noted = LagNotes(context.registry, [source.uid for source in spec.sources])
        self._worker = worker or Worker(f"spark-ext-query-{spec.uid}", context.wake.set)
        self._starting = False
        self._live = False
        self._before_first: Callable[[], None] | None = None
        self._boundary: BoundaryRestart | None = None
        self._claims_late = False
        """Its target is still to be claimed: when a planner asks for it, as nothing is planned before."""

    def _in_spark(self, spec: QuerySpec) -> RunnableQuery:
        context = self._context
        return SparkQuery(
            spec,
            f"{context.job}/{spec.uid}",
            self.checkpoint,
            context.wake.set,
            context.identity(spec.uid, self.checkpoint, self.lineage),
            lambda failure: SparkFailure.of(
                failure, context.classifier, job=context.job, query=spec.uid, epoch=self.committed + 1
            ),
            until_now=context.until is not None,
        )

    def _entries(self, claims_after: int | None = None) -> list[Registration]:
        return registrations(self.spec, self._context, self.checkpoint, self.lineage, self.passed, claims_after)

    @property
    def _may_claim_late(self) -> bool:
        """Whether each epoch to come is one that its planners ask for: Spark's own sources do not.

        An exchange is claimed at the start: it is the job's own, and its readers look at it at once.
        """
        spec = self.spec
        asks = spec.sink is not None and not spec.natives and not spec.feeds_exchange
        return self._context.until is not None and asks and self.committed >= 0 and not self.unsettled

    def _claim_now(self) -> None:
        """On the worker's thread: the claim that was left to the first epoch."""
        self.operators.claim()
        self._claims_late = False
        self._registered.renew(self._entries())

    def _launch(self) -> Launch:
        """On the worker's thread."""
        planned = self._observer.newest_planned()
        if self._claims_late and planned is not None and not self._unsettled(planned):
            self._registered.renew(self._entries(planned.epoch))
        elif self._claims_late:
            self._claim_now()  # Spark repeats the epoch
        self._registered.publish()
        if self.since < 0:
            holds.forget(self.checkpoint, self._context.incarnation.start)
        self._keep_event_times()
        if planned is None and self.committed < 0:
            # Of a discarded history: Spark's maintenance of state writes after a query has ended, up to a minute later.
            self._query.settle()
            Location.of(child(self.checkpoint, "state"), {}).folder.delete_tree()
        # With a drain only the epoch that was planned before it is left to run, or with a restart, in the old plan.
        completing = self._boundary is not None and self._boundary.completing
        only_planned = (self._restarts.draining or completing) and self._unsettled(planned)
        built = self.spec.built
        if built is not None and not self._unsettled(planned):
            plans.record(self.checkpoint, self.committed + 1, built.values, built.sequence)
        stateful = planned is not None and self._has_state()
        return Launch(self._query.start(only_planned=only_planned), planned, stateful)

    def _keep_event_times(self) -> None:
        """On the worker's thread: write down how far each watermark has come, which Spark forgets at its next start."""
        if len(self.spec.ends) + len(self.spec.natives) < 2:
            return  # Spark restores the only one
        for hint in self._query.reports(-1):
            self._event_times.take(hint)
        watermarks.record(self.checkpoint, max(self.committed, self._event_times.epoch), self._event_times.at)

    def _has_state(self) -> bool:
        try:
            return next(Location.of(child(self.checkpoint, "state"), {}).folder.files(), None) is not None
        except OSError:
            return False

    @property
    def unsettled(self) -> bool:
        """Whether an epoch is planned and not committed, by Spark's logs."""
        return self._unsettled(self._observer.newest_planned())

    def _unsettled(self, planned: LoggedOffsets | None) -> bool:
        return planned is not None and planned.epoch > self.committed

    @property
    def _ends_itself(self) -> bool:
        """Whether Spark ends it when there is nothing to read."""
        return self.spec.available_now or self._context.until is not None

    @property
    def live(self) -> bool:
        """Whether Spark runs it, as far as is known."""
        return self._live

    @property
    def in_spark(self) -> StreamingQuery | None:
        """The query in Spark; None before its first start."""
        return self._query.handle

    @property
    def _being_started(self) -> bool:
        return self._starting

    @abstractmethod
    def _restart(self, *, claim: bool = False) -> None:
        """Command: start the Spark query, as it now is."""

    @abstractmethod
    def _stop_returned(self, outcome: Outcome[None]) -> None:
        """Spark's stop has returned."""

    # -- a restart at a boundary --------------------------------------------------------------------------------------

    def restart_at(self, wanted: BoundaryRestart) -> None:
        """Restart the query between two epochs, as soon as it is there; `wanted` says what has come of it.

        Args:
            wanted: the only one until it is over.
        """
        self._boundary = wanted
        self._context.wake.set()

    def pass_by(self, sequence: int) -> None:
        """The query needs no restart for an event: what it runs with is what the event calls for.

        Args:
            sequence: of the event.
        """
        if sequence > self.passed:
            self.passed, self.since = sequence, self.committed + 1

    def complete_first(self, then: QuerySpec) -> None:
        """Before the start: the epoch that an earlier one has planned is run as this query, and then the query changes.

        Args:
            then: the query from then on.
        """
        now = self._clock()
        passed = max(self.passed, then.built.sequence if then.built is not None else 0)
        self._boundary = BoundaryRestart(passed, now, now, then, phase=Phase.COMPLETING)

    def _ended_for_restart(self, *, failed: bool) -> bool:
        """Whether the end of the Spark query is a step of a restart: the next look decides what follows."""
        wanted = self._boundary
        if wanted is None or self._restarts.stopping or self._restarts.draining:
            return False
        # A run of what is available now may end while its sources hold: that is not the end of its input.
        by_itself = (Phase.COMPLETING, Phase.WAITING) if self._ends_itself else (Phase.COMPLETING,)
        expected = wanted.phase is Phase.STOPPING or (not failed and wanted.phase in by_itself)
        if expected:
            wanted.phase = Phase.STOPPED
        return expected

    def _look_at_the_boundary(self, now: float) -> None:
        wanted = self._boundary
        if wanted is None:
            return
        if self._state.ended or self._state is State.FINISHING or self._restarts.stopping or self._restarts.draining:
            self._boundary = None
            wanted.give_up(Phase.OVER, "the query is ending, or has ended")
        elif wanted.phase is Phase.WAITING:
            if self._may_stop(wanted, now):
                reach(FailPoint.QUERY_HELD)
                wanted.phase = Phase.STOPPING
                self._become(State.RESTARTING, f"requested by control event {wanted.sequence}")
                self._worker.do("stop", self._query.stop, self._stop_returned)
            elif now >= wanted.by:
                self._boundary = None
                wanted.give_up(Phase.LATE, "the query did not come to the end of an epoch in time")
        elif wanted.phase is Phase.COMPLETING and not (self._live or self._starting or self.unsettled):
            wanted.phase = Phase.STOPPED
        elif wanted.phase is Phase.STOPPED and not self._starting:
            self._go_on(wanted)

    def _may_stop(self, wanted: BoundaryRestart, now: float) -> bool:
        """Whether no epoch is under way, and none can be planned; for Spark's own sources, or seems to be."""
        if not self._live or self._starting or self._worker.busy:
            return False
        live = {source.uid for source in self.spec.sources} - self.position.ended_sources
        start = self._context.incarnation.start
        if not holds.all_hold(self.checkpoint, start, wanted.sequence, live):
            return False
        # Spark's own sources cannot hold: a query that is never idle is stopped in the end, and completes its epoch.
        late = bool(self.spec.natives) and now >= wanted.by
        if self.unsettled:
            wanted.idle_since = None
            return late
        if wanted.idle_since is None:
            wanted.idle_since = now
        return not self.spec.natives or late or not self._query.working or now - wanted.idle_since >= IDLE_WITHIN

    def _go_on(self, wanted: BoundaryRestart) -> None:
        """The Spark query has stopped: an epoch that it has left is completed first, as it was planned."""
        reach(FailPoint.QUERY_STOPPED)
        planned = self._observer.newest_planned()
        if planned is not None and self._unsettled(planned):
            wanted.phase, wanted.completed = Phase.COMPLETING, planned.epoch
        else:
            wanted.phase = Phase.STARTING
            self._adopt(wanted)
        self._become(State.RESTARTING, f"requested by control event {wanted.sequence}")
        self._restart()

    def _adopt(self, wanted: BoundaryRestart) -> None:
        if wanted.spec is not None:
            self.spec = wanted.spec
            self._observer.adopt(wanted.spec)
            self.operators = OperatorHooks(wanted.spec, self._context, self.lineage, self.checkpoint)
            self._query = self._in_spark(wanted.spec)
            self._before_first = wanted.prepare
        self.passed = max(self.passed, wanted.sequence)
        self._registered.renew(registrations(self.spec, self._context, self.checkpoint, self.lineage, self.passed))
