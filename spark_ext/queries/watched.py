"""The execution state of one query: what it does, finer than its life cycle, and its record in the ledger."""

from __future__ import annotations

import queue
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.failures.labels import FailureType, Origin
from spark_ext.model.execution import Look, Progress, Shown, execution_state
from spark_ext.model.lifecycle import State

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext


class WatchedQuery:
    """What a query does, from its life cycle, its commits, and looks at Spark that another thread takes.

    Its methods are for the thread that decides, except `looked`.

    Args:
        uid: the query's.
        who: job and query, for messages.
        context: the job's.
    """

    def __init__(self, uid: str, who: str, context: JobContext) -> None:
        self._uid = uid
        self._who = who
        self._context = context
        self._monitored = bool(context.settings.monitor_interval)
        self._looks: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._paused = False
        self.incident: str | None = None
        """That led to the present state of the life cycle."""
        self.shown = Shown(State.CREATED)
        """What it does."""
        self.progress = self._of_start(stateful=False)
        """What is known of its Spark query."""
        self.moved_at = time.monotonic()
        """When it was last started, or has committed an epoch, s, monotonic."""

    def had_finished(self) -> None:
        """It had finished before this start: there is nothing to record."""
        self.shown = Shown(State.FINISHED)

    def launched(self, *, stateful: bool) -> None:
        """Spark has started it.

        Args:
            stateful: whether it continues from state.
        """
        self.progress = self._of_start(stateful=stateful)
        self.moved_at = time.monotonic()
        while not self._looks.empty():
            self._looks.get()  # at what ran before

    def _of_start(self, *, stateful: bool) -> Progress:
        # Without looks at it: that it runs.
        return Progress(stateful=stateful, settled=not self._monitored)

    def committed(self) -> None:
        """It has committed an epoch."""
        self.progress = self.progress.committed()
        self.moved_at = time.monotonic()

    def looked(self, look: Look) -> None:
        """Take what Spark says of it at one moment; for any thread."""
        self._looks.put(look)

    def take(self, *, running: bool, paused: bool) -> None:
        """Take in the looks so far.

        Args:
            running: whether it is RUNNING in its life cycle; looks at it are of no use otherwise.
            paused: whether a control event keeps its sources from reading.
        """
        self._paused = paused
        while not self._looks.empty():
            look = self._looks.get()
            if running:
                self.progress = self.progress.after(look)

    def show(self, state: State, reason: str, *, starting: bool) -> None:
        """Record what it does, if that has changed.

        Args:
            state: of its life cycle.
            reason: why it entered that.
            starting: whether Spark is asked to start it.
        """
        now = execution_state(state, reason, self.progress, starting=starting and self._monitored, paused=self._paused)
        now = self._with_incident(now)
        if (now.state, now.incident) != (self.shown.state, self.shown.incident):
            self.shown = now
            self._context.write_behind.state(self._uid, now.state, now.reason, now.since, now.incident)

    def _with_incident(self, now: Shown) -> Shown:
        if now.state is not State.SCHEDULING:
            return replace(now, incident=self.incident)
        if self.shown.state is State.SCHEDULING:
            return replace(now, incident=self.shown.incident)
        since = now.since or datetime.now(timezone.utc)
        found = self._context.write_behind.incident(
            self._who,
            "scheduling",
            now.reason,
            "waiting for a slot",
            {"since": since.isoformat()},
            {"type": FailureType.SYSTEM.value, "origin": Origin.SPARK.value},
        )
        return replace(now, incident=found)
