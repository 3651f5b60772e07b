"""The run of a job in this process: started, waited for, stopped or drained, and its result."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from spark_ext.control.job_events import request
from spark_ext.errors import ConfigurationError, JobFailedError, StateError
from spark_ext.jobs.result import JobResult, job_result
from spark_ext.jobs.run_options import RunOptions, both, stop_on_interrupt
from spark_ext.jobs.snapshot import job_snapshot, live_job, unstarted_snapshot
from spark_ext.jobs.starting.plan import JobPlan, StartOptions, plan_job
from spark_ext.jobs.starting.start import start_job
from spark_ext.ledger import Ledger
from spark_ext.metrics.exporters import measured
from spark_ext.model.lifecycle import State
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.backend.process import announced
from spark_ext.views.notebook import LastIncident
from spark_ext.views.terminal import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.jobs.serving import Serving
    from spark_ext.ledger.write_behind import WriteBehind
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.settings import JobSettings
    from spark_ext.views.snapshot import JobSnapshot


class ActiveRun:
    """What one `Job` does in this process: the newest of its runs. Safe for several threads."""

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        state_directory: str,
        composition: Composition,
        ledger: Ledger,
        settings: JobSettings,
        *,
        takeover: bool,
    ) -> None:
        self.state_directory, self.composition = state_directory, composition
        self._spark, self._job, self._ledger, self._settings = spark, job, ledger, settings
        self._takeover = takeover
        self._context: JobContext | None = None
        self._coordinator: Coordinator | None = None
        self._starting = False
        self._stopping = threading.Event()  # set when a stop was asked for, also before a coordinator can be asked
        self._announced = threading.Event()  # set when no start is waiting for its coordinator
        self._started = datetime.now(timezone.utc)
        self._metrics: JobMetrics | None = None
        self._result: JobResult | None = None
        self._servers: list[Serving] = []
        self._lock = threading.Lock()
        self._result_lock = threading.Lock()

    # -- start and end ------------------------------------------------------------------------------------------------

    def start(self, how: RunOptions) -> None:
        """See `Job.start`."""
        with self._lock:
            if self._coordinator is not None:
                raise self._wrong(
                    "the job has been started already", "", "it continues to run", "make a new Job to run it again"
                )
            self._refuse_empty()
            self._metrics = measured(self._job, self._settings)
            self._started = datetime.now(timezone.utc)
            self._announced.clear()
            self._stopping.clear()
            self._starting = True
            try:
                how.when_free(self._job, partial(self._start, how), self._stopping)
            except BaseException:
                self._coordinator = None
                if self._metrics is not None:
                    self._metrics.end()
                raise
            finally:
                self._starting = False
                self._announced.set()
            for server in self._servers:
                server.end_with(self.coordinator().done)

    def _refuse_empty(self) -> None:
        if not self.composition.uids:
            raise ConfigurationError(
                "the job has no query",
                operator=f"job '{self._job}'",
                kept=NOTHING_STARTED,
                do="add one with job.add(uid, df.writeStream...)",
            )

    def plan(self, how: RunOptions) -> JobPlan:
        """See `Job.plan`."""
        self._refuse_empty()
        return plan_job(self._spark, self._ledger, self.composition, self._settings, self._options(how))

    def _options(self, how: RunOptions) -> StartOptions:
        return StartOptions(
            takeover=self._takeover,
            until_now=how.until is not None,
            early=how.emit == "early",
            drain=how.drain,
            other_hosts=how.other_hosts,
        )

    def _start(self, how: RunOptions) -> None:
        start_job(
            self._spark,
            self._job,
            self._ledger,
            self.composition,
            self._settings,
            self._options(how),
            metrics=self._metrics,
            announce=self._announce,
            stopping=self._stopping.is_set,
        )

    def _announce(self, context: JobContext, coordinator: Coordinator) -> None:
        self._context, self._coordinator = context, coordinator
        if self._metrics is not None:
            application = backend_of(self._spark).application_id(self._spark)
            self._metrics.watch(
                partial(live_job, self.state_directory, self._started, application, context, coordinator)
            )
            self._metrics.read_past(Ledger(context.state), context.incarnation.number)
        self._announced.set()

    def to_end(self, how: RunOptions, recover: Callable[[JobFailedError], None], *, progress: bool) -> JobResult:
        """See `Job.run`. After a failure, `recover` returns if the job is to be started again, otherwise raises."""
        result = self._part_to_end(how, recover, progress)
        parts = itertools.cycle((how.drained(gated=bool(self.composition.gates)), how) if how.emit == "all" else ())
        for part in parts:
            # What waits for the end of others reads what is there once they are drained, and is drained in its turn.
            if result.state is not State.SUSPENDED or self._stopping.is_set():
                break
            self._forget()
            result = self._result = both(result, self._part_to_end(part, recover, progress))
        return result

    def _part_to_end(self, how: RunOptions, recover: Callable[[JobFailedError], None], progress: bool) -> JobResult:
        while True:
            with announced(f"starting job '{self._job}'") if progress else nullcontext():
                self.start(how)
            with stop_on_interrupt(self._job, self._ask_to_stop):
                if progress:
                    show(self.snapshot, self.wait)
                self.coordinator().join()
            try:
                return self.await_termination(None)
            except JobFailedError as failure:
                if not self._stopping.is_set():
                    recover(failure)
                if self._stopping.is_set():
                    raise
            self._forget()

    def _forget(self) -> None:
        """Another run follows."""
        self._coordinator = self._context = self._result = None

    def _ask_to_stop(self) -> None:
        self._stopping.set()
        self.coordinator().stop()

    def await_termination(self, timeout: float | None) -> JobResult:
        """See `Job.await_termination`."""
        coordinator = self.coordinator()
        if not coordinator.join(timeout):
            raise TimeoutError(f"job '{self._job}' is {coordinator.state.value} after {timeout} s")
        result = self._conclude(coordinator)
        if coordinator.failure is not None:
            cause = coordinator.failure
            raise JobFailedError(
                cause.what,
                operator=cause.operator or f"job '{self._job}'",
                kept=cause.kept,
                do=cause.do,
                cause_text=f"{cause}\n\n{cause.stack}" if cause.stack else str(cause),
            ).labelled(cause.label) from cause
        return result

    def stop(self, timeout: float | None) -> JobResult:
        """See `Job.stop`."""
        self._stopping.set()
        coordinator = self.coordinator(starting=True)
        coordinator.stop(timeout)
        coordinator.join()
        return self._conclude(coordinator)

    def drain(self, timeout: float | None) -> JobResult:
        """See `Job.drain`."""
        coordinator = self.coordinator(starting=True)
        if not coordinator.done.is_set():
            assert self._context is not None
            request(self._context.control, "job", "drain", origin="python")
            coordinator.parts.request.drain()
        return self.await_termination(None) if coordinator.join(timeout) else self.stop(None)

    def _conclude(self, coordinator: Coordinator) -> JobResult:
        with self._result_lock:
            if self._result is None:
                assert self._context is not None
                last = job_snapshot(self.state_directory, self._started, self._context, coordinator)
                self._result = job_result(last)
            return self._result

    # -- what others ask of it ----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """See `Job.state`."""
        return State.CREATED if self._coordinator is None else self._coordinator.shown.state

    @property
    def runs(self) -> tuple[QueryRun, ...]:
        """See `Job.runs`."""
        return () if self._coordinator is None else self._coordinator.runs

    @property
    def done(self) -> bool:
        """See `Job.done`."""
        return self._coordinator is not None and self._coordinator.done.is_set()

    def wait(self, seconds: float) -> bool:
        """See `Job.wait`."""
        return self.coordinator().join(seconds)

    def snapshot(self) -> JobSnapshot:
        """See `Job.snapshot`."""
        if self._result is not None:
            return self._result
        if self._coordinator is None or self._context is None:
            return unstarted_snapshot(self._job, self.state_directory, self.composition.uids)
        return job_snapshot(self.state_directory, self._started, self._context, self._coordinator)

    def last_incident(self) -> LastIncident | None:
        """See `Job.last_incident`."""
        return None if self._context is None else LastIncident.of(self._context.write_behind.incidents)

    def coordinator(self, *, starting: bool = False) -> Coordinator:
        """The coordinator of a job that has been started; with `starting`, that of a start under way is waited for."""
        if starting and self._starting:
            self._announced.wait()
        if self._coordinator is None:
            raise self._wrong("the job has not been started", "", "nothing is lost", "call start() or run() first")
        return self._coordinator

    @property
    def running(self) -> Coordinator | None:
        """The coordinator of a job that runs."""
        return None if self.done else self._coordinator

    @property
    def context(self) -> JobContext | None:
        """What the parts of a job that runs share."""
        return None if self.running is None else self._context

    def write_behind(self, operator: str) -> WriteBehind:
        """Takes the incidents of a job that runs."""
        context = self.context
        if context is None:
            raise StateError(
                "the job does not run, so nobody takes incidents",
                operator=operator,
                kept="nothing was reported",
                do="report it between start() and the end of the job",
            )
        return context.write_behind

    def dump(self, why: str, *, heap: bool, timeout: float) -> str:
        """See `Job.dump`."""
        coordinator = self.running
        if coordinator is None:
            what, do = (
                "the job does not run, so it has no processes",
                "ask for it between start() and the end of the job",
            )
            raise self._wrong(what, ", dump", "nothing was written", do)
        return coordinator.parts.dumps.take(why, heap=heap, timeout=timeout)

    def serve(self, serving: Serving) -> None:
        """A server ends with the run, or with the next one if none is under way."""
        self._servers.append(serving)
        if self.running is not None:
            serving.end_with(self.running.done)

    @property
    def metrics(self) -> JobMetrics | None:
        """Those of the newest start; None: the settings want none."""
        return self._metrics

    def refuse_started(self, what: str, do: str) -> None:
        """Refuse what has to be done before the job is started."""
        if self._coordinator is not None:
            raise ConfigurationError(
                "the job has been started",
                operator=f"job '{self._job}', {what}",
                kept="the running queries are not touched",
                do=do,
            )

    def refuse_running(self, what: str, do: str) -> None:
        """Refuse what cannot be done to a running job."""
        if self.running is not None:
            raise self._wrong("the job is running", f", {what}", "it continues to run", do)

    def _wrong(self, what: str, where: str, kept: str, do: str) -> StateError:
        return StateError(what, operator=f"job '{self._job}'{where}", kept=kept, do=do)
