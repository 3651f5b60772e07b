"""Control events: requested at once, in force over crashes, acknowledged once they need not be obeyed again."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.ledger.schema import ControlEventRow

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.write_behind import WriteBehind


_OVER = frozenset({"acknowledged", "rejected", "failed"})


def request(rows: WriteBehind, target: str, kind: str, value: Any = None) -> int:
    """Write a control event before returning; sources obey it from their next planned epoch on.

    Args:
        rows: of the running incarnation, the only one that may give out sequences.
        target: uid of a query or source; "" for the whole job.
        kind: what is asked for: `drain`, `final_epoch`.
        value: the argument, if the kind has one.

    Returns:
        The event's sequence.

    Raises:
        FencedError: a newer incarnation owns the ledger.
        StorageError: the event is not in the ledger.
    """
    incarnation = rows.incarnation
    # A hook's thread and a user's may ask at once: look and write are one step.
    with rows.sequences:
        sequence = rows.ledger.next_control_sequence()
        rows.write_now(
            [
                ControlEventRow(
                    event_id=uuid.uuid4().hex,
                    sequence=sequence,
                    kind=kind,
                    target=target,
                    value=value,
                    status="accepted",
                    query="",
                    epoch=None,
                    lineage=incarnation.lineage,
                    incarnation=incarnation.number,
                    at=datetime.now(timezone.utc),
                    reason="",
                )
            ]
        )
    return sequence


def in_force(ledger: Ledger, kind: str) -> list[ControlEventRow]:
    """The control events of a kind that were accepted and are not over, whichever incarnation they were made to.

    Args:
        ledger: the job's.
        kind: `drain`.

    Raises:
        StateError, StorageError: the table cannot be read.
    """
    events = [event for event in ledger.control_since(0) if event.kind == kind]
    over = {event.event_id for event in events if event.status in _OVER}
    return [event for event in events if event.status == "accepted" and event.event_id not in over]


def acknowledge(rows: WriteBehind, kind: str) -> None:
    """Mark the open control events of a kind as completed: queries that are added to the job later ignore them.

    The marks are written with the next flush.
    """
    for event in in_force(rows.ledger, kind):
        now = datetime.now(timezone.utc)
        rows.put(replace(event, status="acknowledged", incarnation=rows.incarnation.number, at=now))
