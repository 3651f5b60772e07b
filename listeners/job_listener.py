"""A streaming query listener that turns Spark's events into hints.

Spark's events come late (the last progress some 200 ms after the query has ended), may be dropped, and are delivered
on one thread that must not block. So nothing is decided by them: a hint carries figures for display and history, and
makes the coordinator look at the facts now rather than a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spark_ext.masking import logger
from spark_ext.spark.backend.listeners import InJvm, wrapped
from spark_ext.spark.watching.query_events import Hint, hint_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent
    from pyspark.sql.streaming.query import StreamingQueryManager

log = logger("spark_ext.listeners")


class JobListener(InJvm):
    """Calls `on_hint` for each event; never blocks and never raises.

        spark.streams.addListener(JobListener(print))

    Args:
        on_hint: called on Spark's listener thread: it has to return at once.
    """

    def __init__(self, on_hint: Callable[[Hint], None]) -> None:
        super().__init__()
        self._on_hint = on_hint

    def when_added(self, streams: StreamingQueryManager | None) -> Any:
        """See `InJvm`."""
        return wrapped(self) if self.in_jvm is None else self.in_jvm

    def started(self, query_id: str, run_id: str) -> None:
        """A query has started."""
        self._give(lambda: Hint("started", query_id, run_id))

    def progressed(self, report: str) -> None:
        """An epoch is done."""
        self._give(lambda: hint_of(report))

    def terminated(self, query_id: str, run_id: str) -> None:
        """A query has ended."""
        self._give(lambda: Hint("terminated", query_id, run_id))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """As `started`, with pyspark's event."""
        self.started(str(event.id), str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """As `progressed`, with pyspark's event."""
        self.progressed(event.progress.json)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """As `terminated`, with pyspark's event."""
        self.terminated(str(event.id), str(event.runId))

    def _give(self, hint: Callable[[], Hint]) -> None:
        try:
            self._on_hint(hint())
        except Exception:
            log.exception("an event of a query was lost")
