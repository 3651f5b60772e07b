"""What the coordinator's thread needs to know of control events, read by a worker's thread.

The offsets of an epoch are read as soon as it is planned, but only while there are events still to be obeyed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_ext.control import stamps
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.maintenance import DEFAULTS
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.ledger.view import event_of
from spark_ext.model.control import Event, Scope
from spark_ext.model.offsets import Json, SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.control.log import ControlLog
    from spark_ext.ledger import Ledger

SWEEP_EVERY: Final = 3600.0  # how often old stamps are deleted, s
MOST_EPOCHS: Final = 200  # epochs of a query in one poll: Spark keeps some hundred


@dataclass(frozen=True)
class PolledQuery:
    """What to read of one query."""

    uid: str
    checkpoint: str
    lineage: int
    after: int  # the last epoch that is known
    committed: int  # the newest committed epoch
    wanted: bool  # whether there are events that the query has still to obey


@dataclass(frozen=True)
class PlannedEpoch:
    """An epoch that is planned."""

    query: str
    epoch: int
    offsets: Mapping[str, SourceOffset]  # of the channel sources, by uid
    outcomes: Mapping[str, Mapping[str, Json]]  # what planners have recorded with it, by event id
    held: Mapping[str, frozenset[int]]  # by source, and "" for the query: sequences of aligned events not in force yet

    def holds(self, event: Event) -> bool:
        """Whether an event is aligned, and not in force yet for what it is addressed to."""
        addressed = event.target.uid if event.target.scope in (Scope.SOURCE, Scope.CHANNEL) else ""
        return event.sequence in self.held.get(addressed, ())


@dataclass(frozen=True)
class PollResult:
    """What was found."""

    events: tuple[Event, ...]  # new ones, in their order
    epochs: tuple[PlannedEpoch, ...]  # in the order of each query


def poll_pace(took: float) -> float:
    """The least time between the begins of two polls, s: as each may read a table, they take a tenth of the time."""
    return min(10 * took, 1.0)


class ControlPoll:
    """Reads. Safe for several threads, one at a time."""

    def __init__(self, ledger: Ledger, log: ControlLog, after: int) -> None:
        self._table, self._log, self._last = ledger.table(ControlEventRow), log, after
        self._read: int | None = None
        self._stamped: dict[str, dict[str, str]] = {}  # by query and source, the stamp that was last seen
        self._swept_at = time.monotonic()
        self._lock = threading.Lock()

    def poll(self, queries: Sequence[PolledQuery]) -> PollResult:
        """Poll once."""
        with self._lock:
            for query in queries:
                self._take_emitted(query)
            self._table.refresh()
            version, events = self._table.version, self._new_events()
            stamped = {uid: dict(seen) for uid, seen in self._stamped.items()}
            epochs: list[PlannedEpoch] = []
            for query in queries:
                if query.wanted or events:
                    epochs += self._epochs(query, stamped.setdefault(query.uid, {}))
            # Only now: a poll that fails has found nothing, and is repeated as a whole.
            self._read, self._stamped = version, stamped
            self._last = max([self._last, *(event.sequence for event in events)])
            self._sweep(queries)
            return PollResult(tuple(events), tuple(epochs))

    def _sweep(self, queries: Sequence[PolledQuery]) -> None:
        """Delete stamps that nobody can ask for any more, now and then."""
        if time.monotonic() - self._swept_at < SWEEP_EVERY:
            return
        self._swept_at = time.monotonic()
        for query in queries:
            with suppress(OSError):  # it is repeated
                stamps.sweep(query.checkpoint, DEFAULTS.keep_epochs.total_seconds())

    def _new_events(self) -> list[Event]:
        if self._table.version == self._read:
            return []
        rows = self._table.rows([("sequence", ">", self._last), ("status", "=", "accepted")])
        found = {row.sequence: event_of(row) for row in rows}
        return [found[sequence] for sequence in sorted(found)]

    def _epochs(self, query: PolledQuery, seen: dict[str, str]) -> list[PlannedEpoch]:
        log = SparkLog(query.checkpoint)
        out = []
        for epoch in range(max(query.after, query.committed - MOST_EPOCHS) + 1, query.committed + 2):
            logged = log.offsets(epoch)
            if logged is not None:
                offsets = source_offsets(logged)
                found = _outcomes(query, offsets, seen)
                out.append(PlannedEpoch(query.uid, epoch, offsets, found, _held(query, offsets)))
        return out

    def _take_emitted(self, query: PolledQuery) -> None:
        """Accept what functions have emitted in epochs that are committed."""
        there = [epoch for epoch in SparkLog(query.checkpoint).numbers("emitted") if epoch <= query.committed]
        if not there:
            return
        from spark_ext.control import emitted

        for epoch in sorted(there):
            reach(FailPoint.CONTROL_BEFORE_COLLECT)
            requests = emitted.collect(query.checkpoint, query.uid, epoch)
            if requests:
                self._log.accept_emitted(requests, f"control:emitted:{query.uid}:{query.lineage}", epoch)
            reach(FailPoint.CONTROL_COLLECTED)
            emitted.discard(query.checkpoint, epoch)


def _held(query: PolledQuery, offsets: Mapping[str, SourceOffset]) -> dict[str, frozenset[int]]:
    """The aligned events that are not in force in an epoch: for each source, and for the query."""
    names = {uid: offset.stamp for uid, offset in offsets.items()} | {"": stamps.newest(offsets.values())[1]}
    found = {uid: stamps.read(query.checkpoint, name).configuration.aligned for uid, name in names.items() if name}
    return {uid: frozenset(map(int, aligned)) for uid, aligned in found.items() if aligned}


def _outcomes(
    query: PolledQuery, offsets: Mapping[str, SourceOffset], seen: dict[str, str]
) -> dict[str, Mapping[str, Json]]:
    """What the stamps that are new in an epoch say of single events."""
    found: dict[str, Mapping[str, Json]] = {}
    for uid, offset in offsets.items():
        if offset.stamp and seen.get(uid) != offset.stamp:
            found.update(stamps.read(query.checkpoint, offset.stamp).outcomes)
            seen[uid] = offset.stamp
    return found
