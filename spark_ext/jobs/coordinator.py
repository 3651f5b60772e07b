"""The coordinator of a running job: one thread on the driver that looks at the facts and does what they call for.

It wakes when an event of Spark's arrives, and looks by itself many times a second; a dropped event costs latency,
never correctness. Queries run by themselves: nothing here is on the critical path of an epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.checkpoints.final import FinalCheckpoint, FinalizationTimeout, as_error
from spark_ext.control.events import acknowledge
from spark_ext.errors import FencedError, SparkExtError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger import maintain
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.masking import logger
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.lifecycle import State, job_state
from spark_ext.spark.query_events import Hint

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun

log = logger("spark_ext.job")

LOOK_EVERY = 0.02
"""Pause between two looks at Spark's commit logs, s: a few `stat` calls."""

FENCE_EVERY = 5.0
"""How often an idle incarnation checks whether it has been fenced off, s."""


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
        self._context = context
        self._ledger = ledger
        self._next_checkpoint = next_checkpoint
        self._finals = dict(finals)
        self._cut: dict[str, int] = {}
        self._cut_at = time.monotonic()
        self._fence_at = time.monotonic()
        self._maintained_at = time.monotonic()
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"spark-ext-coordinator-{context.job}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._settle()
        self._thread.start()

    def stop(self) -> None:
        """End all queries that run, without end of input."""
        self._stop.set()
        self._context.wake.set()

    def drain(self) -> None:
        """A drain has been written to the ledger: stop the queries whose sources cannot read it there."""
        self._drain.set()
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
            while not self.state.ended:
                self._context.wake.wait(LOOK_EVERY)
                self._context.wake.clear()
                self._tick(time.monotonic())
        except FencedError as fenced:
            self._abandon(_named(fenced, f"job '{self._context.job}'"))
        except Exception as problem:
            log.exception("the coordinator of job '%s' failed", self._context.job)
            self._abandon(as_error(problem, f"job '{self._context.job}'"))
        finally:
            self._close()

    def _tick(self, now: float) -> None:
        if self._stop.is_set():
            self._stop_all()
        for run in self.runs:
            if self._drain.is_set():
                run.request_drain()
            before = run.state
            run.tick(now)
            if run.state is State.CANCELED is not before and not self._stop.is_set() and self.failure is None:
                # Stopped from outside the job, as a newer incarnation in the same session does.
                self._check_fence()
            if run.state is State.FINISHING:
                self._finish(run)
        self._settle()
        self._context.write_behind.flush_due(now)
        if now - self._cut_at >= self._context.settings.checkpoint_interval / 1000:
            self._cut_at = now
            self._checkpoint()
        if now - self._fence_at >= FENCE_EVERY:
            self._fence_at = now
            self._check_fence()
        if now - self._maintained_at >= self._context.settings.maintenance_interval / 1000:
            self._maintained_at = now
            maintain(self._ledger, datetime.now(timezone.utc), fence=self._context.incarnation.fence)

    def _finish(self, run: QueryRun) -> None:
        final = self._finals.get(run.spec.uid)
        if final is None:
            final = FinalCheckpoint(run, run.spec, run.lineage, run.operators, self._context, self._take_id())
            self._finals[run.spec.uid] = final
        try:
            while not final.done and final.advance():
                pass
        except FencedError:
            raise
        except FinalizationTimeout as late:
            run.fail(late)
            run.stop_spark()
        except Exception as problem:
            run.fail(as_error(problem, run.who))
            run.stop_spark()
        if final.done:
            run.finished()

    def _settle(self) -> None:
        """Derive the job's state from its queries'; one that has failed for good ends the others at once."""
        failed = next((run for run in self.runs if run.state is State.FAILED), None)
        if failed is not None and self.failure is None:
            assert failed.error is not None
            self.failure = failed.error
            self._become(State.FAILING)
            self._stop_all()
        state = job_state(run.state for run in self.runs)
        if self.failure is not None and not all(run.state.ended for run in self.runs):
            state = State.FAILING
        self._become(state)

    def _become(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._context.write_behind.state("", state)

    def _stop_all(self) -> None:
        for run in self.runs:
            if not run.state.ended:
                run.request_stop()

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

    def _check_fence(self) -> None:
        newest = self._ledger.newest_incarnation()
        if newest is not None and newest > self._context.incarnation.number:
            raise FencedError(
                f"incarnation {newest} of the job has been started; this is {self._context.incarnation.number}",
                operator=f"job '{self._context.job}'",
                kept="all committed epochs; the newer incarnation continues from them",
                do="let the newer one run; nothing has to be done here",
            )

    # -- the end ------------------------------------------------------------------------------------------------------

    def _abandon(self, error: SparkExtError) -> None:
        """Stop everything; the ledger may have another owner by now."""
        self.failure = error
        for run in self.runs:
            if not run.state.ended:
                try:
                    run.stop_spark()
                except Exception:
                    log.exception("query '%s' could not be stopped", run.spec.uid)
                run.abandon(error)
        self.state = State.FAILED

    def _close(self) -> None:
        try:
            for run in self.runs:
                run.observe_late()
                run.release()
            if self.state is State.FINISHED:
                acknowledge(self._context.write_behind, "drain")
            self._context.write_behind.flush()
            reach(FailPoint.JOB_ENDED)
        except SparkExtError as problem:
            log.warning("the last history of job '%s' was not written: %s", self._context.job, problem)
        finally:
            self.done.set()


def _named(fenced: FencedError, who: str) -> FencedError:
    """The error of a ledger table, which knows its path only, with the job's name."""
    if who in fenced.operator:
        return fenced
    named = FencedError(fenced.what, operator=f"{who}, {fenced.operator}", kept=fenced.kept, do=fenced.do)
    named.__cause__ = fenced
    return named
