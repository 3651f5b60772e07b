"""A job: a named set of streaming queries over one state directory, with a beginning and an end.

job = Job(spark, "flights", state="./state/flights")
job.add("daily-delays", delays.writeStream.format("delta_2pc").option("uid", "delays").option("path", "out/delays"))
result = job.run()
"""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_ext.control.job_events import request
from spark_ext.errors import ConfigurationError, JobFailedError, StateError
from spark_ext.failures.classifier import load
from spark_ext.jobs.checkpointing.savepoint_requests import check_folder
from spark_ext.jobs.composition import Composition
from spark_ext.jobs.coordinator import Coordinator
from spark_ext.jobs.measuring import follow
from spark_ext.jobs.result import JobResult, job_result
from spark_ext.jobs.run_options import IfRunning, RunOptions, Until
from spark_ext.jobs.snapshot import job_snapshot, unstarted_snapshot
from spark_ext.jobs.starting.start import start_job
from spark_ext.jobs.stores import use_stores
from spark_ext.jobs.viewable import Viewable
from spark_ext.ledger import Ledger, LedgerFrames
from spark_ext.masking import logger
from spark_ext.metrics.measuring import check_measuring, measured
from spark_ext.model.lifecycle import State
from spark_ext.observing.dump_folder import check_dumps
from spark_ext.observing.job_incidents import JobIncidents
from spark_ext.options import UID
from spark_ext.queries.context import JobContext
from spark_ext.queries.run import QueryRun
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.settings import JobSettings
from spark_ext.spark.backend.kinds import require_classic
from spark_ext.storage import Location, check_for_delta, local_path
from spark_ext.views.display import job_html
from spark_ext.views.snapshot import JobSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.model.dag import JobGraph

log = logger("spark_ext.job")


class Job(Viewable):
    """A set of streaming queries that start, end, fail and resume together.

    A query whose sources are all bounded ends by itself: it commits its last rows and windows, records its end and
    closes. A further run does nothing for it. A query with an unbounded source runs until `stop` or `drain`.

    Delivery: exactly once from channel sources to two-phase sinks, whatever crashes. A query with one of Spark's own
    sources or sinks has the guarantees of that source or sink.

    Args:
        spark: a session that `spark_ext.register` has seen.
        name: the job's name, kept in its state directory.
        state: path or object-store URI of the state directory; made when absent. It belongs to one job.
        takeover: start although another driver seems to run this job; that one is fenced off.
        settings: see `conf/job.yaml`.

    Raises:
        ConfigurationError: a bad name or setting, or an invalid file of failure rules or incidents.
        EnvironmentProblem: the session is of Spark Connect; the library that a setting or an incident listener needs is
            not installed; or the jar of the object store of the state directory is missing.
    """

    def __init__(
        self, spark: SparkSession, name: str, *, state: str | Path, takeover: bool = False, **settings: Any
    ) -> None:
        if not UID.fullmatch(name):
            raise ConfigurationError(
                f"'{name}' cannot be a job's name",
                operator=f"job '{name}'",
                kept=NOTHING_STARTED,
                do="use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
            )
        require_classic(spark, f"job '{name}'", kept=NOTHING_STARTED)
        self.name = name
        self.settings = JobSettings.of(name, settings)
        # Refused here rather than by the start, which reads both again.
        load(self.settings.failures)
        self._registry = JobIncidents.load(self.settings.incidents).registry
        check_measuring(name, self.settings)
        place = local_path(str(state))
        self.state_directory = str(state) if place is None else str(place.expanduser().resolve())
        if place is None and self.settings.on_damage == "restore":
            raise ConfigurationError(
                "on_damage='restore' needs a state directory on a file system, where what is damaged can be moved "
                "aside",
                operator=f"job '{name}'",
                kept=NOTHING_STARTED,
                do="leave it out; after a failure restore the job into another state directory",
            )
        check_dumps(self.settings, self.state_directory, f"job '{name}', setting 'dumps'")
        use_stores(spark, name, self.settings, self.state_directory)
        check_for_delta(Location(self.state_directory), f"job '{name}', state directory")
        self._spark = spark
        self._takeover = takeover
        self._parts = Composition(spark, name, self.state_directory)
        self._ledger = Ledger(self.state_directory)
        self._context: JobContext | None = None
        self._coordinator: Coordinator | None = None
        self._starting = False
        self._stopping = threading.Event()
        """Set when a stop was asked for, also while there is no coordinator yet to ask."""
        self._announced = threading.Event()
        """Set while there is no start of which the coordinator is still to come."""
        self._started = datetime.now(timezone.utc)
        self._metrics: JobMetrics | None = None
        self._result: JobResult | None = None
        self._lock = threading.Lock()
        self._result_lock = threading.Lock()

    # -- running ------------------------------------------------------------------------------------------------------

    def start(
        self,
        *,
        until: Until | None = None,
        if_running: IfRunning | None = None,
        wait_timeout: float | None = None,
    ) -> Job:
        """Start all queries that have not finished, and return.

        Args:
            until: see `run`.
            if_running: likewise.
            wait_timeout: likewise.

        Raises:
            JobRunningError: another run of the job is under way.
            StateError: the state directory is another job's, or has lost a checkpoint.
            ConfigurationError: a target was refused; or a source always has more to read, with `until="now"`.
            SparkExtError: anything else that was refused before an epoch ran.
        """
        return self._start(RunOptions.of(self.name, until, if_running=if_running, wait_timeout=wait_timeout))

    def _start(self, how: RunOptions) -> Job:
        with self._lock:
            if self._coordinator is not None:
                raise StateError(
                    "the job has been started already",
                    operator=f"job '{self.name}'",
                    kept="it continues to run",
                    do="make a new Job to run it again",
                )
            if not self._parts.uids:
                raise ConfigurationError(
                    "the job has no query",
                    operator=f"job '{self.name}'",
                    kept=NOTHING_STARTED,
                    do="add one with job.add(uid, df.writeStream...)",
                )
            self._metrics = measured(self.name, self.settings)
            self._started = datetime.now(timezone.utc)
            self._announced.clear()
            self._stopping.clear()
            self._starting = True
            try:
                tap = None if self._metrics is None else self._metrics.tap
                start = partial(
                    start_job,
                    self._spark,
                    self.name,
                    self._ledger,
                    self._parts,
                    self.settings,
                    takeover=self._takeover,
                    until_now=how.until is not None,
                    drain=how.drain,
                    other_hosts=how.other_hosts,
                    announce=self._announce,
                    stopping=self._stopping.is_set,
                    tap=tap,
                    arrived=tap,
                )
                how.when_free(self.name, start, self._stopping)
            except BaseException:
                self._coordinator = None
                if self._metrics is not None:
                    self._metrics.end()
                raise
            finally:
                self._starting = False
                self._announced.set()
            self._serve_this(self._coordinator_or_raise())
        return self

    def _announce(self, context: JobContext, coordinator: Coordinator) -> None:
        self._context, self._coordinator = context, coordinator
        if self._metrics is not None:
            application = self._spark.sparkContext.applicationId
            follow(self._metrics, self.state_directory, self._started, application, context, coordinator)
        self._announced.set()

    def await_termination(self, timeout: float | None = None) -> JobResult:
        """Wait for the job's end.

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            JobFailedError: a query has failed for good.
            TimeoutError: it still runs.
        """
        coordinator = self._coordinator_or_raise()
        if not coordinator.join(timeout):
            raise TimeoutError(f"job '{self.name}' is {coordinator.state.value} after {timeout} s")
        result = self._conclude(coordinator)
        if coordinator.failure is not None:
            cause = coordinator.failure
            raise JobFailedError(
                cause.what,
                operator=cause.operator or f"job '{self.name}'",
                kept=cause.kept,
                do=cause.do,
                cause_text=f"{cause}\n\n{cause.stack}" if cause.stack else str(cause),
            ) from cause
        return result

    def _conclude(self, coordinator: Coordinator) -> JobResult:
        with self._result_lock:
            if self._result is None:
                assert self._context is not None
                self._result = job_result(job_snapshot(self.state_directory, self._started, self._context, coordinator))
                for query in self._result.queries:
                    if query.finished and not query.finished_before and query.state_rows:
                        log.warning(
                            "query '%s' of job '%s' has finished with %d rows in its state, which no end of input has "
                            "emptied: open windows and unmatched rows among them are not in its output",
                            query.uid,
                            self.name,
                            query.state_rows,
                        )
            return self._result

    def stop(self, timeout: float | None = None, *, savepoint: str | Path | None = None) -> JobResult:
        """Stop all queries where they are: nothing is emitted for the end of input, and a further run continues there.

        Whatever state the job is in, it has ended when this returns, and the result says each query's state. A query
        that has not ended in time, because one of its hooks, its target or Spark does not answer, is given up: it is
        CANCELED with that reason. Commits that it may still attempt are rejected once the job is started again.

        Args:
            timeout: seconds to wait; None: the setting `stop_timeout`. The last rows of the ledger may take a few
                seconds more.
            savepoint: path of a folder, empty or missing, into which a savepoint is written once the job has ended.

        Raises:
            ConfigurationError: the folder of the savepoint is not empty; the job continues.
            SparkExtError: the savepoint could not be taken; the job has ended, and `savepoint` may be called again.
        """
        folder = None if savepoint is None else check_folder(str(savepoint), self.name, self.state_directory)
        self._stopping.set()
        coordinator = self._coordinator_or_raise(starting=True)
        coordinator.stop(timeout)
        coordinator.join()
        result = self._conclude(coordinator)
        if folder is not None:
            self.savepoint(folder)
        return result

    def drain(self, timeout: float | None = None, *, savepoint: str | Path | None = None) -> JobResult:
        """End the job in order: sources stop where they are, windows are emitted, the final checkpoint is taken.

        It is the end: the watermark is at the end of time, and a further run finds the job finished. A query with one
        of Spark's own sources is stopped after its current epoch; its open windows are not emitted. The drain is in
        force until the job has finished, also after a crash: a further run then completes it.

        Args:
            timeout: seconds to wait; None: as long as it takes. After that the job is stopped, and the result says
                which queries are CANCELED; the drain stays in force for the next start.
            savepoint: path of a folder, empty or missing, into which a savepoint is written once the job has ended. It
                is terminal: what is restored from it has finished.

        Raises:
            JobFailedError: a query has failed for good.
            ConfigurationError: the folder of the savepoint is not empty; the job continues.
        """
        folder = None if savepoint is None else check_folder(str(savepoint), self.name, self.state_directory)
        coordinator = self._coordinator_or_raise(starting=True)
        if not coordinator.done.is_set():
            assert self._context is not None
            request(self._context.control, "job", "drain", origin="python")
            coordinator.drain()
        if not coordinator.join(timeout):
            return self.stop(savepoint=folder)
        result = self.await_termination()
        if folder is not None:
            self.savepoint(folder)
        return result

    def _refuse_running(self, what: str, do: str) -> None:
        if self._coordinator is not None and not self._coordinator.done.is_set():
            raise StateError(
                "the job is running",
                operator=f"job '{self.name}', {what}",
                kept="it continues to run",
                do=do,
            )

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What it does: the least advanced state of its queries that have not ended; see the page on operations."""
        return self._coordinator.shown.state if self._coordinator is not None else State.CREATED

    @property
    def runs(self) -> tuple[QueryRun, ...]:
        """The queries under supervision, for display."""
        return self._coordinator.runs if self._coordinator is not None else ()

    @property
    def done(self) -> bool:
        """Whether the job has ended."""
        return self._coordinator is not None and self._coordinator.done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end for so long; returns whether it has come."""
        return self._coordinator_or_raise().join(seconds)

    def snapshot(self) -> JobSnapshot:
        """What the job looks like now: states, epochs, rows, sources. Does not wait for anything."""
        if self._result is not None:
            return self._result
        if self._coordinator is None or self._context is None:
            return unstarted_snapshot(self.name, self.state_directory, self._parts.uids)
        return job_snapshot(self.state_directory, self._started, self._context, self._coordinator)

    @property
    def graph(self) -> JobGraph:
        """How the queries that have been added are linked: `edges()`, and `layout()` for a picture.

        Raises:
            ConfigurationError: there is a cycle, or an exchange that nobody or that two queries write.
        """
        return self._parts.graph(self._parts.specs, self._parts.gates)

    @property
    def ledger(self) -> LedgerFrames:
        """The job's tables as DataFrames: `job.ledger.finished()`, `.epochs()`, `.checkpoints()`, `.incidents()`."""
        return LedgerFrames(self._ledger, self._spark)

    def __repr__(self) -> str:
        snapshot = self.snapshot()
        queries = ", ".join(f"{query.uid} {query.state.value}" for query in snapshot.queries)
        return f"<Job {self.name} {snapshot.state.value}: {queries}>"

    def _repr_html_(self) -> str:
        return job_html(self.snapshot())

    def _coordinator_or_raise(self, *, starting: bool = False) -> Coordinator:
        if starting and self._starting:
            self._announced.wait()
        if self._coordinator is None:
            raise StateError(
                "the job has not been started",
                operator=f"job '{self.name}'",
                kept="nothing is lost",
                do="call start() or run() first",
            )
        return self._coordinator
