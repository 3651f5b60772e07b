"""The Spark query of a supervised query: its starts, its end, and what Spark reports of it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from spark_ext.control import current, emitted
from spark_ext.errors import SparkLostError
from spark_ext.model.execution import Phase
from spark_ext.model.identity import OPTION
from spark_ext.queries import operators
from spark_ext.queries.describe_failure import SparkFailure
from spark_ext.spark.backend.contract import Loss, OwnEnd
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.capabilities import capabilities
from spark_ext.spark.logs.checkpoint_directory import cheap_files, clear_drafts, clear_unfinished, enter
from spark_ext.spark.logs.epoch_files import unrecorded_settings
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from spark_ext.spark.session.session_settings import with_settings
from spark_ext.spark.watching import attendance, worker_daemon
from spark_ext.spark.watching.query_events import Hint, hints_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.spec import QuerySpec

_LAUNCHES: Final = itertools.count(1)  # numbers the starts of all Spark queries of this process
_MAINTENANCE: Final = "spark.sql.streaming.stateStore.maintenanceInterval"  # of state; by default each minute

_MAINTENANCE_OF_SHORT_RUNS: Final = "5s"  # shorter than such a run, or its state would grow from run to run

_NO_DATA: Final = "Waiting for data to arrive"  # Spark's status of a query whose sources have nothing new
_LOOK_EVERY_S: Final = 0.05
_KEPT_REPORTS: Final = 100  # of earlier runs, as many as Spark keeps of one
_KEPT: Final = "all committed epochs, and the ledger"
_PHASES: Final = {
    Phase.STARTING: "starting workers",
    Phase.PLANNING: "planning",
    Phase.EPOCH: "running an epoch",
    Phase.IDLE: "waiting for data",
}


def phase_of(message: str) -> str:
    """Spark's status message in a user's words; "" for one that is not known."""
    return _PHASES.get(Phase.of(message), "")


@dataclass(frozen=True)
class End:
    """A Spark query has ended."""

    failure: BaseException | None = None  # with the JVM's stack; None: it ended by itself, or was stopped
    own: OwnEnd | None = None  # of a run that ends with what is there: what Spark says about it; None: nothing


@dataclass(frozen=True)
class Launch:
    """A Spark query has been started."""

    query_id: str
    planned: LoggedOffsets | None  # the newest epoch that was planned before
    stateful: bool = False  # whether it continues from state


class RunnableQuery(Protocol):
    """What supervision needs of a Spark query. It can be started again after each end."""

    @property
    def ended(self) -> bool:
        """Whether there is an end that `take_end` has not returned yet."""

    def start(self, *, only_planned: bool = False) -> str:
        """Start it, and return Spark's id of it. An end that was not taken is forgotten.

        `only_planned`: run the epoch that is planned and not committed, and end.
        """

    def settle(self) -> None:
        """Wait until earlier runs write nothing to its checkpoint directory any more. Call it while it does not run."""

    def stop(self) -> None:
        """Stop it, if it runs, and wait until it has stopped."""

    def take_end(self) -> End | None:
        """The end since the last start, once; None while it runs."""

    @property
    def handle(self) -> StreamingQuery | None:
        """Spark's own object; None before the first start, or if it is not Spark that runs it."""

    @property
    def phase(self) -> str:
        """What Spark is busy with, for display; "" when it does not say."""

    @property
    def working(self) -> bool:
        """Whether Spark says that it plans or runs an epoch."""

    def reports(self, after: int) -> list[Hint]:
        """Spark's recent reports on epochs after the given one, oldest first; none before the first start."""


class SparkQuery:
    """A query in Spark, with the checkpoint, trigger and name that its job gives it. See `RunnableQuery`.

    `shows`: it is run on a copy of the checkpoint of the query with this id of Spark's, to show open windows.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        checkpoint: str,
        lineage: int,
        committed: Callable[[], int],
        *,
        shows: str = "",
    ) -> None:
        self._until_now = context.until is not None or spec.available_now
        self._spec = spec
        self._context = context
        self._checkpoint = checkpoint
        self._identity = replace(context.identity(spec.uid, checkpoint, lineage), early=shows)
        self._committed = committed
        self._query: StreamingQuery | None = None
        self._end: End | None = None
        self._earlier: list[Hint] = []  # reports of earlier runs
        self._backend = backend_of(spec.writer)
        self._session = self._backend.frame(spec.writer).sparkSession
        self._ends_itself = not self._until_now or capabilities(self._session.version).available_now
        """Spark ends it when nothing is left to read, if it is to end so; else this does."""
        # A worker's thread has none of the user's scheduler pool, job group or description.
        self._properties = self._backend.local_properties(self._session)
        self._pid = self._backend.jvm_pid(self._session)

    @property
    def ended(self) -> bool:
        """See `RunnableQuery`."""
        return self._end is not None

    def start(self, *, only_planned: bool = False) -> str:
        """See `RunnableQuery`."""
        self._end = None
        if not self._backend.own_workers:
            # No event brings what the last run has not been asked for.
            with contextlib.suppress(Exception):
                self._earlier = self.reports(-1)[-_KEPT_REPORTS:]
        try:
            query = self._start(only_planned)
        except Exception as failure:
            raise self._named(failure) from failure
        self._query = query
        threading.Thread(
            target=self._await, args=(query,), name=f"spark-ext-await-{self._spec.uid}", daemon=True
        ).start()
        return str(query.id)

    def _start(self, only_planned: bool) -> StreamingQuery:
        # A start comes from a worker's thread, which has no active session of its own.
        self._backend.activate(self._session, self._properties)
        enter(self._checkpoint)
        clear_unfinished(self._checkpoint)
        if self._query is None:
            # Of earlier drivers: tasks that only fail remove theirs.
            clear_drafts(self._checkpoint)
        emitted.discard_uncommitted(self._checkpoint)
        name = f"{self._context.job}/{self._spec.uid}"
        writer = self._spec.writer.option("checkpointLocation", self._checkpoint).queryName(name)
        if self._spec.sink is not None:
            writer = writer.option(OPTION, self._identity.encode())
        self._backend.name_sink(writer, self._spec.uid)
        place = self._context.registry
        options = registry.options_for(self._session, place, self._identity.start)
        writer = self._backend.for_workers(writer, options, operators.is_ours)
        if only_planned:
            # Spark advises `availableNow` instead, which would read on after the epoch that is planned.
            writer = writer.trigger(once=True)
        elif self._until_now and (self._ends_itself or not self._watched):
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="0 seconds")
        for uid in self._watched:
            registry.forget_exhausted(uid, place)
        settings = {**({} if self._spec.built is None else self._spec.built.settings)}
        settings.update(unrecorded_settings(self._checkpoint))
        operator = self._context.operator(self._spec.uid)
        with (
            with_settings(self._session, settings, operator, self._wished_settings()),
            cheap_files(self._session, self._checkpoint),
            self._backend.task_properties(self._session, self._local_properties()),
        ):
            return writer.start()

    def _wished_settings(self) -> dict[str, str]:
        if (
            self._until_now
            and self._session.conf.get(_MAINTENANCE, None) is None
            and self._backend.stateful_operators(self._backend.frame(self._spec.writer))
        ):
            return {_MAINTENANCE: _MAINTENANCE_OF_SHORT_RUNS}
        return {}

    def _local_properties(self) -> dict[str, str]:
        """What functions of the user's need to find the epoch in which they run."""
        mine = self._identity
        start = f"{mine.incarnation:010}-{next(_LAUNCHES):010}-{mine.start:016x}"
        samples = {attendance.PROPERTY: mine.state} if mine.samples else {}
        return {
            **samples,
            **({worker_daemon.TIMES: "true"} if mine.parts else {}),
            current.CHECKPOINT: self._checkpoint,
            current.QUERY: self._spec.uid,
            current.JOB: mine.job,
            current.START: start,
        }

    def _named(self, failure: BaseException) -> BaseException:
        """The failure with what is known of it, read while Spark is there; or that Spark is not there any more."""
        context, query = self._context, self._spec.uid
        lost = lost_spark(failure, context.operator(query), self._session, self._pid)
        return lost or SparkFailure.of(
            failure, context.classifier, job=context.job, query=query, epoch=self._committed() + 1
        )

    def _await(self, query: StreamingQuery) -> None:
        try:
            if self._ends_itself or not self._watched:
                query.awaitTermination()
                self._end = End(own=self._own_end(query))
            else:
                self._end = End(own=self._until_exhausted(query))
        except BaseException as failure:
            self._end = End(self._named(failure))
        self._context.wake.set()

    @property
    def _watched(self) -> list[str]:
        """Uids of the sources that note when they have nothing more to read."""
        return [one.uid for one in (*self._spec.sources, *self._spec.ends)]

    def _until_exhausted(self, query: StreamingQuery) -> OwnEnd | None:
        while not query.awaitTermination(_LOOK_EVERY_S):  # type: ignore[arg-type]
            if self._exhausted(query):
                query.stop()
                return OwnEnd(found_nothing=True, one_epoch=False)
        return None

    def _exhausted(self, query: StreamingQuery) -> bool:
        """Whether each source has nothing more to read where the query stands, and Spark does not plan an epoch."""
        return query.status["message"] == _NO_DATA and self._has_read_all()

    def _has_read_all(self) -> bool:
        return has_read_all(self._watched, self._context.registry, self._identity.start, self._checkpoint)

    def _own_end(self, query: StreamingQuery) -> OwnEnd | None:
        if not self._until_now:
            return None
        try:
            said = self._backend.own_end(query)
            return OwnEnd(self._has_read_all(), one_epoch=False) if said is None else said
        except Exception:  # Spark is ending: whatever has stopped the query is not its own end
            return None

    def settle(self) -> None:
        """See `RunnableQuery`."""
        self._backend.settle_state(self._session, self._checkpoint)

    def stop(self) -> None:
        """See `RunnableQuery`."""
        if self._query is not None and not self._backend.is_stopped(self._session) and self._query.isActive:
            self._query.stop()

    def take_end(self) -> End | None:
        """See `RunnableQuery`."""
        end, self._end = self._end, None
        return end

    @property
    def handle(self) -> StreamingQuery | None:
        """See `RunnableQuery`."""
        return self._query

    @property
    def phase(self) -> str:
        """See `RunnableQuery`."""
        try:
            return "" if self._query is None else phase_of(str(self._query.status["message"]))
        except Exception:  # the query, or Spark, may be ending
            return ""

    @property
    def working(self) -> bool:
        """See `RunnableQuery`."""
        try:
            return self._query is not None and bool(self._query.status["isTriggerActive"])
        except Exception:  # the query, or Spark, may be ending
            return True

    def reports(self, after: int) -> list[Hint]:
        """See `RunnableQuery`."""
        if self._query is None:
            return []
        return [*self._earlier, *hints_of(self._backend.recent_progress(self._query, after))]


def has_read_all(uids: Iterable[str], place: Path, start: int, checkpoint: str) -> bool:
    """Whether each source has noted that it has nothing more to read where the query stands; False: or not known."""
    notes = [registry.noted_exhausted(uid, place, start) for uid in uids]
    if None in notes:
        return False
    log = SparkLog(checkpoint)
    try:
        newest, committed = log.newest_offsets(), log.newest_commit()
        logged = None if newest is None else log.offsets(newest)
    except OSError:
        return False  # the query runs on, and is looked at again
    return newest == committed and (logged is None or all(note in logged.sources for note in notes))


def lost_spark(failure: BaseException, operator: str, spark: SparkSession, pid: int | None) -> SparkLostError | None:
    """The error of a query that has failed because Spark has gone; None if Spark is there.

    Its JVM or server has died, or this process has stopped its session: nothing can be restarted in such a process.
    For `pid` see `Backend.lost`.
    """
    backend = backend_of(spark)
    lost = backend.lost(spark, failure, pid)
    if lost is None and backend.is_stopped(spark):
        lost = Loss(
            "the Spark session was stopped while the job was running",
            "stop the job with job.stop() before the session; a further run, with a new session, continues",
        )
    return None if lost is None else SparkLostError(lost.what, operator=operator, kept=_KEPT, do=lost.do)
