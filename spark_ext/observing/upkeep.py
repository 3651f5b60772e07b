"""What a job does for its ledger on a thread of its own: maintenance, alert rules, and a look at the fence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import FencedError
from spark_ext.incidents.registry import AlertRule
from spark_ext.ledger import maintain
from spark_ext.ledger.columns import from_json_many
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow, JobRow
from spark_ext.masking import logger
from spark_ext.queries.restarts import UNREADABLE, Outage
from spark_ext.queries.worker import Outcome, Worker
from spark_ext.views.downtime import Availability, availability, downtime
from spark_ext.views.recorded import beats_of, rows_of
from spark_ext.views.timeline import timeline

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.write_behind import WriteBehind
    from spark_ext.queries.context import WatchContext

log = logger("spark_ext.job")

FENCE_EVERY = 5.0  # how often an incarnation checks that it is not fenced off, and that its registrations are there, s


SHORT_RUNS: Final = 10  # every 10th of incarnations that end before maintenance is due maintains the ledger at its end


class Upkeep:
    """The ledger's worker. Its methods are for the coordinator's thread, and do not block."""

    def __init__(self, context: WatchContext, ledger: Ledger, keep: Callable[[], None]) -> None:
        self._context = context
        self._ledger = ledger
        self._keep = keep
        self._worker = self._hired()
        self._maintained_at = self._fence_at = time.monotonic()
        self._maintained = False
        self._looks = 0
        self._asked = False
        rules = context.write_behind.incidents.registry.alerts
        self._alerts = Alerts(context.job, ledger, context.write_behind) if rules else None
        self._outage = Outage("the newest incarnation in the ledger", f"job '{context.job}'", context)

    @property
    def looking(self) -> bool:
        """Whether a look at the fence is under way, or one that was asked for has failed and is due again."""
        return self._looks > 0 or self._asked

    @property
    def busy(self) -> str:
        """What its thread is doing; "" when it has nothing to do."""
        return self._worker.busy

    def tick(self, now: float) -> None:
        """Begin what is due, and take in what has been done."""
        self._worker.deliver()
        again = (self._outage.on or self._asked) and self._outage.due(now)
        if (again or now - self._fence_at >= FENCE_EVERY) and not self._worker.busy:
            self._fence_at = now
            self._look()
        if now - self._maintained_at >= self._context.settings.maintenance_interval / 1000 and not self._worker.busy:
            self._maintained_at = now
            self._worker.do("maintenance", self._maintain, _maintained)
        if self._alerts is not None and self._alerts.due(now) and not self._worker.busy:
            self._worker.do("alert rules", partial(self._alerts.evaluate, now), _evaluated)

    def look_at_fence(self) -> None:
        """Find out whether a newer incarnation has been started; `tick` raises it."""
        self._asked = True
        self._look()

    def _look(self) -> None:
        self._looks += 1
        self._worker.do("a look at the fence", self._check_fence, self._looked)

    def maintain_late(self) -> None:
        """The job ends: the ledger is maintained now and then also if runs are always shorter than the interval.

        For the thread that writes the last rows.
        """
        if not self._maintained and self._context.incarnation.number % SHORT_RUNS == 0:
            self._maintain()

    def at_last(self, action: Callable[[], object], then: Callable[[Outcome[object]], None]) -> None:
        """Carry out the last command, behind what is under way."""
        self._worker.do("the end", action, then)

    def deliver(self) -> None:
        """Take in what has been done."""
        self._worker.deliver()

    def give_up(self) -> None:
        """Leave a command that does not answer behind; what comes next has a thread of its own."""
        if self._worker.busy:
            log.warning("job '%s' has ended without an answer to %s", self._context.job, self._worker.busy)
            self._worker.abandon(lambda: None)
            self._worker = self._hired()

    def close(self) -> None:
        """No further command comes."""
        self._worker.close()

    def _hired(self) -> Worker:
        return Worker(f"spark-ext-upkeep-{self._context.job}", self._context.wake.set)

    def _looked(self, outcome: Outcome[None]) -> None:
        self._looks -= 1
        if isinstance(outcome.error, UNREADABLE):
            lasting = self._outage.failed(outcome.error, time.monotonic())
            if lasting is not None:
                raise lasting
            return
        outcome.result()
        self._outage.over()
        self._asked = False

    def _maintain(self) -> None:
        self._maintained = True
        number = self._context.incarnation.number
        fence = self._context.incarnation.fence
        maintain(self._ledger, datetime.now(timezone.utc), fence=fence, turn=number // SHORT_RUNS)

    def _check_fence(self) -> None:
        self._keep()
        newest = self._ledger.newest_incarnation()
        if newest is not None and newest > self._context.incarnation.number:
            raise FencedError(
                f"incarnation {newest} of the job has been started; this is {self._context.incarnation.number}",
                operator=f"job '{self._context.job}'",
                kept="all committed epochs; the newer incarnation continues from them",
                do="let the newer one run; nothing has to be done here",
            )


def _evaluated(outcome: Outcome[None]) -> None:
    if outcome.error is not None:  # no job ends for it
        log.warning("could not evaluate the alert rules; will retry: %s", outcome.error)


def _maintained(outcome: Outcome[Any]) -> None:
    if isinstance(outcome.error, UNREADABLE):
        log.warning("maintenance failed; will retry: %s", outcome.error)
    else:
        outcome.result()


class Alerts:
    """Opens and resolves the incidents of alert rules. For one thread at a time."""

    def __init__(self, job: str, ledger: Ledger, write_behind: WriteBehind) -> None:
        self._operator = f"job '{job}'"
        self._ledger = ledger
        self._write_behind = write_behind
        self._rules = write_behind.incidents.registry.alerts
        self._due = dict.fromkeys(range(len(self._rules)), 0.0)

    def due(self, now: float) -> bool:
        """Whether a rule is due."""
        return any(at <= now for at in self._due.values())

    def evaluate(self, now: float) -> None:
        """Evaluate the rules that are due. Reads the ledger."""
        rules = [self._rules[number] for number, at in self._due.items() if at <= now]
        for number, at in self._due.items():
            if at <= now:
                self._due[number] = now + self._rules[number].every / 1000
        if not rules:
            return
        incidents = _incidents(self._ledger)
        jobs = rows_of(self._ledger, JobRow)
        states = rows_of(self._ledger, ExecutionStateRow)
        moment = datetime.now(timezone.utc)
        running = frozenset({self._write_behind.incarnation.number})
        found = downtime(timeline(states, jobs, alive=running, beats=beats_of(self._ledger, jobs)), incidents, moment)
        for rule in rules:
            self._judge(rule, availability(rule, found, incidents, moment))

    def _judge(self, rule: AlertRule, found: Availability) -> None:
        known = self._write_behind.incidents
        open_ = [
            entry.incident.incident_id
            for entry in known.open("")
            if (entry.incident.type, entry.incident.fingerprint) == (rule.type, rule.fingerprint)
        ]
        if found.low and not open_:
            self._write_behind.incident(
                self._operator,
                rule.type,
                f"the job was available for {found.share:.4%} of the time, down for {found.down:,.0f} s: {rule.name}",
                "none: until the share is reached again",
                {"share": found.share, "down_s": found.down, "rule": rule.rule},
                {name: ",".join(values) for name, values in rule.labels.items()},
                fingerprint=rule.fingerprint,
            )
        elif not found.low:
            for incident_id in open_:
                known.resolve(incident_id, f"available for {found.share:.4%} of the time")


def _incidents(ledger: Ledger) -> list[dict[str, Any]]:
    table = ledger.table(IncidentRow)
    rows: list[dict[str, Any]] = table.read(["incident_id", "at", "type", "operator", "labels"]).to_pylist()
    for row, labels in zip(rows, from_json_many([row["labels"] for row in rows], IncidentRow, "labels"), strict=True):
        row["labels"] = labels
    # Only these say by their evidence when they began; that of others may be large.
    lost = table.read(["incident_id", "at", "evidence"], [("type", "in", ["driver_lost", "stop_blocked"])]).to_pylist()
    evidence: Mapping[Any, Any] = dict(
        zip(
            [(row["incident_id"], row["at"]) for row in lost],
            from_json_many([row["evidence"] for row in lost], IncidentRow, "evidence"),
            strict=True,
        )
    )
    return [{**row, "evidence": evidence.get((row["incident_id"], row["at"]))} for row in rows]
