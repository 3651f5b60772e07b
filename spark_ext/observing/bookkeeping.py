"""What writes for one incarnation of a job or Observer: made first, before anything is read or started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_ext.failures.classifier import load
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.heartbeat import Heartbeat
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.observing.dumps import Dumps
from spark_ext.observing.job_incidents import JobIncidents, record_lost_driver
from spark_ext.observing.lifecycle_events import LifecycleEvents
from spark_ext.observing.monitor import Monitor
from spark_ext.observing.sampler import Sampler
from spark_ext.queries.context import WatchContext
from spark_ext.queries.history import vitals
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.model.latency import Marker
    from spark_ext.queries.watched import Watchable
    from spark_ext.settings import JobSettings

Watched = Callable[[], Sequence["Watchable"]]  # the queries, as they are now; for any thread


@dataclass(frozen=True)
class Bookkeeping:
    """The parts that write."""

    spark: SparkSession
    ledger: Ledger
    writer: LedgerWriter
    incidents: JobIncidents
    dumps: Dumps
    context: WatchContext
    watched: Watched
    metrics: JobMetrics | None  # None: nobody wants them
    events: LifecycleEvents | None  # None: no listener is configured for any

    def begin_events(self) -> None:
        """Tell the listeners of lifecycle events of this start, and of what was done to the job before it."""
        if self.events is not None:
            self.events.begin(self.ledger.jobs())

    def arrived(self, marker: Marker) -> None:
        """Take a latency marker that has passed a commit."""
        if self.metrics is not None and self.context.settings.latency == "histogram":
            self.metrics.tap(marker)
        if self.events is not None:
            self.events.tap(marker)

    def inherit(self) -> None:
        """Take over incidents of earlier starts, and record a driver that was lost."""
        self.incidents.inherit(self.ledger, self.context.write_behind)
        record_lost_driver(self.ledger, self.context.incarnation, self.context.write_behind)

    def pollers(self) -> tuple[Monitor | Sampler, ...]:
        """The threads that poll Spark, by the settings; to be started."""
        settings, given = self.context.settings, (self.spark, self.context, self.watched)
        monitor = (Monitor(*given),) if settings.monitor_interval else ()
        return (*monitor, Sampler(*given)) if settings.epoch_parts else monitor


def begin_bookkeeping(
    spark: SparkSession,
    name: str,
    ledger: Ledger,
    settings: JobSettings,
    watched: Watched,
    metrics: JobMetrics | None,
    *,
    takeover: bool,
    other_hosts: bool = False,
    kind: str = "",
) -> Bookkeeping:
    """Take the next incarnation of a job or Observer. Metrics and listeners are made of the rows that it writes."""
    # Before an incarnation is taken: one that is not needed would have to be ended.
    classifier = load(settings.failures)
    incidents = JobIncidents.load(settings.incidents, classifier)
    dumps = Dumps(spark, name, ledger.uri, settings, watched)
    incarnation = start_incarnation(
        ledger,
        name,
        takeover=takeover,
        jvm_pid=backend_of(spark).jvm_pid(spark),
        application_id=backend_of(spark).application_id(spark),
        kind=kind,
        other_hosts=other_hosts,
    )
    writer = LedgerWriter(ledger, incarnation)
    heartbeat = Heartbeat(ledger.uri, incarnation) if settings.heartbeat else None
    if heartbeat is not None:
        heartbeat.beat()
    dispatcher = incidents.dispatcher(name, ledger.uri, incarnation.number, watched, metrics)
    told = dispatcher is not None and dispatcher.wanted
    events = LifecycleEvents(incarnation, dispatcher, watched) if dispatcher is not None and told else None
    taps = [one.tap for one in (metrics, events) if one is not None]
    write_behind = WriteBehind(
        writer,
        name,
        heartbeat,
        settings.heartbeat / 1000,
        registry=incidents.registry,
        dispatcher=dispatcher,
        tap=partial(_tap, taps) if taps else None,
        noted=None if settings.dumps == "off" else dumps.noted,
        vitals=lambda: vitals((query.uid, query.figures) for query in watched()),
    )
    context = WatchContext(
        name,
        incarnation.job_id,
        ledger.uri,
        settings,
        incarnation,
        write_behind,
        threading.Event(),
        classifier=classifier,
    )
    return Bookkeeping(spark, ledger, writer, incidents, dumps, context, watched, metrics, events)


def _tap(taps: Sequence[Callable[[Any], None]], row: Any) -> None:
    for tap in taps:
        tap(row)
