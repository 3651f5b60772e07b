"""The incidents of a job: its types and listeners, what earlier starts have left open, and what listeners are given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import SparkExtError, refused
from spark_ext.incidents.dispatch import Dispatcher
from spark_ext.incidents.dispatch import Notified as Listener
from spark_ext.incidents.loading import listeners_of
from spark_ext.incidents.registry import OF_A_RULE, Registry, load
from spark_ext.incidents.types import IncidentChange, LifecycleEvent, MetricsContext
from spark_ext.ledger import heartbeat
from spark_ext.ledger.incidents import Notified, heirs, remembered
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, JobRow
from spark_ext.masking import logger, mask

if TYPE_CHECKING:
    from spark_ext.failures.classifier import Classifier
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.identity import Incarnation
    from spark_ext.ledger.memory import JobMemory
    from spark_ext.ledger.write_behind import WriteBehind
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.queries.watched import Watchable

log = logger("spark_ext.job")

NO_HEIR: Final = "its query was reset, restored or removed since: nothing continues its history"
NO_RULE: Final = "its alert rule is not configured any more"
HAD_FINISHED: Final = "its query had finished"
REPORTED: Final = "reported by the user"
LONGEST: Final = 10_000  # characters of the text and of each label of a user's incident that are kept


class JobIncidents:
    """What one start of a job needs for its incidents."""

    def __init__(self, registry: Registry, listeners: list[Listener]) -> None:
        self.registry = registry
        self._listeners = listeners
        self._job: str | None = None
        self._number: int | None = None
        self._runs: Callable[[], Sequence[Watchable]] = tuple
        self._metrics: JobMetrics | None = None
        self._incarnations: dict[str, int] = {}

    @classmethod
    def load(cls, path: str | None, classifier: Classifier) -> JobIncidents:
        """From a job's setting `incidents`; the classifier knows the types of failures."""
        registry = load(path)
        registry.refuse_unknown_failures(classifier.types)
        return cls(registry, listeners_of(registry))

    def dispatcher(
        self,
        job: str,
        state: str,
        incarnation: int,
        runs: Callable[[], Sequence[Watchable]],
        metrics: JobMetrics | None,
    ) -> Dispatcher | None:
        """Delivers changes and events to the listeners, with figures of the queries; None without listeners."""
        self._job, self._number, self._runs, self._metrics = job, incarnation, runs, metrics
        notified = Notified(state, self.registry.listeners_id)
        return Dispatcher.of(self.registry, self._listeners, self.context, notified.take)

    # -- across starts ------------------------------------------------------------------------------------------------

    def inherit(self, ledger: Ledger, write_behind: WriteBehind) -> None:
        """Take over what earlier starts have left. Incidents are history: what cannot be read keeps no job from it."""
        window = max(one.window for one in self.registry.types.values())
        newer_than = datetime.now(timezone.utc) - timedelta(milliseconds=window)
        try:
            found, self._incarnations = remembered(ledger, newer_than)
        except SparkExtError as problem:
            log.warning("incidents of earlier starts of job '%s' stay open: %s", self._job, problem)
            return
        write_behind.incidents.inherit(found)

    def adopt(self, memory: JobMemory, queries: Collection[str], write_behind: WriteBehind) -> None:
        """Give what was left open to the queries of this start that continue its history; resolve the rest."""
        if not self._incarnations:
            return
        self.forget_rules(write_behind)
        found = heirs(write_behind.incidents.open(), self._incarnations, memory.lineages, queries)
        write_behind.incidents.adopt(found, NO_HEIR)
        ended = {query for query in queries if memory.of(query).finished}
        write_behind.incidents.adopt({one: None for one, query in found.items() if query in ended}, HAD_FINISHED)

    def forget_rules(self, write_behind: WriteBehind) -> None:
        """Resolve what was left open of alert rules that are not configured any more."""
        rules = {rule.fingerprint for rule in self.registry.alerts}
        for entry in write_behind.incidents.open(""):
            if entry.incident.fingerprint.startswith(OF_A_RULE) and entry.incident.fingerprint not in rules:
                write_behind.incidents.resolve(entry.incident.incident_id, NO_RULE)

    # -- what listeners are given -------------------------------------------------------------------------------------

    def context(self, subject: IncidentChange | LifecycleEvent) -> MetricsContext:
        """What is known of the job now; for any thread."""
        query = subject.query or None
        run = next((run for run in self._runs() if run.uid == query), None)
        known: dict[str, Any] = {"job": self._job, "incarnation": self._number, "query": query}
        if self._metrics is not None:
            known["reports"] = self._metrics.report
        if run is None:
            return MetricsContext(**known)
        return MetricsContext(
            **known,
            epoch=run.committed if run.committed >= 0 else None,
            rows=run.figures.input_rows,
            lag=run.figures.lag.rows,
        )


class UserIncidents:
    """Incidents of a user's own types.

    `running` returns what takes them, given the name of the caller for messages; raises `StateError` when the job does
    not run.
    """

    def __init__(self, job: str, registry: Registry, running: Callable[[str], WriteBehind]) -> None:
        self._job, self._registry, self._running = job, registry, running

    def report(
        self, type: str, what: str, query: str | None, labels: Mapping[str, str], queries: Collection[str]
    ) -> str:
        """See `Job.report_incident`."""
        operator = f"job '{self._job}'"
        who = f"{operator}, incident '{type}'"
        self._registry.refuse_undeclared(type, who)
        if query is not None and query not in queries:
            do = f"use one of: {', '.join(queries) or 'none yet'}"
            raise refused(f"the job has no query '{query}'", who, do, kept="nothing was reported")
        if query is not None:
            operator += f", query '{query}'"
        given = {mask(str(name))[:LONGEST]: mask(str(value))[:LONGEST] for name, value in labels.items()}
        return self._running(who).incident(operator, type, mask(str(what))[:LONGEST], REPORTED, labels=given)

    def resolve(self, incident_id: str, cause: str) -> bool:
        """See `Job.resolve_incident`."""
        who = f"job '{self._job}', incident '{incident_id[:8]}'"
        incidents = self._running(who).incidents
        entry = incidents.entry(incident_id)
        if entry is not None:
            self._registry.refuse_undeclared(entry.incident.type, who)
        return incidents.resolve(incident_id, cause or REPORTED)


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
