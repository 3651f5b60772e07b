"""Rows on their way to the ledger: what exactness needs is written at once, the rest behind the epochs.

Safe for several threads. A collected row that is lost costs history, never correctness.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.errors import StorageError
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.masking import logger

if TYPE_CHECKING:
    from spark_ext.ledger import Incarnation, Ledger, LedgerWriter

log = logger("spark_ext.job")

SOON = 0.25
"""How long finished flags may wait to be written together, s; until then they travel in the offsets."""

BEHIND = 1.0
"""How long history may wait, s."""


class WriteBehind:
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
        self._warned = False

    @property
    def ledger(self) -> Ledger:
        """The ledger that the rows go to."""
        return self._writer.ledger

    @property
    def incarnation(self) -> Incarnation:
        """Whose rows they are."""
        return self._writer.incarnation

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
        """Write all waiting rows. When the state directory cannot be written they are kept, and retried later.

        Raises:
            FencedError: a newer incarnation owns the ledger.
        """
        with self._lock:
            rows, self._rows, self._due = self._rows, [], None
        if not rows:
            return
        try:
            self._writer.append(rows)
            self._warned = False
        except StorageError as problem:
            with self._lock:
                self._rows = rows + self._rows
                self._due = time.monotonic() + BEHIND
            if not self._warned:
                log.warning("the ledger could not be written, %d rows are waiting: %s", len(rows), problem)
            self._warned = True

    def write_now(self, rows: Sequence[Any]) -> None:
        """Write all waiting rows, then the given ones, before returning.

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
        """Record the end of this incarnation, after all waiting rows.

        Raises:
            FencedError: a newer incarnation owns the ledger.
            StorageError: the end is not in the ledger.
        """
        try:
            self.write_now([])
        finally:
            # Also when nothing can be written: this process must know that the incarnation no longer runs.
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
        """Record one incident, and log it."""
        # Its first line: the rest, and the stack, are in the table.
        log.warning("%s: %s (%s)", operator, what.partition("\n")[0], action)
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
