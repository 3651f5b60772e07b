"""A query that ends with what is there: when it has caught up, and what is done then. See `model.restarts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.restarts import Upstream

if TYPE_CHECKING:
    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.model.restarts import AvailableNowRun
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.operator_hooks import OperatorHooks
    from spark_ext.spark.backend.contract import OwnEnd

AT_REST: Final = 1.0  # s for which a query that has read what was there rests until it is started for more of it


class CatchingUp:
    """How far a query is from such an end. In a run that ends with its input it never rests, and is never done."""

    def __init__(self, uid: str, context: JobContext) -> None:
        self.done = False  # it has read what was there: what is left is to acknowledge it
        self._uid = uid
        self._until = context.until
        self._planned_before: LoggedOffsets | None = None  # the newest planned epoch before its start
        self._upstream = Upstream()  # about those that feed it, before its Spark query was started
        self._rests_since: float | None = None  # since when it waits for those that feed it, s; None: it does not

    def launching(self) -> None:
        """The Spark query is about to be started."""
        self._rests_since, self.done = None, False
        if self._until is not None:
            self._upstream = self._until.upstream(self._uid)

    def launched(self, planned: LoggedOffsets | None) -> None:
        """It was started; `planned` is the newest epoch that was planned before."""
        self._planned_before = planned

    def judge(self, run: AvailableNowRun, own: OwnEnd | None, newest: LoggedOffsets | None) -> AvailableNowRun:
        """What the end of the Spark query says.

        `own` is what Spark says; None: nothing, as it is ending itself. `newest` is the newest planned epoch.
        """
        before = self._planned_before
        planned = newest is not None and (before is None or newest.epoch > before.epoch)
        return replace(
            run,
            nothing_left=own is not None and (own.found_nothing or (own.one_epoch and planned)),
            repeated=own is not None and own.one_epoch and not own.found_nothing and not planned,
            upstream_ended=self._upstream.ended,
        )

    def read_all(self, *, finishing: bool) -> None:
        """The query has read what was there. With all input committed the final checkpoint is next instead."""
        self.done = not finishing

    def rest(self, now: float) -> None:
        """The query has read what those that feed it had written, and waits for more."""
        self._rests_since = now

    def has_more(self, now: float, *, paused: bool) -> bool:
        """Whether it has to be started again, as those that feed it have written more, or have ended.

        `paused`: a control event keeps it from reading, and those that feed it may wait for it.
        """
        if self._until is None or self._rests_since is None or now - self._rests_since < AT_REST:
            return False
        if paused:
            self._rests_since, self.done = None, True
            return False
        upstream = self._until.upstream(self._uid)
        return upstream.ended or upstream.epochs > self._upstream.epochs

    def acknowledge(self, operators: OperatorHooks, offsets: LoggedOffsets | None) -> Callable[[], str]:
        """The command that acknowledges the newest committed epoch; returns what has kept the query from reading all.

        If it fails, the query is started again, and comes to this again.
        """
        self.done = False

        def acknowledge() -> str:
            reach(FailPoint.CAUGHT_UP)
            if offsets is not None:
                operators.acknowledge(offsets)
            return "" if self._until is None else self._until.unread(self._uid)

        return acknowledge
