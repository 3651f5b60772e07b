"""Clients of a job's control events: one over HTTP, one that reads and writes the ledger itself.

Both raise the same errors and send each request under an idempotency key, so that one whose answer was lost can be
repeated.
"""

from __future__ import annotations

import getpass
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from spark_ext.control.epoch_configuration import EpochConfiguration, epoch_configuration
from spark_ext.control.event_state import EventState
from spark_ext.control.history import LIMIT, Changes, Filter, History, Page
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Refusal, Request
from spark_ext.errors import TransientError
from spark_ext.ledger import Ledger

if TYPE_CHECKING:
    from types import TracebackType

    from spark_ext.control.service import ControlService

POLL_EVERY: Final = 0.05  # how often the ledger is polled while a caller waits, s
ATTEMPTS: Final = 5  # attempts to send a request whose answer was lost
PATIENCE: Final = 30.0  # how long a request that was refused because of the rate limit is repeated, s


class Client(Protocol):
    """What the command line, notebooks and programs use."""

    def send(self, request: Request) -> EventState:
        """Request an event: on return it survives any crash.

        If the rate limit refuses it, it is sent again for up to 30 s. Raises ControlRefused if nothing has changed, and
        TransientError if it could not be sent or written.
        """
        ...

    def event(self, event_id: str) -> EventState:
        """The current state of an event; raises ControlRefused if it does not exist, as do `wait` and `config`."""
        ...

    def wait(self, event_id: str, timeout: float | None = None) -> EventState:
        """Wait until an event has its final status; after `timeout` s (None: no limit) it is returned as it is."""
        ...

    def events(
        self, wanted: Filter | None = None, *, after: int | None = None, cursor: str | None = None, limit: int = LIMIT
    ) -> Page:
        """A page of events, newest first; or in their order, after a sequence."""
        ...

    def config(self, query: str, epoch: int | None = None) -> EpochConfiguration:
        """The configuration of an epoch; without a number, of the newest one."""
        ...

    def follow(self, after: int | None = None) -> Iterator[EventState]:
        """Each new state of an event as it comes, without end: first the events after a sequence, if one is given."""
        ...

    def close(self) -> None:
        """Give up what the client holds."""
        ...


def keyed(request: Request) -> Request:
    """The request with an idempotency key, so that it may be repeated."""
    return request if request.idempotency_key else replace(request, idempotency_key=f"auto-{uuid.uuid4().hex}")


def retrying() -> Retrying:
    """Repeats what failed for a transient reason, and what was refused because of the rate limit.

    The latter at about the time that the refusal names, spread so that refused requests do not come back together.
    """
    lost = wait_random_exponential(multiplier=0.1, max=2)

    def wait(state: RetryCallState) -> float:
        again = _again(state)
        return lost(state) if again is None else again * random.uniform(1, 1.25)

    def stop(state: RetryCallState) -> bool:
        again = _again(state)
        if again is None:
            return state.attempt_number >= ATTEMPTS
        return (state.seconds_since_start or 0) + again > PATIENCE

    return Retrying(
        retry=retry_if_exception(lambda problem: isinstance(problem, TransientError) or _seconds(problem) is not None),
        stop=stop,
        wait=wait,
        reraise=True,
    )


def _again(state: RetryCallState) -> float | None:
    return _seconds(None if state.outcome is None else state.outcome.exception())


def _seconds(problem: BaseException | None) -> float | None:
    """Seconds until a request that was refused because of the rate limit may be repeated; None: it was not."""
    if isinstance(problem, ControlRefused) and problem.refusal is Refusal.BUSY:
        return problem.retry_after or None
    return None


class LocalClient:
    """A client that needs no server, only access to the state directory.

    It sends requests to `service`, such as that of a running job; without one it commits them itself. `requested_by`
    and `origin` count where a request does not say so; the former is by default the user of this process.
    """

    def __init__(
        self,
        state: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        requested_by: str = "",
        origin: str = "python",
        service: ControlService | None = None,
    ) -> None:
        options = dict(storage_options) if storage_options else None
        self._ledger = Ledger(state, options)
        self._history = History(Ledger(state, options))
        self._service = service
        self._log = service.log if service is not None else ControlLog(Ledger(state, options))
        self._requested_by, self._origin = requested_by or _user(), origin

    def __enter__(self) -> LocalClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send(self, request: Request) -> EventState:
        """See `Client`."""
        full = replace(
            keyed(request),
            requested_by=request.requested_by or self._requested_by,
            origin=request.origin or self._origin,
        )
        accepted = retrying()(self._accept, full)
        return replace(self.event(accepted.event.event_id), note=accepted.note)

    def _accept(self, request: Request) -> Accepted:
        if self._service is not None:
            return self._service.submit(request)
        (found,) = self._log.accept([request])
        if isinstance(found, ControlRefused):
            raise found
        return found

    def event(self, event_id: str) -> EventState:
        """See `Client`."""
        found = self._history.event(event_id)
        if found is None:
            raise no_event(self._log.operator, event_id)
        return found

    def wait(self, event_id: str, timeout: float | None = None) -> EventState:
        """See `Client`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._history.poll()
            found = self.event(event_id)
            if found.final:
                return found
            while self._history.poll() == seen:
                if until is not None and time.monotonic() >= until:
                    return found
                time.sleep(POLL_EVERY)

    def events(
        self, wanted: Filter | None = None, *, after: int | None = None, cursor: str | None = None, limit: int = LIMIT
    ) -> Page:
        """See `Client`."""
        return self._history.page(wanted, after=after, cursor=cursor, limit=limit)

    def config(self, query: str, epoch: int | None = None) -> EpochConfiguration:
        """See `Client`."""
        known = self._log.known().queries
        found = epoch_configuration(self._ledger, query, epoch) if query in known else None
        if found is None:
            what = f"query '{query}' has no epoch {epoch}" if query in known else f"the job has no query '{query}'"
            raise no_epoch(self._log.operator, what, known)
        return found

    def follow(self, after: int | None = None) -> Iterator[EventState]:
        """See `Client`."""
        changes = Changes(self._history, after)
        while True:
            seen = self._history.poll()
            for _, state in changes.take():
                yield state
            while self._history.poll() == seen:
                time.sleep(POLL_EVERY)

    def close(self) -> None:
        """See `Client`."""


def no_event(operator: str, event_id: str) -> ControlRefused:
    """The error for an id without an event."""
    return ControlRefused.because(
        Refusal.UNKNOWN_TARGET, f"event {event_id[:100]} not found", operator, "list the events; old ones expire"
    )


def no_epoch(operator: str, what: str, queries: Mapping[str, object]) -> ControlRefused:
    """The error for an epoch or query that does not exist."""
    return ControlRefused.because(
        Refusal.UNKNOWN_TARGET, what, operator, f"use an epoch that was planned; queries: {', '.join(sorted(queries))}"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
