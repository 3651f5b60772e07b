"""The log of control events: any process accepts them, in one order.

Acceptance is a compare-and-swap on the version of the ledger's table `control_events`: a process that adds an event has
seen all earlier ones, so sequences follow the order of commits, and a planner that has seen one event has seen all
before it. The table belongs to no incarnation and needs no fence, as events may arrive while no driver runs. One commit
accepts many requests.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from deltalake import Transaction

from spark_ext.control.checks import Checked, check_request, moved, note_of, size_of
from spark_ext.control.known import KnownJob, Structure
from spark_ext.control.requests import Accepted, ControlRefused, Refusal, Request
from spark_ext.errors import StateError, StorageError
from spark_ext.ledger.maintenance import compact
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow
from spark_ext.ledger.tables import checkpoint_due
from spark_ext.ledger.view import event_of
from spark_ext.masking import logger
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Delivery, Event, Target
from spark_ext.model.control_kinds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_ext.delta.transactions import Guard, Held
    from spark_ext.ledger import Ledger

log = logger("spark_ext.control")

POLLS = 3  # reads of one look, while other processes add events
SMALL_FILES = 256  # number of files of the table from which acceptors compact it: each commit of events is one
ATTEMPTS = 40  # attempts to add events; each one lost means that another process has added some


@dataclass(frozen=True)
class _With:
    """What a commit carries beside its rows: a fence, and numbers under application ids."""

    guard: Guard | None = None
    numbers: tuple[tuple[str, int], ...] = ()

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        carried = tuple(Transaction(name, number) for name, number in self.numbers)
        return carried if self.guard is None else (*self.guard.transactions, *carried)

    def check(self, held: Held, operator: str) -> None:
        if self.guard is not None:
            self.guard.check(held, operator)


class ControlLog:
    """Accepts control events. Safe for several threads; any number of processes may have one.

    `fence` is that of the incarnation that accepts events; None outside a job. `queries` are queries that the ledger
    does not know yet. `checkpoint` is called on a thread that adds events when a checkpoint of the table's log is due,
    and has `checkpoint_log` called on another one; without it the call that adds the event makes the checkpoint.
    """

    def __init__(
        self,
        ledger: Ledger,
        fence: Guard | None = None,
        queries: Sequence[str] = (),
        *,
        checkpoint: Callable[[], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._checkpoint = checkpoint
        self._table = ledger.table(ControlEventRow)
        self._fence = fence
        self._queries = tuple(queries)
        self._lock = threading.RLock()
        self._version: int | None = None  # version of the table up to which everything is known
        self._last = 0
        self._keys: dict[str, tuple[str, Event]] = {}
        self._configuration = Configuration()
        self._size = 0  # no less than the bytes of the configuration
        self._known = KnownJob()
        self._structure = Structure(ledger)

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def operator(self) -> str:
        """The job, for messages."""
        return f"job '{self._known.name}'" if self._known.name else f"state {self._ledger.uri}"

    def known(self) -> KnownJob:
        """The job's structure as the ledger has it now; read again only when a table of it has changed."""
        with self._lock:
            self._known = self._structure.poll()
            return self._known

    def configuration(self) -> Configuration:
        """What is in force behind the newest event."""
        with self._lock:
            self._poll()
            return self._configuration

    def _poll(self) -> None:
        """Take in what others have added.

        The first look reads all, which may take longer than it takes others to add some: what was read is kept, so that
        the next one reads only what is new. It ends when nothing came meanwhile, or after a few looks.
        """
        self._table.refresh()
        for _ in range(POLLS):
            if self._table.version == self._version:
                return
            version = self._table.version
            # Perhaps also of a newer version: they are in their order, so none before them is missing.
            rows = self._table.rows([("sequence", ">", self._last)])
            void = self._expired(rows)
            for row in sorted(rows, key=lambda row: row.sequence):
                if row.status == "accepted":
                    self._take(row, stands=row.event_id not in void)
                self._last = max(self._last, row.sequence)
            self._version = version

    def compact(self) -> None:
        """Keep the table small, where no driver does; what fails is done by a later call, or another process."""
        with self._lock:
            try:
                for _ in compact(self._table, SMALL_FILES):
                    log.info("%s: compacted control_events", self.operator)
            except (StateError, StorageError) as problem:
                log.warning("%s: could not compact control_events; will retry: %s", self.operator, problem)

    def checkpoint_log(self) -> None:
        """Checkpoint the log of the table, while other threads add events; what fails is made up for by a later one."""
        try:
            self._table.checkpoint_log()
        except (StateError, StorageError) as problem:
            log.warning("%s: could not checkpoint the log of control_events; will retry: %s", self.operator, problem)

    def _expired(self, rows: Sequence[ControlEventRow]) -> set[str]:
        """Those of some events whose time was over before anybody obeyed them: nothing of them stands."""
        now = datetime.now(timezone.utc)
        late = [row.event_id for row in rows if row.expires_at is not None and row.expires_at <= now]
        obeyed: set[str] = set()
        for start in range(0, len(late), 500):
            where = [("event_id", "in", late[start : start + 500]), ("status", "in", ["applied", "acknowledged"])]
            obeyed.update(row.event_id for row in self._ledger.table(ControlTransitionRow).rows(where))
        return {*late} - obeyed

    def _take(self, row: ControlEventRow, *, stands: bool = True) -> None:
        event = event_of(row)
        self._last = max(self._last, event.sequence)
        if stands:
            self._configuration = self._configuration.after([event])
            self._size += size_of(event)
        if row.idempotency_key:
            self._keys[row.idempotency_key] = row.fingerprint or "", event

    # -- accepting ----------------------------------------------------------------------------------------------------

    def accept(self, requests: Sequence[Request]) -> list[Accepted | ControlRefused]:
        """Accept requests, in their order and in one commit; returns what became of each.

        A refused one hinders no other. On return what was accepted survives any crash. After a StateError or
        StorageError it is not known whether the events are in the ledger; requests with idempotency keys may be
        repeated. FencedError: a newer incarnation owns the ledger.
        """
        with self._lock:
            found: list[Checked | ControlRefused] = []
            for request in requests:
                try:
                    found.append(self.check(request))
                except ControlRefused as refused:
                    found.append(refused)
            return self._add(found)

    def accepted(self, idempotency_key: str) -> Event | None:
        """The event that was accepted with a key, by whichever process, or None."""
        with self._lock:
            self._poll()
            found = self._keys.get(idempotency_key)
            return None if found is None else found[1]

    def check(self, request: Request) -> Checked:
        """Check all of a request that does not depend on other events; raises ControlRefused."""
        job = self.known()
        if not job.name:
            raise ControlRefused.because(
                Refusal.NO_JOB,
                f"no job was ever started in {self._ledger.uri}",
                self.operator,
                "check the state directory",
            )
        if job.observer:
            raise ControlRefused.because(
                Refusal.OBSERVED,
                f"'{job.name}' is an Observer: it watches queries that others have started, and changes nothing",
                f"{self.operator}, {request.kind} for {request.target}",
                "ask the owner of the query; only queries of a Job follow control events",
            )
        return check_request(request, job, self._queries, by_driver=self._fence is not None)

    def _add(self, found: Sequence[Checked | ControlRefused]) -> list[Accepted | ControlRefused]:
        for attempt in range(ATTEMPTS):
            self._poll()
            # A start commits to this table too: what is known of the newest one holds if the swap succeeds.
            self.known()
            now = datetime.now(timezone.utc)
            base = self._last
            out: list[Accepted | ControlRefused] = []
            rows: list[ControlEventRow] = []
            keys: dict[str, tuple[str, Event]] = {}
            after, size = self._configuration, self._size
            for one in found:
                if isinstance(one, ControlRefused):
                    out.append(one)
                    continue
                key = one.request.idempotency_key
                before = (keys.get(key) or self._keys.get(key)) if key else None
                if before is not None:
                    out.append(self._repeated(one, *before))
                    continue
                event = self._event(one, base + len(rows) + 1, now)
                note = note_of(after, event, self._known)
                try:
                    after, size = moved(after, size, one, event, now, self._known, self.operator)
                except ControlRefused as refused:
                    out.append(refused)
                    continue
                rows.append(self._row(one, event, now))
                out.append(Accepted(event, note=note))
                if key:
                    keys[key] = one.fingerprint, event
            if not rows:
                return out
            if self._swap(rows):
                self._size = size
                return out
            # Another process was faster: those that meet again and again wait at random.
            time.sleep(random.uniform(0, min(0.1, 0.005 * (attempt + 1))))
        raise StorageError(
            f"the event could not be added: other processes were faster, {ATTEMPTS} times in a row",
            operator=self.operator,
            kept="the job continues as it was; nothing was accepted",
            do="send the request again; use one server for all clients",
        )

    def _swap(self, rows: Sequence[ControlEventRow], numbers: Mapping[str, int] | None = None) -> bool:
        expected = self._version
        if expected is None:
            self._table.create()
            return False
        carried = _With(self._fence, tuple((numbers or {}).items()))
        guard = carried if carried.transactions else None
        if not self._table.compare_and_swap(rows, expected, guard, checkpoint=self._checkpoint is None):
            return False
        # Nothing came between, so what was added is all that is new.
        for row in rows:
            self._take(row)
        if self._table.version == expected + 1:
            self._version = self._table.version
        if self._checkpoint is not None and checkpoint_due(expected, expected + 1):
            self._checkpoint()
        return True

    def _repeated(self, one: Checked, mark: str, event: Event) -> Accepted | ControlRefused:
        if mark == one.fingerprint:
            return Accepted(event, repeated=True)
        return ControlRefused.because(
            Refusal.KEY_REUSED,
            f"the idempotency key was given to another request, event {event.event_id}",
            f"{self.operator}, {one.kind.name} for {one.target}",
            "use a new key for a new request",
        )

    def _event(self, one: Checked, sequence: int, now: datetime) -> Event:
        return Event(
            sequence,
            uuid.uuid4().hex,
            one.kind.name,
            one.target,
            one.value,
            one.delivery,
            self._known.lineage,
            self._known.incarnation,
            int(now.timestamp() * 1000),
            one.expires_ms,
            one.request.origin.startswith("rest"),
        )

    def _row(self, one: Checked, event: Event, now: datetime) -> ControlEventRow:
        return ControlEventRow(
            event_id=event.event_id,
            sequence=event.sequence,
            kind=event.kind,
            target=str(event.target),
            value=event.value,
            status="accepted",
            lineage=event.lineage,
            incarnation=event.incarnation,
            at=now,
            reason=one.request.reason,
            delivery=event.delivery.value,
            idempotency_key=one.request.idempotency_key,
            fingerprint=one.fingerprint,
            expires_at=one.request.expires_at and one.request.expires_at.astimezone(timezone.utc),
            requested_by=one.request.requested_by,
            origin=one.request.origin,
        )

    def accept_emitted(self, requests: Sequence[Request], mark: str, number: int) -> list[Event]:
        """Accept what functions have emitted in an epoch, once: the table holds the newest epoch in the same commit.

        `mark` names the query and its lineage; `number` is that of the epoch. If it is not above that in the table, the
        events were accepted before, and none are returned. Values were checked where they were emitted. After an error,
        repeat it.
        """
        with self._lock:
            for _ in range(ATTEMPTS):
                self._poll()
                with self._table.opened() as handle:
                    held = None if handle is None else handle.transaction_version(mark)
                if held is not None and held >= number:
                    return []
                now = datetime.now(timezone.utc)
                base = self._last
                self.known()
                made = []
                for offset, request in enumerate(requests, 1):
                    kind, target = kinds()[request.kind], Target.parse(request.target)
                    one = Checked(request, kind, target, request.value, Delivery.IMMEDIATE, None, "")
                    made.append((one, self._event(one, base + offset, now)))
                if self._swap([self._row(one, event, now) for one, event in made], {mark: number}):
                    return [event for _, event in made]
        raise StorageError(
            "emitted events could not be added: other processes were faster",
            operator=self.operator,
            kept="they are in the state directory, and will be added later",
            do="no action is needed",
        )
