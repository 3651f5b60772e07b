"""The coordinator of a running job: one thread on the driver that looks at the facts and decides what they call for.

It wakes when an event of Spark's or a result of a worker arrives, and looks by itself many times a second; a dropped
event costs latency, never correctness. It never blocks: hooks, starts, stops, claims and the steps of a final
checkpoint are commands for the worker of their query, the ledger's upkeep has a worker, and history is written by a
thread of its own. So nothing in one query delays another. Queries run by themselves: nothing here is on the critical
path of an epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.checkpoints.final import FinalCheckpoint
from spark_ext.control.events import acknowledge, in_force
from spark_ext.errors import FencedError, SparkExtError, TransientError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.jobs.finishing import Finishing
from spark_ext.jobs.upkeep import Upkeep
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.masking import logger
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.lifecycle import State, job_state
from spark_ext.queries.worker import Outcome
from spark_ext.spark.query_events import Hint

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun

log = logger("spark_ext.job")

LOOK_EVERY = 0.02
"""Pause between two looks at Spark's commit logs, s: a few `stat` calls."""

CLOSE_WITHIN = 10.0
"""How long the end waits for the last rows of the ledger when the storage does not answer, s."""


class Coordinator:
    """Supervises the queries of one incarnation until they have all ended.

    Args:
        context: the job's.
        ledger: for reading; writing goes through the context's `write_behind`.
        runs: the queries.
        next_checkpoint: the first checkpoint id of this incarnation.
        finals: final checkpoints that an earlier run left unfinished, by query.
    """

    def __init__(
        self,
        context: JobContext,
        ledger: Ledger,
        runs: Sequence[QueryRun],
        next_checkpoint: int,
        finals: dict[str, FinalCheckpoint],
    ) -> None:
        self.runs = tuple(runs)
        self.state = State.CREATED
        self.failure: SparkExtError | None = None
        self.done = threading.Event()
        self.at_end: list[Callable[[], object]] = []
        """Called when the job has ended, before `done` is set; what they raise is logged."""
        self._context = context
        self._next_checkpoint = next_checkpoint
        self._finals = dict(finals)
        self._finishing: dict[str, Finishing] = {}
        self._upkeep = Upkeep(context, ledger, self._keep_registered)
        self._cut: dict[str, int] = {}
        self._cut_at = time.monotonic()
        self._lock = threading.Lock()
        self._stop_by: float | None = None
        self._drained = max((event.lineage for event in in_force(ledger, "drain")), default=0)
        self._thread = threading.Thread(target=self._loop, name=f"spark-ext-coordinator-{context.job}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._context.write_behind.start(self._context.wake.set)
        self._settle()
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether the job has been asked to stop."""
        return self._stop_by is not None

    def stop(self, timeout: float | None = None) -> None:
        """End all queries that run, without end of input.

        Args:
            timeout: seconds after which a query that has not ended is given up as CANCELED; None: the setting
                `stop_timeout`.
        """
        within = self._context.settings.stop_timeout / 1000 if timeout is None else timeout
        with self._lock:
            by = time.monotonic() + within
            self._stop_by = by if self._stop_by is None else min(by, self._stop_by)
        self._context.wake.set()

    def refuse(self) -> None:
        """The start was refused: stop what runs, and release whoever waits for the end."""
        for run in self.runs:
            run.refuse()
        by = time.monotonic() + self._context.settings.stop_timeout / 1000
        self._await(lambda: not any(run.busy for run in self.runs), by, self._deliver)
        for run in self.runs:
            if run.busy:
                run.give_up()
            run.release()
        self.state = job_state(run.state for run in self.runs)
        self._upkeep.close()
        self.done.set()

    def drained(self, lineage: int) -> bool:
        """Whether a drain is in force for a query of this lineage; it stays in force until the job has finished."""
        return self._drained >= lineage

    def drain(self) -> None:
        """A drain has been written to the ledger: stop the queries whose sources cannot read it there."""
        self._drained = max(self._drained, *(run.lineage for run in self.runs))
        self._context.wake.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; returns whether it has come."""
        return self.done.wait(timeout)

    def hint(self, hint: Hint) -> None:
        """Take an event from Spark's listener thread."""
        for run in self.runs:
            run.report(hint)
        self._context.wake.set()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self.state.ended or self._upkeep.looking:
                self._context.wake.wait(LOOK_EVERY)
                self._context.wake.clear()
                self._tick(time.monotonic())
        except FencedError as fenced:
            # A ledger table knows its path only.
            self._abandon(fenced.within(f"job '{self._context.job}'"))
        except Exception as problem:
            log.exception("the coordinator of job '%s' failed", self._context.job)
            self._abandon(_broken(problem, f"job '{self._context.job}'"))
        finally:
            try:
                self._close()
            finally:
                self.done.set()

    def _tick(self, now: float) -> None:
        self._context.write_behind.check()
        self._upkeep.tick(now)
        if self._stop_by is not None:
            self._stop_all()
        for run in self.runs:
            if self.drained(run.lineage):
                run.request_drain()
            before = run.state
            run.tick(now)
            if run.state is State.CANCELED is not before and not self.stopping and self.failure is None:
                # Stopped from outside the job, as a newer incarnation in the same session does.
                self._upkeep.look_at_fence()
            if run.state is State.FINISHING:
                self._finish(run, now)
        if self._stop_by is not None and now >= self._stop_by:
            self._give_up()
        self._settle()
        if now - self._cut_at >= self._context.settings.checkpoint_interval / 1000:
            self._cut_at = now
            self._checkpoint()

    def _finish(self, run: QueryRun, now: float) -> None:
        uid = run.spec.uid
        if uid not in self._finishing:
            final = self._finals.get(uid) or FinalCheckpoint(
                run, run.spec, run.lineage, run.operators, self._context, self._take_id()
            )
            self._finishing[uid] = Finishing(run, final)
        self._finishing[uid].tick(now)

    def _settle(self) -> None:
        """Derive the job's state from its queries'; one that has failed for good ends the others at once."""
        failed = next((run for run in self.runs if run.state is State.FAILED), None)
        if failed is not None and self.failure is None:
            assert failed.error is not None
            self.failure = failed.error.within(failed.who)
            self._become(State.FAILING)
            self.stop()
            self._stop_all()
        self._become(job_state(run.state for run in self.runs))

    def _become(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._context.write_behind.state("", state)

    def _stop_all(self) -> None:
        for run in self.runs:
            run.request_stop()

    def _give_up(self) -> None:
        """The time for stopping is over."""
        for run in self.runs:
            if not run.state.ended:
                what = f"'{run.busy}' was under way" if run.busy else "Spark's query had not stopped"
                run.cancel(f"it did not stop in time: {what}; the next start continues from the last committed epoch")

    def _keep_registered(self) -> None:
        for run in self.runs:
            run.keep_registered()

    def _take_id(self) -> int:
        taken = self._next_checkpoint
        self._next_checkpoint += 1
        return taken

    def _checkpoint(self) -> None:
        """Record a cut. Queries are independent, so their last committed epochs are a consistent one."""
        cut = {run.spec.uid: run.committed for run in self.runs}
        running = any(not run.state.ended for run in self.runs)
        if not running or cut == self._cut or max(cut.values()) < 0:
            return
        metadata = CheckpointMetadata(
            self._context.job,
            self._context.incarnation.lineage,
            self._context.incarnation.number,
            {run.spec.uid: run.metadata() for run in self.runs},
        )
        self._context.write_behind.put_soon(
            CheckpointRow(
                checkpoint_id=self._take_id(),
                kind="periodic",
                query="",
                epoch=None,
                status="COMPLETED",
                lineage=self._context.incarnation.lineage,
                incarnation=self._context.incarnation.number,
                metadata=metadata.to_json(),
                at=datetime.now(timezone.utc),
                reason="",
            )
        )
        self._cut = cut

    # -- the end ------------------------------------------------------------------------------------------------------

    def _abandon(self, error: SparkExtError) -> None:
        """Stop everything; the ledger may have another owner by now."""
        self.failure = error
        self.stop()
        for run in self.runs:
            run.abandon(error)
        self.state = State.FAILED

    def _close(self) -> None:
        """Wait for what is still under way, as long as a stop may take; then write the last rows."""
        for run in self.runs:
            run.ask_late()
        by = time.monotonic() + self._context.settings.stop_timeout / 1000
        if self._stop_by is not None:
            by = max(min(by, self._stop_by), time.monotonic() + 1.0)
        self._await(lambda: not any(run.busy for run in self.runs), by, self._deliver)
        for run in self.runs:
            if run.busy:
                run.give_up()
            run.observe_late()
            run.release()
        ended: list[Outcome[object]] = []
        self._upkeep.at_last(self._end, ended.append)
        self._await(lambda: bool(ended), time.monotonic() + CLOSE_WITHIN, self._upkeep.deliver)
        if not ended:
            log.warning("the last history of job '%s' was not written: the storage does not answer", self._context.job)
        self._upkeep.close()
        self._context.write_behind.close()

    def _deliver(self) -> None:
        for run in self.runs:
            try:
                run.deliver()
            except Exception as problem:
                log.warning("query '%s' has ended, and then: %s", run.spec.uid, problem)

    def _await(self, condition: Callable[[], bool], by: float, deliver: Callable[[], None]) -> None:
        while True:
            try:
                deliver()
            except Exception as problem:
                log.warning("job '%s' has ended, and then: %s", self._context.job, problem)
            left = by - time.monotonic()
            if condition() or left <= 0:
                return
            self._context.wake.wait(min(left, LOOK_EVERY))
            self._context.wake.clear()

    def _end(self) -> None:
        """On the upkeep's thread: the last rows, and the row that says that this incarnation has ended."""
        for action in self.at_end:
            try:
                action()
            except Exception as problem:
                log.warning("job '%s' has ended, and then: %s", self._context.job, problem)
        try:
            if self.state is State.FINISHED:
                acknowledge(self._context.write_behind, "drain")
            self._context.write_behind.flush()
            reach(FailPoint.JOB_ENDED)
        except SparkExtError as problem:
            log.warning("the last history of job '%s' was not written: %s", self._context.job, problem)
        try:
            self._context.write_behind.end(self.state.value)
        except SparkExtError as problem:
            log.warning("the end of job '%s' was not recorded: %s", self._context.job, problem)


def _broken(problem: Exception, who: str) -> SparkExtError:
    """The error of a coordinator that has failed itself."""
    if isinstance(problem, SparkExtError):
        return problem.within(who)
    return TransientError(
        f"the coordinator failed: {type(problem).__name__}: {problem}",
        operator=who,
        kept="all committed epochs",
        do="run the job again; if it fails again, report the stack, which is in the log",
    )
