"""Rows on their way to the ledger: what exactness needs is written at once, the rest behind the epochs.

Safe for several threads. Rows are written in the order in which they came, by one thread at a time: history by a
thread of its own, so that putting a row never waits for the disk. A collected row that is lost costs history, never
correctness.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from math import inf
from typing import TYPE_CHECKING, Any

from spark_ext.errors import StorageError
from spark_ext.incidents.reporter import Incidents
from spark_ext.ledger.incidents import change_row, incident_row
from spark_ext.ledger.schema import ExecutionStateRow
from spark_ext.masking import logger
from spark_ext.model.lifecycle import State

if TYPE_CHECKING:
    from spark_ext.incidents.book import RecordedOccurrence
    from spark_ext.incidents.dispatch import Dispatcher
    from spark_ext.incidents.registry import Registry
    from spark_ext.incidents.types import Incident, IncidentChange
    from spark_ext.ledger import Incarnation, Ledger, LedgerWriter
    from spark_ext.ledger.heartbeat import Heartbeat, Vitals

log = logger("spark_ext.job")

SOON = 0.25  # how long finished flags may wait to be written together, s; until then they travel in the offsets
BEHIND = 1.0  # how long history may wait, s
NOTIFIED_WITHIN = 2.0  # how long the end of a job waits for listeners to be notified of its last incidents, s


class WriteBehind:
    """Collects rows and writes them through the fenced writer, and a heartbeat every `every` s on the same thread.

    `tap` is given each row: one that is written behind when it comes, one that is written at once when it has been. It
    is called on the thread that brings the row: it must not wait, and must not raise.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        job: str,
        heartbeat: Heartbeat | None = None,
        every: float = inf,
        registry: Registry | None = None,
        dispatcher: Dispatcher | None = None,
        tap: Callable[[Any], None] | None = None,
        noted: Callable[[Incident, Any], Any] | None = None,
        vitals: Callable[[], Vitals] = dict,
    ) -> None:
        self.incidents = Incidents(
            registry, on_noted=self._put_incident, on_changed=self._put_changes, dispatcher=dispatcher
        )
        self._writer = writer
        self._job = job
        self._vitals = vitals
        self._heartbeat = heartbeat
        self._every = every
        self._tap = tap
        self._noted = noted
        self._rows: list[Any] = []
        self._entered: dict[str, datetime] = {}
        self._due: float | None = None
        self._lock = threading.Condition()
        self._writing = threading.Lock()
        self._warned = False
        self._closed = False
        self._problem: Exception | None = None
        self._beat_at = inf if heartbeat is None else time.monotonic()

    @property
    def ledger(self) -> Ledger:
        """The ledger that the rows go to."""
        return self._writer.ledger

    @property
    def incarnation(self) -> Incarnation:
        """Whose rows they are."""
        return self._writer.incarnation

    @property
    def waiting(self) -> int:
        """How many rows wait to be written."""
        return len(self._rows)

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
            if self._due is None or due < self._due:
                self._due = due
                self._lock.notify()
        if self._tap is not None:
            self._tap(row)

    def start(self, wake: Callable[[], None]) -> None:
        """Write what is due on a thread of its own, until `close`."""
        threading.Thread(target=self._loop, args=(wake,), name=f"spark-ext-ledger-{self._job}", daemon=True).start()

    def close(self) -> None:
        """End the thread; rows that wait are left to `flush` and `end`."""
        with self._lock:
            self._closed = True
            self._lock.notify()

    def check(self) -> None:
        """Raise what keeps the thread from writing."""
        if self._problem is not None:
            raise self._problem

    def _loop(self, wake: Callable[[], None]) -> None:
        while self._await_due():
            try:
                self._beat()
                if self._due is not None and self._due <= time.monotonic():
                    self.flush()
                elif self.incidents.uncounted:
                    self.incidents.count()
            except Exception as problem:
                self._problem = problem
                wake()
                return

    def _beat(self) -> None:
        if self._heartbeat is not None and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._every
            queries: Vitals = {}
            with suppress(Exception):  # figures for display
                queries = self._vitals()
            self._heartbeat.beat(queries=queries)

    def _await_due(self) -> bool:
        """Wait until rows or a beat are due; returns whether the thread is still wanted."""
        with self._lock:
            while not self._closed:
                at = min(inf if self._due is None else self._due, self._beat_at)
                left = at - time.monotonic()
                if left <= 0:
                    return True
                self._lock.wait(None if left == inf else left)
            return False

    def flush(self) -> None:
        """Write all waiting rows. When the state directory cannot be written they are kept, and retried later."""
        self.incidents.count()
        with self._writing:
            rows = self._take()
            if not rows:
                return
            try:
                self._writer.append(rows)
                self._warned = False
            except StorageError as problem:
                self._put_back(rows)
                if not self._warned:
                    log.warning("the ledger could not be written, %d rows are waiting: %s", len(rows), problem)
                self._warned = True

    def write_now(self, rows: Sequence[Any]) -> None:
        """Write all waiting rows, then the given ones, before returning."""
        with self._writing:
            waiting = self._take()
            try:
                self._writer.append([*waiting, *rows])
            except StorageError:
                self._put_back(waiting)
                raise
        if self._tap is not None:
            for row in rows:
                self._tap(row)

    def _take(self) -> list[Any]:
        with self._lock:
            rows, self._rows, self._due = self._rows, [], None
            return rows

    def _put_back(self, rows: list[Any]) -> None:
        with self._lock:
            self._rows = rows + self._rows
            if self._rows:
                self._due = time.monotonic() + BEHIND
                self._lock.notify()

    def end(self, reason: str) -> None:
        """Record the end of this incarnation, after all waiting rows."""
        try:
            self.incidents.count(everything=True)
            self.write_now([])
        finally:
            # Also when nothing can be written: this process must know that the incarnation no longer runs.
            ended = self._writer.end(reason)
        if self._tap is not None:
            self._tap(ended)
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def forget(self) -> None:
        """The incarnation has ended, and its end cannot be recorded: this process must know that it no longer runs."""
        self._writer.forget()

    def state(
        self, operator: str, state: str, reason: str = "", since: datetime | None = None, incident: str | None = None
    ) -> None:
        """Record that a query, or the job (""), has entered a state. One that has finished has no open incidents.

        A state that was noticed late begins in the past (`since`, UTC), but after the one that was recorded before it:
        readers order the rows by their beginning.
        """
        name = str(getattr(state, "value", state))
        entered = since or datetime.now(timezone.utc)
        before = self._entered.get(operator)
        if before is not None and entered <= before:
            entered = before + timedelta(microseconds=1)
        self._entered[operator] = entered
        self.put(
            ExecutionStateRow(
                operator=operator,
                state=name,
                since=entered,
                incarnation=self._writer.incarnation.number,
                reason=reason,
                incident=incident,
            )
        )
        if name == State.FINISHED.value:
            if operator:
                self.incidents.ended(operator)
            else:
                self.incidents.all_ended()

    def committed(self, query: str, epoch: int) -> None:
        """A query has committed an epoch: what it was recovering from is over."""
        self.incidents.committed(query, epoch)

    def incident(
        self,
        operator: str,
        kind: str,
        what: str,
        action: str,
        evidence: Any = None,
        labels: Mapping[str, str] | None = None,
        *,
        parent: str | None = None,
        fingerprint: str | None = None,
    ) -> str:
        """Record one incident, and log it; see `Incidents.report`."""
        return self.incidents.report(
            operator, kind, what, action, evidence=evidence, labels=labels, parent=parent, fingerprint=fingerprint
        )

    def notify_last(self) -> None:
        """The job has ended: notify the listeners of what is left, within a limit."""
        self.incidents.close(NOTIFIED_WITHIN)

    def _put_incident(self, noted: RecordedOccurrence, evidence: Any) -> None:
        if self._noted is not None:
            evidence = self._noted(noted.incident, evidence)
        self.put(incident_row(noted, self._job, self._writer.incarnation.number, evidence))

    def _put_changes(self, changes: Sequence[IncidentChange]) -> None:
        for change in changes:
            self.put(change_row(change, self._writer.incarnation.number))
