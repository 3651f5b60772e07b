"""The log of control events: any process accepts them, in one order.

Acceptance is a compare-and-swap on the version of the ledger's table `control_events`: whoever adds an event has seen
all earlier ones, so sequences follow the order of commits, and a planner that has seen one event has seen all before
it. It belongs to no incarnation, and needs no fence: events from outside may come while no driver runs. Many requests
are one commit.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from deltalake import Transaction

from spark_ext.control.known import KnownJob, Structure
from spark_ext.control.requests import Accepted, ControlRefused, Refusal, Request, fingerprint
from spark_ext.errors import StorageError
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.ledger.view import event_of
from spark_ext.model import json_schemas
from spark_ext.model.configuration import MAX_CONFIGURATION_BYTES, Configuration
from spark_ext.model.control import Delivery, Event, Scope, Target
from spark_ext.model.control_kinds import BadValue, Kind, Where, checked, kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_ext.delta.fence import Guard, Held
    from spark_ext.ledger import Ledger

ATTEMPTS = 40
"""Attempts to add events; each one lost means that another process has added some."""


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


@dataclass(frozen=True)
class _Checked:
    """A request whose kind, target and value are known to be good."""

    request: Request
    kind: Kind
    target: Target
    value: object
    delivery: Delivery
    expires_ms: int | None
    fingerprint: str


class ControlLog:
    """Accepts control events. Safe for several threads; any number of processes may have one.

    Args:
        ledger: the job's.
        fence: of the incarnation on behalf of which events are accepted; None for everybody else.
        queries: further queries that the job has and its ledger does not know yet, for targets.
    """

    def __init__(self, ledger: Ledger, fence: Guard | None = None, queries: Sequence[str] = ()) -> None:
        self._ledger = ledger
        self._table = ledger.table(ControlEventRow)
        self._fence = fence
        self._queries = tuple(queries)
        self._lock = threading.RLock()
        self._version: int | None = None
        """Version of the table up to which everything is known."""
        self._last = 0
        self._keys: dict[str, tuple[str, Event]] = {}
        self._configuration = Configuration()
        self._known = KnownJob()
        self._structure = Structure(ledger)

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def who(self) -> str:
        """The job, for messages."""
        return f"job '{self._known.name}'" if self._known.name else f"state {self._ledger.uri}"

    def known(self) -> KnownJob:
        """The job's structure as the ledger has it now; read again only when a table of it has changed.

        Raises:
            StateError, StorageError: the ledger cannot be read.
        """
        with self._lock:
            self._known = self._structure.look()
            return self._known

    def configuration(self) -> Configuration:
        """What is in force behind the newest event.

        Raises:
            StateError, StorageError: the table cannot be read.
        """
        with self._lock:
            self._look()
            return self._configuration

    def _look(self) -> None:
        """Take in what others have added."""
        self._table.refresh()
        while self._table.version != self._version:
            version = self._table.version
            rows = self._table.rows([("sequence", ">", self._last)])
            if self._table.version == version:  # else some were added while it was read
                for row in sorted(rows, key=lambda row: row.sequence):
                    if row.status == "accepted":
                        self._take(row)
                    self._last = max(self._last, row.sequence)
                self._version = version

    def _take(self, row: ControlEventRow) -> None:
        event = event_of(row)
        self._last = max(self._last, event.sequence)
        self._configuration = self._configuration.after([event])
        if row.idempotency_key:
            self._keys[row.idempotency_key] = row.fingerprint or "", event

    # -- accepting ----------------------------------------------------------------------------------------------------

    def accept(self, requests: Sequence[Request]) -> list[Accepted | ControlRefused]:
        """Accept requests, in one commit; those that are refused keep none of the others from being accepted.

        On return what was accepted survives any crash.

        Args:
            requests: in the order that they are to have.

        Returns:
            For each what became of it, in the same order.

        Raises:
            StateError, StorageError: the ledger cannot be read or written; whether the events are in it is then not
            known,
                unless they have idempotency keys, with which the requests may be repeated.
            FencedError: a newer incarnation owns the ledger, for a log with a fence.
        """
        with self._lock:
            found: list[_Checked | ControlRefused] = []
            for request in requests:
                try:
                    found.append(self.check(request))
                except ControlRefused as refused:
                    found.append(refused)
            return self._add(found)

    def check(self, request: Request) -> _Checked:
        """Check all of a request that does not depend on other events.

        Raises:
            ControlRefused: says what is wrong.
            StateError, StorageError: the ledger cannot be read.
        """
        who = f"{self.who}, {request.kind} for {request.target}"
        kind = kinds().get(request.kind)
        if kind is None or not (kind.public or request.origin == "job"):
            public = ", ".join(sorted(name for name, one in kinds().items() if one.public))
            raise ControlRefused.because(
                Refusal.UNKNOWN_KIND, f"there is no kind of event {request.kind!r}", who, f"use one of: {public}"
            )
        try:
            target = Target.parse(request.target)
        except ValueError as problem:
            raise ControlRefused.because(Refusal.MALFORMED, str(problem), who, "write one of these forms") from None
        if request.delivery not in (Delivery.IMMEDIATE.value, Delivery.ALIGNED.value):
            raise ControlRefused.because(
                Refusal.MALFORMED, f"{request.delivery!r} is not a delivery", who, "use immediate or aligned"
            )
        delivery = Delivery(request.delivery)
        if request.idempotency_key is not None and not 0 < len(request.idempotency_key) <= 200:
            raise ControlRefused.because(
                Refusal.MALFORMED, "the idempotency key is empty or too long", who, "use 1 to 200 characters"
            )
        try:
            value = checked(kind, target, request.value)
        except BadValue as problem:
            raise ControlRefused.because(
                Refusal.BAD_VALUE, str(problem), who, f"correct it; an example: {json.dumps(kind.example)}"
            ) from None
        if delivery is Delivery.ALIGNED and not (kind.standing and kind.where is Where.EPOCH):
            raise ControlRefused.because(
                Refusal.BAD_VALUE, f"{kind.name} cannot be delivered at one cut of all queries", who, "use immediate"
            )
        expires = None
        if request.expires_at is not None:
            if request.expires_at.tzinfo is None:
                raise ControlRefused.because(
                    Refusal.MALFORMED, "expires_at has no time zone", who, "give a time in UTC, such as ...T12:00:00Z"
                )
            expires = int(request.expires_at.timestamp() * 1000)
        self._check_job(kind, target, who)
        mark = fingerprint(kind.name, target, value, delivery, expires)
        return _Checked(request, kind, target, value, delivery, expires, mark)

    def _check_job(self, kind: Kind, target: Target, who: str) -> None:
        job = self.known()
        if not job.name:
            raise ControlRefused.because(
                Refusal.NO_JOB, f"no job was ever started in {self._ledger.uri}", who, "check the state directory"
            )
        late = target.scope is Scope.QUERY and target.uid in self._queries
        concerned = job.queries_of(target)
        if not concerned and not late and target.scope is not Scope.JOB:
            there = [f"query:{uid}" for uid in job.queries]
            there += [f"source:{uid}" for query in job.queries.values() for uid in sorted(query.sources)]
            raise ControlRefused.because(
                Refusal.UNKNOWN_TARGET,
                f"the job has no {target}",
                who,
                f"use job, or one of: {', '.join(sorted(there)[:20])}",
            )
        if concerned and not late and all(job.queries[uid].finished for uid in concerned) and kind.public:
            raise ControlRefused.because(
                Refusal.ENDED,
                "the job has finished" if job.finished else f"query '{concerned[0]}' has finished",
                who,
                "nothing is left to be changed; a new input needs a new job, or job.reset(...)",
            )
        if kind.while_running and job.running is False and self._fence is None:
            raise ControlRefused.because(
                Refusal.ENDED, f"the job does not run, and {kind.name} is for one that does", who, "start the job first"
            )

    def _add(self, found: Sequence[_Checked | ControlRefused]) -> list[Accepted | ControlRefused]:
        for attempt in range(ATTEMPTS):
            self._look()
            # A start commits to this table too: what is known of the newest one holds if the swap succeeds.
            self.known()
            now = datetime.now(timezone.utc)
            base = self._last
            out: list[Accepted | ControlRefused] = []
            rows: list[ControlEventRow] = []
            keys: dict[str, tuple[str, Event]] = {}
            after = self._configuration
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
                try:
                    after = self._moved(after, one, event, now)
                except ControlRefused as refused:
                    out.append(refused)
                    continue
                rows.append(self._row(one, event, now))
                out.append(Accepted(event))
                if key:
                    keys[key] = one.fingerprint, event
            if not rows:
                return out
            if self._swap(rows):
                return out
            # Another process was faster: those that meet again and again wait at random.
            time.sleep(random.uniform(0, min(0.1, 0.005 * (attempt + 1))))
        raise StorageError(
            f"the event could not be added: other processes were faster, {ATTEMPTS} times in a row",
            operator=self.who,
            kept="the job continues as it was; nothing was accepted",
            do="send the request again; use one server for all clients",
        )

    def _swap(self, rows: Sequence[ControlEventRow], numbers: Mapping[str, int] | None = None) -> bool:
        expected = self._version
        if expected is None:
            self._table.create()
            return False
        carried = _With(self._fence, tuple((numbers or {}).items()))
        if not self._table.compare_and_swap(rows, expected, carried if carried.transactions else None):
            return False
        # Nothing came between, so what was added is all that is new.
        for row in rows:
            self._take(row)
        if self._table.version == expected + 1:
            self._version = self._table.version
        return True

    def _repeated(self, one: _Checked, mark: str, event: Event) -> Accepted | ControlRefused:
        if mark == one.fingerprint:
            return Accepted(event, repeated=True)
        return ControlRefused.because(
            Refusal.KEY_REUSED,
            f"the idempotency key was given to another request, event {event.event_id}",
            f"{self.who}, {one.kind.name} for {one.target}",
            "use a new key for a new request",
        )

    def _event(self, one: _Checked, sequence: int, now: datetime) -> Event:
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
        )

    def _moved(self, before: Configuration, one: _Checked, event: Event, now: datetime) -> Configuration:
        """The configuration behind an event.

        Raises:
            ControlRefused: it cannot be added to what is in force.
        """
        who = f"{self.who}, {one.kind.name} for {one.target}"
        if event.expires_ms is not None and event.expires_ms <= now.timestamp() * 1000:
            raise ControlRefused.because(
                Refusal.EXPIRED, "expires_at is in the past", who, "give a later time, and check the clocks"
            )
        if one.kind.name == "set_config":
            self._check_schema(before, event, who)
        after = before.after([event])
        if one.kind.standing and len(json.dumps(after.to_json())) > MAX_CONFIGURATION_BYTES:
            raise ControlRefused.because(
                Refusal.BAD_VALUE,
                f"the job's configuration would be larger than {MAX_CONFIGURATION_BYTES} bytes",
                who,
                "remove keys with unset, or keep large values in a file or table, and its name here",
            )
        return after

    def _check_schema(self, before: Configuration, event: Event, who: str) -> None:
        declared = before.of("config_schema", Target(), event.value["key"])
        if declared is None or event.value.get("unset"):
            return
        wrong = json_schemas.problem_of(declared["schema"], event.value.get("value"))
        if wrong is not None:
            raise ControlRefused.because(
                Refusal.BAD_VALUE,
                f"the value of '{event.value['key']}' does not conform to its schema: {wrong}",
                who,
                "correct the value, or declare another schema with config_schema",
            )

    def _row(self, one: _Checked, event: Event, now: datetime) -> ControlEventRow:
        return ControlEventRow(
            event_id=event.event_id,
            sequence=event.sequence,
            kind=event.kind,
            target=str(event.target),
            value=event.value,
            status="accepted",
            query="",
            epoch=None,
            lineage=event.lineage,
            incarnation=event.incarnation,
            at=now,
            reason="",
            delivery=event.delivery.value,
            idempotency_key=one.request.idempotency_key,
            fingerprint=one.fingerprint,
            expires_at=one.request.expires_at and one.request.expires_at.astimezone(timezone.utc),
            requested_by=one.request.requested_by,
            origin=one.request.origin,
        )

    # -- numbers that the table holds ---------------------------------------------------------------------------------

    def _number(self, name: str) -> int | None:
        with self._table.opened() as handle:
            return None if handle is None else handle.transaction_version(name)

    def accept_emitted(self, requests: Sequence[Request], mark: str, number: int) -> list[Event]:
        """Accept what functions have emitted in an epoch, once: the table holds the newest epoch in the same commit.

        Args:
            requests: in their order; their values were checked where they were emitted.
            mark: names the query and its lineage.
            number: of the epoch; one that is not above that in the table was accepted before.

        Returns:
            The events; none if they were accepted before.

        Raises:
            StateError, StorageError: the ledger cannot be read or written; repeat it.
            FencedError: a newer incarnation owns the ledger.
        """
        with self._lock:
            for _ in range(ATTEMPTS):
                self._look()
                held = self._number(mark)
                if held is not None and held >= number:
                    return []
                now = datetime.now(timezone.utc)
                base = self._last
                self.known()
                made = []
                for offset, request in enumerate(requests, 1):
                    kind, target = kinds()[request.kind], Target.parse(request.target)
                    one = _Checked(request, kind, target, request.value, Delivery.IMMEDIATE, None, "")
                    made.append((one, self._event(one, base + offset, now)))
                if self._swap([self._row(one, event, now) for one, event in made], {mark: number}):
                    return [event for _, event in made]
        raise StorageError(
            "emitted events could not be added: other processes were faster",
            operator=self.who,
            kept="they are in the state directory, and are added later",
            do="no action is needed",
        )
