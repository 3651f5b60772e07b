"""A query that ends with what is there: when it has caught up, and what is done then. See `model.until`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from spark_ext.errors import FencedError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import Action, AvailableNowRun
from spark_ext.model.until import Upstream
from spark_ext.queries.stoppable import StoppableQuery
from spark_ext.spark.session.late_claim import is_asked

if TYPE_CHECKING:
    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.model.restarts import Decision
    from spark_ext.queries.describe_failure import Diagnosis
    from spark_ext.queries.worker import Outcome
    from spark_ext.spark.backend.contract import OwnEnd

T = TypeVar("T")

AT_REST: Final = 1.0
"""How long a query rests that has read what those that feed it had written, until it is started for more of it, s."""


class CatchingUpQuery(StoppableQuery):
    """The part of a query that ends with what is there. Without such an end nothing of it is used."""

    _planned_before: LoggedOffsets | None = None
    """The newest epoch that was planned before its Spark query was started."""
    _upstream: Upstream = Upstream()
    """About those that feed it, before its Spark query was started."""
    _awaits_from: float | None = None
    """Since when it waits for those that feed it, s; None: it does not."""
    _caught_up: bool = False
    """It has read what was there: what is left is to acknowledge it."""

    def _before_launch(self) -> None:
        """The Spark query is about to be started."""
        self._awaits_from, self._caught_up = None, False
        if self._context.until is not None:
            self._upstream = self._context.until.upstream(self.spec.uid)

    def _how_it_ended(self, run: AvailableNowRun, own: OwnEnd | None) -> AvailableNowRun:
        """What the end of the Spark query says.

        Args:
            run: what it has left in Spark's log.
            own: what Spark says; None: nothing, as it is ending itself.
        """
        newest, before = self._observer.newest_planned(), self._planned_before
        planned = newest is not None and (before is None or newest.epoch > before.epoch)
        return replace(
            run,
            nothing_left=own is not None and (own.found_nothing or (own.one_epoch and planned)),
            repeated=own is not None and own.one_epoch and not own.found_nothing and not planned,
            upstream_ended=self._upstream.ended,
        )

    def _look_at_the_rest(self, now: float) -> None:
        """Whether there is more to read, or the last step is due."""
        until = self._context.until
        if self._state.ended or self._restarts.stopping or self._starting:
            return
        if self._claims_late and not self._worker.busy and self._is_asked_to_claim():
            self._worker.do("claim", self._claim_for_planner, self._claimed)
        if until is not None and self._awaits_from is not None and now - self._awaits_from >= AT_REST:
            upstream = until.upstream(self.spec.uid)
            if self.watched.paused:
                self._awaits_from, self._caught_up = None, True  # those that feed it may wait for it
            elif upstream.ended or upstream.epochs > self._upstream.epochs:
                self._restart()
        elif self._caught_up and not self.input_done and self._boundary is None and self._may_suspend(now):
            offsets = self.offsets
            self._caught_up = False  # a step that fails leads to a start, and a start to this again

            def acknowledge() -> str:
                reach(FailPoint.CAUGHT_UP)
                if offsets is not None:
                    self.operators.acknowledge(offsets)
                return "" if until is None else until.unread(self.spec.uid)

            self.take_step("acknowledging what was read", acknowledge, self._suspended)

    def _is_asked_to_claim(self) -> bool:
        uids = [one.uid for one in (*self.spec.sources, *self.spec.ends)]
        return is_asked(uids, self._context.incarnation.start, self._context.registry)

    def _claim_for_planner(self) -> None:
        self._claim_now()
        self._registered.publish()

    def _claimed(self, outcome: Outcome[None]) -> None:
        if isinstance(outcome.error, FencedError):
            raise outcome.error
        if outcome.error is not None and not self._state.ended and not self._restarts.stopping:
            found = self._diagnosed(outcome.error)
            self.fail(found.error, found)

    def _suspended(self, unread: str) -> None:
        reach(FailPoint.SUSPENDED)
        if not self._state.ended:
            state = State.CANCELED if unread else State.SUSPENDED
            self._become(state, unread or "it has read what was there")

    @abstractmethod
    def _may_suspend(self, now: float) -> bool:
        """Whether its worker is free, no wait is under way, and nothing that was committed is still to be moved."""

    @abstractmethod
    def take_step(self, what: str, action: Callable[[], T], then: Callable[[T], None]) -> None:
        """See `QueryRun`."""

    def _act(self, decision: Decision, found: Diagnosis | None) -> None:
        if decision.action is Action.SUSPEND:
            # With all input committed the final checkpoint is next; it asks for further epochs by itself.
            self._caught_up = self._state is not State.FINISHING
        elif decision.action is Action.AWAIT_UPSTREAM:
            self._awaits_from = self._clock()
        else:
            super()._act(decision, found)
