"""Control events of the incarnation that runs: asked for at once, acknowledged once they need not be obeyed again."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.ledger.schema import ControlEventRow

if TYPE_CHECKING:
    from spark_ext.ledger.write_behind import WriteBehind


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


def acknowledge(rows: WriteBehind, kind: str) -> None:
    """Mark the open control events of a kind as completed: queries that are added to the job later ignore them.

    The marks are written with the next flush.
    """
    events = rows.ledger.control_since(0)
    acknowledged = {event.event_id for event in events if event.status == "acknowledged"}
    for event in events:
        if event.kind == kind and event.status == "accepted" and event.event_id not in acknowledged:
            now = datetime.now(timezone.utc)
            rows.put(replace(event, status="acknowledged", incarnation=rows.incarnation.number, at=now))
