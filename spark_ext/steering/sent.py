"""A control event that was sent: what has become of it, and waiting for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_ext.errors import TerminalError
from spark_ext.steering.tables import events_html

if TYPE_CHECKING:
    from datetime import datetime

    from spark_ext.control.client import Client
    from spark_ext.control.event_state import EventState
    from spark_ext.model.offsets import Json


class ControlNotDone(TerminalError):
    """A control event was accepted, and then rejected, or it has failed or expired: see `event`."""

    code = "CONTROL_NOT_DONE"
    event: EventState | None = None
    """The event in its final state."""

    @classmethod
    def of(cls, state: EventState) -> ControlNotDone:
        """The error of an event with such a status."""
        do = {"rejected": "correct the request, and send it again", "expired": "send it again, with more time"}.get(
            state.status, "see the reason, then send it again"
        )
        found = cls(
            f"{state.kind} was not carried out: it {_PAST.get(state.status, state.status)}: {state.reason}",
            operator=f"event {state.sequence} for {state.target}, {state.event_id}",
            kept="the job continues without it",
            do=do,
        )
        found.event = state
        return found


_PAST: Final = {"rejected": "was rejected", "failed": "has failed", "expired": "has expired"}


class SentEvent:
    """A control event that was accepted and recorded in the ledger.

    Its properties are refreshed until its status is final.
    """

    def __init__(self, client: Client, state: EventState) -> None:
        self._client, self._state = client, state
        self.note = state.note
        """What may have been overlooked: it sets a key that no query reads, and almost one that a query does."""

    @property
    def id(self) -> str:
        """Names it."""
        return self._state.event_id

    @property
    def sequence(self) -> int:
        """Its place in the one order of the job's events."""
        return self._state.sequence

    @property
    def kind(self) -> str:
        """What it asks for."""
        return self._state.kind

    @property
    def target(self) -> str:
        """Target of the event."""
        return self._state.target

    @property
    def value(self) -> Json:
        """Its value, as it is stored."""
        return self._state.value

    @property
    def accepted_at(self) -> datetime:
        """UTC."""
        return self._state.accepted_at

    @property
    def state(self) -> EventState:
        """All that is known of it now."""
        if not self._state.final:
            self._state = self._client.event(self.id)
        return self._state

    @property
    def status(self) -> str:
        """`accepted`, `applied`, and at last `acknowledged`, `rejected`, `failed` or `expired`."""
        return self.state.status

    @property
    def applied(self) -> Mapping[str, int | None]:
        """Per query its first epoch with the event; by "" for the driver, which has no epochs."""
        return self.state.applied

    @property
    def reason(self) -> str:
        """Why it was rejected, has failed or expired."""
        return self.state.reason

    @property
    def result(self) -> Json:
        """What it has brought; None if nothing, or nothing yet."""
        return self.state.result

    def wait(self, timeout: float | None = None, *, check: bool = True) -> SentEvent:
        """Wait until its status is final.

        An event for a job that does not run is obeyed after the next start, so wait with a limit.

        Args:
            timeout: seconds; None: as long as it takes.
            check: whether anything but `acknowledged` is an error.
        """
        if not self._state.final:
            self._state = self._client.wait(self.id, timeout)
        if not self._state.final:
            raise TimeoutError(
                f"{self.kind} for {self.target}, event {self.sequence}, is {self._state.status} after {timeout} s"
            )
        if check and self._state.status != "acknowledged":
            raise ControlNotDone.of(self._state)
        return self

    def __repr__(self) -> str:
        state = self._state
        return f"<SentEvent {state.sequence} {state.kind} {state.target}: {state.status}>"

    def _repr_html_(self) -> str:
        return events_html([self.state])
