"""What a job has survived: executors that Spark has lost, and tasks that it has repeated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from spark_ext.failures.text import evidence_of_text

if TYPE_CHECKING:
    from spark_ext.observing.watchable import Watchable
    from spark_ext.queries.context import WatchContext
    from spark_ext.spark.watching.activity import Activity, ActivityReader, Executor, Job

EVERY: Final = 5.0
"""How often the executors are looked at, s."""

_SPARKS: Final = "org.apache.spark.SparkException"

PATIENCE: Final = 60.0
"""How long a Spark job may need for the repetition of its tasks, s."""

_INTENDED: Final = re.compile(r"killed by (?:the )?driver|idle|decommission|Cluster manager shut|scale", re.IGNORECASE)
"""Reasons for which Spark removes an executor on purpose."""


class Losses:
    """Looks at executors and repeated tasks; for the monitor's thread."""

    def __init__(
        self, context: WatchContext, runs: Callable[[], Sequence[Watchable]], reader: Callable[[], ActivityReader]
    ) -> None:
        self._context = context
        self._runs = runs
        self._read = reader
        self._at = 0.0
        self._first = True
        self._gone: set[str] = set()
        """Executors whose loss is known."""
        self._failed = 0
        """Attempts of tasks that had failed at the last look."""
        self._until = 0.0
        """Until when repeated tasks are looked for: those of a lost executor count for none."""
        self._jobs: set[int] = set()
        """Spark jobs whose repeated tasks are recorded."""

    def look(self, activity: Activity | None) -> None:
        """Look, if it is time.

        Args:
            activity: of the application, if it has just been read.
        """
        now = time.monotonic()
        if now < self._at:
            return
        self._at = now + EVERY
        executors = self._read().executors() if activity is None else activity.executors
        first, self._first = self._first, False
        for one in executors:
            if not one.active and one.id not in self._gone:
                self._gone.add(one.id)
                # What was lost before the job began is no incident of it.
                if not first and not _INTENDED.search(one.removed):
                    self._lost(one)
                    self._until = now + PATIENCE
        failed = sum(one.failed for one in executors)
        if failed != self._failed and not first:
            self._until = now + PATIENCE
        if now < self._until:
            for job in self._read().survived():
                if job.id not in self._jobs:
                    self._jobs.add(job.id)
                    self._repeated(job)
        self._failed = failed

    def _lost(self, executor: Executor) -> None:
        why = executor.removed or "Spark does not say why"
        # As in a failure that an executor's loss has led to: the rules know what its exit means.
        text = f"{_SPARKS}: ExecutorLostFailure (executor {executor.id} exited) Reason: {why}"
        evidence = evidence_of_text(text)
        assert evidence is not None
        labels = self._context.classifier.judge(evidence).labels
        what = f"executor {executor.id} on {executor.host} was lost: {why}"
        self._context.write_behind.incident(
            f"job '{self._context.job}'", "executor_lost", what, "Spark repeats its tasks", None, labels
        )

    def _repeated(self, job: Job) -> None:
        run = next((run for run in self._runs() if run.in_spark and str(run.in_spark.runId) == job.group), None)
        if run is None:
            return
        reason = self._read().reason(job.stages)
        # Spark names no class of its own for an executor that was lost.
        evidence = evidence_of_text(f"{_SPARKS}: {reason}" if reason.startswith("ExecutorLost") else reason)
        labels = {} if evidence is None else self._context.classifier.judge(evidence).labels
        first = reason.partition("\n")[0] or "Spark does not say why"
        attempts = "an attempt" if job.failed == 1 else f"{job.failed} attempts"
        self._context.write_behind.incident(
            run.who,
            "task_retried",
            f"{attempts} of a task failed: {first}",
            "Spark has repeated it",
            {"stack": reason} if reason else None,
            labels,
        )
