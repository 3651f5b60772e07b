"""What a job itself does with control events: it requests some, and says what has become of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.ledger.schema import ControlTransitionRow
from spark_ext.masking import mask
from spark_ext.model.event_progress import Step

if TYPE_CHECKING:
    from spark_ext.ledger import Incarnation
    from spark_ext.ledger.schema import ControlEventRow
    from spark_ext.ledger.write_behind import WriteBehind
    from spark_ext.model.control import Event
    from spark_ext.model.offsets import Json


class Accepts(Protocol):
    """What accepts requests: a `ControlLog`."""

    def accept(self, requests: Sequence[Request]) -> Sequence[Accepted | ControlRefused]:
        """Accept requests, in one commit."""


def request(log: Accepts, target: str, kind: str, value: Json = None, *, origin: str = "job") -> Event:
    """Have an event accepted before returning; sources obey it from their next planned epoch on.

    `origin` says who asks: the job itself, or `python`.
    """
    (event,) = request_all(log, [asked(kind, target, value, origin=origin)])
    return event


def asked(kind: str, target: str, value: Json, *, origin: str = "job") -> Request:
    """A request of the job itself; see `request`."""
    return Request(kind, target, value, requested_by="the job", origin=origin)


def request_all(log: Accepts, requests: Sequence[Request]) -> list[Event]:
    """Like `request`, for several in one commit: if one is refused, the others are accepted."""
    events = []
    for found in log.accept(requests):
        if isinstance(found, ControlRefused):
            raise found
        events.append(found.event)
    return events


def takes_back(log: Accepts, refused: str, step: Step, target: str, kind: str, value: Json) -> Event:
    """Like `request`, for an event that takes back the value of a refused one.

    Both become durable in one commit: from here on `refusals` tells every start the outcome of the refused event.
    """
    key = f"{step.status}:{refused}"
    (event,) = request_all(log, [replace(asked(kind, target, value), idempotency_key=key, reason=mask(step.reason))])
    return event


def refusals(events: Sequence[ControlEventRow]) -> dict[str, Step]:
    """What has finally come of events whose values were taken back, by event id; see `takes_back`."""
    found = {}
    for event in events:
        if event.origin == "job" and event.idempotency_key:
            status, _, refused = event.idempotency_key.partition(":")
            found[refused] = Step(status, reason=event.reason)
    return found


def in_force(events: Sequence[ControlEventRow], kind: str) -> list[ControlEventRow]:
    """The open events of a kind: accepted, without an outcome so far."""
    return [event for event in events if event.kind == kind]


def acknowledge(rows: WriteBehind, kind: str, reason: str = "") -> None:
    """Mark the open events of a kind as completed. The marks are written with the next flush."""
    for event in in_force(rows.ledger.open_control_events(), kind):
        rows.put(transition(rows.incarnation, event.event_id, event.sequence, "acknowledged", reason=reason))


def transition(
    incarnation: Incarnation,
    event_id: str,
    sequence: int,
    status: str,
    *,
    query: str = "",
    epoch: int | None = None,
    reason: str = "",
    result: Json = None,
    lineage: int | None = None,
) -> ControlTransitionRow:
    """A step in the life of an event, as a row."""
    return ControlTransitionRow(
        event_id=event_id,
        sequence=sequence,
        status=status,
        query=query,
        epoch=epoch,
        lineage=incarnation.lineage if lineage is None else lineage,
        incarnation=incarnation.number,
        at=datetime.now(timezone.utc),
        reason=reason,
        result=result,
    )
