"""Rows on their way to the ledger: what exactness needs is written at once, the rest behind the epochs.

Used by the coordinator's thread, and by others only through `put`: a lost row costs history, never correctness.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.errors import StorageError
from spark_ext.ledger.schema import ControlEventRow, ExecutionStateRow, IncidentRow

if TYPE_CHECKING:
    from spark_ext.ledger import LedgerWriter

log = logging.getLogger("spark_ext.job")

SOON = 0.25
"""How long finished flags may wait to be written together, s; until then they travel in the offsets."""

BEHIND = 1.0
"""How long history may wait, s."""


class Outbox:
    """Collects rows and writes them through the fenced writer.

    Args:
        writer: of this incarnation.
        job: for incidents.
    """

    def __init__(self, writer: LedgerWriter, job: str) -> None:
        self._writer = writer
        self._job = job
        self._rows: list[Any] = []
        self._due: float | None = None
        self._lock = threading.Lock()
        self._complained = False

    def put(self, row: Any) -> None:
        """Write a row within a second or so."""
        self._put(row, BEHIND)

    def put_soon(self, row: Any) -> None:
        """Write a row within a quarter of a second or so."""
        self._put(row, SOON)

    def _put(self, row: Any, within: float) -> None:
        with self._lock:
            self._rows.append(row)
            due = time.monotonic() + within
            self._due = due if self._due is None else min(self._due, due)

    def flush_due(self, now: float) -> None:
        """Write what is due.

        Raises:
            FencedError: a newer incarnation owns the ledger.
        """
        if self._due is not None and now >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write all that waits. When the state directory cannot be written the rows stay, and are tried again.

        Raises:
            FencedError: a newer incarnation owns the ledger.
        """
        with self._lock:
            rows, self._rows, self._due = self._rows, [], None
        if not rows:
            return
        try:
            self._writer.append(rows)
            self._complained = False
        except StorageError as problem:
            with self._lock:
                self._rows = rows + self._rows
                self._due = time.monotonic() + BEHIND
            if not self._complained:
                log.warning("the ledger could not be written, %d rows wait: %s", len(rows), problem)
            self._complained = True

    def write_now(self, rows: Sequence[Any]) -> None:
        """Write rows, and all that waits before them, before returning.

        Raises:
            FencedError: a newer incarnation owns the ledger.
            StorageError: the rows are not in the ledger.
        """
        with self._lock:
            waiting, self._rows, self._due = self._rows, [], None
        try:
            self._writer.append([*waiting, *rows])
        except StorageError:
            with self._lock:
                self._rows = waiting + self._rows
            raise

    def end(self, reason: str) -> None:
        """Record the end of this incarnation, after all that waits.

        Raises:
            FencedError: a newer incarnation owns the ledger.
            StorageError: it is not in the ledger.
        """
        try:
            self.write_now([])
        finally:
            # Even when nothing can be written: this process has to know that the incarnation no longer runs.
            self._writer.end(reason)

    def state(self, operator: str, state: str, reason: str = "") -> None:
        """Record that a query, or the job (""), has entered a state."""
        self.put(
            ExecutionStateRow(
                operator=operator,
                state=str(getattr(state, "value", state)),
                since=datetime.now(timezone.utc),
                incarnation=self._writer.incarnation.number,
                reason=reason,
            )
        )

    def incident(self, operator: str, kind: str, what: str, action: str, evidence: Any = None) -> None:
        """Record one event worth telling."""
        log.warning("%s: %s (%s)", operator, what, action)
        self.put(
            IncidentRow(
                incident_id=uuid.uuid4().hex,
                at=datetime.now(timezone.utc),
                job=self._job,
                incarnation=self._writer.incarnation.number,
                operator=operator,
                type=kind,
                labels={},
                what=what,
                evidence=evidence,
                action=action,
            )
        )

    def acknowledge(self, kind: str) -> None:
        """Mark the control events of a kind as done with: what is added to the job later does not heed them."""
        rows = self._writer.ledger.control_since(0)
        done = {row.event_id for row in rows if row.status == "acknowledged"}
        for row in rows:
            if row.kind == kind and row.status == "accepted" and row.event_id not in done:
                now = datetime.now(timezone.utc)
                self.put(replace(row, status="acknowledged", incarnation=self._writer.incarnation.number, at=now))

    def request(self, target: str, kind: str, value: Any = None) -> int:
        """Write a control event at once; sources see it at their next look.

        Returns:
            Its sequence.
        """
        sequence = self._writer.ledger.next_control_sequence()
        self.write_now(
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
                    lineage=self._writer.incarnation.lineage,
                    incarnation=self._writer.incarnation.number,
                    at=datetime.now(timezone.utc),
                    reason="",
                )
            ]
        )
        return sequence
