"""What an Observer does while it is added to a session: one thread that takes events, looks, and writes what it sees.

It decides nothing: it never stops or starts a query. What it cannot learn from an event it finds by looking: once a
second at the queries that run, and several times a second at what they have committed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.errors import FencedError, SparkExtError
from spark_ext.ledger import Ledger
from spark_ext.ledger.identity import FIRST_LINEAGE, OBSERVER
from spark_ext.masking import logger
from spark_ext.metrics.exporters import measured
from spark_ext.metrics.gauges import Live, QueryFacts
from spark_ext.model.execution import Shown, job_execution
from spark_ext.model.lifecycle import State
from spark_ext.observing.bookkeeping import begin_bookkeeping
from spark_ext.observing.foreign_query import ForeignQuery, Run, failure_of
from spark_ext.observing.identity import Memory, assigned
from spark_ext.observing.upkeep import Upkeep
from spark_ext.queries.spark_query import lost_spark
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.checkpoint_directory import is_of_job
from spark_ext.spark.watching import attendance, worker_daemon
from spark_ext.spark.watching.query_events import event_time, hint_of, known_lags, lags_at
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

    from spark_ext.queries.context import WatchContext
    from spark_ext.settings import JobSettings

log = logger("spark_ext.observing")

CAPACITY: Final = 4_096  # events that may wait


@dataclass(frozen=True)
class Report:
    """An epoch is done: Spark's JSON."""

    text: str


@dataclass(frozen=True)
class Over:
    """A run has ended."""

    run_id: str


Event = Run | Report | Over


class Inbox:
    """Spark's events about queries of others, on their way to the observing thread: a bounded queue.

    Spark delivers events of all listeners on one thread, and the event of a start on the query's own thread, which
    waits. So methods never wait and never raise: an event that finds no room is counted, and the next poll finds what
    it would have said.

    `state`, the Observer's state directory, is lent to the tasks of queries so that they can be asked for stacks; "":
    they are not. `parts`: tasks of queries are to say how long the user's code ran.
    """

    def __init__(
        self,
        spark: SparkSession,
        streams: StreamingQueryManager,
        state: str,
        wake: threading.Event,
        capacity: int = CAPACITY,
        *,
        parts: bool = False,
    ) -> None:
        self.dropped = 0  # events that found no room
        self._spark, self._backend = spark, backend_of(spark)
        self._streams = streams
        self._lent = {worker_daemon.TIMES: "true"} if parts else {}
        self._state = state
        self._wake = wake
        self._events: queue.Queue[Event] = queue.Queue(capacity)
        self._closed = False

    def close(self) -> None:
        """Take no further events."""
        self._closed = True

    def taken(self) -> Iterator[Event]:
        """The events that wait, oldest first."""
        while True:
            try:
                yield self._events.get_nowait()
            except queue.Empty:
                return

    # -- on Spark's threads -------------------------------------------------------------------------------------------

    def started(self, query_id: str, run_id: str) -> None:
        """A query is being started, on its own thread."""
        if self._closed:
            return
        try:
            query = self._backend.query(self._streams, query_id)
            run = None if query is None else run_of(query, time.time())
            if run is None or run.run_id != run_id:
                return  # found by the next look
            asked = {attendance.PROPERTY: self._state, attendance.QUERY: query_id} if self._state else {}
            if lent := {**asked, **self._lent}:
                self._backend.set_task_properties(self._spark, query_id, lent)
            self._put(run)
        except Exception as problem:
            log.info("missed the start of query %s; the next poll will find it: %s", query_id, problem)
            self._wake.set()

    def progressed(self, report: str) -> None:
        """An epoch is done."""
        self._put(Report(report))

    def terminated(self, query_id: str, run_id: str) -> None:
        """A run has ended."""
        self._put(Over(run_id))

    def _put(self, event: Event) -> None:
        if self._closed:
            return
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self.dropped += 1
        self._wake.set()


def run_of(query: StreamingQuery, began: float, *, found: bool = False) -> Run | None:
    """A query's run, begun at some s since 1970; None if it is one of a job, which watches it itself."""
    checkpoint = backend_of(query).checkpoint(query)
    if is_of_job(checkpoint):
        return None
    return Run(query, str(query.id), str(query.runId), query.name or "", checkpoint, began, found)


POLL_EVERY: Final = 0.25  # how often what queries have committed is polled at, s
RECONCILE_EVERY: Final = 1.0  # how often Spark is asked which queries run, s
END_WITHIN: Final = 15.0  # how long the end waits for the last rows when the storage does not answer, s


class Observation:
    """Watches the queries of a session, from its making until `end`."""

    def __init__(
        self,
        spark: SparkSession,
        streams: StreamingQueryManager,
        name: str,
        state: str,
        settings: JobSettings,
        *,
        takeover: bool = False,
    ) -> None:
        self._spark, self._streams = spark, streams
        self._backend = backend_of(spark)
        self._jvm_pid = self._backend.jvm_pid(spark)
        self._queries: dict[str, ForeignQuery] = {}
        self._shown = Shown(State.CREATED)
        self._reason: str | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._jvm_listener: Any = None
        self._metrics = measured(name, settings)
        try:
            self._books = begin_bookkeeping(
                spark, name, Ledger(state), settings, self._watched, self._metrics, takeover=takeover, kind=OBSERVER
            )
        except BaseException:
            if self._metrics is not None:
                self._metrics.end()
            raise
        self._started = datetime.now(timezone.utc)
        ledger, self._context = self._books.ledger, self._books.context
        try:
            self._memory = Memory.read(ledger)
            self._books.inherit()
            self._books.incidents.forget_rules(self._context.write_behind)
            self._books.begin_events()
        except BaseException:
            with suppress(Exception):
                self._books.writer.end("the start was refused")
            raise
        samples = ledger.uri if settings.monitor_interval else ""
        self.inbox = Inbox(spark, streams, samples, self._context.wake, parts=settings.epoch_parts)
        self._upkeep = Upkeep(self._context, ledger, lambda: None)
        self._pollers = self._books.pollers()
        if self._metrics is not None:
            application = self._backend.application_id(spark)
            self._metrics.watch(lambda: live(self._context, self._started, self._shown, self._watched(), application))
            self._metrics.read_past(Ledger(ledger.uri), self._context.incarnation.number)
        self._thread = threading.Thread(target=self._loop, name=f"spark-ext-observer-{name}", daemon=True)

    def start(self, listener: Any) -> None:
        """Begin to watch; what runs already is found. Once the session has no such listener, this ends."""
        self._jvm_listener = listener
        self._context.write_behind.start(self._context.wake.set)
        self._thread.start()
        for poller in self._pollers:
            poller.start()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def end(self, reason: str) -> None:
        """End in order: write what is known and the end, and notify the listeners of incidents. Repeated calls wait."""
        with self._lock:
            self._reason = self._reason or reason
        self._context.wake.set()
        if threading.current_thread() is not self._thread and not self._over.wait(END_WITHIN):
            log.warning("Observer '%s': could not record the end: storage timed out", self._context.job)
            self._context.write_behind.forget()

    def _watched(self) -> tuple[ForeignQuery, ...]:
        return tuple(self._queries.values())

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        wake, reconciled, polled, dropped = self._context.wake, float("-inf"), float("-inf"), 0
        try:
            while self._reason is None:
                wake.wait(POLL_EVERY)
                wake.clear()
                now = time.monotonic()
                self._context.write_behind.check()
                self._upkeep.tick(now)
                self._take_events()
                if now - reconciled >= RECONCILE_EVERY or self.inbox.dropped > dropped:
                    reconciled, dropped = now, self.inbox.dropped
                    self._reconcile()
                if now - polled >= POLL_EVERY:
                    polled = now
                    self._poll(now)
            self._close(self._reason)
        except FencedError as problem:
            log.warning("Observer '%s' has ended: %s", self._context.job, problem)
            self._abandon()
        except Exception:
            log.exception("Observer '%s' failed: queries are no longer watched", self._context.job)
            self._reason = self._reason or "the Observer failed"
            try:
                self._close(self._reason)
            except Exception as problem:
                log.warning("could not record the end of Observer '%s': %s", self._context.job, problem)
                self._abandon()
        finally:
            self._over.set()

    def _take_events(self) -> None:
        for event in self.inbox.taken():
            try:
                self._take(event)
            except SparkExtError:
                raise
            except Exception:
                log.exception("lost an event of a query; its content will be read from Spark")

    def _take(self, event: Run | Report | Over) -> None:
        if isinstance(event, Run):
            self._begin(event)
        elif isinstance(event, Report):
            hint = hint_of(event.text)
            reported = self._of(hint.run_id)
            if reported is not None:
                reported.report(hint)
                reported.define(event.text)
        else:
            ended = self._of(event.run_id)
            if ended is not None:
                self._end_run(ended)

    def _of(self, run_id: str) -> ForeignQuery | None:
        return next((one for one in self._queries.values() if one.run is not None and one.run.run_id == run_id), None)

    def _begin(self, run: Run) -> None:
        if self._of(run.run_id) is not None:
            return
        for query in self._queries.values():
            # Spark ends a run before it starts another one under its name or on its checkpoint, and says so later.
            if query.live and query.run is not None and not query.run.query.isActive:
                self._end_run(query)
        running = {uid: one.run.query_id for uid, one in self._queries.items() if one.live and one.run is not None}
        memory = self._memory
        uid, begins_lineage = assigned(run.query_id, run.name, memory.known, running)
        lineage = memory.lineages.get(uid, FIRST_LINEAGE)
        if begins_lineage:
            lineage = self._books.writer.new_lineage(uid, "another checkpoint has come under its name")
            memory.newest.pop(uid, None)
        memory.lineages[uid] = lineage
        memory.known = memory.known.having(run.query_id, uid)
        mine = self._queries.get(uid)
        if mine is None:
            mine = ForeignQuery(uid, lineage, memory.newest.get(uid), self._context)
            self._queries = {**self._queries, uid: mine}
        mine.begin(run, lineage=lineage)
        log.info("%s is watched: Spark's id %s", mine.operator, run.query_id)

    def _end_run(self, query: ForeignQuery) -> None:
        if query.run is None or not query.live:
            return
        try:
            failure = failure_of(query.run.query)
        except Exception as problem:
            query.ended(None, gone=f"it is not known how it ended: {problem}")
            return
        if failure is not None and self._backend.is_stopping(self._spark):
            query.ended(None, gone="Spark was stopped")
        else:
            query.ended(failure)

    def _reconcile(self) -> None:
        """Find what no event has said: queries that run, and runs that have ended."""
        if self._backend.is_stopped(self._spark):
            self._reason = self._reason or "Spark was stopped"
            return
        try:
            if self._jvm_listener is not None and not self._backend.has_listener(self._streams, self._jvm_listener):
                self._reason = self._reason or "the listener was removed"
            for query in self._streams.active:
                if self._of(str(query.runId)) is None:
                    run = run_of(query, time.time(), found=True)
                    if run is not None:
                        self._begin(run)
            for observed in self._queries.values():
                if observed.live and observed.run is not None and not observed.run.query.isActive:
                    self._end_run(observed)
        except SparkExtError:
            raise
        except Exception as problem:
            self._without_spark(problem)

    def _without_spark(self, problem: Exception) -> None:
        """Spark has not answered: it may have been stopped, or its JVM has died, and all queries with it."""
        if self._backend.is_stopped(self._spark):
            self._reason = self._reason or "Spark was stopped"
            return
        operator = f"job '{self._context.job}'"
        lost = lost_spark(problem, operator, self._spark, self._jvm_pid)
        if lost is None:
            log.info("Observer '%s': Spark does not answer: %s", self._context.job, problem)
            return
        for query in self._queries.values():
            query.ended(lost)
        self._reason = self._reason or "Spark's JVM has died"

    def _poll(self, now: float) -> None:
        for query in self._queries.values():
            if query.live:
                query.poll(now)
        self._show(observed_execution([(uid, one.shown) for uid, one in self._queries.items()]))

    def _show(self, now: Shown) -> None:
        if replace(now, since=None) != replace(self._shown, since=None):
            self._shown = now
            self._context.write_behind.state("", now.state, now.reason, now.since, now.incident)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _close(self, reason: str) -> None:
        write_behind = self._context.write_behind
        self.inbox.close()
        for poller in self._pollers:
            poller.close()
        steps: list[Callable[[], object]] = [self._take_events]
        if not self._backend.is_stopped(self._spark):
            steps.append(self._reconcile)
        steps += [lambda query=query: query.left(reason) for query in self._queries.values()]  # type: ignore[misc]
        steps.append(lambda: self._show(Shown(State.CANCELED, reason)))
        steps.append(self._books.dumps.finish)
        if self._metrics is not None:
            steps.append(self._metrics.end)
        steps += [write_behind.flush, lambda: write_behind.end(reason), write_behind.notify_last]
        steps += [self._upkeep.close, write_behind.close]
        for step in steps:
            try:
                step()
            except Exception as problem:
                log.warning("error after Observer '%s' ended: %s", self._context.job, problem)

    def _abandon(self) -> None:
        """Write nothing: the ledger may have another owner by now."""
        self.inbox.close()
        for poller in self._pollers:
            poller.close()
        if self._metrics is not None:
            self._metrics.end()
        self._upkeep.close()
        self._context.write_behind.forget()
        self._context.write_behind.close()
        self._context.write_behind.notify_last()


def observed_execution(queries: Sequence[tuple[str, Shown]]) -> Shown:
    """The state in which queries are together.

    As that of a job, with a difference: nobody knows whether a query that has ended is started again. Those that have
    failed count until they are.
    """
    failed = [(uid, shown) for uid, shown in queries if shown.state is State.FAILED]
    if any(not shown.state.ended for _, shown in queries):
        together = job_execution(State.RUNNING, queries, ran=True)
        if not failed:
            return together
        names = ", ".join(f"'{uid}' is {State.FAILED}" for uid, _ in failed)
        reason = f"{together.reason}, {names}" if together.reason.startswith("degraded: ") else f"degraded: {names}"
        return replace(together, reason=reason)
    if failed:
        uid, shown = failed[-1]
        return Shown(State.FAILED, f"query '{uid}' has failed, and no query is running", incident=shown.incident)
    if queries:
        return Shown(State.RUNNING, "no query is running")
    return Shown(State.CREATED, "no query has been started")


def live(
    context: WatchContext, started: datetime, together: Shown, queries: Sequence[ForeignQuery], application: str
) -> Live:
    """What gauges are read from: the queries as they are now."""
    snapshot = JobSnapshot(
        job=context.job,
        state_directory=context.state,
        state=together.state,
        reason=together.reason,
        incarnation=context.incarnation.number,
        lineage=context.incarnation.lineage,
        started=started,
        ended=None,
        at=datetime.now(timezone.utc),
        queries=tuple(_query(query) for query in queries),
    )
    return Live(
        snapshot=snapshot,
        facts={query.uid: _facts(query) for query in queries},
        application_id=application,
        ledger_waiting=context.write_behind.waiting,
    )


def _facts(query: ForeignQuery) -> QueryFacts:
    run = query.run
    if run is None:
        return QueryFacts()
    lag = query.figures.lag
    return QueryFacts(
        query_id=run.query_id,
        run_id=run.run_id,
        name=run.name,
        watermark=query.figures.watermark,
        newest_row=query.figures.newest_row,
        lags=known_lags(lag.sources),
        lags_at=lags_at(lag.sources),
    )


def _query(query: ForeignQuery) -> QuerySnapshot:
    shown, figures = query.shown, query.figures
    lag = figures.lag
    return QuerySnapshot(
        uid=query.uid,
        state=shown.state,
        reason=shown.reason,
        since=shown.since,
        epochs=figures.epochs,
        last_epoch=query.committed if query.committed >= 0 else None,
        last_epoch_ms=figures.last_epoch_ms or None,
        parts_ms=figures.parts_ms,
        rows=figures.input_rows,
        late_rows=figures.late_rows,
        state_rows=figures.state_rows,
        lag_rows=lag.rows,
        lag_at=None if lag.at is None else datetime.fromtimestamp(lag.at, timezone.utc),
        watermark=event_time(figures.watermark),
        newest_row=event_time(figures.newest_row),
    )
