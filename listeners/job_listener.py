"""A streaming query listener that turns Spark's events into hints.

Spark's events come late (the last progress some 200 ms after the query has ended), may be dropped, and are delivered
on one thread that must not block. So nothing is decided by them: a hint carries figures for display and history, and
wakes whoever would have looked at the facts a moment later anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

log = logging.getLogger("spark_ext.listeners")


@dataclass(frozen=True)
class Hint:
    """What an event said about one query."""

    kind: str
    """`started`, `progress` or `terminated`."""
    query_id: str
    run_id: str
    epoch: int | None = None
    input_rows: int | None = None
    duration_ms: int | None = None
    """Of the whole epoch, planning and commit included."""
    state_rows: int | None = None
    """Rows in all state stores of the query."""


def hint_of(progress: StreamingQueryProgress) -> Hint:
    """What a progress says, whether it came by an event or from a query's recent ones."""
    return Hint(
        "progress",
        str(progress.id),
        str(progress.runId),
        progress.batchId,
        progress.numInputRows,
        progress.durationMs.get("triggerExecution"),
        sum(operator.numRowsTotal for operator in progress.stateOperators),
    )


class JobListener(StreamingQueryListener):
    """Calls `on_hint` for each event; never blocks and never raises.

        spark.streams.addListener(JobListener(print))

    Args:
        on_hint: called on Spark's listener thread: it has to return at once.
    """

    def __init__(self, on_hint: Callable[[Hint], None]) -> None:
        super().__init__()
        self._on_hint = on_hint

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query has started."""
        self._give(Hint("started", str(event.id), str(event.runId)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """An epoch is done."""
        self._give(hint_of(event.progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to tell."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""
        self._give(Hint("terminated", str(event.id), str(event.runId)))

    def _give(self, hint: Hint) -> None:
        try:
            self._on_hint(hint)
        except Exception:
            log.exception("a hint of query %s was lost", hint.query_id)
