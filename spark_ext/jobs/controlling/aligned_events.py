"""Aligned events on their way to the cut behind which they take effect, in all queries or in none.

All that wait share one checkpoint. An event `align` is in the log before it is triggered, so queries that have passed
its barrier stand still. Its outcome is one commit: a `release` for each of them, or one that says that the checkpoint
was aborted. If the driver dies before, the next start ignores the barrier, and asks for another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spark_ext.control.job_events import asked, request, request_all
from spark_ext.errors import FencedError
from spark_ext.queries.restarts import UNREADABLE

if TYPE_CHECKING:
    from spark_ext.control.job_events import Accepts
    from spark_ext.control.requests import Request
    from spark_ext.jobs.checkpointing.savepoint_requests import CheckpointRequest, Prepare
    from spark_ext.model.control import Event
    from spark_ext.queries.worker import Outcome, Worker

ATTEMPTS: Final = 3  # checkpoints that may be aborted until an event is given up, in one start
Align = Callable[["Prepare"], "CheckpointRequest"]  # asks for an aligned checkpoint


class _Waiting:
    """An event that waits for a checkpoint."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.attempts, self.failure, self.released = 0, "", False

    def conclude(self, failure: str | None) -> None:
        """The checkpoint behind which it was to take effect is over; None: it is complete."""
        self.attempts += 1
        self.failure, self.released = failure or "", failure is None

    @property
    def given_up(self) -> bool:
        """Whether no further checkpoint is asked for."""
        return self.attempts >= ATTEMPTS and not self.released


class _Barrier:
    """A checkpoint behind which events are to take effect."""

    def __init__(self, align: Align, prepare: Callable[[_Barrier, Callable[[bool], None]], None]) -> None:
        self.number = 0  # 0: it was not triggered, and no event of it can be in the log
        self.events: list[Event] = []
        self._prepare = prepare
        self.request = align(self._triggered)

    def _triggered(self, number: int, done: Callable[[bool], None]) -> None:
        self.number = number
        self._prepare(self, done)

    def carry(self, events: list[Event]) -> None:
        """These events take effect behind it."""
        self.events = events


class AlignedEvents:
    """The open aligned events of a job. `warn` is called when an event could not be written; it is written later."""

    def __init__(self, control: Accepts, align: Align, worker: Worker, warn: Callable[[Exception], None]) -> None:
        self._control, self._align, self._worker, self._warn = control, align, worker, warn
        self._left: dict[str, _Waiting] = {}
        self._barrier: _Barrier | None = None
        self._unsaid: list[list[Request]] = []

    def take(self, event: Event) -> None:
        """An aligned event that waits."""
        self._left[event.event_id] = _Waiting(event)

    def given_up(self, event_id: str) -> str | None:
        """Why an event will not take effect; None: it has, or may yet."""
        one = self._left.get(event_id)
        return one.failure if one is not None and one.given_up else None

    def close(self, event_id: str) -> None:
        """An event is over: no configuration waits for it any longer."""
        one = self._left.pop(event_id, None)
        pending = [] if self._barrier is None else self._barrier.events
        if one is not None and not one.released and one.event not in pending:
            self._say([_release(one.event, 0, withdrawn=True)])

    def tick(self, *, ready: bool) -> None:
        """Ask for a checkpoint, or see how it has ended.

        It is not asked for until all queries can have a barrier (`ready`): else those that have passed it would stand
        still for those that cannot.
        """
        barrier = self._barrier
        if barrier is None:
            if ready and self._wanting():
                self._barrier = _Barrier(self._align, self._prepare)
        elif barrier.request.done.is_set():
            self._barrier = None
            failure = barrier.request.failure
            self._conclude(barrier, None if failure is None else failure.what)

    def say_again(self) -> None:
        """Write what could not be written."""
        unsaid, self._unsaid = self._unsaid, []
        for requests in unsaid:
            self._say(requests)

    def _wanting(self) -> list[_Waiting]:
        return [one for one in self._left.values() if not one.released and one.attempts < ATTEMPTS]

    def _prepare(self, barrier: _Barrier, done: Callable[[bool], None]) -> None:
        barrier.carry([one.event for one in self._wanting()])
        value = {"checkpoint": barrier.number, "sequences": [event.sequence for event in barrier.events]}

        def accepted(outcome: Outcome[Any]) -> None:
            done(outcome.error is None)
            if isinstance(outcome.error, FencedError):
                raise outcome.error

        self._worker.do("the barrier of events", lambda: request(self._control, "job", "align", value), accepted)

    def _conclude(self, barrier: _Barrier, failure: str | None) -> None:
        events = barrier.events if barrier.number else [one.event for one in self._wanting()]
        found = [self._left.get(event.event_id) for event in events]
        for one in found:
            if one is not None:
                one.conclude(failure)
        if not barrier.number or not events:
            return
        over = [event for event, one in zip(events, found, strict=True) if one is None]
        said = [_release(event, barrier.number, withdrawn=True) for event in over]
        if failure is None:
            said += [_release(one.event, barrier.number) for one in found if one is not None]
        elif not over:
            said.append(_release(events[0], barrier.number, void=True))
        self._say(said)

    def _say(self, requests: list[Request]) -> None:
        def done(outcome: Outcome[Any]) -> None:
            if isinstance(outcome.error, UNREADABLE):
                self._warn(outcome.error)
                self._unsaid.append(requests)
            else:
                outcome.result()

        self._worker.do("the outcome of a barrier", lambda: request_all(self._control, requests), done)


def _release(event: Event, number: int, **outcome: bool) -> Request:
    value = {"sequence": event.sequence, "event_id": event.event_id, "checkpoint": number, **outcome}
    return asked("release", "job", value)
