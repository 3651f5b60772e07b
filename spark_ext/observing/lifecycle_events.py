"""Hands lifecycle events on to the listeners of a running job, made of the rows that it records anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.ledger.identity import in_order
from spark_ext.ledger.schema import JobRow, Row
from spark_ext.masking import logger
from spark_ext.model.latency import Marker
from spark_ext.views.events import EventMaker, of_marker

if TYPE_CHECKING:
    from spark_ext.incidents.dispatch import Dispatcher
    from spark_ext.ledger.identity import Incarnation
    from spark_ext.queries.watched import Watchable

log = logger("spark_ext.job")

_BETWEEN = frozenset({"restoring", "restored", "rescaled"})  # events of an incarnation in which no job runs


class LifecycleEvents:
    """Makes events of rows, and queues them for the listeners. Safe for several threads; waits for nothing."""

    def __init__(
        self, incarnation: Incarnation, dispatcher: Dispatcher, watched: Callable[[], Sequence[Watchable]]
    ) -> None:
        self._incarnation, self._dispatcher, self._watched = incarnation, dispatcher, watched
        self._maker = EventMaker(self._open_sources)
        self._lock = threading.Lock()
        self._failed = False

    def tap(self, row: Any) -> None:
        """Take a row on its way to the ledger, or a latency marker that has passed a commit. Never raises."""
        try:
            with self._lock:
                self._take(row)
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception(
                    "no lifecycle event could be made of a row of job '%s'; further failures are not logged",
                    self._incarnation.job,
                )

    def begin(self, rows: Sequence[JobRow]) -> None:
        """Take the rows of `jobs`: listeners are told of those that came after the last start that ran the job."""
        own = self._incarnation.number
        between = {row.incarnation for row in rows if row.event in _BETWEEN}
        last = max(
            (row.incarnation for row in rows if row.incarnation < own and row.incarnation not in between), default=0
        )
        for row in in_order(rows):
            if last < row.incarnation <= own:
                self.tap(row)

    def _take(self, row: Any) -> None:
        if isinstance(row, Marker):
            at = datetime.fromtimestamp(row.arrived_at / 1000, timezone.utc)
            self._dispatcher.tell(of_marker(row, at, self._incarnation.number))
        elif isinstance(row, Row):
            for event in self._maker.take(row.table, vars(row)):
                self._dispatcher.tell(event)

    def _open_sources(self, query: str) -> frozenset[str]:
        return frozenset().union(*(run.open_sources for run in self._watched() if run.uid == query))
