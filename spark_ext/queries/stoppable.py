"""The ways in which a query ends before its input does: stopped, drained, given up, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.model.lifecycle import State
from spark_ext.queries.failing import FailingQuery
from spark_ext.queries.outage import UNREADABLE

if TYPE_CHECKING:
    from spark_ext.errors import SparkExtError
    from spark_ext.queries.worker import Outcome


class StoppableQuery(FailingQuery):
    """A query that can be stopped and drained. See `QueryRun`."""

    _final_recorded: bool = False
    """Whether the final checkpoint is recorded: then it is completed, whatever else is asked for."""
    _why_stopped: str = ""
    """Why a stop was requested."""

    @property
    def busy(self) -> str:
        """What its worker is carrying out; "" when it has nothing to do."""
        return self._worker.busy

    def request_stop(self, reason: str = "stopped") -> None:
        """Stop the Spark query where it is; no end of input is emitted. A recorded final checkpoint is completed.

        Args:
            reason: why, for the result.
        """
        if self._state.ended or self._restarts.stopping:
            return
        self._why_stopped = reason
        self._restarts.stop()
        if self._live or self._worker.busy:
            self._worker.do("stop", self._query.stop, self._stop_returned)
        self._cancel_if_stopped()

    def _stop_returned(self, outcome: Outcome[None]) -> None:
        """Spark's stop has returned; the end itself comes from the query."""
        if outcome.error is not None and not self._state.ended:
            what = f"Spark's query could not be stopped: {outcome.error}"
            self._context.write_behind.incident(self.who, "stop", what, "none")

    def _cancel_if_stopped(self) -> None:
        if not self._restarts.stopping or self._state.ended or self._worker.busy or self._final_recorded:
            return
        if self._state is State.FINISHING:
            self._become(State.CANCELED, "stopped before the final checkpoint; the next start takes it")
        elif not self._live:
            self._become(State.CANCELED, self._why_stopped)

    def cancel(self, reason: str) -> None:
        """Give the query up: its worker has not ended in time. Spark's query is stopped without waiting for it.

        Args:
            reason: why, for the result.
        """
        if not self._state.ended:
            self._context.write_behind.incident(self.who, "stop", reason, "CANCELED")
            self._become(State.CANCELED, reason)
        self._worker.abandon(self._query.stop)

    def request_drain(self) -> None:
        """A drain is in force: channel sources read it in the ledger, Spark's own cannot, so their query is stopped.

        An epoch that is planned by then is run to its end: its sink may have made a part of it visible.
        """
        if not self.spec.natives or self._state.ended or self._restarts.draining or self._restarts.stopping:
            return
        if not self._exchanges_ended:
            return  # they end by themselves, once those who feed them have
        runs = self._live or self._starting
        try:
            settled = not runs and not self.unsettled
        except UNREADABLE:
            return  # asked again by the next tick; the look in it says when this has lasted too long
        self._restarts.drain()
        if runs:
            self._worker.do("stop", self._query.stop, self._drain_stopped)
        elif settled and self._state is not State.FINISHING:
            self._become(State.FINISHING, "drained")

    @property
    def _exchanges_ended(self) -> bool:
        """Whether all sources that read what other queries write have been read to their end, by the last commit."""
        return self.spec.fed.issubset(self.position.ended_sources)

    @property
    def may_end_by_drain(self) -> bool:
        """Whether a drain ends the query where it is: it has sources of Spark's own, and no others that still run."""
        return bool(self.spec.natives) and self._exchanges_ended

    def resume_drain(self) -> None:
        """A drain was in force before this start: the query runs the epoch that is planned, and no other."""
        self._restarts.drain()

    def _drain_stopped(self, outcome: Outcome[None]) -> None:
        if outcome.error is not None and not self._state.ended:
            found = self._diagnosed(outcome.error)
            self.fail(found.error, found)

    def abandon(self, error: SparkExtError) -> None:
        """The job cannot be supervised any more: fail, and write nothing, as the ledger may have another owner.

        Spark's query is stopped; `busy` says whether that is still under way.
        """
        if not self._state.ended:
            self._error = error
            self._enter(State.FAILED)
            self._worker.do("stop", self._query.stop, lambda _: None)

    def refuse(self) -> None:
        """The start of the job was refused: stop Spark's query, or give it up when its worker does not answer."""
        busy = self.busy
        if not self._state.ended:
            self._enter(State.CANCELED)
        if busy:
            self.give_up()
        elif self._live:
            self._worker.do("stop", self._query.stop, lambda _: None)

    def give_up(self) -> None:
        """Stop Spark's query as far as that is possible without waiting for it."""
        self._worker.abandon(self._query.stop)
