"""A driver that was lost: the next start finds that it has not recorded its end, and says until when it was alive."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.ledger import heartbeat
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, JobRow

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.identity import Incarnation
    from spark_ext.ledger.write_behind import WriteBehind

_TIMES = ((ExecutionStateRow, "since"), (EpochRow, "committed_at"), (CheckpointRow, "at"))


def record_lost_driver(ledger: Ledger, incarnation: Incarnation, write_behind: WriteBehind) -> None:
    """Record the loss of the driver before this one, if it was lost: an incident that says until when it was alive."""
    rows = ledger.jobs()
    before = max(
        (row for row in rows if row.event == "started" and row.incarnation < incarnation.number),
        key=lambda row: row.incarnation,
        default=None,
    )
    if before is None or any(row.event == "ended" and row.incarnation == before.incarnation for row in rows):
        return
    if incarnation.older:
        # It may still run, and is fenced off: taken over, not lost.
        return
    seen = _last_seen(ledger, before)
    write_behind.incident(
        f"job '{incarnation.job}'",
        "driver_lost",
        f"the driver of incarnation {before.incarnation}, process {before.driver_pid} on {before.host}, was lost; it "
        f"was last alive at {seen:%Y-%m-%d %H:%M:%S} UTC",
        f"continued by incarnation {incarnation.number}",
        {
            "incarnation": before.incarnation,
            "last_seen": seen.isoformat(),
            "found_at": datetime.now(timezone.utc).isoformat(),
        },
        {"type": "SYSTEM", "origin": "spark"},
    )
    heartbeat.forget(ledger.uri, before.incarnation, before.start_id)


def _last_seen(ledger: Ledger, lost: JobRow) -> datetime:
    beat = heartbeat.last_beat(ledger.uri, lost.incarnation, lost.start_id)
    times = [lost.at] if beat is None else [lost.at, beat]
    for row_type, column in _TIMES:
        where: list[tuple[str, str, Any]] = [("incarnation", "=", lost.incarnation)]
        times += ledger.table(row_type).read([column], where)[column].to_pylist()
    return max(times)
