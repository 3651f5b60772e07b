"""The part of a job's face that runs it to its end; base of `Job`."""

from __future__ import annotations

import itertools
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING

from spark_ext.errors import JobFailedError
from spark_ext.jobs.dumpable import Dumpable
from spark_ext.jobs.interrupt import stop_on_interrupt
from spark_ext.jobs.run_options import Emit, IfRunning, RunOptions, Until, both
from spark_ext.model.lifecycle import State
from spark_ext.views.progress_line import show

if TYPE_CHECKING:
    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.jobs.result import JobResult
    from spark_ext.queries.context import JobContext
    from spark_ext.views.snapshot import JobSnapshot


class Runnable(Dumpable):
    """A job that can be run."""

    _stopping: threading.Event
    _context: JobContext | None
    _result: JobResult | None
    _parts: Composition

    def run(
        self,
        *,
        until: Until | None = None,
        emit: Emit = "closed",
        if_running: IfRunning | None = None,
        wait_timeout: float | None = None,
        progress: bool = True,
    ) -> JobResult:
        """Start the job, wait for its end, and return its result.

        Ctrl-C stops it in order: no row is lost, nothing is emitted for the end of input. A second Ctrl-C exits at
        once; the next start cleans up.

        With `until="now"` every source, bounded or not, is read up to what it holds when the run begins, and the run
        ends; see the page "Run it every hour". The job is then SUSPENDED, and the next run continues.

        With the setting `on_damage="restore"` a job whose state is damaged is restored from its newest retained
        checkpoint and started again, once for each checkpoint.

        Args:
            until: "now", or None: the run ends when the input does.
            emit: with `until="now"`: "closed", windows that are open stay open for the next run; or "all", they are
                emitted as they are, and the job has finished: no run reads anything after it.
            if_running: what is done while another run of the job is under way: "refuse", or "wait" until it has ended.
                With it, or `until`, a driver on another host counts as running as long as its heartbeat is recent.
            wait_timeout: how long it is waited for, s; None: as long as it takes.
            progress: show a live line on standard error: state, time, epochs, rows and channels.

        Raises:
            JobFailedError: a query has failed for good.
            JobRunningError: another run of the job is under way.
            ConfigurationError: with `until="now"`, a source always has more to read.
            SparkExtError: the job could not be started.
        """
        how = RunOptions.of(self.name, until, emit, if_running, wait_timeout)
        result = self._run(how, progress)
        parts = itertools.cycle((how.drained(gated=bool(self._parts.gates)), how) if how.emit == "all" else ())
        for part in parts:
            # What waits for the end of others reads what is there once they are drained, and is drained in its turn.
            if result.state is not State.SUSPENDED or self._stopping.is_set():
                break
            self._coordinator = self._context = self._result = None
            result = self._result = both(result, self._run(part, progress))
        return result

    def _run(self, how: RunOptions, progress: bool) -> JobResult:
        while True:
            self._start(how)
            with stop_on_interrupt(self.name, self._ask_to_stop):
                if progress:
                    show(self.snapshot, self.wait)
                self._coordinator_or_raise().join()
            try:
                return self.await_termination()
            except JobFailedError as failure:
                if not self._stopping.is_set():
                    self._restore_after(failure)
                if self._stopping.is_set():
                    raise
            self._coordinator = self._context = self._result = None

    def _ask_to_stop(self) -> None:
        self._stopping.set()
        self._coordinator_or_raise().stop()

    @abstractmethod
    def _start(self, how: RunOptions) -> object:
        """Start it."""

    @abstractmethod
    def await_termination(self, timeout: float | None = None) -> JobResult:
        """Wait for the job's end."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait for the end for so long; returns whether it has come."""

    @abstractmethod
    def snapshot(self) -> JobSnapshot:
        """What the job looks like now."""

    @abstractmethod
    def _coordinator_or_raise(self, *, starting: bool = False) -> Coordinator:
        """Its coordinator."""
